"""Queues and their dead letters."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, NoReturn, Self

from penstock import limits, validation
from penstock import operations as ops
from penstock.batch import Batch
from penstock.client._async.bulk import DeadLetters
from penstock.client._async.consumer import OnPartitions, Subscription, consume, surviving
from penstock.client._async.delivery import Delivery, Leased
from penstock.client.arguments import check_batch, check_consumer, check_function, check_stop
from penstock.client.member import MemberState
from penstock.client.session import AsyncSession
from penstock.client.task_runtime import Event
from penstock.client.values import BaseTransaction, PushResult, bulk_options
from penstock.forks import refuse_pickling
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
from penstock.model_backlog import KeyPage, QueueAccount, QueueWait
from penstock.model_letters import MessageFilter
from penstock.model_metrics import SERIES_DEFAULT, HistorySeries
from penstock.model_tasks import OperationView
from penstock.push_items import build_some
from penstock.replies import LeaseView, Member, MessageDetails, MessageEvent, MessagePage, MessageSearch, SeekPreview
from penstock.requests import OnError
from penstock.validation import PLAIN


class Transaction(BaseTransaction):
    """Pushes and settlements over any queues that take effect together or not at all."""

    def __init__(self, session: AsyncSession) -> None:
        super().__init__()
        self._session = session

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        if error is None and self._operations:
            self.ids = await self._session.transact(self._operations)


_NO_OPTIONS = (None, None, None, False, None)


class Queue:
    """A handle on one queue. Creating a handle does not contact the broker."""

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
        """Push one message. Returns its id once it is durable.

        `key` groups messages for ordering and limits; see `Message` for the options. The queue is created if needed.
        Raises `QueueFull`, `RateLimited` or `PushPaused` if the queue accepts no message now, and `TooLarge` or
        `InvalidField` if the message is not valid.
        """
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

    async def push_many(
        self, items: Any, durability: Durability | None = None, on_error: OnError = "fail"
    ) -> PushResult:
        """Push several messages, all or none. Returns a `PushResult` with their ids once they are durable.

        `items` are bytes, text, JSON values or `Message` objects, a `Batch` or an Arrow table. With `on_error="skip"`
        valid items are stored and the result says for each item whether it is `queued`, a `duplicate` or `failed`, and
        why. Raises what `push` raises; errors that concern the push as a whole are raised with `on_error="skip"` too.
        """
        check_durability(durability)
        if not validation.skips(on_error):
            batch = Batch.build(items)
            return PushResult(await self._session.push(self.name, batch, batch.partitions, durability))
        batch, rows, failures = build_some(items)
        reply = await self._session.push(self.name, batch, batch.partitions, durability, True)
        return PushResult(reply.among(rows, len(rows) + len(failures), failures))

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
        """Lease up to `max` messages for `lease_seconds`. Returns the deliveries, possibly none.

        Waits up to `wait` seconds for the first message. Settle each delivery before the lease ends, or it is
        delivered again. A group other than `default` must exist, unless `start` says where to create it: earliest,
        latest, an offset or a time. Raises `QueueNotFound` or `GroupNotFound`.
        """
        session = self._session
        options = (lease_seconds, consumer, partitions, auto_ack, start)
        request = (
            validation.lease_of(max)
            if type(max) is int and options == _NO_OPTIONS
            else validation.lease_request(max, lease_seconds, consumer, partitions, auto_ack, start=start)
        )
        if group is not DEFAULT_GROUP:
            check_name(group, "group")
        if type(wait) is not int or wait:
            validation.wait_seconds(wait)
        return Leased(session, await session.lease(self.name, group, request, wait))

    def consume(
        self,
        group: str = DEFAULT_GROUP,
        batch: int | None = None,
        *,
        start: Position | None = None,
        lease_seconds: float | None = None,
        consumer: str | None = None,
        idle_seconds: float | None = None,
        stop: Event | None = None,
    ) -> AsyncGenerator[Delivery]:
        """Iterate over deliveries until `stop` is set or no message arrived for `idle_seconds`.

        Leases are extended while the loop body runs. A delivery is acknowledged when the loop asks for the next one.
        Leaving the loop returns messages that were not started, and counts as a failure of the current delivery unless
        it was settled explicitly. `start` creates the group if needed, as in `lease`.

        `batch` is the number of messages leased at a time. None adapts: one at first, up to 64 while a lease is
        finished within a second; always one for ordered queues, with lease limits, and with `max_attempts=1`.

        Raises `QueueNotFound` or `GroupNotFound`.
        """
        check_consumer(batch, idle_seconds, stop)
        begin = start

        async def lease(count: int, wait: float) -> Leased:
            nonlocal begin
            leased = await self.lease(count, wait, lease_seconds, group, consumer, start=begin)
            begin = None  # a group that is deleted from now on stays deleted
            return leased

        return consume(lease, self._session, batch, idle_seconds, stop)

    def subscribe(
        self,
        group: str,
        member: str | None = None,
        *,
        start: Position | None = None,
        batch: int = 100,
        lease_seconds: float | None = None,
        session_seconds: float = limits.session_seconds_default,
        on_assigned: OnPartitions = None,
        on_revoked: OnPartitions = None,
        stop: Event | None = None,
        survives: bool = False,
    ) -> AsyncGenerator[Delivery]:
        """Iterate over deliveries as a member of a group whose members share the partitions.

        Like `consume`, but only from the partitions assigned to this member; `on_assigned` and `on_revoked` are called
        with the names of partitions gained and lost. Leaving the loop leaves the group. `start` creates the group if
        needed, as in `lease`. If the queue or the group is deleted, the loop raises an error; with `survives` it waits
        until they exist again, and recreates the group if `start` is given. See docs/groups.md.
        """
        check_batch(batch)
        check_stop(stop)
        check_function(on_assigned, "on_assigned")
        check_function(on_revoked, "on_revoked")

        def run() -> AsyncGenerator[Delivery]:
            member_state = MemberState(self.name, group, member, start, batch, lease_seconds, session_seconds)
            return Subscription(self._session, member_state, on_assigned, on_revoked, stop).run()

        subscription = run()  # wrong arguments are refused now
        return surviving(run, stop) if validation.flag(survives, "survives") else subscription

    async def members(self, group: str = DEFAULT_GROUP) -> list[Member]:
        """Return the members of a group and the partitions each of them owns. Raises `GroupNotFound`."""
        return await self._session.execute(ops.Members(self.name, group))

    async def read(
        self,
        partition: int | str = 0,
        offset: int | None = None,
        timestamp: datetime | str | None = None,
        limit: int = 100,
    ) -> list[Message]:
        """Return messages, starting at an offset or a time. Nothing is leased or settled."""
        since = None if timestamp is None else validation.instant(timestamp, "timestamp")
        return await self._session.execute(ops.Read(self.name, partition, offset, since, limit))

    async def replay(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        text: str | None = None,
        trace: str | None = None,
        target: str | None = None,
        **options: Any,
    ) -> OperationView:
        """Push copies of matching messages, settled or not, to `target` or this queue. Returns the operation.

        It runs in the background. `options` are those of `dlq.begin_redrive`.
        """
        filter = MessageFilter(since=since, until=until, key=key, headers=headers, text=text, trace=trace)
        id, how = bulk_options(options)
        return await self._session.execute(ops.ReplayMessages(self.name, filter, target, id, how))

    async def peek(self, limit: int = 1) -> list[Message]:
        """Return the next messages of the default group. Nothing is leased or settled."""
        return await self._session.execute(ops.Peek(self.name, limit))

    async def latest(self, key: str) -> Message | None:
        """Return the latest message of a key; None if there is none or it was deleted by a tombstone.

        The queue must have `compaction="latest"`.
        """
        found = await self._session.execute(ops.Latest(self.name, key))
        return found[0] if found else None

    async def create_group(self, name: str, start: Position = "earliest", *, observes: bool = False) -> None:
        """Create a group, which reads the queue independently, starting at earliest, latest, an offset or a time.

        A group that `observes` only records the position of a reader, set by `seek`. It does not count for
        `max_length`, and no message expires because of it. Raises `GroupExists` if it exists.
        """
        await self._session.execute(
            ops.CreateGroup(self.name, name, validation.wire_position(start, "start"), observes)
        )

    async def delete_group(self, name: str) -> None:
        """Delete a group and its position. Raises `GroupNotFound`."""
        await self._session.execute(ops.DeleteGroup(self.name, name))

    async def seek(self, group: str, to: Position, partition: int | str | None = None) -> None:
        """Move a group to earliest, latest, an offset or a time. Its leases end. Raises `GroupNotFound`."""
        await self._session.execute(ops.Seek(self.name, group, validation.wire_position(to, "to"), partition))

    async def preview_seek(self, group: str, to: Position, partition: int | str | None = None) -> SeekPreview:
        """Return what `seek` would do: messages delivered again, skipped, and taken from consumers."""
        call = ops.PreviewSeek(self.name, group, validation.wire_position(to, "to"), partition)
        return await self._session.execute(call)

    async def groups(self) -> dict[str, list[PartitionLag]]:
        """Return each group with its position in each partition."""
        return await self._session.execute(ops.Groups(self.name))

    async def leases(self, group: str | None = None, limit: int = 100) -> list[LeaseView]:
        """Return the open leases of one group or of all: who holds them, since when, until when."""
        return await self._session.execute(ops.Leases(self.name, group, limit))

    async def delayed(self, limit: int = 100, include: Literal["", "retries", "only_retries"] = "") -> list[Message]:
        """Return messages that are not due yet, soonest first.

        With `include="retries"`, messages waiting for their next attempt are included, once per group; their `retry`
        says when it is due and how the last attempt ended. With `"only_retries"`, only these are returned.
        """
        return await self._session.execute(ops.Delayed(self.name, limit, include))

    async def cancel(self, id: MessageId | str) -> None:
        """Cancel a message before it is delivered.

        Raises `LeaseLost` if a consumer holds it, and `MessageNotFound` if it does not exist or is settled.
        """
        await self._session.execute(ops.Cancel(validation.message_id(id)))

    async def why(self, id: MessageId | str) -> list[Reason]:
        """Explain why a message is not delivered. Returns one answer per group."""
        return await self._session.execute(ops.Why(validation.message_id(id)))

    async def why_waiting(self, group: str | None = None, limit: int = 10) -> QueueWait:
        """Explain why messages wait. Returns the reasons of each group, or of one, with their counts.

        The `limit` most frequent reasons are listed; the others are summed up.
        """
        return await self._session.execute(ops.WhyQueue(self.name, group, limit))

    async def keys(
        self, group: str = DEFAULT_GROUP, *, key: str | None = None, prefix: str = "", limit: int = 50
    ) -> KeyPage:
        """Return keys with unsettled messages, largest backlog first.

        `key` selects one key, `prefix` those that start with it, among the 1,000 with the largest backlog.
        """
        return await self._session.execute(ops.MessageKeys(self.name, group, key, prefix, limit))

    async def account(self) -> QueueAccount:
        """Return whether every message is accounted for: accepted = acked + dead + dropped + open, in every group."""
        return await self._session.execute(ops.Account(self.name))

    async def message(self, id: MessageId | str) -> MessageDetails:
        """Return a message and its state in each group. Raises `MessageNotFound`."""
        return await self._session.execute(ops.GetMessage(validation.message_id(id)))

    async def events(self, id: MessageId | str, limit: int = 1_000) -> list[MessageEvent]:
        """Return what happened to a message, oldest first: the last `limit` events."""
        return await self._session.execute(ops.Events(validation.message_id(id), limit))

    async def find(
        self,
        *,
        key: str | None = None,
        trace: str | None = None,
        limit: int = 20,
        look_back: int = limits.look_back_default,
    ) -> MessageSearch:
        """Return the newest messages with a key or a trace id, each with its events.

        Searches the last `look_back` messages of the queue; `looked_back_to` and `is_complete` say how far it got.
        """
        return await self._session.execute(ops.FindMessages(self.name, key, trace, limit, look_back))

    async def search(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        text: str | None = None,
        trace: str | None = None,
        state: Literal["ready", "delayed", "leased", "waiting", "settled", "dead", "skipped"] | None = None,
        group: str = DEFAULT_GROUP,
        limit: int = 50,
        look_back: int = limits.look_back_default,
        cursor: str | None = None,
    ) -> MessagePage:
        """Return matching messages, settled or not, newest first; `state` is their state in `group`.

        A page examines at most `look_back` messages and takes about two seconds, so it may be short or empty: pass its
        `cursor` to get the next page, until the cursor is None.
        """
        filter = MessageFilter(since=since, until=until, key=key, headers=headers, text=text, trace=trace)
        call = ops.SearchMessages(self.name, filter, state, group, limit, look_back, cursor)
        return await self._session.execute(call)

    async def stats(self) -> QueueStats:
        """Return the counters of the queue and its groups. Raises `QueueNotFound`."""
        return await self._session.execute(ops.Stats(self.name))

    async def history(
        self,
        metrics: Sequence[str] = SERIES_DEFAULT,
        since: datetime | None = None,
        until: datetime | None = None,
        step: int | None = None,
        *,
        compare: int | None = None,
        marks: bool = False,
        forecast: int | None = None,
    ) -> HistorySeries:
        """Return metrics of the queue over time; see `Penstock.history`."""
        span = (since, until, step, compare, marks, forecast)
        operation = ops.GetSeries(self.name, metrics, *span)  # type: ignore[arg-type]  # it makes a tuple of them
        return await self._session.execute(operation)

    async def options(self) -> QueueOptions:
        """Return the options of the queue. Raises `QueueNotFound`."""
        return await self._session.execute(ops.GetOptions(self.name))

    async def pause(
        self,
        what: Literal["delivery", "push", "all"] = "delivery",
        *,
        group: str | None = None,
        reason: str = "",
    ) -> None:
        """Pause delivery, pushes or both until `resume`; with `group`, only delivery to that group.

        Consumers keep waiting. Pushes raise `PushPaused`.
        """
        await self._session.execute(ops.Pause(self.name, what, group, reason))

    async def resume(self, what: Literal["delivery", "push", "all"] = "all", *, group: str | None = None) -> None:
        """Resume what `pause` paused. A pause of the namespace or the broker stays in effect."""
        await self._session.execute(ops.Resume(self.name, what, group))

    async def purge(self) -> None:
        """Drop all unsettled messages, in every group."""
        await self._session.execute(ops.Purge(self.name))

    async def rotate_key(self) -> str:
        """Create a data key for new messages. Returns its id. Raises `InvalidField` if the queue is not encrypted."""
        return await self._session.execute(ops.RotateDataKey(self.name))

    async def erase_keys(self, *, confirm: str, before: datetime | None = None) -> int:
        """Erase the data keys of the queue. Returns the number of erased keys.

        Everything encrypted with them becomes unreadable, permanently. `confirm` must repeat the name of the queue.
        With `before`, only keys that were replaced before that time are erased.
        """
        return await self._session.execute(ops.EraseDataKeys(self.name, confirm, before))

    async def compact(self) -> Freed:
        """Remove messages that have a later message with the same key, now. Returns what was freed.

        The queue must have `compaction="latest"`. Messages that are not sealed yet or not settled by every group stay.
        """
        return await self._session.execute(ops.CompactQueue(self.name))

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self)

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"
