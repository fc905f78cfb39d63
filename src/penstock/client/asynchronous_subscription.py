"""Endless consumption as a member of a group, for asyncio. See `subscription` for the rules; tasks take the place of
threads, and callbacks may be coroutine functions.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Any

from penstock import limits
from penstock import operations as ops
from penstock.client.asynchronous_delivery import Delivery, Leased, kept_alive
from penstock.client.consuming import STOP_CHECK_SECONDS
from penstock.client.place import Place, drawn
from penstock.client.session import AsyncPipeline, AsyncSession
from penstock.client.settlings import ACK, LEFT, RELEASE
from penstock.errors import MemberFenced, PenstockError

Told = Callable[[list[str]], Any] | None


class Subscription:
    """One member. `run` is iterated by one task."""

    def __init__(
        self,
        session: AsyncSession,
        place: Place,
        on_assigned: Told,
        on_revoked: Told,
        stop: asyncio.Event | None,
    ) -> None:
        self._session = session
        self._place = place
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._stop = stop
        self._asking = asyncio.Lock()  # one question of membership at a time, so that answers come in order
        self._pending: deque[Any] = deque()
        self._pipeline: AsyncPipeline = session.pipeline()

    async def run(self) -> AsyncGenerator[Delivery]:
        """Deliveries for ever, or until `stop` is set."""
        await self._join()
        heart = asyncio.create_task(self._beat())
        try:
            while not self._is_stopped():
                await self._follow()
                leased = await self._lease()
                if leased:
                    async with kept_alive(leased), aclosing(self._hand_out(leased)) as deliveries:
                        async for delivery in deliveries:
                            yield delivery
        finally:
            heart.cancel()
            await self._leave()

    def _is_stopped(self) -> bool:
        return self._stop is not None and self._stop.is_set()

    # deliveries

    async def _lease(self) -> Leased | None:
        place, session = self._place, self._session
        wait = limits.wait_seconds_max if self._stop is None else STOP_CHECK_SECONDS
        try:
            reply = await session.lease(place.queue, place.group, place.request(), wait)
        except MemberFenced:
            await self._heartbeat()
            return None
        return Leased(session, reply)

    async def _hand_out(self, leased: Leased) -> AsyncGenerator[Delivery]:
        pipeline = self._pipeline = self._session.pipeline()
        self._pending = deque(leased)
        current: Delivery | None = None
        try:
            while self._pending and not self._is_stopped():
                current = self._pending.popleft()
                assert current is not None
                yield current
                if not current.settled:
                    pipeline.settle((current.proof,), ACK)
                current = None
                await self._follow()
        finally:
            # No awaiting before these: the loop may be closing.
            if current is not None and not current.settled:
                pipeline.settle((current.proof,), LEFT)
            if self._pending:
                pipeline.settle([delivery.proof for delivery in self._pending], RELEASE)
                self._pending.clear()
            await pipeline.confirm()

    # membership

    async def _follow(self) -> None:
        """Do what was told since the last time: let go, confirm it, take on."""
        place = self._place
        while place.is_behind():
            told = place.membership
            gone = place.gone(told)
            if gone:
                await self._let_go(gone)
            if told is None:
                place.renew()
                await self._join()
                continue
            place.seen = told
            gained = place.gained(told)
            if gained:
                place.mine.update(gained)
                await _call(self._on_assigned, gained)
            if told.revoking:
                await self._heartbeat()

    async def _let_go(self, partitions: list[str]) -> None:
        unbegun = drawn(self._pending, partitions)
        if unbegun:
            self._pipeline.settle([delivery.proof for delivery in unbegun], RELEASE)
        await self._pipeline.confirm()
        await _call(self._on_revoked, partitions)
        self._place.mine.difference_update(partitions)

    async def _join(self) -> None:
        place = self._place
        async with self._asking:
            place.membership = await self._session.execute(
                ops.Join(place.queue, place.group, place.member, place.session_seconds, place.start)
            )
            place.start = None  # a group that is deleted from now on stays deleted

    async def _heartbeat(self) -> None:
        """Say that we are alive and what we hold, and hear what has changed."""
        place = self._place
        async with self._asking:
            known = place.membership
            if known is None:
                return
            try:
                place.membership = await self._session.execute(
                    ops.Heartbeat(place.queue, place.group, place.member, known.generation, place.held())
                )
            except MemberFenced:
                place.membership = None

    async def _beat(self) -> None:
        told = self._place.membership
        assert told is not None
        while True:
            await asyncio.sleep(told.heartbeat_seconds)
            with suppress(PenstockError):  # whatever it is, the consumer meets it too
                await self._heartbeat()

    async def _leave(self) -> None:
        place = self._place
        told = place.membership
        try:
            if place.mine:
                await _call(self._on_revoked, sorted(place.mine))
        finally:
            if told is not None:
                with suppress(PenstockError):
                    await self._session.execute(ops.Leave(place.queue, place.group, place.member, told.generation))


async def _call(told: Told, partitions: list[str]) -> None:
    answer = told(partitions) if told is not None else None
    if inspect.isawaitable(answer):
        await answer
