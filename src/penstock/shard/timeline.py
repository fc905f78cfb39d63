"""What happened to a message: its state in each group, and its events, from memory, the journal and the segments.

The state is in memory. Events since the last seal are read from the journal by an index that is kept
(`recent_events`), those before it from the sealed events (`storage/event_lookup`). Of an event the journal keeps more
than the segments: when the next attempt is due, and who held a message whose lease a restart has ended. Files are read
in the thread of the caller, and the shard's lock is held only to look at the state.

A redrive is in the events of the dead letter: its row says when. The letter is found by the instant of the death, which
is that of its push.

Searches by key or trace id go back from the newest message, as far as they are allowed to, and say how far that was.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import structs

from penstock.batch import Batch, encode_one_with, layout
from penstock.delivery import admin
from penstock.delivery.compaction import check_compacted
from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import FOREVER
from penstock.delivery.inspection import lease_of, state_name, why
from penstock.delivery.log import Extent, Partition, Queue
from penstock.delivery.phases import AFTER, LEASED, SETTLED
from penstock.delivery.progress import Progress
from penstock.errors import InvalidField, MessageNotFound, StorageError
from penstock.model import DLQ_SUFFIX, Message, MessageId, Outcome, Reason, to_datetime, to_micros
from penstock.model_letters import DEAD_GROUP, DEAD_ORIGIN
from penstock.replies import MessageDetails, MessageEvent, MessageSearch, MessageState, Timeline
from penstock.shard import browse, recent_events
from penstock.shard.recent_events import REVIVED, RecentEvents

if TYPE_CHECKING:
    from penstock.shard.engine import Ticket
    from penstock.shard.shard import Shard

TRIES: Final = 5  # the sealer may be quicker
IDLE_US: Final = 600_000_000  # after which the index of the journal is dropped
DEATHS_MAX: Final = 10  # of one message, for which the dead letter is looked up
LETTERS_AT_ONCE: Final = 1_000  # that may have died in the same microsecond
DEAD: Final = ("dead", "rejected")
UNSETTLED: Final = frozenset(
    {
        "redriven",
        *(outcome.name.lower() for outcome in Outcome if AFTER[outcome] != SETTLED and outcome != Outcome.REDRIVEN),
    }
)  # after which the message comes again
OUTCOMES: Final = {int(outcome): outcome.name.lower() for outcome in Outcome}


class Place(NamedTuple):
    """A message, and what the state knows of it. `pushed_at` is 0 when it is no longer kept."""

    id: MessageId
    queue: int
    partition: int
    groups: dict[int, str]
    pushed_at: int
    held: list[MessageEvent]  # the leases that hold it
    sequence: int  # of the state


class Happened(NamedTuple):
    """An event, from wherever it was read."""

    group: str
    what: str
    attempt: int
    at: int
    leased_at: int
    due_at: int
    consumer: str
    error: str


class Timelines:
    """Answers for one shard. Any thread may ask."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._recent = RecentEvents(shard.journal)
        self._lock = threading.Lock()  # of the index
        self._asked_at = 0

    def tick(self) -> int | None:
        """Drop the index of the journal when nobody has asked for a while; returns when to look again."""
        if not self._asked_at:
            return None
        if self._shard.clock.now() - self._asked_at < IDLE_US:
            return self._asked_at + IDLE_US
        with self._lock:
            self._recent.clear()
            self._asked_at = 0
        return None

    # one message

    def details(self, id: MessageId) -> tuple[MessageDetails, Ticket]:
        """A message and its state in each group."""
        shard = self._shard

        def question(now: int) -> list[MessageState]:
            partition = admin.partition_of(shard.core, id)
            reasons = why(shard.core, partition, id.offset, now)
            wall_offset = now - shard.clock.monotonic()
            groups = partition.queue.groups.values()
            return [
                _state(group.progress[partition.id], id.offset, reason, name, wall_offset)
                for group, reason in zip(groups, reasons, strict=True)
                for name in (state_name(shard.core, group.progress[partition.id], id.offset, now),)
            ]

        states, ticket = shard.look(question)
        for message in browse.read(shard, id.queue, id.partition, id.offset, None, 1)[0]:
            if message.id == id:
                return MessageDetails(message, states), ticket
        raise MessageNotFound(f"there is no message {id}")

    def events(self, id: MessageId, limit: int) -> tuple[list[MessageEvent], Ticket]:
        """What happened to a message, oldest first; the last `limit` events."""
        place, ticket = self._place(id)
        return self._events(place)[-limit:], ticket

    def _place(self, id: MessageId) -> tuple[Place, Ticket]:
        shard = self._shard

        def question(now: int) -> Place:
            queue = admin.queue_named(shard.core, id.queue)
            partition = queue.by_name.get(id.partition)
            if partition is None or id.offset >= partition.end:
                raise MessageNotFound(f"there is no message {id}")
            is_kept = id.offset in partition.kept_from(id.offset, 1)
            pushed_at = partition.pushed_time(id.offset) if is_kept else 0
            groups = {group.id: group.name for group in queue.groups.values()}
            held = list(_held(queue, partition, id.offset))
            return Place(id, queue.id, partition.id, groups, pushed_at, held, shard.core.sequence)

        return shard.look(question)

    def _events(self, place: Place) -> list[MessageEvent]:
        events = [] if not place.pushed_at else [MessageEvent(at=to_datetime(place.pushed_at), what="pushed")]
        held: set[tuple[str, int]] = set()  # leases that have not ended: the group, and since when
        finished: set[str] = set()  # groups that are done with it
        for happened in self._happened(place):
            lease = (happened.group, happened.leased_at)
            if happened.what == "leased":
                held.add(lease)
                events.append(_event(happened, "leased", happened.at))
                continue
            # Recovery does not know since when it was held; and what names whole ranges ends only what had not ended.
            is_lease_known = happened.leased_at and (
                happened.what != "interrupted" or happened.leased_at != happened.at
            )
            if happened.group in finished and not happened.leased_at and happened.what != "redriven":
                continue
            if is_lease_known and lease not in held:
                events.append(_event(happened, "leased", happened.leased_at))
            held.discard(lease)
            is_final = happened.what not in UNSETTLED
            finished = finished | {happened.group} if is_final else finished - {happened.group}
            events.append(_event(happened, happened.what, happened.at))
        events += [lease_event for lease_event in place.held if (lease_event.group, _micros(lease_event)) not in held]
        events.sort(key=lambda event: event.at)
        return self._with_letters(place, events)

    def _happened(self, place: Place) -> list[Happened]:
        """From the segments and the journal, in the order of the journal. Nothing is twice, and nothing is missed."""
        store, journal = self._shard.store, self._shard.journal
        for _ in range(TRIES):
            sealed = 0 if store is None else store.sealed_sequence
            try:
                with self._lock:
                    self._asked_at = self._shard.clock.now()
                    journal.write()
                    self._recent.follow(sealed, min(place.sequence, journal.written_sequence))
                    recent = self._recent.find(place.queue, place.partition, place.id.offset, sealed)
                    texts = self._recent.texts
                if store is None:
                    return [_of_recent(event, place, texts) for event in recent]
                files = [file for file in store.files() if file.end_sequence <= sealed + 1]
                where = (place.queue, place.id.partition, place.id.offset)
                before = list(store.events.of_message(files, *where, place.pushed_at))
            except FileNotFoundError:
                continue
            return [
                *(
                    Happened(e.group, e.outcome, e.attempt, e.settled_at, e.leased_at, 0, e.consumer, e.error)
                    for e in before
                ),
                *(_of_recent(event, place, texts) for event in recent),
            ]
        raise StorageError("segments change too quickly to be read; try again", hint="try again")

    # dead letters

    def _with_letters(self, place: Place, events: list[MessageEvent]) -> list[MessageEvent]:
        """Deaths with the letters that they left, and when those were sent back."""
        dlq = place.id.queue + DLQ_SUFFIX
        if not any(event.what in DEAD for event in events) or dlq not in self._shard.core.by_name:
            return events
        seen: list[MessageEvent] = []
        deaths = 0
        known = {(event.group, event.at) for event in events if event.what == "redriven"}
        for event in events:
            deaths += event.what in DEAD
            letter = self._letter(dlq, place.id, event) if event.what in DEAD and deaths <= DEATHS_MAX else None
            if letter is None:
                seen.append(event)
                continue
            seen.append(structs.replace(event, letter=letter))
            for happened in self._happened(self._place(letter)[0]):
                if happened.what == "redriven" and (event.group, to_datetime(happened.at)) not in known:
                    at = to_datetime(happened.at)
                    seen.append(MessageEvent(at=at, what="redriven", group=event.group, letter=letter))
        return sorted(seen, key=lambda event: event.at)

    def _letter(self, dlq: str, id: MessageId, death: MessageEvent) -> MessageId | None:
        at = _micros(death)
        for letter in browse.read(self._shard, dlq, 0, None, at, LETTERS_AT_ONCE)[0]:
            headers = letter.headers or {}
            if letter.pushed_at != death.at:
                return None
            if headers.get(DEAD_ORIGIN) == str(id) and headers.get(DEAD_GROUP) == death.group:
                return letter.id
        return None

    # by key or trace id

    def search(
        self, queue: str, key: str | None, trace: str | None, limit: int, look_back: int
    ) -> tuple[MessageSearch, Ticket]:
        """The newest messages with a key or a trace id, among the last `look_back` messages of the queue."""
        if key is None and trace is None:
            raise InvalidField("key: neither key nor trace is given", hint="give a key, a trace id, or both")
        (runs, kept), ticket = self._shard.look(
            lambda now: _newest(admin.queue_named(self._shard.core, queue), look_back)
        )
        extents = [(name, extent, start) for name, start, some in runs for extent in some]
        extents.sort(key=lambda row: row[1].pushed_last_at(), reverse=True)
        found: list[MessageId] = []
        examined, oldest = 0, 0
        for partition, extent, start in extents:
            if examined >= look_back or len(found) >= limit:
                break
            offsets = self._matching(extent, key, trace)
            found += [MessageId(queue, partition, offset) for offset in reversed(offsets) if offset >= start]
            examined += extent.end - max(start, extent.first)
            oldest = extent.pushed_at
        timelines = [timeline for id in found[:limit] if (timeline := self._timeline(id)) is not None]
        return (
            MessageSearch(
                timelines=timelines,
                examined=examined,
                looked_back_to=to_datetime(oldest) if examined else None,
                is_complete=examined >= kept,
            ),
            ticket,
        )

    def latest(self, queue: str, key: str) -> tuple[list[Message], Ticket]:
        """The newest message of a key, unless it is a tombstone. The queue keeps the latest message of each key."""
        for attempt in range(TRIES):
            (runs, first), ticket = self._shard.look(lambda now: _runs_of_key(self._shard.core, queue, key))
            runs.sort(key=lambda run: run[0] != first)  # where it belongs; others only if somebody chose the partition
            try:
                messages = (self._latest_in(queue, key, *run) for run in runs)
                found = next((message for message in messages if message is not None), None)
                return [] if found is None or found.is_tombstone else [found], ticket
            except StorageError:  # a file was replaced meanwhile
                if attempt == TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    def _latest_in(self, queue: str, key: str, partition: str, start: int, extents: list[Extent]) -> Message | None:
        for extent in reversed(extents):
            for offset in reversed(self._offsets_with(extent, layout.KEY, "key", key)):
                id = MessageId(queue, partition, offset)
                kept = browse.read(self._shard, queue, partition, offset, None, 1)[0] if offset >= start else []
                if kept and kept[0].id == id:
                    return kept[0]
        return None

    def _matching(self, extent: Extent, key: str | None, trace: str | None) -> list[int]:
        """Offsets of an extent that have both the key and the trace id, as far as they are given."""
        wanted = [(layout.KEY, "key", key), (layout.TRACE, "trace_id", trace)]
        sets = [
            set(self._offsets_with(extent, flag, column, text)) for flag, column, text in wanted if text is not None
        ]
        return sorted(set.intersection(*sets)) if sets else []

    def _offsets_with(self, extent: Extent, flag: int, column: str, text: str) -> list[int]:
        if not extent.flags & flag:
            return []
        batch = extent.batch
        if batch is None:
            assert self._shard.store is not None
            return self._shard.store.rows_with(extent.sealed, column, text)
        rows = [row for row, value in enumerate(batch.texts(flag)) if value == text]
        if extent.rows is None:
            return [extent.first + row for row in rows if row < extent.end - extent.first]
        offset_of = {row: extent.first + index for index, row in enumerate(extent.rows.tolist())}
        return [offset_of[row] for row in rows if row in offset_of]

    def _timeline(self, id: MessageId) -> Timeline | None:
        """None when retention was quicker."""
        for message in browse.read(self._shard, id.queue, id.partition, id.offset, None, 1)[0]:
            if message.id == id:
                return _timeline_of(message, self._events(self._place(id)[0]))
        return None


def _timeline_of(message: Message, events: list[MessageEvent]) -> Timeline:
    assert message.id is not None
    assert message.pushed_at is not None
    return Timeline(id=message.id, pushed_at=message.pushed_at, key=message.key, trace=message.trace, events=events)


def _newest(queue: Queue, look_back: int) -> tuple[list[tuple[str, int, list[Extent]]], int]:
    """Of each partition its name, its start and the extents of its newest messages; and how many messages are kept."""
    runs = []
    for partition in queue.partitions:
        index = max(0, partition.extent_index(max(partition.start, partition.end - look_back)))
        runs.append((partition.name, partition.start, partition.extents[index:]))
    return runs, queue.messages()


def _runs_of_key(core: DeliveryState, name: str, key: str) -> tuple[list[tuple[str, int, list[Extent]]], str]:
    """The extents of each partition of a compacted queue, and the partition that a key belongs to."""
    queue = check_compacted(core, name)
    hashes = Batch(encode_one_with(b"", key=key)).key_hashes()
    number = 0 if hashes is None else int(hashes[0]) % len(queue.partitions)
    return _newest(queue, FOREVER)[0], queue.partitions[number].name


def _state(progress: Progress, offset: int, reason: Reason, name: str, wall_offset: int) -> MessageState:
    """The state of a message in one group. `wall_offset` is added to a monotonic instant to make it one of the wall."""
    tried = (progress.attempts or {}).get(offset)
    lease = lease_of(progress.group, progress, offset) if name == "leased" else None
    return MessageState(
        group=progress.group.name,
        state=name,
        code=reason.code,
        text=reason.text,
        attempts=0 if tried is None else tried.count,
        outcome=reason.outcome or ("" if tried is None or not tried.outcome else Outcome(tried.outcome).name.lower()),
        error="" if tried is None else tried.error,
        failed_at=to_datetime(tried.at) if tried is not None and tried.at else None,
        due_at=reason.due_at,
        consumer="" if lease is None else lease.consumer,
        leased_at=None if lease is None else to_datetime(lease.at),
        expires_at=None if lease is None else to_datetime(lease.deadline + wall_offset),
    )


def _held(queue: Queue, partition: Partition, offset: int) -> Iterator[MessageEvent]:
    for group in queue.groups.values():
        progress = group.progress[partition.id]
        lease = lease_of(group, progress, offset) if progress.state_of(offset) == LEASED else None
        if lease is not None:
            attempt = progress.attempt_next(offset)
            at, who = to_datetime(lease.at), lease.consumer
            yield MessageEvent(at=at, what="leased", group=group.name, attempt=attempt, consumer=who)


def _of_recent(event: recent_events.RecentEvent, place: Place, texts: list[str]) -> Happened:
    what = "redriven" if event.what == REVIVED else OUTCOMES.get(event.what, "leased")
    return Happened(
        place.groups.get(event.group, ""),
        *(what, event.attempt, event.at, event.leased_at, event.due_at),
        *(texts[event.consumer], texts[event.error]),
    )


def _event(happened: Happened, what: str, at: int) -> MessageEvent:
    is_lease = what == "leased"
    return MessageEvent(
        at=to_datetime(at),
        what=what,
        group=happened.group,
        attempt=happened.attempt,
        consumer=happened.consumer,
        error="" if is_lease else happened.error,
        due_at=to_datetime(happened.due_at) if happened.due_at and not is_lease else None,
    )


def _micros(event: MessageEvent) -> int:
    return to_micros(event.at, "at")
