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
from penstock import operations as ops
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
from penstock.replies import LeaseView, Member
from penstock.requests import LetterFilter
from penstock.validation import PLAIN


class DeadLetters:
    """The dead letters of a queue. Every filter that is given must match; see the blocking face."""

    def __init__(self, session: AsyncSession, queue: str) -> None:
        self._session = session
        self._queue = queue

    async def list(
        self,
        *,
        group: str | None = None,
        reason: str | None = None,
        error_contains: str | None = None,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
    ) -> list[Message]:
        """Dead letters, oldest first; their headers say where they come from and why they died."""
        texts = {"group": group, "reason": reason, "error_contains": error_contains, "key": key}
        filter = validation.letter_filter(validation.read_limit(limit), since=since, until=until, **texts)
        return await self._session.execute(ops.DeadLetters(self._queue, filter))

    async def redrive(
        self,
        *,
        ids: Iterable[MessageId | str] | None = None,
        group: str | None = None,
        reason: str | None = None,
        error_contains: str | None = None,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 1_000_000,
        rate: float | None = None,
        edit: Edit | None = None,
    ) -> int:
        """Send them back to the group where they died, at most `rate` a second; returns how many.

        With `edit` the changed messages are pushed as new ones, for all groups.
        """
        texts = {"group": group, "reason": reason, "error_contains": error_contains, "key": key}
        limit = validation.redrive_limit(limit)
        filter = validation.letter_filter(limit, ids=ids, since=since, until=until, **texts)
        rate = validation.per_second(rate)
        if edit is not None:
            return await self._replace(filter, rate, edit)
        return await self._session.execute(ops.Redrive(self._queue, filter, rate))

    async def _replace(self, filter: LetterFilter, rate: float | None, edit: Edit) -> int:
        letters: builtins.list[Message] = []
        while (page := next_page(filter, letters)) is not None:
            more = await self._session.execute(ops.DeadLetters(self._queue, page))
            letters += more
            if not more:
                break
        for ids, batch in edited(letters, edit, rate):
            await self._session.execute(ops.ReplaceLetters(self._queue, ids, bytes(batch.data)))
        return len(letters)

    async def purge(self) -> None:
        """Throw them all away."""
        await self._session.execute(ops.PurgeDeadLetters(self._queue))


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
        """The members of a group, and the partitions each of them owns."""
        return await self._session.execute(ops.Members(self.name, group))

    async def read(
        self,
        partition: int | str = 0,
        offset: int | None = None,
        timestamp: datetime | str | None = None,
        limit: int = 100,
    ) -> list[Message]:
        """Browse from an offset or a time on; changes nothing."""
        since = None if timestamp is None else validation.instant(timestamp, "timestamp")
        return await self._session.execute(ops.Read(self.name, partition, offset, since, limit))

    async def peek(self, limit: int = 1) -> list[Message]:
        """The next messages of the default group; changes nothing."""
        return await self._session.execute(ops.Peek(self.name, limit))

    async def create_group(self, name: str, start: Position = "earliest", *, observes: bool = False) -> None:
        """Create an independent reader that starts at earliest, latest, an offset or a time.

        One that `observes` marks how far somebody has read the log, by `seek`. It may be late without being load: it
        does not count for `max_length`, and no message dies of waiting for it.
        """
        await self._session.execute(
            ops.CreateGroup(self.name, name, validation.wire_position(start, "start"), observes)
        )

    async def delete_group(self, name: str) -> None:
        """Delete a group."""
        await self._session.execute(ops.DeleteGroup(self.name, name))

    async def seek(self, group: str, to: Position, partition: int | str | None = None) -> None:
        """Move a group to earliest, latest, an offset or a time; leases that it holds are lost."""
        await self._session.execute(ops.Seek(self.name, group, validation.wire_position(to, "to"), partition))

    async def groups(self) -> dict[str, list[PartitionLag]]:
        """Each group, and its position in each partition."""
        return await self._session.execute(ops.Groups(self.name))

    async def leases(self, group: str | None = None, limit: int = 100) -> list[LeaseView]:
        """Leases that are held, of one group or of all: by whom, since when, until when."""
        return await self._session.execute(ops.Leases(self.name, group, limit))

    async def delayed(self, limit: int = 100) -> list[Message]:
        """Messages that are not due yet, soonest first."""
        return await self._session.execute(ops.Delayed(self.name, limit))

    async def cancel(self, id: MessageId | str) -> None:
        """Cancel a message before it is delivered."""
        await self._session.execute(ops.Cancel(validation.message_id(id)))

    async def why(self, id: MessageId | str) -> list[Reason]:
        """Why is this message not delivered? One answer per group."""
        return await self._session.execute(ops.Why(validation.message_id(id)))

    async def stats(self) -> QueueStats:
        """Counters of the queue and of its groups."""
        return await self._session.execute(ops.Stats(self.name))

    async def options(self) -> QueueOptions:
        """The options of the queue."""
        return await self._session.execute(ops.GetOptions(self.name))

    async def pause(self) -> None:
        """Stop delivery until `resume`; pushes go on."""
        await self._session.execute(ops.Pause(self.name))

    async def resume(self) -> None:
        """Resume delivery."""
        await self._session.execute(ops.Resume(self.name))

    async def purge(self) -> None:
        """Drop everything unsettled, in every group."""
        await self._session.execute(ops.Purge(self.name))

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
        """The names of all queues."""
        return await self._session.execute(ops.Queues())

    async def create_queue(self, name: str, *, exist_ok: bool = False, **options: Any) -> Queue:
        """Create a queue with options (docs/options.md). With `exist_ok`, one with the same options is fine."""
        queue_options(options)
        await self._session.execute(ops.CreateQueue(name, options, exist_ok))
        return Queue(self._session, name)

    async def update_queue(self, name: str, **changes: Any) -> None:
        """Change options; partitions can be added, not removed."""
        check_option_values(changes)
        await self._session.execute(ops.UpdateQueue(name, changes))

    async def delete_queue(self, name: str) -> None:
        """Delete a queue, its messages and its dead letters."""
        await self._session.execute(ops.DeleteQueue(name))

    def transaction(self) -> AsyncTransaction:
        return AsyncTransaction(self._session)

    async def seal(self) -> int:
        return await self._session.execute(ops.Seal())

    async def compact(self) -> Freed:
        return await self._session.execute(ops.Compact())

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
