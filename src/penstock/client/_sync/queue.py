# Generated from penstock/client/_async/queue.py by `make generate`. Do not edit.
"""Queues and their dead letters, as programs use them."""

from __future__ import annotations

import builtins
from collections.abc import Generator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from os import PathLike, fspath
from types import TracebackType
from typing import Any, Literal, Self

from penstock import limits, validation
from penstock import operations as ops
from penstock.batch import Batch
from penstock.client._sync.access import Access, Audit
from penstock.client._sync.backups import run_backup
from penstock.client._sync.consumer import OnPartitions, Subscription, consume, surviving
from penstock.client._sync.delivery import Delivery, Leased, LeasedQueues
from penstock.client._sync.stage import StageRunner
from penstock.client.member import MemberState
from penstock.client.session import Session
from penstock.client.thread_runtime import Event
from penstock.client.values import BaseTransaction, Edit, PushResult, edited, next_page
from penstock.model import (
    DEFAULT_GROUP,
    Durability,
    Freed,
    Message,
    MessageId,
    PartitionLag,
    PauseState,
    Position,
    QueueOptions,
    QueueStats,
    Reason,
    check_durability,
    check_name,
    check_option_values,
    queue_options,
)
from penstock.model_metrics import SERIES_DEFAULT, HistorySeries, MetricsReport
from penstock.push_items import build_some
from penstock.replies import BackupState, LeaseView, Member, MessageDetails, MessageEvent, MessageSearch
from penstock.requests import LetterFilter, OnError, QueueOrder
from penstock.streams import StageReport, Stream
from penstock.validation import PLAIN


class Transaction(BaseTransaction):
    """Settles and pushes over any queues: all of it happens, or nothing."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        if error is None and self._operations:
            self.ids = self._session.transact(self._operations)


_NO_OPTIONS = (None, None, None, False, None)


class DeadLetters:
    """The dead letters of a queue. Every filter that is given must match."""

    def __init__(self, session: Session, queue: str) -> None:
        self._session = session
        self._queue = queue

    def list(
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
        return self._session.execute(ops.DeadLetters(self._queue, filter))

    def redrive(
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
            return self._replace(filter, rate, edit)
        return self._session.execute(ops.Redrive(self._queue, filter, rate))

    def _replace(self, filter: LetterFilter, rate: float | None, edit: Edit) -> int:
        letters: builtins.list[Message] = []
        while (page := next_page(filter, letters)) is not None:
            more = self._session.execute(ops.DeadLetters(self._queue, page))
            letters += more
            if not more:
                break
        for ids, batch in edited(letters, edit, rate):
            self._session.execute(ops.ReplaceLetters(self._queue, ids, bytes(batch.data)))
        return len(letters)

    def replace(self, messages: Mapping[MessageId | str, Any]) -> None:
        """Push a message in place of each dead letter, given by the id of the letter: all of them or none.

        They are new messages of the queue, for all its groups. A letter that somebody has dealt with is refused.
        """
        ids = [validation.message_id(id) for id in messages]
        batch = Batch.build(builtins.list(messages.values()))
        self._session.execute(ops.ReplaceLetters(self._queue, ids, bytes(batch.data)))

    def purge(self) -> None:
        """Throw them all away."""
        self._session.execute(ops.PurgeDeadLetters(self._queue))


class Queue:
    """A handle on one queue; making one touches nothing."""

    __slots__ = ("_session", "dlq", "name")

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self.name = check_name(name)
        self.dlq = DeadLetters(session, name)

    def push(
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
        """Push one message; returns its id once it is durable."""
        session = self._session
        options = (key, priority, delay, deliver_at, ttl, headers, dedup_key, max_attempts, trace)
        if type(payload) is bytes and partition is None and durability is None and options == PLAIN:
            return session.push_bytes(self.name, payload)
        data = validation.one(payload, options)
        if durability is not None:
            check_durability(durability)
        if partition is None:
            return session.push_one(self.name, data, durability)
        reply = session.push(self.name, Batch(data), validation.partition(partition), durability)
        return reply.ids()[0]

    def push_many(
        self, items: Any, durability: Durability | None = None, on_error: OnError = "fail"
    ) -> PushResult:
        """Push bytes, text, JSON values or `Message`s, a `Batch` or an Arrow table: all of them or none.

        With `on_error="skip"` those that can be stored are, and the result says of each item whether it is `queued`, a
        `duplicate` or `failed`, and why. What is wrong with the push as a whole is raised in either case.
        """
        check_durability(durability)
        if not validation.skips(on_error):
            batch = Batch.build(items)
            return PushResult(self._session.push(self.name, batch, batch.partitions, durability))
        batch, rows, failures = build_some(items)
        reply = self._session.push(self.name, batch, batch.partitions, durability, True)
        return PushResult(reply.among(rows, len(rows) + len(failures), failures))

    def lease(
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
        """Take up to `max` messages for `lease_seconds`; waits up to `wait` seconds for the first one.

        A group other than `default` must have been created, or `start` says where it begins: earliest, latest, an
        offset or a time. Otherwise `GroupNotFound` is raised.
        """
        session = self._session
        options = (lease_seconds, consumer, partitions, auto_ack, start)
        request = (
            validation.lease_of(max)
            if options == _NO_OPTIONS
            else validation.lease_request(max, lease_seconds, consumer, partitions, auto_ack, start=start)
        )
        if group is not DEFAULT_GROUP:
            check_name(group, "group")
        if type(wait) is not int or wait:
            validation.wait_seconds(wait)
        return Leased(session, session.lease(self.name, group, request, wait))

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
    ) -> Generator[Delivery, None, None]:
        """Deliveries for ever, or until nothing came for `idle_seconds` or `stop` is set.

        Leases are extended while the loop body runs; a delivery is acknowledged when the loop asks for the next one.
        Leaving the loop gives back what was not begun, and counts as a failure of the delivery at hand unless it was
        settled by hand. `start` makes the group if it is not there, as in `lease`.

        `batch` is how many messages are leased at a time. None adapts: one at first, up to 64 while a lease is worked
        off within a second; always one for ordered queues, with limits of leases, and with `max_attempts=1`.
        """
        begin = start

        def lease(count: int, wait: float) -> Leased:
            nonlocal begin
            leased = self.lease(count, wait, lease_seconds, group, consumer, start=begin)
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
    ) -> Generator[Delivery, None, None]:
        """Deliveries for ever, as a member of a group that shares the partitions out among its members.

        Like `consume`, from the partitions that this member owns; `on_assigned` and `on_revoked` are called with the
        names of those that come and go. Leaving the loop leaves the group. `start` makes the group if it is not there,
        as in `lease`. When the queue or the group is deleted the loop ends with an error; with `survives` it waits
        until they are there again, and creates the group again if there is a `start`. See docs/groups.md.
        """

        def run() -> Generator[Delivery, None, None]:
            member_state = MemberState(self.name, group, member, start, batch, lease_seconds, session_seconds)
            return Subscription(self._session, member_state, on_assigned, on_revoked, stop).run()

        subscription = run()  # wrong arguments are refused now
        return surviving(run, stop) if validation.flag(survives, "survives") else subscription

    def members(self, group: str = DEFAULT_GROUP) -> list[Member]:
        """The members of a group, and the partitions each of them owns."""
        return self._session.execute(ops.Members(self.name, group))

    def read(
        self,
        partition: int | str = 0,
        offset: int | None = None,
        timestamp: datetime | str | None = None,
        limit: int = 100,
    ) -> list[Message]:
        """Browse from an offset or a time on; changes nothing."""
        since = None if timestamp is None else validation.instant(timestamp, "timestamp")
        return self._session.execute(ops.Read(self.name, partition, offset, since, limit))

    def peek(self, limit: int = 1) -> list[Message]:
        """The next messages of the default group; changes nothing."""
        return self._session.execute(ops.Peek(self.name, limit))

    def create_group(self, name: str, start: Position = "earliest", *, observes: bool = False) -> None:
        """Create an independent reader that starts at earliest, latest, an offset or a time.

        One that `observes` marks how far somebody has read the log, by `seek`. It may be late without being load: it
        does not count for `max_length`, and no message dies of waiting for it.
        """
        self._session.execute(
            ops.CreateGroup(self.name, name, validation.wire_position(start, "start"), observes)
        )

    def delete_group(self, name: str) -> None:
        """Delete a group."""
        self._session.execute(ops.DeleteGroup(self.name, name))

    def seek(self, group: str, to: Position, partition: int | str | None = None) -> None:
        """Move a group to earliest, latest, an offset or a time; leases that it holds are lost."""
        self._session.execute(ops.Seek(self.name, group, validation.wire_position(to, "to"), partition))

    def groups(self) -> dict[str, list[PartitionLag]]:
        """Each group, and its position in each partition."""
        return self._session.execute(ops.Groups(self.name))

    def leases(self, group: str | None = None, limit: int = 100) -> list[LeaseView]:
        """Leases that are held, of one group or of all: by whom, since when, until when."""
        return self._session.execute(ops.Leases(self.name, group, limit))

    def delayed(self, limit: int = 100, include: Literal["", "retries", "only_retries"] = "") -> list[Message]:
        """Messages that are not due yet, soonest first.

        With `include="retries"` also those that wait for their next attempt, once for each group in which they do:
        their `retry` says when it is due and how the last one ended. With "only_retries", these alone.
        """
        return self._session.execute(ops.Delayed(self.name, limit, include))

    def cancel(self, id: MessageId | str) -> None:
        """Cancel a message before it is delivered."""
        self._session.execute(ops.Cancel(validation.message_id(id)))

    def why(self, id: MessageId | str) -> list[Reason]:
        """Why is this message not delivered? One answer per group."""
        return self._session.execute(ops.Why(validation.message_id(id)))

    def message(self, id: MessageId | str) -> MessageDetails:
        """A message, and its state in each group."""
        return self._session.execute(ops.GetMessage(validation.message_id(id)))

    def events(self, id: MessageId | str, limit: int = 1_000) -> list[MessageEvent]:
        """What happened to a message, oldest first; the last `limit` events."""
        return self._session.execute(ops.Events(validation.message_id(id), limit))

    def find(
        self,
        *,
        key: str | None = None,
        trace: str | None = None,
        limit: int = 20,
        look_back: int = limits.look_back_default,
    ) -> MessageSearch:
        """The newest messages with a key or a trace id, each with its events.

        Looks at the last `look_back` messages of the queue; `looked_back_to` and `is_complete` say how far that was.
        """
        return self._session.execute(ops.FindMessages(self.name, key, trace, limit, look_back))

    def stats(self) -> QueueStats:
        """Counters of the queue and of its groups."""
        return self._session.execute(ops.Stats(self.name))

    def history(
        self,
        metrics: Sequence[str] = SERIES_DEFAULT,
        since: datetime | None = None,
        until: datetime | None = None,
        step: int | None = None,
    ) -> HistorySeries:
        """Metrics of the queue over time, for a chart; see `Penstock.history`."""
        return self._session.execute(ops.GetSeries(self.name, tuple(metrics), since, until, step))

    def options(self) -> QueueOptions:
        """The options of the queue."""
        return self._session.execute(ops.GetOptions(self.name))

    def pause(
        self,
        what: Literal["delivery", "push", "all"] = "delivery",
        *,
        group: str | None = None,
        reason: str = "",
    ) -> None:
        """Pause delivery, pushes or both until `resume`; with `group`, delivery to that group alone.

        Whoever waits for messages goes on waiting; pushes are refused with `PushPaused`.
        """
        self._session.execute(ops.Pause(self.name, what, group, reason))

    def resume(self, what: Literal["delivery", "push", "all"] = "all", *, group: str | None = None) -> None:
        """Resume what was paused by `pause`; what its namespace or the broker has paused stays so."""
        self._session.execute(ops.Resume(self.name, what, group))

    def purge(self) -> None:
        """Drop everything unsettled, in every group."""
        self._session.execute(ops.Purge(self.name))

    def compact(self) -> Freed:
        """Remove messages that have a later one of the same key, from a queue with `compaction="latest"`, now.

        What is not sealed yet, and what a group has not settled, stays. Returns what was freed.
        """
        return self._session.execute(ops.CompactQueue(self.name))

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"


class Queues:
    """What can be done with the queues of an open system."""

    _session: Session

    def queue(self, name: str) -> Queue:
        """A handle on a queue, which is made by the first push if it is not there."""
        return Queue(self._session, name)

    def lease(
        self,
        queues: str | Sequence[str],
        max: int = 1,
        wait: float = 0,
        lease_seconds: float | None = None,
        group: str = DEFAULT_GROUP,
        consumer: str | None = None,
        auto_ack: bool = False,
        start: Position | None = None,
        order: QueueOrder = "fair",
    ) -> LeasedQueues:
        """Take up to `max` messages from several queues; waits up to `wait` seconds for the first one.

        `queues` are names, and prefixes such as `shop.*`, which include queues that are created while the call waits.
        With `order="fair"` queues that have messages take turns; with `order="listed"` what stands earlier in the list
        comes first, and the rest waits as long as that has messages.
        """
        choice = validation.queue_choice(queues, order)
        request = validation.lease_request(max, lease_seconds, consumer, None, auto_ack, start=start)
        check_name(group, "group")
        session = self._session
        reply = session.lease_queues(choice, group, request, validation.wait_seconds(wait))
        return LeasedQueues(session, [Leased(session, lease) for lease in reply.leases])

    def consume(
        self,
        queues: str | Sequence[str],
        group: str = DEFAULT_GROUP,
        batch: int | None = None,
        *,
        order: QueueOrder = "fair",
        start: Position | None = None,
        lease_seconds: float | None = None,
        consumer: str | None = None,
        idle_seconds: float | None = None,
        stop: Event | None = None,
    ) -> Generator[Delivery, None, None]:
        """Deliveries of several queues for ever, by one request at a time: `lease` for which, `Queue.consume` for how.

        A queue with limits of leases, or an ordered one, brings the batch down to one message while it has messages.
        """

        def lease(count: int, wait: float) -> LeasedQueues:
            return self.lease(queues, count, wait, lease_seconds, group, consumer, start=start, order=order)

        validation.queue_choice(queues, order)
        return consume(lease, self._session, batch, idle_seconds, stop)

    @property
    def audit(self) -> Audit:
        """The audit log: who did what."""
        return Audit(self._session)

    @property
    def access(self) -> Access:
        """Keys, users, roles and namespaces: who may do what."""
        return Access(self._session)

    def queues(self) -> list[str]:
        """The names of all queues."""
        return self._session.execute(ops.Queues())

    def create_queue(self, name: str, *, exist_ok: bool = False, **options: Any) -> Queue:
        """Create a queue with options (docs/options.md). With `exist_ok`, one with the same options is fine."""
        operation = ops.CreateQueue(name, options, exist_ok)
        queue_options(options)
        self._session.execute(operation)
        return Queue(self._session, name)

    def update_queue(self, name: str, **changes: Any) -> None:
        """Change options; partitions can be added, not removed."""
        operation = ops.UpdateQueue(name, changes)
        check_option_values(changes)
        self._session.execute(operation)

    def delete_queue(self, name: str) -> None:
        """Delete a queue, its messages and its dead letters."""
        self._session.execute(ops.DeleteQueue(name))

    def transaction(self) -> Transaction:
        """Settle and push over any queues, all or nothing, when the `with` block ends without an error."""
        return Transaction(self._session)

    def metrics(self, queue: str | None = None) -> MetricsReport:
        """Counters, latencies and health of the moment, of one queue or of all."""
        return self._session.execute(ops.GetMetrics(queue))

    def history(
        self,
        metrics: Sequence[str] = SERIES_DEFAULT,
        since: datetime | None = None,
        until: datetime | None = None,
        step: int | None = None,
    ) -> HistorySeries:
        """Metrics of the whole system over time, for a chart: the last hour, unless `since` says otherwise.

        `step` is in seconds; None chooses one. Names of metrics are in docs/history.md. A broker records them; a
        directory that is opened in this process does with `history=True`.
        """
        return self._session.execute(ops.GetSeries(None, tuple(metrics), since, until, step))

    def stream(self, source: str) -> Stream[StageReport]:
        """The messages of a queue as a stream: filter, map, key_by, tumbling, aggregate; then to, and run.

        See docs/streams.md.
        """
        return Stream(source, runner=lambda stage: StageRunner(self._session, stage).run)

    def seal(self) -> int:
        """Write everything so far to the Parquet history now, full journal file or not; how many files were sealed."""
        return self._session.execute(ops.Seal())

    def backup(
        self,
        destination: str | PathLike[str],
        *,
        keep: int | None = None,
        passphrase: str = "",
        on_progress: Callable[[int, int], object] | None = None,
    ) -> BackupState:
        """Back everything up while work goes on, and wait until it is done; which moment it is.

        `destination` is a directory of the broker's machine, or a URL such as `s3://bucket/path`. `keep` removes all
        but the newest moments afterwards. With a passphrase, keys and users are in it, encrypted. `on_progress` is
        called with bytes done and bytes in all.
        """
        return run_backup(self._session, fspath(destination), keep, passphrase, on_progress)

    def sync(self) -> int:
        """Return when the disk has everything so far, whatever the durability; the last sequence that is durable."""
        return self._session.execute(ops.Sync())

    def pause(
        self,
        what: Literal["delivery", "push", "all"] = "all",
        *,
        namespace: str | None = None,
        reason: str = "",
    ) -> None:
        """Pause pushes, delivery or both, for all queues or for those of a namespace, new ones too, until `resume`."""
        if namespace is None:
            self._session.execute(ops.PauseBroker(what, reason))
        else:
            self._session.execute(ops.PauseNamespace(namespace, what, reason))

    def resume(self, what: Literal["delivery", "push", "all"] = "all", *, namespace: str | None = None) -> None:
        """Resume what was paused by `pause`; queues and groups that are paused by themselves stay so."""
        if namespace is None:
            self._session.execute(ops.ResumeBroker(what))
        else:
            self._session.execute(ops.ResumeNamespace(namespace, what))

    def pauses(self) -> list[PauseState]:
        """What is paused: the broker, namespaces, queues and groups, since when and why."""
        return self._session.execute(ops.Pauses())

    def compact(self) -> Freed:
        """Apply retention now; what it freed."""
        return self._session.execute(ops.Compact())
