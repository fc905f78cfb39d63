"""Deciding a push: where each message of a batch goes, which are duplicates, whether there is room.

Single pushes that came together are coalesced: one batch, one partition, one entry that says whose rows they are. A row
that its producer has pushed before is left out and gets the position of the first time.

Producers and task ids are chosen by clients. A push with the sequence of another push, or a task with the id of a task
of another type, is refused: it would be dropped as a duplicate, and its sender would take the other's result for its
own. Only what can be looked at is compared. Messages that have left memory, or that retention has removed, count as the
same: nobody can tell any more, and a client that sends again does so within seconds.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Final, NamedTuple

import msgspec
import numpy as np

from penstock import limits
from penstock.batch import Alike, Batch, encode_plain, layout
from penstock.batch.layout import DUE
from penstock.delivery.core import DeliveryState
from penstock.delivery.dedup import digests
from penstock.delivery.entries import Entry, Int32s, Int64s, PartitionsAdded, Produced, Push, Settled, Span
from penstock.delivery.group import Group
from penstock.delivery.log import Queue, ask_each
from penstock.delivery.phases import DROPPABLE
from penstock.delivery.producers import NOBODY
from penstock.delivery.progress import Progress, span_of
from penstock.envelopes import envelope_json
from penstock.errors import InvalidField, QueueFull, StateError
from penstock.model import DEFAULT_PARTITION, ContentType, MessageId, Outcome, check_name
from penstock.requests import PartitionChoice, Producer

OVERFLOWED: Final = int(Outcome.OVERFLOWED)
Aged = tuple[int, int, int]  # pushed at, partition, offset

NULL: Final = b"null"


class PushDecision(NamedTuple):
    """A push that may go ahead: its entries, and the duplicates among its rows. It has no parts when nothing is new."""

    entries: list[Entry]
    push: Push
    duplicates: dict[int, MessageId]


class FramePushes:
    """What the pushes of one frame do to their queue, for the next push of the same frame: none is applied yet."""

    def __init__(self, queue: Queue) -> None:
        self.pushes = 0
        self.turns: int | Int64s = 0  # of the rows that are decided next, when they are several pushes in one batch
        self.accepted = 0
        self.ends: dict[int, int] = {}  # of partitions
        self.names: dict[str, int] = {}  # partitions that are made
        self.made: list[str] = []  # the same, by their numbers
        self.keys: dict[bytes, MessageId] = {}  # dedup keys that are taken
        self._queue = queue
        self._pushed: list[Aged] = []  # only where the oldest may be dropped
        self._dropped: Counter[int] = Counter()  # by group
        self._oldest: dict[int, Iterator[Aged]] = {}

    def backlog(self, group: Group) -> int:
        return group.backlog + self.accepted - self._dropped[group.id]

    def drop(self, group: Group, count: int) -> list[Aged]:
        """The next oldest of a group that nobody holds, before the push that is being decided."""
        oldest = self._oldest.setdefault(group.id, chain(heapq.merge(*map(_unheld, group.progress)), self._pushed))
        dropped = list(islice(oldest, count))
        self._dropped[group.id] += count  # what is missing is taken from the push itself
        return dropped

    def add(self, batch: Batch, decided: PushDecision, pushes: int = 1, *, is_last: bool = False) -> None:
        """One more batch is decided, of the given number of pushes. After the last one nobody asks for its rows."""
        self.pushes += pushes
        for entry in decided.entries:
            if isinstance(entry, PartitionsAdded):
                self.made += entry.names
                self.names |= {name: entry.first + index for index, name in enumerate(entry.names)}
        for number, count, first in decided.push.parts:
            self.ends[number] = first + count
            self.accepted += count
        if self._queue.options.max_length is not None and not is_last:
            self._pushed += _aged(decided.push)
        if batch.flags & layout.DEDUP_KEY and not is_last:
            self._add_keys(batch, decided)

    def _add_keys(self, batch: Batch, decided: PushDecision) -> None:
        known = self._queue.partitions
        partitions, offsets = decided.push.positions(batch.count)
        for row, key in enumerate(digests(batch)):
            if key is not None and offsets[row] >= 0:
                number = int(partitions[row])
                name = known[number].name if number < len(known) else self.made[number - len(known)]
                self.keys[key] = MessageId(self._queue.name, name, int(offsets[row]))


def decide_push(
    core: DeliveryState,
    queue: Queue,
    batch: Batch,
    now: int,
    partition: PartitionChoice = None,
    producer: Producer = (0, 0, 0),
    *,
    is_promised: bool = False,
    ahead: FramePushes | None = None,
) -> PushDecision:
    """Refuse a push, or say what it does. What was promised before is pushed however full the queue is."""
    check_allowed(queue, batch)
    if not batch.count:
        return PushDecision([], Push(queue.id, now, [], b""), {})
    if queue.options.compaction != "none":
        batch = checked_batch(queue, batch)
    if queue.ttl_us:
        batch = batch.with_ttl(queue.ttl_us)
    entries: list[Entry] = []
    duplicates: dict[int, MessageId] = {}
    rows: Int32s | None
    if queue.options.partitions == 1 and partition is None and not batch.flags & layout.DEDUP_KEY:
        rows = None
        parts = [(0, batch.count, queue.partitions[0].end if ahead is None else _end(queue, 0, ahead))]
    else:
        rows, entries = _rows(queue, batch, partition, ahead)
        if batch.flags & layout.DEDUP_KEY and not is_promised:
            duplicates = duplicates_of(queue, batch, now, ahead)
        if duplicates:
            rows = np.array(rows if rows.size > 1 else np.full(batch.count, rows[0]), np.int32)
            rows[list(duplicates)] = -1
        rows, parts = _parts(queue, rows, batch.count, ahead)
    push = Push(queue.id, now, parts, batch.data, rows, producer, batch)
    if not parts:
        return PushDecision(entries, push, duplicates)
    if queue.options.max_length is None or is_promised:
        return PushDecision([*entries, push], push, duplicates)
    before, after = _make_room(queue, push, queue.options.max_length, now, ahead)
    return PushDecision([*entries, *before, push, *after], push, duplicates)


_UNORDERED: Final = (  # column, its name, and the value that says nothing
    (layout.PRIORITY, "priority", limits.priority_default),
    (layout.DELAY, "delay", 0),
    (layout.DELIVER_AT, "deliver_at", 0),
)


def check_allowed(queue: Queue, batch: Batch) -> None:
    """Per-message priority and delay make no sense where order is promised. A column of defaults says nothing."""
    if not batch.flags & (DUE | layout.PRIORITY) or not queue.ordered:
        return
    for flag, field, default in _UNORDERED:
        column = batch.fixed(flag)
        if column is not None and (column != default).any():
            raise InvalidField(
                f"{field}: queue {queue.name!r} is ordered by {queue.options.ordering}, so its messages have none",
                hint="use a queue with ordering='none', or set delay_seconds on the queue",
            )


def _rows(queue: Queue, batch: Batch, choice: PartitionChoice, ahead: FramePushes | None) -> tuple[Int32s, list[Entry]]:
    """Partition of each row (one element when all go to the same), and the entry that makes new partitions."""
    turn = 1 if ahead is None else 1 + ahead.pushes + ahead.turns
    made = {} if ahead is None else ahead.names
    if choice is None and queue.options.partitions != "named":
        return _by_key(queue, batch, turn), []
    names = [choice] if choice is None or isinstance(choice, int | str) else list(choice)
    added: dict[str, int] = {}
    positions = {name: _number(queue, name, made, added) for name in dict.fromkeys(names)}
    numbers = np.fromiter(map(positions.__getitem__, names), np.int32, len(names))
    if queue.options.partitions != "named" and None in names:
        unnamed = [index for index, name in enumerate(names) if name is None]
        numbers[unnamed] = np.broadcast_to(_by_key(queue, batch, turn), (len(names),))[unnamed]
    first = len(queue.partitions) + len(made)
    entries: list[Entry] = [PartitionsAdded(queue.id, first, list(added))] if added else []
    return numbers, entries


def _by_key(queue: Queue, batch: Batch, turn: int | Int64s) -> Int32s:
    count = len(queue.partitions)
    if count == 1:
        return np.zeros(1, np.int32)
    # Messages without a key go to one partition per push, in turn.
    spread = (queue.pushes + turn) % count
    hashes = batch.key_hashes()
    if hashes is None:
        return np.atleast_1d(spread).astype(np.int32)
    return np.where(hashes == 0, spread, hashes % count).astype(np.int32)


def _number(queue: Queue, name: int | str | None, made: dict[str, int], added: dict[str, int]) -> int:
    """The id of a partition by name; named queues make new ones."""
    named = queue.options.partitions == "named"
    if name is None:
        if not named:
            return 0
        name = DEFAULT_PARTITION
    text = str(name)
    known = queue.by_name.get(text)
    if known is not None:
        return known.id
    if text in made:
        return made[text]
    if not named:
        raise InvalidField(
            f"partition: {name!r} is not one of the {len(queue.partitions)} partitions of {queue.name!r}",
            hint=f"use 0 to {len(queue.partitions) - 1}, or create the queue with partitions='named'",
        )
    check_name(text, "partition")
    return added.setdefault(text, len(queue.partitions) + len(made) + len(added))


def check_partition(queue: Queue, name: int | str | None) -> None:
    """Refuse a partition that the queue neither has nor makes."""
    _number(queue, name, {}, {})


def duplicates_of(queue: Queue, batch: Batch, now: int, ahead: FramePushes | None = None) -> dict[int, MessageId]:
    """Rows whose dedup key is known already, or is twice in this batch (the later row has no id yet: offset −1)."""
    keys = digests(batch)
    positions = [None] * batch.count if queue.dedup is None else queue.dedup.find_all(keys, now)
    duplicates: dict[int, MessageId] = {}
    seen: dict[bytes, int] = {}
    for row, (key, position) in enumerate(zip(keys, positions, strict=True)):
        if key is None:
            continue
        if position is not None:
            duplicates[row] = MessageId(queue.name, queue.partitions[position.partition].name, position.offset)
        elif ahead is not None and key in ahead.keys:
            duplicates[row] = ahead.keys[key]
        elif (first := seen.setdefault(key, row)) != row:
            duplicates[row] = MessageId(queue.name, "", first)
    return duplicates


def _parts(
    queue: Queue, rows: Int32s, count: int, ahead: FramePushes | None
) -> tuple[Int32s | None, list[tuple[int, int, int]]]:
    if rows.size == 1:
        number = int(rows[0])
        if number < 0:
            return np.full(count, -1, np.int32), []
        return None, [(number, count, _end(queue, number, ahead))]
    numbers, counts = np.unique(rows[rows >= 0], return_counts=True)
    parts = [
        (number, many, _end(queue, number, ahead))
        for number, many in zip(numbers.tolist(), counts.tolist(), strict=True)
    ]
    if len(parts) == 1 and parts[0][1] == count:
        return None, parts
    return rows, parts


def _end(queue: Queue, number: int, ahead: FramePushes | None) -> int:
    """Where the next message of a partition goes, which may be one that is made."""
    if ahead is not None and number in ahead.ends:
        return ahead.ends[number]
    return queue.partitions[number].end if number < len(queue.partitions) else 0


def _make_room(
    queue: Queue, push: Push, max_length: int, now: int, ahead: FramePushes | None
) -> tuple[list[Entry], list[Entry]]:
    """Refuse, or drop the oldest, when a group would have more than `max_length` messages before it.

    What is dropped comes from what waits already, before the push, and then from the batch itself, after it.
    """
    allowed = max_length - sum(count for _, count, _ in push.parts)
    before: list[Entry] = []
    after: list[Entry] = []
    for group in queue.groups.values():
        excess = (group.backlog if ahead is None else ahead.backlog(group)) - allowed
        if excess <= 0 or not group.is_load:
            continue
        if queue.options.overflow == "reject_new":
            raise QueueFull(f"queue {queue.name!r} holds {group.backlog} messages; max_length is {max_length}")
        untouched = _untouched(group, excess) if ahead is None else None
        if untouched is not None:
            before.append(_dropped(group, [untouched], now))
            continue
        oldest = (ahead or FramePushes(queue)).drop(group, excess)
        before += _overflowed(group, oldest, now)
        if excess > len(oldest):
            after += _overflowed(group, list(islice(_aged(push), excess - len(oldest))), now)
    return before, after


def _untouched(group: Group, count: int) -> Span | None:
    """The oldest of a group, where nobody has touched anything in its only partition: a reader that is far behind."""
    if len(group.progress) > 1:
        return None
    (progress,) = group.progress
    if progress.states or progress.sparse or progress.base + count > progress.partition.end:
        return None
    return Span(progress.partition.id, progress.base, count)


def _unheld(progress: Progress) -> Iterator[Aged]:
    """What nobody holds of one partition, the oldest first."""
    partition = progress.partition
    for offset in sorted(progress.sparse or ()):
        if progress.state_of(offset) in DROPPABLE:
            yield partition.extent_at(offset).pushed_at, partition.id, offset
    for extent in partition.extents_from(progress.base):
        for offset in range(max(extent.first, progress.base), extent.end):
            if progress.state_of(offset) in DROPPABLE:
                yield extent.pushed_at, partition.id, offset


def _aged(push: Push) -> Iterator[Aged]:
    """The messages of a push, the first one first."""
    if push.rows is None:
        return ((push.pushed_at, number, first + row) for number, count, first in push.parts for row in range(count))
    partitions, offsets = push.positions(len(push.rows))
    positions = zip(partitions.tolist(), offsets.tolist(), strict=True)
    return ((push.pushed_at, number, offset) for number, offset in positions if number >= 0)


def _overflowed(group: Group, dropped: list[Aged], now: int) -> list[Entry]:
    by_partition: dict[int, list[int]] = {}
    for _, number, offset in dropped:
        by_partition.setdefault(number, []).append(offset)
    spans = [span_of(number, sorted(offsets)) for number, offsets in by_partition.items()]
    return [_dropped(group, spans, now)] if spans else []


def _dropped(group: Group, spans: list[Span], now: int) -> Settled:
    return Settled(group.queue.id, group.id, OVERFLOWED, now, 0, "", "", spans)


class CoalescedPush(NamedTuple):
    """Pushes that may go ahead: the partition that all of them are in, and the offset of each."""

    entries: list[Entry]
    partition: int
    offsets: Sequence[int]


def decide_coalesced(
    core: DeliveryState,
    queue: Queue,
    payloads: Sequence[bytes],
    producers: Sequence[Producer | None],
    now: int,
    content: ContentType | Alike = ContentType.BYTES,
) -> CoalescedPush:
    """Refuse all of these pushes, or say what they do."""
    if not any(producers):
        return _decide_new(core, queue, payloads, now, content)
    positions = core.producers.find_rows(producers, queue.id)
    repeats = _repeats(producers)
    for row, position in positions.items():
        check_same(queue, producers[row] or NOBODY, [position], [payloads[row]])
    for row, first in repeats.items():
        if payloads[row] != payloads[first]:
            raise used_otherwise(producers[row] or NOBODY)
    if not positions and not repeats:
        return _with_producers(_decide_new(core, queue, payloads, now, content), queue.id, producers, now)
    rows = [row for row in range(len(payloads)) if row not in positions and row not in repeats]
    if rows:
        coalesced = _decide_new(core, queue, [payloads[row] for row in rows], now, content)
        coalesced = _with_producers(coalesced, queue.id, [producers[row] for row in rows], now)
        positions |= {row: (coalesced.partition, offset) for row, offset in zip(rows, coalesced.offsets, strict=True)}
    else:
        coalesced = CoalescedPush([], next(iter(positions.values()))[0], ())
    positions |= {row: positions[first] for row, first in repeats.items() if row not in positions}
    if {partition for partition, _ in positions.values()} != {coalesced.partition}:
        raise InvalidField(
            "producer: some of these pushes are known from other partitions", hint="push them one by one"
        )
    return coalesced._replace(offsets=[positions[row][1] for row in range(len(payloads))])


def _decide_new(
    core: DeliveryState, queue: Queue, payloads: Sequence[bytes], now: int, content: ContentType | Alike
) -> CoalescedPush:
    decided = decide_push(core, queue, Batch(encode_plain(payloads, content)), now)
    ((partition, count, first),) = decided.push.parts
    return CoalescedPush(decided.entries, partition, range(first, first + count))


def _with_producers(
    coalesced: CoalescedPush, queue: int, producers: Sequence[Producer | None], now: int
) -> CoalescedPush:
    pack = Produced.ROW.pack
    rows = b"".join(
        [pack(producer[0], producer[2], producer[1], row) for row, producer in enumerate(producers) if producer]
    )
    produced = Produced(queue, now, coalesced.partition, coalesced.offsets[0], rows)
    return coalesced._replace(entries=[produced, *coalesced.entries])


def _repeats(producers: Sequence[Producer | None]) -> dict[int, int]:
    """Rows with the producer and sequence of an earlier one of this call."""
    nobodies = producers.count(None)
    if len(set(producers)) == len(producers) - max(0, nobodies - 1):
        return {}
    firsts: dict[Producer, int] = {}
    return {
        row: first
        for row, producer in enumerate(producers)
        if producer is not None and (first := firsts.setdefault(producer, row)) != row
    }


COMPARED_MAX: Final = 1_000  # of one push: this happens with the lock held


def check_same(
    queue: Queue, producer: Producer, positions: Sequence[tuple[int, int]], payloads: Sequence[bytes]
) -> None:
    """Refuse a push whose messages are not those at `positions`: (partition, offset) of each, in the same order."""
    if len(positions) != len(payloads) or any(
        _is_other(queue, partition, offset, payload)
        for (partition, offset), payload in zip(positions[:COMPARED_MAX], payloads, strict=False)
    ):
        raise used_otherwise(producer)


def used_otherwise(producer: Producer) -> StateError:
    """The refusal of a push that has the sequence of another one."""
    return StateError(
        f"producer {producer[0]:016x} has used sequence {producer[2]} for a push of other messages",
        hint="give every push of a producer a new number, and each program a producer of its own",
    )


def _is_other(queue: Queue, number: int, offset: int, payload: bytes) -> bool:
    if number >= len(queue.partitions):
        return False
    partition = queue.partitions[number]
    if not partition.start <= offset < partition.end or not partition.extents:
        return False
    extent = partition.extent_at(offset)
    batch = extent.batch if extent.first <= offset < extent.end else None
    return batch is not None and bytes(batch.payload(extent.row_of(offset))) != bytes(payload)


class _Typed(msgspec.Struct):
    task_id: str
    task_type: str


_decoder: Final = msgspec.json.Decoder(_Typed)


def check_types(queue: Queue, batch: Batch, duplicates: Mapping[int, MessageId]) -> None:
    """Refuse a push if one of its tasks has the id of a task of another type. May raise `ColumnNotLoaded`."""
    if not duplicates or not batch.flags & layout.CONTENT_TYPE:
        return
    ask_each(partial(_check_row, queue, batch), islice(duplicates.items(), COMPARED_MAX))


def _check_row(queue: Queue, batch: Batch, duplicate: tuple[int, MessageId]) -> None:
    row, id = duplicate
    task = _typed(batch, row)
    if task is None:
        return
    if not id.partition:  # the same batch has it, in an earlier row
        known = _typed(batch, id.offset)
    else:
        partition = queue.by_name.get(id.partition)
        known = None if partition is None else _stored(queue, partition.id, id.offset)
    _compare(task, known)


def check_type(queue: Queue, partition: int, offset: int, task_id: str, task_type: str) -> None:
    """Refuse a task if the message at this place is a task of another type. May raise `ColumnNotLoaded`."""
    _compare(_Typed(task_id, task_type), _stored(queue, partition, offset))


def check_type_of(stored: bytes, task_id: str, task_type: str) -> None:
    """Refuse a task if one that is held, or was, is of another type: `stored` is the batch of its message."""
    _compare(_Typed(task_id, task_type), _typed(Batch(stored), 0))


def _compare(task: _Typed, known: _Typed | None) -> None:
    if known is not None and known.task_type != task.task_type:
        raise StateError(
            f"task_id: {task.task_id} is that of a task of type {known.task_type!r}, not {task.task_type!r}",
            hint="give each task an id of its own",
        )


def _stored(queue: Queue, number: int, offset: int) -> _Typed | None:
    partition = queue.partitions[number]
    if not partition.extents or not partition.start <= offset < partition.end:
        return None
    extent = partition.extent_at(offset)
    if not extent.first <= offset < extent.end or not extent.is_task(offset):
        return None
    return _typed(*extent.message(offset))


def _typed(batch: Batch, row: int) -> _Typed | None:
    """What a message says that it is; None for one that is no task."""
    if batch.content_type_of(row) != ContentType.TASK:
        return None
    try:
        return _decoder.decode(envelope_json(batch.payload(row)))
    except msgspec.MsgspecError:
        return None


def checked_batch(queue: Queue, batch: Batch) -> Batch:
    """The batch of a push to a compacted queue, its tombstones marked; refused when a message has no key."""
    keys = batch.text(layout.KEY)
    present = np.zeros(batch.count, np.bool_) if keys is None else keys.present()
    if not present.all():
        raise InvalidField(
            f"item {int(np.argmin(present))}: key: queue {queue.name!r} keeps the latest message of each key, "
            "so every message has one",
            hint="push with key=…, or set compaction='none' on the queue",
        )
    kinds = batch.content_type
    if kinds is None:
        return batch
    payloads = batch.payload_column()
    candidates = np.flatnonzero((kinds == ContentType.JSON) & (payloads.lengths() == len(NULL)))
    rows = [row for row in candidates.tolist() if payloads.get(row) == NULL]
    if not rows:
        return batch
    marked = kinds.copy()
    marked[rows] = ContentType.TOMBSTONE
    return Batch(layout.with_content_types(batch.data, marked.tobytes()), batch.partitions)
