"""The clock of a shard in PostgreSQL: the store's time, and no time for leases while the store is away.

Nodes need not agree about the time. An owner starts from the time of the server, and never before the newest message,
so that time does not run back at a takeover. `monotonic`, by which leases and memberships end, stands still while a
commit stalls: consumers cannot settle then, and must not lose their messages for it.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.clock import Clock


class StoreClock:
    """Another clock, moved to the time of the store. `stalled_us` is how long the store has stalled until now."""

    def __init__(self, clock: Clock, ahead_us: int) -> None:
        self.inner = clock
        self._ahead_us = ahead_us
        self.stalled_us: Callable[[], int] = lambda: 0

    def now(self) -> int:
        return self.inner.now() + self._ahead_us

    def monotonic(self) -> int:
        return self.inner.monotonic() - self.stalled_us()

    def read(self) -> tuple[int, int]:
        now, monotonic = self.inner.read()
        return now + self._ahead_us, monotonic - self.stalled_us()

    def on_jump(self, wake: Callable[[], None]) -> None:
        self.inner.on_jump(wake)

    def start_at(self, instant: int) -> None:
        """Be no earlier than this from now on."""
        self._ahead_us += max(0, instant - self.now())
