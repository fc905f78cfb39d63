"""The session in this process, for an event loop.

The shard's own work is microseconds and runs on the loop; only what may block is handed away: durability to the
committer thread, files to worker threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from penstock.batch import Batch, encode_one
from penstock.embedded.asynchronous_tasks import AsyncTaskMethods
from penstock.embedded.session import Pipeline, Session
from penstock.errors import PenstockError
from penstock.forks import refuse_in_forks
from penstock.model import (
    Durability,
    Freed,
    Message,
    MessageId,
    Outcome,
    PartitionLag,
    Position,
    QueueOptions,
    QueueStats,
    Reason,
    Receipt,
)
from penstock.replies import LeaseReply, Member, Membership, PushReply, SinkState
from penstock.requests import LeaseRequest, LetterFilter, Operation, PartitionChoice, Settling, SinkCommit

T = TypeVar("T")
RELEASE: Final = Settling(Outcome.RELEASED)


class AsyncPipeline(Pipeline):
    """Settles on their way."""

    async def confirm(self) -> None:  # type: ignore[override]
        await self._session.shard.confirmed(self._ticket)


class Taking:
    """One lease until its caller has it. Once abandoned, whatever it takes is released, by whoever notices last."""

    def __init__(self, session: Session, queue: str, group: str, request: LeaseRequest) -> None:
        self._session = session
        self._where = (queue, group)
        self._request = request
        self._nonce = 0
        self._is_abandoned = False

    async def run(self) -> tuple[LeaseReply, int]:
        """Ask the shard, in a thread if that may read a file."""
        return await asyncio.to_thread(self._take_loaded) if self._session.needs_files(*self._where) else self._take()

    def abandon(self) -> None:
        """The caller was cancelled. A thread that is still at work finds out by itself."""
        self._is_abandoned = True
        self._release()

    def _take_loaded(self) -> tuple[LeaseReply, int]:
        reply, ticket = self._take()
        return msgspec.structs.replace(reply, pieces=self._session.loaded(reply.pieces)), ticket

    def _take(self) -> tuple[LeaseReply, int]:
        reply, ticket = self._session.lease(*self._where, self._request)
        self._nonce = reply.nonce
        self._request = self._request.in_existing_group()
        if self._is_abandoned:
            self._release()
        return reply, ticket

    def _release(self) -> None:
        if self._nonce:
            with suppress(PenstockError):  # released by the other thread, acknowledged on delivery, or closed
                self._session.settle_lease(self._nonce, RELEASE)


class AsyncSession(AsyncTaskMethods):
    """A session whose methods are awaited and answer with what is durable."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.shard = session.shard
        self.loaded = session.loaded
        self.clock = session.clock
        refuse_in_forks(self)

    async def start(self) -> None:
        """An embedded session is ready when it is made."""

    async def close(self) -> None:
        await asyncio.to_thread(self.session.close)

    # messages

    async def push_bytes(self, queue: str, payload: bytes) -> MessageId:
        shard = self.shard
        if not shard.throttle.is_set():
            await self._unthrottled()
        id, ticket = shard.push_one(queue, encode_one(payload))
        if ticket:
            await shard.commit.future(ticket, asyncio.get_running_loop())
        return id

    async def push_one(self, queue: str, data: bytes, durability: Durability | None) -> MessageId:
        await self._unthrottled()
        id, ticket = self.shard.push_one(queue, data, durability)
        await self.shard.confirmed(ticket)
        return id

    async def push(
        self, queue: str, batch: Batch, partition: PartitionChoice, durability: Durability | None
    ) -> PushReply:
        await self._unthrottled()
        reply, ticket = self.session.push(queue, batch, partition, durability)
        await self.shard.confirmed(ticket)
        return reply

    async def _unthrottled(self) -> None:
        throttle = self.shard.throttle
        if not throttle.is_set():
            await asyncio.to_thread(throttle.wait)

    async def lease(self, queue: str, group: str, request: LeaseRequest, wait_seconds: float) -> LeaseReply:
        taking = Taking(self.session, queue, group, request)
        try:
            reply, ticket = await taking.run()
            if not reply.count and wait_seconds:
                reply, ticket = await self._lease_waiting(taking, queue, group, wait_seconds)
            await self.shard.confirmed(ticket)
        except asyncio.CancelledError:
            taking.abandon()
            raise
        return reply

    async def _lease_waiting(self, taking: Taking, queue: str, group: str, seconds: float) -> tuple[LeaseReply, int]:
        session, loop = self.session, asyncio.get_running_loop()
        deadline = loop.time() + seconds
        woken = asyncio.Event()
        while True:
            woken.clear()
            waiter = session.watch(queue, partial(loop.call_soon_threadsafe, woken.set), group)
            reply: LeaseReply | None = None
            try:
                reply, ticket = await taking.run()
                if not reply.count:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(max(0.0, deadline - loop.time())):
                            await woken.wait()
                    reply, ticket = await taking.run()
            finally:
                session.unwatch(waiter, served=reply is not None and bool(reply.count))
            if reply.count or loop.time() >= deadline:
                return reply, ticket

    async def settle(self, receipts: Sequence[Receipt], how: Settling) -> None:
        await self.shard.confirmed(self.session.settle(receipts, how))

    async def settle_lease(self, nonce: int, how: Settling) -> None:
        await self.shard.confirmed(self.session.settle_lease(nonce, how))

    async def extend(self, nonce: int, seconds: float) -> int:
        return self.session.extend(nonce, seconds)

    def pipeline(self) -> AsyncPipeline:
        return AsyncPipeline(self.session)

    async def transact(self, operations: Sequence[Operation]) -> list[list[MessageId]]:
        return await self._told(self.session.transact, operations)

    # Everything below asks in a worker thread, since files may be read, and tells once the answer is durable.

    async def _told(self, call: Callable[..., tuple[T, int]], *arguments: Any) -> T:
        answer, ticket = await asyncio.to_thread(call, *arguments)
        await self.shard.confirmed(ticket)
        return answer

    async def _done(self, call: Callable[..., int], *arguments: Any) -> None:
        await self.shard.confirmed(await asyncio.to_thread(call, *arguments))

    # sinks

    async def stage(self, queue: str, name: str, position: int, data: bytes) -> None:
        await self._done(self.session.stage, queue, name, position, data)

    async def discard_staged(self, queue: str, names: Sequence[str]) -> None:
        await self._done(self.session.discard_staged, queue, names)

    async def commit_sink(self, wanted: SinkCommit) -> SinkState:
        return await self._told(self.session.commit_sink, wanted)

    async def sink_state(self, queue: str, sink: str) -> SinkState:
        return await self._told(self.session.sink_state, queue, sink)

    # browsing

    async def read(
        self, queue: str, partition: int | str, offset: int | None, timestamp: int | None, limit: int
    ) -> list[Message]:
        return await self._told(self.session.read, queue, partition, offset, timestamp, limit)

    async def peek(self, queue: str, limit: int) -> list[Message]:
        return await self._told(self.session.peek, queue, limit)

    async def delayed(self, queue: str, limit: int) -> list[Message]:
        return await self._told(self.session.delayed, queue, limit)

    async def cancel(self, id: MessageId) -> None:
        await self._done(self.session.cancel, id)

    async def why(self, id: MessageId) -> list[Reason]:
        return await self._told(self.session.why, id)

    async def stats(self, queue: str) -> QueueStats:
        return await self._told(self.session.stats, queue)

    # queues and groups

    async def create_queue(self, name: str, options: Mapping[str, Any], *, exist_ok: bool) -> None:
        await self._done(partial(self.session.create_queue, exist_ok=exist_ok), name, options)

    async def update_queue(self, name: str, changes: Mapping[str, Any]) -> None:
        await self._done(self.session.update_queue, name, changes)

    async def delete_queue(self, name: str) -> None:
        await self._done(self.session.delete_queue, name)

    async def queues(self) -> list[str]:
        return await self._told(self.session.queues)

    async def options(self, name: str) -> QueueOptions:
        return await self._told(self.session.options, name)

    async def pause(self, name: str, paused: bool) -> None:
        await self._done(self.session.pause, name, paused)

    async def purge(self, name: str) -> None:
        await self._done(self.session.purge, name)

    async def create_group(self, queue: str, group: str, start: Position, *, observes: bool = False) -> None:
        await self._done(partial(self.session.create_group, observes=observes), queue, group, start)

    async def delete_group(self, queue: str, group: str) -> None:
        await self._done(self.session.delete_group, queue, group)

    async def seek(self, queue: str, group: str, to: Position, partition: int | str | None) -> None:
        await self._done(self.session.seek, queue, group, to, partition)

    async def groups(self, queue: str) -> dict[str, list[PartitionLag]]:
        return await self._told(self.session.groups, queue)

    # members of groups

    async def join(
        self, queue: str, group: str, member: str, session_seconds: float, start: Position | None = None
    ) -> Membership:
        return await self._told(self.session.join, queue, group, member, session_seconds, start)

    async def heartbeat(self, queue: str, group: str, member: str, generation: int, held: Sequence[str]) -> Membership:
        return await self._told(self.session.heartbeat, queue, group, member, generation, held)

    async def leave(self, queue: str, group: str, member: str, generation: int) -> None:
        await self._done(self.session.leave, queue, group, member, generation)

    async def members(self, queue: str, group: str) -> list[Member]:
        return await self._told(self.session.members, queue, group)

    # dead letters

    async def dead_letters(self, queue: str, wanted: LetterFilter) -> list[Message]:
        return await self._told(self.session.dead_letters, queue, wanted)

    async def redrive(self, queue: str, wanted: LetterFilter, per_second: float | None) -> int:
        return await self._told(self.session.redrive, queue, wanted, per_second)

    async def replace_letters(self, queue: str, ids: Sequence[MessageId], batch: Batch) -> None:
        await self._done(self.session.replace_letters, queue, ids, batch)

    async def purge_dead_letters(self, queue: str) -> None:
        await self._done(self.session.purge_dead_letters, queue)

    # storage

    async def compact(self) -> Freed:
        return await asyncio.to_thread(self.session.compact)

    async def seal(self) -> int:
        return await asyncio.to_thread(self.session.seal)
