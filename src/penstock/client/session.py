"""What the faces ask of whatever is behind them: a shard in this process, or a broker over the wire.

The blocking face holds a `Session`. Its methods answer with a result and a ticket, or with a ticket alone; `confirm`
returns when what the ticket stands for cannot be undone. The asyncio face holds an `AsyncSession`, whose methods are
awaited and answer with what is confirmed. Neither knows what is behind it.

A pipeline is for settles that are not waited for one by one; they may overtake each other. A lease that was lost
meanwhile is no error there; anything else is raised by `confirm`, or before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

from penstock.batch import Batch
from penstock.client.task_session import AsyncTaskSession, TaskSession
from penstock.clock import Clock
from penstock.model import (
    Durability,
    Freed,
    Message,
    MessageId,
    PartitionLag,
    Position,
    QueueOptions,
    QueueStats,
    Reason,
    Receipt,
)
from penstock.replies import LeaseReply, Member, Membership, Piece, PushReply, SinkState
from penstock.requests import LeaseRequest, LetterFilter, Operation, PartitionChoice, Settling, SinkCommit

Ticket = int


class Pipeline(Protocol):
    """Settles on their way."""

    def settle(self, receipts: Sequence[Receipt], how: Settling) -> None: ...

    def confirm(self) -> None:
        """Return when all of them are durable."""


class Session(TaskSession, Protocol):
    """For the blocking face; safe to share between threads."""

    clock: Clock

    def confirm(self, ticket: Ticket) -> None: ...

    def close(self) -> None: ...

    # messages

    def push_bytes(self, queue: str, payload: bytes) -> tuple[MessageId, Ticket]:
        """One message with no options at all."""

    def push_one(self, queue: str, data: bytes, durability: Durability | None) -> tuple[MessageId, Ticket]:
        """A batch of one."""

    def push(
        self, queue: str, batch: Batch, partition: PartitionChoice, durability: Durability | None
    ) -> tuple[PushReply, Ticket]: ...

    def lease(self, queue: str, group: str, request: LeaseRequest) -> tuple[LeaseReply, Ticket]: ...

    def lease_waiting(
        self, queue: str, group: str, request: LeaseRequest, seconds: float
    ) -> tuple[LeaseReply, Ticket]: ...

    def loaded(self, pieces: Sequence[Piece]) -> Sequence[Piece]: ...

    def settle(self, receipts: Sequence[Receipt], how: Settling) -> Ticket: ...

    def settle_lease(self, nonce: int, how: Settling) -> Ticket: ...

    def extend(self, nonce: int, seconds: float) -> int: ...

    def pipeline(self) -> Pipeline: ...

    def transact(self, operations: Sequence[Operation]) -> tuple[list[list[MessageId]], Ticket]: ...

    # sinks

    def stage(self, queue: str, name: str, position: int, data: bytes) -> Ticket: ...

    def discard_staged(self, queue: str, names: Sequence[str]) -> Ticket: ...

    def commit_sink(self, wanted: SinkCommit) -> tuple[SinkState, Ticket]:
        """The next part of a batch; call again until it is in."""

    def sink_state(self, queue: str, sink: str) -> tuple[SinkState, Ticket]: ...

    # browsing

    def read(
        self, queue: str, partition: int | str, offset: int | None, timestamp: int | None, limit: int
    ) -> tuple[list[Message], Ticket]: ...

    def peek(self, queue: str, limit: int) -> tuple[list[Message], Ticket]: ...

    def delayed(self, queue: str, limit: int) -> tuple[list[Message], Ticket]: ...

    def cancel(self, id: MessageId) -> Ticket: ...

    def why(self, id: MessageId) -> tuple[list[Reason], Ticket]: ...

    def stats(self, queue: str) -> tuple[QueueStats, Ticket]: ...

    # queues and groups

    def create_queue(self, name: str, options: Mapping[str, Any], *, exist_ok: bool) -> Ticket: ...

    def update_queue(self, name: str, changes: Mapping[str, Any]) -> Ticket: ...

    def delete_queue(self, name: str) -> Ticket: ...

    def queues(self) -> tuple[list[str], Ticket]: ...

    def options(self, name: str) -> tuple[QueueOptions, Ticket]: ...

    def pause(self, name: str, paused: bool) -> Ticket: ...

    def purge(self, name: str) -> Ticket: ...

    def create_group(self, queue: str, group: str, start: Position, *, observes: bool) -> Ticket: ...

    def delete_group(self, queue: str, group: str) -> Ticket: ...

    def seek(self, queue: str, group: str, to: Position, partition: int | str | None) -> Ticket: ...

    def groups(self, queue: str) -> tuple[dict[str, list[PartitionLag]], Ticket]: ...

    # members of groups

    def join(
        self, queue: str, group: str, member: str, session_seconds: float, start: Position | None = None
    ) -> tuple[Membership, Ticket]: ...

    def heartbeat(
        self, queue: str, group: str, member: str, generation: int, held: Sequence[str]
    ) -> tuple[Membership, Ticket]: ...

    def leave(self, queue: str, group: str, member: str, generation: int) -> Ticket: ...

    def members(self, queue: str, group: str) -> tuple[list[Member], Ticket]: ...

    # dead letters

    def dead_letters(self, queue: str, wanted: LetterFilter) -> tuple[list[Message], Ticket]: ...

    def redrive(self, queue: str, wanted: LetterFilter, per_second: float | None) -> tuple[int, Ticket]: ...

    def replace_letters(self, queue: str, ids: Sequence[MessageId], batch: Batch) -> Ticket: ...

    def purge_dead_letters(self, queue: str) -> Ticket: ...

    # storage

    def compact(self) -> Freed: ...

    def seal(self) -> int: ...


class AsyncPipeline(Protocol):
    """Settles on their way; making one awaits nothing, since the loop may be about to close."""

    def settle(self, receipts: Sequence[Receipt], how: Settling) -> None: ...

    async def confirm(self) -> None:
        """Return when all of them are durable."""


class AsyncSession(AsyncTaskSession, Protocol):
    """For the asyncio face; belongs to one event loop. Arguments are those of `Session`."""

    clock: Clock

    async def start(self) -> None:
        """Be ready, or say why not."""

    async def close(self) -> None: ...

    # messages

    def push_bytes(self, queue: str, payload: bytes) -> Awaitable[MessageId]: ...

    async def push_one(self, queue: str, data: bytes, durability: Durability | None) -> MessageId: ...

    async def push(
        self, queue: str, batch: Batch, partition: PartitionChoice, durability: Durability | None
    ) -> PushReply: ...

    async def lease(self, queue: str, group: str, request: LeaseRequest, wait_seconds: float) -> LeaseReply: ...

    def loaded(self, pieces: Sequence[Piece]) -> Sequence[Piece]: ...

    async def settle(self, receipts: Sequence[Receipt], how: Settling) -> None: ...

    async def settle_lease(self, nonce: int, how: Settling) -> None: ...

    async def extend(self, nonce: int, seconds: float) -> int: ...

    def pipeline(self) -> AsyncPipeline: ...

    async def transact(self, operations: Sequence[Operation]) -> list[list[MessageId]]: ...

    # sinks

    async def stage(self, queue: str, name: str, position: int, data: bytes) -> None: ...

    async def discard_staged(self, queue: str, names: Sequence[str]) -> None: ...

    async def commit_sink(self, wanted: SinkCommit) -> SinkState: ...

    async def sink_state(self, queue: str, sink: str) -> SinkState: ...

    # browsing

    async def read(
        self, queue: str, partition: int | str, offset: int | None, timestamp: int | None, limit: int
    ) -> list[Message]: ...

    async def peek(self, queue: str, limit: int) -> list[Message]: ...

    async def delayed(self, queue: str, limit: int) -> list[Message]: ...

    async def cancel(self, id: MessageId) -> None: ...

    async def why(self, id: MessageId) -> list[Reason]: ...

    async def stats(self, queue: str) -> QueueStats: ...

    # queues and groups

    async def create_queue(self, name: str, options: Mapping[str, Any], *, exist_ok: bool) -> None: ...

    async def update_queue(self, name: str, changes: Mapping[str, Any]) -> None: ...

    async def delete_queue(self, name: str) -> None: ...

    async def queues(self) -> list[str]: ...

    async def options(self, name: str) -> QueueOptions: ...

    async def pause(self, name: str, paused: bool) -> None: ...

    async def purge(self, name: str) -> None: ...

    async def create_group(self, queue: str, group: str, start: Position, *, observes: bool) -> None: ...

    async def delete_group(self, queue: str, group: str) -> None: ...

    async def seek(self, queue: str, group: str, to: Position, partition: int | str | None) -> None: ...

    async def groups(self, queue: str) -> dict[str, list[PartitionLag]]: ...

    # members of groups

    async def join(
        self, queue: str, group: str, member: str, session_seconds: float, start: Position | None = None
    ) -> Membership: ...

    async def heartbeat(
        self, queue: str, group: str, member: str, generation: int, held: Sequence[str]
    ) -> Membership: ...

    async def leave(self, queue: str, group: str, member: str, generation: int) -> None: ...

    async def members(self, queue: str, group: str) -> list[Member]: ...

    # dead letters

    async def dead_letters(self, queue: str, wanted: LetterFilter) -> list[Message]: ...

    async def redrive(self, queue: str, wanted: LetterFilter, per_second: float | None) -> int: ...

    async def replace_letters(self, queue: str, ids: Sequence[MessageId], batch: Batch) -> None: ...

    async def purge_dead_letters(self, queue: str) -> None: ...

    # storage

    async def compact(self) -> Freed: ...

    async def seal(self) -> int: ...
