"""The asyncio face: the same methods as the blocking one, awaited.

The shard's own work is microseconds and runs on the loop; only what may block is handed away: durability to the
committer thread, files to worker threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self

import msgspec

from penstock import arguments, limits
from penstock.arguments import PLAIN
from penstock.batch import Batch, encode_one
from penstock.client.asynchronous_delivery import Delivery, Leased, hand_out, kept_alive
from penstock.client.pushed import PushResult
from penstock.client.transaction import BaseTransaction
from penstock.embedded import Session
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
)
from penstock.replies import LeaseReply
from penstock.requests import LeaseRequest, LetterFilter


async def _told(session: Session, call: Callable[..., tuple[Any, int]], *arguments: Any) -> Any:
    """Ask in a worker thread, since files may be read, and tell once the answer is durable."""
    answer, ticket = await asyncio.to_thread(call, *arguments)
    await session.shard.confirmed(ticket)
    return answer


async def _done(session: Session, call: Callable[..., int], *arguments: Any) -> None:
    await session.shard.confirmed(await asyncio.to_thread(call, *arguments))


class DeadLetters:
    """The dead letters of a queue. Every filter that is given must match; see the blocking face."""

    def __init__(self, session: Session, queue: str) -> None:
        self._session = session
        self._queue = queue

    async def list(self, *, limit: int = 100, **filters: Any) -> list[Message]:
        wanted = LetterFilter(limit=arguments.read_limit(limit), **filters)
        found: list[Message] = await _told(self._session, self._session.dead_letters, self._queue, wanted)
        return found

    async def redrive(
        self,
        *,
        ids: Sequence[MessageId] | None = None,
        rate: float | None = None,
        edit: Callable[[Message], Message] | None = None,
        **filters: Any,
    ) -> int:
        if "limit" in filters:
            arguments.redrive_limit(filters["limit"])
        wanted = LetterFilter(ids=None if ids is None else frozenset(ids), **filters)
        rate = arguments.per_second(rate)
        count: int = await _told(self._session, self._session.redrive, self._queue, wanted, rate, edit)
        return count

    async def purge(self) -> None:
        await _done(self._session, self._session.purge_dead_letters, self._queue)


class Queue:
    """A handle on one queue; making one touches nothing."""

    __slots__ = ("_session", "dlq", "name")

    def __init__(self, session: Session, name: str) -> None:
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
        if not session.shard.throttle.is_set():
            await self._unthrottled()
        options = (key, priority, delay, deliver_at, ttl, headers, dedup_key, max_attempts, trace)
        data = encode_one(payload) if type(payload) is bytes and options == PLAIN else arguments.one(payload, options)
        if durability is not None:
            check_durability(durability)
        if partition is None:
            id, ticket = session.push_one(self.name, data, durability)
        else:
            reply, ticket = session.push(self.name, Batch(data), arguments.partition(partition), durability)
            id = reply.ids()[0]
        if ticket:
            await session.shard.commit.future(ticket, asyncio.get_running_loop())
        return id

    async def push_many(self, items: Any, durability: Durability | None = None) -> PushResult:
        batch = Batch.build(items)
        await self._unthrottled()
        reply, ticket = self._session.push(self.name, batch, batch.partitions, durability)
        await self._session.shard.confirmed(ticket)
        return PushResult(reply)

    async def _unthrottled(self) -> None:
        throttle = self._session.shard.throttle
        if not throttle.is_set():
            await asyncio.to_thread(throttle.wait)

    async def lease(
        self,
        max: int = 1,
        wait: float = 0,
        lease_seconds: float | None = None,
        group: str = DEFAULT_GROUP,
        consumer: str | None = None,
        partitions: Sequence[int | str] | None = None,
        auto_ack: bool = False,
    ) -> Leased:
        request = arguments.lease_request(max, lease_seconds, consumer, partitions, auto_ack)
        check_name(group, "group")
        arguments.wait_seconds(wait)
        reply, ticket = await self._lease(group, request)
        if not reply.count and wait:
            reply, ticket = await self._lease_waiting(group, request, wait)
        await self._session.shard.confirmed(ticket)
        return Leased(self._session, reply)

    async def _lease(self, group: str, request: LeaseRequest) -> tuple[LeaseReply, int]:
        session = self._session
        if not session.needs_files(self.name, group):
            return session.lease(self.name, group, request)
        reply, ticket = await asyncio.to_thread(session.lease, self.name, group, request)
        pieces = await asyncio.to_thread(session.loaded, reply.pieces)
        return msgspec.structs.replace(reply, pieces=pieces), ticket

    async def _lease_waiting(self, group: str, request: LeaseRequest, seconds: float) -> tuple[LeaseReply, int]:
        session, loop = self._session, asyncio.get_running_loop()
        deadline = loop.time() + seconds
        woken = asyncio.Event()
        while True:
            woken.clear()
            waiter = session.watch(self.name, partial(loop.call_soon_threadsafe, woken.set))
            reply, ticket = LeaseReply(self.name, group, 0, 0, (), 0), 0
            try:
                reply, ticket = await self._lease(group, request)
                if not reply.count:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(woken.wait(), max(0.0, deadline - loop.time()))
                    reply, ticket = await self._lease(group, request)
            finally:
                session.unwatch(waiter, served=bool(reply.count))
            if reply.count or loop.time() >= deadline:
                return reply, ticket

    async def consume(
        self,
        group: str = DEFAULT_GROUP,
        batch: int = 1,
        *,
        lease_seconds: float | None = None,
        consumer: str | None = None,
        idle_seconds: float | None = None,
    ) -> AsyncIterator[Delivery]:
        """Deliveries for ever, or until nothing came for `idle_seconds`; see the blocking face."""
        wait = limits.wait_seconds_max if idle_seconds is None else min(limits.wait_seconds_max, idle_seconds)
        idle = 0.0
        while idle_seconds is None or idle < idle_seconds:
            leased = await self.lease(batch, wait, lease_seconds, group, consumer)
            idle = 0.0 if leased else idle + wait
            if leased:
                seconds = (await self.options()).lease_seconds if lease_seconds is None else lease_seconds
                async with kept_alive(leased, seconds), aclosing(hand_out(leased)) as deliveries:
                    async for delivery in deliveries:
                        yield delivery

    async def read(
        self,
        partition: int | str = 0,
        offset: int | None = None,
        timestamp: datetime | str | None = None,
        limit: int = 100,
    ) -> list[Message]:
        place = (arguments.offset(offset), arguments.timestamp_micros(timestamp), arguments.read_limit(limit))
        found: list[Message] = await _told(self._session, self._session.read, self.name, partition, *place)
        return found

    async def peek(self, limit: int = 1) -> list[Message]:
        found: list[Message] = await _told(self._session, self._session.peek, self.name, arguments.read_limit(limit))
        return found

    async def create_group(self, name: str, start: Position = "earliest") -> None:
        await _done(self._session, self._session.create_group, self.name, check_name(name, "group"), start)

    async def delete_group(self, name: str) -> None:
        await _done(self._session, self._session.delete_group, self.name, name)

    async def seek(self, group: str, to: Position, partition: int | str | None = None) -> None:
        await _done(self._session, self._session.seek, self.name, group, to, partition)

    async def groups(self) -> dict[str, list[PartitionLag]]:
        found: dict[str, list[PartitionLag]] = await _told(self._session, self._session.groups, self.name)
        return found

    async def delayed(self, limit: int = 100) -> list[Message]:
        found: list[Message] = await _told(self._session, self._session.delayed, self.name, arguments.read_limit(limit))
        return found

    async def cancel(self, id: MessageId | str) -> None:
        await _done(self._session, self._session.cancel, arguments.message_id(id))

    async def why(self, id: MessageId | str) -> list[Reason]:
        place = arguments.message_id(id)
        reasons: list[Reason] = await _told(self._session, self._session.why, place)
        return reasons

    async def stats(self) -> QueueStats:
        stats: QueueStats = await _told(self._session, self._session.stats, self.name)
        return stats

    async def options(self) -> QueueOptions:
        options: QueueOptions = await _told(self._session, self._session.options, self.name)
        return options

    async def pause(self) -> None:
        await _done(self._session, self._session.pause, self.name, True)

    async def resume(self) -> None:
        await _done(self._session, self._session.pause, self.name, False)

    async def purge(self) -> None:
        await _done(self._session, self._session.purge, self.name)

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"


class Transaction(BaseTransaction):
    """The asyncio face of it: `async with ps.transaction() as tx`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self._session.shard.confirmed(await asyncio.to_thread(self._finish))
        self._over = True


class Penstock:
    """An open system: `async with penstock.aio.open("./data") as ps`."""

    def __init__(self, open_session: Callable[[], Session]) -> None:
        self._open_session = open_session
        self._opened: Session | None = None

    @property
    def _session(self) -> Session:
        if self._opened is None:
            self._opened = self._open_session()
        return self._opened

    def queue(self, name: str) -> Queue:
        return Queue(self._session, name)

    async def queues(self) -> list[str]:
        names: list[str] = await _told(self._session, self._session.queues)
        return names

    async def create_queue(self, name: str, *, exist_ok: bool = False, **options: Any) -> Queue:
        session = self._session
        ticket = await asyncio.to_thread(lambda: session.create_queue(name, options, exist_ok=exist_ok))
        await session.shard.confirmed(ticket)
        return Queue(session, name)

    async def update_queue(self, name: str, **changes: Any) -> None:
        await _done(self._session, self._session.update_queue, name, changes)

    async def delete_queue(self, name: str) -> None:
        await _done(self._session, self._session.delete_queue, name)

    def transaction(self) -> Transaction:
        return Transaction(self._session)

    async def seal(self) -> int:
        return await asyncio.to_thread(self._session.seal)

    async def compact(self) -> Freed:
        return await asyncio.to_thread(self._session.compact)

    async def close(self) -> None:
        if self._opened is not None:
            await asyncio.to_thread(self._opened.close)

    async def __aenter__(self) -> Self:
        if self._opened is None:
            self._opened = await asyncio.to_thread(self._open_session)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
