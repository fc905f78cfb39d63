"""Leases are extended when a third of their time is over, for as long as one of their runs is not told.

A lease that the broker does not know any more is lost: whoever has its tasks now, it is not us. While no broker answers
it is tried again and again: it may be back in time. A run begins only under a lease that surely lasts; one that may be
over, because this process or its loop stood still, is extended first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import structlog

from penstock.client.session import AsyncSession
from penstock.clock import Clock
from penstock.errors import LeaseLost, PenstockError
from penstock.worker.runs import Lease
from penstock.worker.ticking import NEVER, Spawner, Ticker

log: Any = structlog.stdlib.get_logger("penstock.worker")

AGAIN_US: Final = 1_000_000  # after an error
SURE_SHARE: Final = 0.9  # of a lease; what is left then is too short to begin anything


def sure_us(seconds: float) -> int:
    """How long a lease can be relied on from the moment it was asked for, µs."""
    return round(seconds * 1_000_000 * SURE_SHARE)


class Extending:
    """See the module's rules. `lost` is called with a lease that is gone, `confirmed` when one was extended."""

    def __init__(
        self,
        session: AsyncSession,
        clock: Clock,
        ticker: Ticker,
        spawner: Spawner,
        seconds: float,
        lost: Callable[[Lease], None],
        confirmed: Callable[[], None],
    ) -> None:
        self._session = session
        self._clock = clock
        self._ticker = ticker
        self._spawner = spawner
        self._seconds = seconds
        self._third_us = round(seconds * 1_000_000 / 3)
        self._lost = lost
        self._confirmed = confirmed
        self._held: deque[tuple[int, Lease]] = deque()  # in the order in which they are due

    @property
    def next_at(self) -> int:
        while self._held and not self._held[0][1].left:
            self._held.popleft()
        return self._held[0][0] if self._held else NEVER

    def watch(self, lease: Lease) -> None:
        """Keep a lease that has just been given, or extended."""
        lease.due = self._clock.monotonic() + self._third_us
        self._held.append((lease.due, lease))
        self._ticker.wake(lease.due)

    def confirm(self, lease: Lease) -> None:
        """Extend a lease now, since it may be over: nothing of it begins until that is known."""
        if lease.left and not lease.is_extending:
            lease.is_extending = True
            self._spawner.spawn(self._extend(lease))

    def tick(self, now: int) -> None:
        while self._held and self._held[0][0] <= now:
            at, lease = self._held.popleft()
            if at == lease.due:  # not extended meanwhile
                self.confirm(lease)

    async def _extend(self, lease: Lease) -> None:
        asked_at = self._clock.monotonic()
        try:
            await self._session.extend(lease.nonce, self._seconds)
        except LeaseLost:
            if lease.left:
                lease.is_lost = True
                self._lost(lease)
        except PenstockError as error:
            log.warning("a lease could not be extended yet", queue=lease.queue, error=str(error))
            lease.due = self._clock.monotonic() + min(AGAIN_US, self._third_us)
            self._held.appendleft((lease.due, lease))
            self._ticker.wake(lease.due)
        else:
            lease.sure_until = asked_at + sure_us(self._seconds)
            self.watch(lease)
            self._confirmed()
        finally:
            lease.is_extending = False
