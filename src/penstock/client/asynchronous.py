"""The asyncio face: the same methods as the blocking one, awaited."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from penstock import limits, validation
from penstock.batch import Batch
from penstock.client.asynchronous_delivery import Delivery, Leased, hand_out, kept_alive
from penstock.client.asynchronous_subscription import Subscription, Told
from penstock.client.batching import BatchSize
from penstock.client.place import Place
from penstock.client.pushed import PushResult
from penstock.client.redriving import Edit, edited, next_page
from penstock.client.session import AsyncSession
from penstock.client.surviving import surviving_tasks
from penstock.client.transaction import AsyncTransaction
from penstock.model import (
    DEFAULT_GROUP,
    Durability,
    Freed,
    Message,
    MessageId,
    PartitionLag,
    Position,
    QueueOptions,
    QueueStats,
    Reason,
    check_durability,
    check_name,
    check_option_values,
    queue_options,
)
from penstock.replies import Member
from penstock.requests import LetterFilter
from penstock.validation import PLAIN


class DeadLetters:
    """The dead letters of a queue. Every filter that is given must match; see the blocking face."""

    def __init__(self, session: AsyncSession, queue: str) -> None:
        self._session = session
        self._queue = queue

    async def list(self, *, limit: int = 100, **filters: Any) -> list[Message]:
        wanted = validation.letter_filter(validation.read_limit(limit), **filters)
        return await self._session.dead_letters(self._queue, wanted)

    async def redrive(
        self,
        *,
        ids: Iterable[MessageId | str] | None = None,
        limit: int = 1_000_000,
        rate: float | None = None,
        edit: Edit | None = None,
        **filters: Any,
    ) -> int:
        wanted = validation.letter_filter(validation.redrive_limit(limit), ids=ids, **filters)
        rate = validation.per_second(rate)
        if edit is not None:
            return await self._replace(wanted, rate, edit)
        return await self._session.redrive(self._queue, wanted, rate)

    async def _replace(self, wanted: LetterFilter, rate: float | None, edit: Edit) -> int:
        found: builtins.list[Message] = []
        while (page := next_page(wanted, found)) is not None:
            letters = await self._session.dead_letters(self._queue, page)
            found += letters
            if not letters:
                break
        for ids, batch in edited(found, edit, rate):
            await self._session.replace_letters(self._queue, ids, batch)
        return len(found)

    async def purge(self) -> None:
        await self._session.purge_dead_letters(self._queue)


class Queue:
    """A handle on one queue; making one touches nothing."""

    __slots__ = ("_session", "dlq", "name")

    def __init__(self, session: AsyncSession, name: str) -> None:
        self._session = session
        self.name = check_name(name)
        self.dlq = DeadLetters(session, name)

    async def push(
        self,
        payload: Any,
        key: str | None = None,
        priority: int | str = 128,
        delay: float = 0,
        deliver_at: datetime | str | None = None,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
        dedup_key: str | None = None,
        partition: int | str | None = None,
        max_attempts: int | None = None,
        trace: str | None = None,
        durability: Durability | None = None,
    ) -> MessageId:
        session = self._session
        options = (key, priority, delay, deliver_at, ttl, headers, dedup_key, max_attempts, trace)
        if type(payload) is bytes and partition is None and durability is None and options == PLAIN:
            return await session.push_bytes(self.name, payload)
        data = validation.one(payload, options)
        if durability is not None:
            check_durability(durability)
        if partition is None:
            return await session.push_one(self.name, data, durability)
        reply = await session.push(self.name, Batch(data), validation.partition(partition), durability)
        return reply.ids()[0]

    async def push_many(self, items: Any, durability: Durability | None = None) -> PushResult:
        batch = Batch.build(items)
        check_durability(durability)
        return PushResult(await self._session.push(self.name, batch, batch.partitions, durability))

    async def lease(
        self,
        max: int = 1,
        wait: float = 0,
        lease_seconds: float | None = None,
        group: str = DEFAULT_GROUP,
        consumer: str | None = None,
        partitions: Sequence[int | str] | None = None,
        auto_ack: bool = False,
        start: Position | None = None,
    ) -> Leased:
        request = validation.lease_request(max, lease_seconds, consumer, partitions, auto_ack, start=start)
        check_name(group, "group")
        validation.wait_seconds(wait)
        return Leased(self._session, await self._session.lease(self.name, group, request, wait))

    async def consume(
        self,
        group: str = DEFAULT_GROUP,
        batch: int | None = None,
        *,
        start: Position | None = None,
        lease_seconds: float | None = None,
        consumer: str | None = None,
        idle_seconds: float | None = None,
    ) -> AsyncIterator[Delivery]:
        """Deliveries for ever, or until nothing came for `idle_seconds`; see the blocking face."""
        wait = limits.wait_seconds_max if idle_seconds is None else min(limits.wait_seconds_max, idle_seconds)
        idle = 0.0
        size = BatchSize(batch, self._session.clock)
        while idle_seconds is None or idle < idle_seconds:
            leased = await self.lease(size.size, wait, lease_seconds, group, consumer, start=start)
            start = None  # a group that is deleted from now on stays deleted
            idle = 0.0 if leased else idle + wait
            if leased:
                size.begin()
                async with kept_alive(leased), aclosing(hand_out(leased)) as deliveries:
                    async for delivery in deliveries:
                        yield delivery
                size.end(leased)

    def subscribe(
        self,
        group: str,
        member: str | None = None,
        *,
        start: Position | None = None,
        batch: int = 100,
        lease_seconds: float | None = None,
        session_seconds: float = limits.session_seconds_default,
        on_assigned: Told = None,
        on_revoked: Told = None,
        stop: asyncio.Event | None = None,
        survives: bool = False,
    ) -> AsyncGenerator[Delivery]:
        """Deliveries for ever, as a member of a group; see the blocking face. Close it to leave at once."""

        def run() -> AsyncGenerator[Delivery]:
            place = Place(self.name, group, member, start, batch, lease_seconds, session_seconds)
            return Subscription(self._session, place, on_assigned, on_revoked, stop).run()

        begun = run()  # whatever is wrong with the arguments is refused now
        return surviving_tasks(run, stop) if validation.flag(survives, "survives") else begun

    async def members(self, group: str = DEFAULT_GROUP) -> list[Member]:
        return await self._session.members(self.name, check_name(group, "group"))

    async def read(
        self,
        partition: int | str = 0,
        offset: int | None = None,
        timestamp: datetime | str | None = None,
        limit: int = 100,
    ) -> list[Message]:
        place = (validation.offset(offset), validation.timestamp_micros(timestamp), validation.read_limit(limit))
        return await self._session.read(self.name, validation.partition(partition), *place)

    async def peek(self, limit: int = 1) -> list[Message]:
        return await self._session.peek(self.name, validation.read_limit(limit))

    async def create_group(self, name: str, start: Position = "earliest", *, observes: bool = False) -> None:
        check_name(name, "group")
        start, observes = validation.position(start, "start"), validation.flag(observes, "observes")
        await self._session.create_group(self.name, name, start, observes=observes)

    async def delete_group(self, name: str) -> None:
        await self._session.delete_group(self.name, check_name(name, "group"))

    async def seek(self, group: str, to: Position, partition: int | str | None = None) -> None:
        where = None if partition is None else validation.partition(partition)
        await self._session.seek(self.name, check_name(group, "group"), validation.position(to, "to"), where)

    async def groups(self) -> dict[str, list[PartitionLag]]:
        return await self._session.groups(self.name)

    async def delayed(self, limit: int = 100) -> list[Message]:
        return await self._session.delayed(self.name, validation.read_limit(limit))

    async def cancel(self, id: MessageId | str) -> None:
        await self._session.cancel(validation.message_id(id))

    async def why(self, id: MessageId | str) -> list[Reason]:
        place = validation.message_id(id)
        return await self._session.why(place)

    async def stats(self) -> QueueStats:
        return await self._session.stats(self.name)

    async def options(self) -> QueueOptions:
        return await self._session.options(self.name)

    async def pause(self) -> None:
        await self._session.pause(self.name, True)

    async def resume(self) -> None:
        await self._session.pause(self.name, False)

    async def purge(self) -> None:
        await self._session.purge(self.name)

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"


class Penstock:
    """An open system: `async with penstock.aio.open("./data") as ps`."""

    def __init__(self, open_session: Callable[[], AsyncSession]) -> None:
        self._open_session = open_session
        self._opened: AsyncSession | None = None

    @property
    def _session(self) -> AsyncSession:
        if self._opened is None:
            self._opened = self._open_session()
        return self._opened

    def queue(self, name: str) -> Queue:
        return Queue(self._session, name)

    async def queues(self) -> list[str]:
        return await self._session.queues()

    async def create_queue(self, name: str, *, exist_ok: bool = False, **options: Any) -> Queue:
        queue = Queue(self._session, name)
        queue_options(options)
        validation.flag(exist_ok, "exist_ok")
        await self._session.create_queue(name, options, exist_ok=exist_ok)
        return queue

    async def update_queue(self, name: str, **changes: Any) -> None:
        check_name(name)
        check_option_values(changes)
        await self._session.update_queue(name, changes)

    async def delete_queue(self, name: str) -> None:
        await self._session.delete_queue(check_name(name))

    def transaction(self) -> AsyncTransaction:
        return AsyncTransaction(self._session)

    async def seal(self) -> int:
        return await self._session.seal()

    async def compact(self) -> Freed:
        return await self._session.compact()

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()

    async def __aenter__(self) -> Self:
        if self._opened is None:
            self._opened = await asyncio.to_thread(self._open_session)
        await self._opened.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
