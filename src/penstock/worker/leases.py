"""Leases of a worker: requested as there is room for tasks, and extended while their tasks run.

A worker waits at the broker, so that it gets a task the moment there is one: one request for all its queues, in which
those that have tasks take turns. A lease is extended when a third of its time is over, as long as one of its runs
is not reported. A lease that the broker does not know any more is lost: somebody else has its tasks. A run starts only
under a lease that surely lasts; one that may have expired, because this process or its loop stood still, is extended
first. While no broker answers everything is retried, with random pauses; an access error ends the worker, and so does
a broker that is too old for it. A queue that does not exist is created, or awaited by a worker that may not create it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from penstock import operations as ops
from penstock.client.session import AsyncSession
from penstock.clock import Clock
from penstock.errors import (
    AccessError,
    BadRequest,
    Closed,
    LeaseLost,
    NotAuthorised,
    PenstockError,
    QueueExists,
    QueueNotFound,
    ServerError,
)
from penstock.model import DEFAULT_GROUP
from penstock.requests import LeaseRequest, QueueChoice
from penstock.worker.dispatcher import Dispatcher
from penstock.worker.event_loop import NEVER, Spawner, Ticker
from penstock.worker.runs import Lease, sure_us
from penstock.worker.settings import Settings

logger: Final = logging.getLogger("penstock.worker")

RETRY_US: Final = 1_000_000  # after an extension that failed
WAIT_SECONDS: Final = 30.0
PAUSE_SECONDS: Final = 0.05
PAUSE_SECONDS_MAX: Final = 2.0
ABSENT_SECONDS: Final = 1.0  # between two looks for a queue that somebody else must create


class LeaseExtender:
    """Extends leases in time, and notifies the dispatcher of those that are lost."""

    def __init__(
        self,
        session: AsyncSession,
        clock: Clock,
        ticker: Ticker,
        spawner: Spawner,
        seconds: float,
        dispatcher: Dispatcher,
    ) -> None:
        self._session = session
        self._clock = clock
        self._ticker = ticker
        self._spawner = spawner
        self._seconds = seconds
        self._third_us = round(seconds * 1_000_000 / 3)
        self._dispatcher = dispatcher
        dispatcher.extend_lease = self.extend
        self._held: deque[tuple[int, Lease]] = deque()  # in the order in which they are due

    @property
    def next_at(self) -> int:
        while self._held and not self._held[0][1].unreported:
            self._held.popleft()
        return self._held[0][0] if self._held else NEVER

    def watch(self, lease: Lease) -> None:
        """Keep a lease that has just been given or extended."""
        lease.due = self._clock.monotonic() + self._third_us
        self._held.append((lease.due, lease))
        self._ticker.wake(lease.due)

    def extend(self, lease: Lease) -> None:
        """Extend a lease now. When it may have expired, the dispatcher starts nothing of it until it is extended."""
        if lease.unreported and not lease.is_extending:
            lease.is_extending = True
            self._spawner.spawn(self._extend(lease))

    def tick(self, now: int) -> None:
        while self._held and self._held[0][0] <= now:
            at, lease = self._held.popleft()
            if at == lease.due:  # not extended meanwhile
                self.extend(lease)

    async def _extend(self, lease: Lease) -> None:
        requested_at = self._clock.monotonic()
        try:
            await self._session.extend(lease.nonce, self._seconds)
        except LeaseLost:
            if lease.unreported:
                lease.is_lost = True
                self._dispatcher.lease_lost(lease)
        except PenstockError as error:
            extra = {"queue": lease.queue, "error": str(error)}
            logger.warning("a lease could not be extended yet", extra=extra)
            lease.due = self._clock.monotonic() + min(RETRY_US, self._third_us)
            self._held.appendleft((lease.due, lease))
            self._ticker.wake(lease.due)
        else:
            lease.sure_until = requested_at + sure_us(self._seconds)
            self.watch(lease)
            self._dispatcher.pump()
        finally:
            lease.is_extending = False


class LeaseLoop:
    """Requests leases. `on_lease` is called with every lease that has tasks."""

    def __init__(
        self,
        session: AsyncSession,
        dispatcher: Dispatcher,
        settings: Settings,
        rng: random.Random,
        on_lease: Callable[[Lease], None],
    ) -> None:
        self._session = session
        self._dispatcher = dispatcher
        self._settings = settings
        self._rng = rng
        self._on_lease = on_lease
        self._pause = PAUSE_SECONDS
        self._awaited: set[str] = set()  # queues that this worker may not create
        self._request: asyncio.Future[bool] | None = None
        # A lease is counted from its request: one that was waited for must still be worth something.
        self._wait_seconds = min(WAIT_SECONDS, settings.lease_seconds / 2)

    async def run(self) -> None:
        """Run until cancelled; when draining, until there is nothing left to do. Raises what is not retryable."""
        if self._settings.is_draining:
            await self._drain()
        else:
            await self._serve()

    async def _serve(self) -> None:
        """One request at a time, over all queues for which there is room."""
        changed = self._dispatcher.changed
        while True:
            queues = self._queues_with_room()
            if not queues:
                changed.clear()
                await changed.wait()
                continue
            self._request = asyncio.ensure_future(self._retried(queues))
            try:
                if len(queues) == len(self._settings.queues):
                    await self._request
                else:
                    await self._until_there_is_room(self._request, queues)
            except asyncio.CancelledError:
                if self._dispatcher.is_open or _is_cancelled():
                    raise
            finally:
                self._request.cancel()

    def interrupt(self) -> None:
        """End the request that waits: the worker shall take no more tasks for now."""
        if self._request is not None:
            self._request.cancel()

    async def _until_there_is_room(self, request: asyncio.Future[Any], queues: list[str]) -> None:
        """Wait for the reply, or until there is room for tasks of more queues: then those are polled too."""
        try:
            await self._done_or_room(request, queues)
        finally:
            request.cancel()

    async def _done_or_room(self, request: asyncio.Future[Any], queues: list[str]) -> None:
        changed = self._dispatcher.changed
        while not request.done() and set(self._queues_with_room()) <= set(queues):
            changed.clear()
            change: asyncio.Future[Any] = asyncio.ensure_future(changed.wait())
            try:
                await asyncio.wait({request, change}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                change.cancel()
        if request.done():
            await request

    def _queues_with_room(self) -> list[str]:
        return [queue for queue in self._settings.queues if self._dispatcher.room_for(queue)]

    async def _retried(self, queues: list[str]) -> bool:
        """Lease from some queues; False, after a pause, when that failed and may be retried."""
        try:
            is_to_continue = await self._lease(queues, self._wait_seconds)
        except (AccessError, BadRequest, Closed):
            raise
        except PenstockError as error:
            level = logging.WARNING if isinstance(error, ServerError) else logging.ERROR
            logger.log(level, "nothing can be leased yet", extra={"queue": ", ".join(queues), "error": str(error)})
            await asyncio.sleep(self._pause * self._rng.uniform(0.5, 1.0))
            self._pause = min(self._pause * 2, PAUSE_SECONDS_MAX)
            return False
        self._pause = PAUSE_SECONDS
        return is_to_continue

    async def _drain(self) -> None:
        """Lease until no queue has tasks and none is running, since tasks may submit others."""
        dispatcher = self._dispatcher
        while True:
            was_idle = dispatcher.is_idle
            dispatcher.changed.clear()
            if not await self._lease(self._queues_with_room(), 0.0):
                if was_idle:
                    return
                await dispatcher.changed.wait()

    async def _lease(self, queues: list[str], wait_seconds: float) -> bool:
        """Lease as many tasks as there is room for; whether to ask again."""
        count = min(map(self._dispatcher.room_for, queues), default=0)
        if not count:
            return False
        request = LeaseRequest(
            count, self._settings.lease_seconds, self._settings.worker_id, task_types=self._dispatcher.task_types
        )
        requested_at = self._dispatcher.now()
        try:
            reply = await self._session.lease_queues(QueueChoice(tuple(queues)), DEFAULT_GROUP, request, wait_seconds)
        except QueueNotFound as error:
            absent = [queue for queue in queues if repr(queue) in error.message] or queues
            await self._create([queue for queue in absent if queue not in self._awaited])
            if self._awaited.isdisjoint(absent):
                return True  # ask again
            return await self._lease_meanwhile([queue for queue in queues if queue not in absent], wait_seconds)
        for lease in reply.leases:
            if pieces := self._session.loaded(lease.pieces):  # else retention was quicker
                self._on_lease(self._dispatcher.accept(lease, pieces, requested_at))
        return bool(reply.count)

    async def _lease_meanwhile(self, queues: list[str], wait_seconds: float) -> bool:
        """Lease from the queues that exist, not for long: those that somebody else must create are looked for again."""
        wait_seconds = min(wait_seconds, ABSENT_SECONDS)
        if queues:
            return await self._lease(queues, wait_seconds)
        await asyncio.sleep(wait_seconds)
        return False

    async def _create(self, queues: list[str]) -> None:
        for queue in queues:
            try:
                await self._session.execute(ops.CreateQueue(queue, {}, exist_ok=True))
            except QueueExists:
                continue  # somebody else was quicker
            except NotAuthorised:
                self._awaited.add(queue)
                logger.warning("waiting for a queue that this worker may not create", extra={"queue": queue})
            else:
                logger.info("queue created", extra={"queue": queue})


def _is_cancelled() -> bool:
    """Whether the task that runs is to end, and not only what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
