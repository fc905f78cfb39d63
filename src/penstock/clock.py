"""The shard's clock.

`now()` is wall time in µs: read once when the clock starts, then carried on by the monotonic clock, so a jump of the
machine's clock touches neither due times nor leases. Drift against the wall clock is slewed, never stepped.
`monotonic()` is for leases and waits, in µs too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

SLEW_SHARE = 0.01  # at most 1 % faster or slower than real time while catching up


class Clock(Protocol):
    """Where the shard gets its time; tests pass a `ManualClock`."""

    def now(self) -> int:
        """Wall time, µs since 1970 UTC, never running backwards."""

    def monotonic(self) -> int:
        """Monotonic time, µs."""

    def read(self) -> tuple[int, int]:
        """Both at once: (now, monotonic)."""

    def on_jump(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever time moves by other means than waiting (only a manual clock does)."""


class SystemClock:
    """Wall time at the start plus monotonic time, slewed towards the wall clock."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self._checked_ns = time.monotonic_ns()

    def now(self) -> int:
        mono = time.monotonic_ns()
        if mono - self._checked_ns > 1_000_000_000:
            self._slew(mono)
        return (mono + self._offset_ns) // 1000

    def monotonic(self) -> int:
        return time.monotonic_ns() // 1000

    def read(self) -> tuple[int, int]:
        mono = time.monotonic_ns()
        if mono - self._checked_ns > 1_000_000_000:
            self._slew(mono)
        return (mono + self._offset_ns) // 1000, mono // 1000

    def on_jump(self, wake: Callable[[], None]) -> None:
        return None

    def _slew(self, mono: int) -> None:
        step_max = int((mono - self._checked_ns) * SLEW_SHARE)
        skew = time.time_ns() - mono - self._offset_ns
        self._offset_ns += max(-step_max, min(step_max, skew))
        self._checked_ns = mono


class ManualClock:
    """A clock that moves only when told; both of its hands move together."""

    def __init__(self, start_us: int = 1_750_000_000_000_000) -> None:
        self._now = start_us
        self._lock = threading.Lock()
        self._wakes: list[Callable[[], None]] = []

    def now(self) -> int:
        return self._now

    def monotonic(self) -> int:
        return self._now

    def read(self) -> tuple[int, int]:
        return self._now, self._now

    def on_jump(self, wake: Callable[[], None]) -> None:
        self._wakes.append(wake)

    def advance(self, seconds: float) -> None:
        """Move time forward and wake whoever waits for it."""
        with self._lock:
            self._now += round(seconds * 1_000_000)
        for wake in list(self._wakes):
            wake()
