"""Leases of a worker: requested as there is room for tasks, and extended while their tasks run.

A worker waits at the broker, so that it gets a task the moment there is one. Of several queues, those that have tasks
take turns; the others are waited for. A lease is extended when a third of its time is over, as long as one of its runs
is not reported. A lease that the broker does not know any more is lost: somebody else has its tasks. A run starts only
under a lease that surely lasts; one that may have expired, because this process or its loop stood still, is extended
first. While no broker answers everything is retried, with random pauses; an access error ends the worker.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any, Final

import structlog

from penstock import operations as ops
from penstock.client.session import AsyncSession
from penstock.clock import Clock
from penstock.errors import AccessError, Closed, LeaseLost, PenstockError, QueueExists, QueueNotFound, ServerError
from penstock.model import DEFAULT_GROUP
from penstock.requests import LeaseRequest
from penstock.worker.dispatcher import Desk
from penstock.worker.event_loop import NEVER, Spawner, Ticker
from penstock.worker.runs import Lease, sure_us
from penstock.worker.settings import Settings

log: Any = structlog.stdlib.get_logger("penstock.worker")

RETRY_US: Final = 1_000_000  # after an error


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
            lease.due = self._clock.monotonic() + min(RETRY_US, self._third_us)
            self._held.appendleft((lease.due, lease))
            self._ticker.wake(lease.due)
        else:
            lease.sure_until = asked_at + sure_us(self._seconds)
            self.watch(lease)
            self._confirmed()
        finally:
            lease.is_extending = False


WAIT_SECONDS: Final = 30.0
PAUSE_SECONDS: Final = 0.05
PAUSE_SECONDS_MAX: Final = 2.0


class Leasing:
    """See the module's rules. `taken` is called with every lease."""

    def __init__(
        self,
        session: AsyncSession,
        desk: Desk,
        settings: Settings,
        rng: random.Random,
        taken: Callable[[Lease], None],
    ) -> None:
        self._session = session
        self._desk = desk
        self._settings = settings
        self._rng = rng
        self._taken = taken
        self._pause = PAUSE_SECONDS
        # A lease is counted from when it was asked for: one that was waited for must still be worth something.
        self._wait_seconds = min(WAIT_SECONDS, settings.lease_seconds / 2)

    async def run(self) -> None:
        """Until it is cancelled; or, when draining, until there is nothing left to do. Raises what cannot be mended."""
        if self._settings.is_draining:
            await self._drain()
        elif len(self._settings.queues) == 1:
            await self._serve_one(self._settings.queues[0])
        else:
            await self._serve_many()

    async def _serve_one(self, queue: str) -> None:
        while True:
            await self._room([queue])
            await self._patiently(self._ask(queue, self._desk.wanted(queue), self._wait_seconds), queue)

    async def _serve_many(self) -> None:
        """Queues that may have something, in the order of their turns; each of the others is waited for."""
        async with asyncio.TaskGroup() as group:
            ready = deque(self._settings.queues)

            async def wait_for(queue: str) -> None:
                await self._patiently(self._ask(queue, max(1, self._desk.wanted(queue)), self._wait_seconds), queue)
                ready.append(queue)
                self._desk.changed.set()

            while True:
                queue = await self._room(ready)
                ready.remove(queue)
                if await self._patiently(self._ask(queue, self._desk.wanted(queue), 0.0), queue):
                    ready.append(queue)
                else:
                    group.create_task(wait_for(queue))

    async def _room(self, queues: Collection[str]) -> str:
        """The first of some queues for which there is room, once there is."""
        changed = self._desk.changed
        while True:
            for queue in queues:
                if self._desk.wanted(queue):
                    return queue
            changed.clear()
            await changed.wait()

    async def _patiently(self, asking: Coroutine[Any, Any, bool], queue: str) -> bool:
        """The answer; after an error that may pass, False after a while."""
        try:
            found = await asking
        except (AccessError, Closed):
            raise
        except PenstockError as error:
            level = log.warning if isinstance(error, ServerError) else log.error
            level("nothing can be leased yet", queue=queue, error=str(error))
            await asyncio.sleep(self._pause * self._rng.uniform(0.5, 1.0))
            self._pause = min(self._pause * 2, PAUSE_SECONDS_MAX)
            return False
        self._pause = PAUSE_SECONDS
        return found

    async def _drain(self) -> None:
        """What is there, and what that leads to, until a look at every queue has found nothing."""
        desk = self._desk
        while True:
            was_idle = desk.is_idle
            desk.changed.clear()
            found = [await self._ask(queue, desk.wanted(queue), 0.0) for queue in self._settings.queues]
            if not any(found):
                if was_idle:
                    return
                await desk.changed.wait()

    async def _ask(self, queue: str, wanted: int, waits: float) -> bool:
        """Whether there was something."""
        if not wanted:
            return False
        request = LeaseRequest(wanted, self._settings.lease_seconds, self._settings.worker_id)
        asked_at = self._desk.now()
        try:
            reply = await self._session.lease(queue, DEFAULT_GROUP, request, waits)
        except QueueNotFound:
            await self._make(queue)
            return False
        if reply.count:
            self._taken(self._desk.accept(reply, self._session.loaded(reply.pieces), asked_at))
        return bool(reply.count)

    async def _make(self, queue: str) -> None:
        with suppress(QueueExists):  # somebody else was quicker
            await self._session.execute(ops.CreateQueue(queue, {}, exist_ok=True))
            log.info("queue made", queue=queue)
