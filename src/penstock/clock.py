"""The shard's clock.

`now()` is wall time in µs: read once when the clock starts, then carried on by the monotonic clock, so a jump of the
machine's clock touches neither due times nor leases. Drift against the wall clock is slewed, never stepped: it runs
slower for a while, not back. `monotonic()` is for leases and waits, in µs too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

SLEW_SHARE = 0.01  # at most 1 % faster or slower than real time while catching up
LOOK_NS = 1_000_000_000  # how long it goes on before the wall clock is looked at again
BLINK_NS = 1_000_000  # a look that took longer was interrupted, and says little
NEAR_NS = 10_000  # as close to the wall clock as it need be: two clocks are never read at the same instant

_LOOKING = threading.Lock()


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
    """Wall time at the start plus monotonic time, slewed towards the wall clock.

    `wall_ns` is another wall clock than this machine's.
    """

    def __init__(self, wall_ns: Callable[[], int] | None = None) -> None:
        self._wall_ns = wall_ns or time.time_ns
        # Until the next look: (since when, wall time less monotonic time then, what that gains per second), in ns.
        self._course = (time.monotonic_ns(), self._wall_ns() - time.monotonic_ns(), 0)

    def now(self) -> int:
        return self.read()[0]

    def monotonic(self) -> int:
        return time.monotonic_ns() // 1000

    def read(self) -> tuple[int, int]:
        mono = time.monotonic_ns()
        since, offset, gain = self._course
        if mono - since > LOOK_NS:
            since, offset, gain = self._look(mono)
        return (mono + offset + (mono - since) * gain // LOOK_NS if gain else mono + offset) // 1000, mono // 1000

    def on_jump(self, wake: Callable[[], None]) -> None:
        return None

    def _look(self, mono: int) -> tuple[int, int, int]:
        """Set a course towards the wall clock, from where this one is."""
        since, offset, gain = course = self._course
        if not _LOOKING.acquire(blocking=False):  # somebody else does, or did in the process that this one comes from
            return since, offset + gain, 0
        try:
            if self._course is course:
                before, wall, after = time.monotonic_ns(), self._wall_ns(), time.monotonic_ns()
                skew = wall - (before + after) // 2 - offset - gain
                if after - before > BLINK_NS or abs(skew) <= NEAR_NS:
                    skew = 0
                ahead = max(0, _within(skew, mono - since - LOOK_NS))  # what it would have gained since
                self._course = (mono, offset + gain + ahead, _within(skew - ahead, LOOK_NS))
            return self._course
        finally:
            _LOOKING.release()


def _within(skew: int, elapsed: int) -> int:
    """As much of a skew as may be made up for in a time."""
    most = int(elapsed * SLEW_SHARE)
    return max(-most, min(most, skew))


class ManualClock:
    """A clock that moves only when the program moves it; both of its hands move together."""

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
