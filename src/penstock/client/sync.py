"""The blocking face: `penstock.open()` gives a `Penstock`; its methods return when their effect is durable."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar

from penstock import limits, validation
from penstock.batch import Batch
from penstock.client.consuming import consume
from penstock.client.place import Place
from penstock.client.pushed import PushResult
from penstock.client.redriving import Edit, edited, next_page
from penstock.client.session import Session
from penstock.client.subscription import Subscription, Told
from penstock.client.surviving import surviving
from penstock.client.sync_delivery import Delivery, Leased
from penstock.client.transaction import Transaction
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

T = TypeVar("T")
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
        wanted = validation.letter_filter(validation.read_limit(limit), since=since, until=until, **texts)
        found, ticket = self._session.dead_letters(self._queue, wanted)
        self._session.confirm(ticket)
        return found

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
        wanted = validation.letter_filter(limit, ids=ids, since=since, until=until, **texts)
        rate = validation.per_second(rate)
        if edit is not None:
            return self._replace(wanted, rate, edit)
        count, ticket = self._session.redrive(self._queue, wanted, rate)
        self._session.confirm(ticket)
        return count

    def _replace(self, wanted: LetterFilter, rate: float | None, edit: Edit) -> int:
        found: builtins.list[Message] = []
        while (page := next_page(wanted, found)) is not None:
            letters, ticket = self._session.dead_letters(self._queue, page)
            found += letters
            if not letters:
                break
        for ids, batch in edited(found, edit, rate):
            ticket = self._session.replace_letters(self._queue, ids, batch)
        self._session.confirm(ticket)
        return len(found)

    def purge(self) -> None:
        """Throw them all away."""
        self._session.confirm(self._session.purge_dead_letters(self._queue))


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
            id, ticket = session.push_bytes(self.name, payload)
            if ticket:
                session.confirm(ticket)
            return id
        data = validation.one(payload, options)
        if durability is not None:
            check_durability(durability)
        if partition is None:
            id, ticket = session.push_one(self.name, data, durability)
        else:
            reply, ticket = session.push(self.name, Batch(data), validation.partition(partition), durability)
            id = reply.ids()[0]
        if ticket:
            session.confirm(ticket)
        return id

    def push_many(self, items: Any, durability: Durability | None = None) -> PushResult:
        """Push a list of bytes, text, JSON values or `Message`s, a `Batch`, or an Arrow table: all of it or nothing."""
        batch = Batch.build(items)
        check_durability(durability)
        reply, ticket = self._session.push(self.name, batch, batch.partitions, durability)
        if ticket:
            self._session.confirm(ticket)
        return PushResult(reply)

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
        if wait:
            reply, ticket = session.lease_waiting(self.name, group, request, wait)
        else:
            reply, ticket = session.lease(self.name, group, request)
        if ticket:
            session.confirm(ticket)
        return Leased(session, reply)

    def consume(
        self,
        group: str = DEFAULT_GROUP,
        batch: int | None = None,
        *,
        start: Position | None = None,
        lease_seconds: float | None = None,
        consumer: str | None = None,
        idle_seconds: float | None = None,
        stop: threading.Event | None = None,
    ) -> Iterator[Delivery]:
        """Deliveries for ever, or until nothing came for `idle_seconds` or `stop` is set.

        Leases are extended while the loop body runs; a delivery is acknowledged when the loop asks for the next one.
        Leaving the loop gives back what was not begun, and counts as a failure of the delivery at hand unless it was
        settled by hand. `start` makes the group if it is not there, as in `lease`.

        `batch` is how many messages are leased at a time. None adapts: one at first, up to 64 while a lease is worked
        off within a second; always one for ordered queues, with limits of leases, and with `max_attempts=1`.
        """
        return consume(self, self._session, group, batch, start, lease_seconds, consumer, idle_seconds, stop)

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
        stop: threading.Event | None = None,
        survives: bool = False,
    ) -> Iterator[Delivery]:
        """Deliveries for ever, as a member of a group that shares the partitions out among its members.

        Like `consume`, from the partitions that this member owns; `on_assigned` and `on_revoked` are called with the
        names of those that come and go. Leaving the loop leaves the group. `start` makes the group if it is not there,
        as in `lease`. When the queue or the group is deleted the loop ends with an error; with `survives` it waits
        until they are there again, and makes the group anew if there is a `start`. See docs/groups.md.
        """

        def run() -> Iterator[Delivery]:
            place = Place(self.name, group, member, start, batch, lease_seconds, session_seconds)
            return Subscription(self._session, place, on_assigned, on_revoked, stop).run()

        begun = run()  # whatever is wrong with the arguments is refused now
        return surviving(run, stop) if validation.flag(survives, "survives") else begun

    def members(self, group: str = DEFAULT_GROUP) -> list[Member]:
        """Who is in a group, and which partitions they own."""
        return self._told(self._session.members(self.name, check_name(group, "group")))

    def read(
        self,
        partition: int | str = 0,
        offset: int | None = None,
        timestamp: datetime | str | None = None,
        limit: int = 100,
    ) -> list[Message]:
        """Browse from an offset or a time on; changes nothing."""
        return self._told(
            self._session.read(
                self.name,
                validation.partition(partition),
                validation.offset(offset),
                validation.timestamp_micros(timestamp),
                validation.read_limit(limit),
            )
        )

    def peek(self, limit: int = 1) -> list[Message]:
        """The next messages of the default group, without effect."""
        return self._told(self._session.peek(self.name, validation.read_limit(limit)))

    def create_group(self, name: str, start: Position = "earliest", *, observes: bool = False) -> None:
        """An independent reader that starts at earliest, latest, an offset or a time.

        One that `observes` marks how far somebody has read the log, by `seek`. It may be late without being load: it
        does not count for `max_length`, and no message dies of waiting for it.
        """
        check_name(name, "group")
        start, observes = validation.position(start, "start"), validation.flag(observes, "observes")
        self._done(self._session.create_group(self.name, name, start, observes=observes))

    def delete_group(self, name: str) -> None:
        self._done(self._session.delete_group(self.name, check_name(name, "group")))

    def seek(self, group: str, to: Position, partition: int | str | None = None) -> None:
        """Move a group to earliest, latest, an offset or a time; what it had leased is lost to its holders."""
        where = None if partition is None else validation.partition(partition)
        self._done(self._session.seek(self.name, check_name(group, "group"), validation.position(to, "to"), where))

    def groups(self) -> dict[str, list[PartitionLag]]:
        """Where each group stands in each partition."""
        return self._told(self._session.groups(self.name))

    def delayed(self, limit: int = 100) -> list[Message]:
        """Messages that are not due yet, soonest first."""
        return self._told(self._session.delayed(self.name, validation.read_limit(limit)))

    def cancel(self, id: MessageId | str) -> None:
        """Take a message back before anyone has it."""
        self._done(self._session.cancel(validation.message_id(id)))

    def why(self, id: MessageId | str) -> list[Reason]:
        """Why is this message not delivered? One answer per group."""
        return self._told(self._session.why(validation.message_id(id)))

    def stats(self) -> QueueStats:
        return self._told(self._session.stats(self.name))

    @property
    def options(self) -> QueueOptions:
        return self._told(self._session.options(self.name))

    def pause(self) -> None:
        """Hand nothing out until `resume`; pushes go on."""
        self._done(self._session.pause(self.name, True))

    def resume(self) -> None:
        self._done(self._session.pause(self.name, False))

    def purge(self) -> None:
        """Drop everything unsettled, in every group."""
        self._done(self._session.purge(self.name))

    def _done(self, ticket: int) -> None:
        self._session.confirm(ticket)

    def _told(self, answer: tuple[T, int]) -> T:
        self._session.confirm(answer[1])
        return answer[0]

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"


class Penstock:
    """An open system. Use it as a context manager, or call `close`. Safe to share between threads."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def session(self) -> Session:
        """What is behind it, for other faces of the same system."""
        return self._session

    def queue(self, name: str) -> Queue:
        """A handle on a queue, which is made by the first push if it is not there."""
        return Queue(self._session, name)

    def queues(self) -> list[str]:
        names, ticket = self._session.queues()
        self._session.confirm(ticket)
        return names

    def create_queue(self, name: str, *, exist_ok: bool = False, **options: Any) -> Queue:
        """Make a queue with options (docs/options.md). With `exist_ok`, one with the same options is fine."""
        queue = Queue(self._session, name)
        queue_options(options)
        validation.flag(exist_ok, "exist_ok")
        self._session.confirm(self._session.create_queue(name, options, exist_ok=exist_ok))
        return queue

    def update_queue(self, name: str, **changes: Any) -> None:
        """Change options; partitions can be added, not taken away."""
        check_name(name)
        check_option_values(changes)
        self._session.confirm(self._session.update_queue(name, changes))

    def delete_queue(self, name: str) -> None:
        """The queue, its messages and its dead letters."""
        self._session.confirm(self._session.delete_queue(check_name(name)))

    def transaction(self) -> Transaction:
        """Settle and push over any queues, all or nothing, when the `with` block ends without an error."""
        return Transaction(self._session)

    def seal(self) -> int:
        """Write everything so far to the Parquet history now, full journal file or not; how many files were sealed."""
        return self._session.seal()

    def compact(self) -> Freed:
        """Apply retention now; what it freed."""
        return self._session.compact()

    def close(self) -> None:
        """Stop cleanly. A second call does nothing."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
