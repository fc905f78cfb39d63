"""How long a store has stalled: leases do not run out meanwhile, and nothing is answered from memory for long.

A store stalls while a commit waits for longer than `STALL_US`, and while nothing is heard of it for longer than
`STALE_US`: consumers cannot settle then. The stalls are added up, and the clock of leases is behind by that much.
"""

from __future__ import annotations

import threading
from typing import Final

from penstock.clock import Clock

STALE_US: Final = 1_500_000  # without a commit or a heartbeat for this long an owner may have been deposed
STALL_US: Final = 250_000  # a commit that takes longer stops the clock of leases for the rest
NEVER: Final = 1 << 62


class Stalls:
    """Of one store, by a clock. A commit is noted in `_waits_since`, an answer by `alive`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.is_watched = False  # somebody sends heartbeats: their absence means something
        self._alive_at = clock.monotonic()  # of the last commit or heartbeat
        self._waits_since: int | None = None  # since when a commit waits
        self._stalled_us = 0  # of stalls, up to the instant that follows
        self._stalls_counted_at = 0
        self._counting = threading.Lock()

    def is_stale(self) -> bool:
        """Whether another node may have taken over without this one knowing."""
        return self.is_watched and self._clock.monotonic() - self._alive_at > STALE_US

    def alive(self, at: int | None = None) -> None:
        """The store has answered in this term; `at` is when it was asked, by the clock of the journal."""
        now = self._clock.monotonic()
        if self._stall_begins() < now:
            self._count_stall(now)
        self._alive_at = max(self._alive_at, now if at is None else at)

    def stalled_us(self) -> int:
        """How long the store has stalled, all together, until now. It never shrinks."""
        return self._stalled_until(self._clock.monotonic())

    def _stalled_until(self, now: int) -> int:
        return self._stalled_us + max(0, now - max(self._stall_begins(), self._stalls_counted_at))

    def _stall_begins(self) -> int:
        """Since when the store stalls, or when it will count as stalled: a commit waits, or nothing is heard of it."""
        since = self._waits_since
        waits = NEVER if since is None else since + STALL_US
        return min(waits, self._alive_at + STALE_US) if self.is_watched else waits

    def _count_stall(self, now: int) -> None:
        with self._counting:
            self._stalled_us, self._stalls_counted_at = self._stalled_until(now), now
