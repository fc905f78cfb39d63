"""The clock of a shard in PostgreSQL: the server's time, and leases whose time stops while the server stalls.

Nodes need not agree about the time. An owner starts from the time of the server, and never before the newest message,
so that time does not go back at a takeover. Then it follows the time of the server, which every heartbeat reads; the
wall clock of the node is not used.

Consumers cannot settle while the server does not answer, and must not lose their leases for it: `Stalls` adds up how
long it stalled, and `StoreClock.monotonic`, by which leases and memberships end, is behind by that much.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from penstock.clock import Clock, SystemClock

STALE_US: Final = 1_500_000  # without a commit or a heartbeat for this long, an owner may have been deposed
STALL_US: Final = 250_000  # a commit that takes longer stops the clock of leases for the rest
NEVER: Final = 1 << 62


class ServerTime:
    """The wall clock of the server, as last read, carried on by the monotonic clock of this node."""

    def __init__(self, server_us: int, seen_at: int) -> None:
        self._monotonic = SystemClock().monotonic
        self.saw(server_us, seen_at)

    def saw(self, server_us: int, seen_at: int) -> None:
        """The server's clock was read; `seen_at` is when, by the monotonic clock."""
        self._ahead_us = server_us - seen_at

    def wall_ns(self) -> int:
        return (self._monotonic() + self._ahead_us) * 1000


class StoreClock:
    """Another clock, never before the newest message. `stalled_us` is how long the store has stalled until now."""

    def __init__(self, clock: Clock) -> None:
        self.inner = clock
        self._ahead_us = 0
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


class Stalls:
    """How long a store has stalled: a commit waited for over `STALL_US`, or nothing was heard for over `STALE_US`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.is_watched = False  # heartbeats are sent: their absence means something
        self._alive_at = clock.monotonic()  # when the last commit or heartbeat succeeded
        self._waits_since: int | None = None  # when the commit was sent that is not answered yet
        self._stalled_us = 0  # the sum of all stalls up to `_counted_at`
        self._counted_at = 0
        self._counting = threading.Lock()

    def commit_waits(self) -> None:
        """A commit is sent, or sent again."""
        if self._waits_since is None:
            self._waits_since = self._clock.monotonic()

    def commit_answered(self) -> int:
        """The commit succeeded; returns the current time of the clock of leases."""
        now = self._clock.monotonic()
        self._count(now)
        self._alive_at, self._waits_since = max(self._alive_at, now), None
        return now - self._stalled_us

    def alive(self, at: int | None = None) -> None:
        """A heartbeat succeeded in this term; `at` is when it was sent."""
        now = self._clock.monotonic()
        self._count(now)
        self._alive_at = max(self._alive_at, now if at is None else at)

    def is_stale(self) -> bool:
        """Whether another node may have taken over without this one knowing."""
        return self.is_watched and self._clock.monotonic() - self._alive_at > STALE_US

    def stalled_us(self) -> int:
        """The sum of all stalls until now. It never decreases."""
        return self._until(self._clock.monotonic())

    def _until(self, now: int) -> int:
        return self._stalled_us + max(0, now - max(self._begins(), self._counted_at))

    def _begins(self) -> int:
        """When the current stall began, or when one will begin unless the store answers."""
        since = self._waits_since
        waits = NEVER if since is None else since + STALL_US
        return min(waits, self._alive_at + STALE_US) if self.is_watched else waits

    def _count(self, now: int) -> None:
        """Add a stall that ends now to the sum."""
        if self._begins() < now:
            with self._counting:
                self._stalled_us, self._counted_at = self._until(now), now
