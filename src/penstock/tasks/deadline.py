"""How long somebody waits for a result."""

from __future__ import annotations

from penstock import limits
from penstock.clock import Clock
from penstock.model import check_seconds


class Deadline:
    """How long to wait, in all and at a time: one request waits a limited time."""

    def __init__(self, clock: Clock, timeout: float | None) -> None:
        self._clock = clock
        self._at = None
        if timeout is not None:
            self._at = clock.monotonic() + round(check_seconds(timeout, "timeout") * 1_000_000)

    def left(self) -> float | None:
        return None if self._at is None else max(0.0, (self._at - self._clock.monotonic()) / 1e6)

    def slice(self) -> float:
        left = self.left()
        return limits.wait_seconds_max if left is None else min(limits.wait_seconds_max, left)

    def is_over(self) -> bool:
        return self.left() == 0
