"""Leases: asking for as much as there is room for, and waiting at the broker for more.

A worker that waits is told of a task the moment it is there. Of several queues those that have something take turns;
the others are waited for. While no broker answers it is tried again, with pauses of random length; who may not work
here is told so and stops.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any, Final

import structlog

from penstock.client.session import AsyncSession
from penstock.errors import AccessError, Closed, PenstockError, QueueExists, QueueNotFound, ServerError
from penstock.model import DEFAULT_GROUP
from penstock.requests import LeaseRequest
from penstock.worker.desk import Desk
from penstock.worker.runs import Lease
from penstock.worker.settings import Settings

log: Any = structlog.stdlib.get_logger("penstock.worker")

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
            await self._session.create_queue(queue, {}, exist_ok=True)
            log.info("queue made", queue=queue)
