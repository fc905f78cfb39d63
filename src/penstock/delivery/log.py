"""The log side of a queue: partitions, and the extents that say where their messages are.

An extent is a run of consecutive offsets of one partition: rows of a batch that is still in memory, or rows of a row
group in a sealed segment. Priority, due time, expiry and key hash are immutable columns of the extent, shared by all
groups. Looking at a column of a sealed extent that is not loaded raises `ColumnNotLoaded`: the caller loads it, hands
it over with `Extent.load`, and asks again. Nothing has changed in between.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock import limits
from penstock.batch import Batch, layout
from penstock.batch.layout import DUE, plain_bytes
from penstock.delivery.entries import FOREVER, Entry, GroupSet, Int64s, PartitionsAdded, QueueSet
from penstock.delivery.ranges import NO_RANGES, Ranges
from penstock.delivery.rate_limits import PushLimits
from penstock.model import AUDIT_QUEUE, DEFAULT_GROUP, ContentType, QueueOptions

if TYPE_CHECKING:
    from penstock.delivery.dedup import DedupWindow
    from penstock.delivery.group import Group
    from penstock.delivery.namespaces import Namespace

A = TypeVar("A")
T = TypeVar("T")
# Columns that decide who gets a message and when; without any of them an extent is a plain run.
SPECIAL: Final = DUE | layout.PRIORITY | layout.TTL


class ColumnNotLoaded(Exception):
    """Columns of sealed extents must be loaded before the question can be answered."""

    def __init__(self, *columns: tuple[Extent, str]) -> None:
        super().__init__(", ".join(f"{column} of {extent.sealed}" for extent, column in columns[:3]))
        self.columns = columns


def ask_each(question: Callable[[A], T], items: Iterable[A]) -> list[T]:
    """Answers to one question about many items. If columns are not loaded, all of them are named at once.

    Named one by one, each of them would mean to repeat all questions.
    """
    answers: list[T] = []
    columns: dict[tuple[int, str], tuple[Extent, str]] = {}
    for item in items:
        try:
            answers.append(question(item))
        except ColumnNotLoaded as missing:
            columns.update(((id(extent), column), (extent, column)) for extent, column in missing.columns)
    if columns:
        raise ColumnNotLoaded(*columns.values())
    return answers


def has_task(batch: Batch) -> bool:
    """Whether one of the messages of a batch is a task."""
    return bool(batch.flags & layout.CONTENT_TYPE) and ContentType.TASK in batch.content_type  # type: ignore[operator]


def is_one_task(data: bytes, flags: int) -> bool:
    """Whether the message of a batch of one, which has a content type, is a task."""
    if flags == layout.CONTENT_TYPE:  # as most: it stands behind the header
        return data[layout.HEADER_BYTES] == ContentType.TASK
    return Batch(data).content_type_of(0) == ContentType.TASK


class Extent(msgspec.Struct, eq=False, gc=False):
    """Offsets [first, end) of one partition; `batch` while they are in memory, `sealed` once they are in a file."""

    first: int
    end: int
    pushed_at: int  # of the first message; the same for all of them while in memory
    flags: int
    source: Batch | bytes | None = None  # bytes until someone looks at it
    rows: Int64s | None = None  # rows of the batch, when they are not simply the first ones
    sequence: int = 0  # of the frame that brought it
    sealed: Any = None
    columns: dict[str, Any] | None = None

    @property
    def batch(self) -> Batch | None:
        """The messages, while they are in memory."""
        if isinstance(self.source, bytes):
            self.source = Batch(self.source)
        return self.source

    @classmethod
    def of_sealed(cls, sealed: Any) -> Extent:
        """An extent that lies in a segment; `sealed` is the storage's own description of it."""
        return cls(sealed.first_offset, sealed.end_offset, sealed.pushed_first_at, sealed.flags, sealed=sealed)

    def load(self, column: str, values: Any) -> None:
        """Hand over a column of a sealed extent."""
        self.columns = self.columns or {}
        self.columns[column] = values

    def unload(self, column: str) -> None:
        """Drop a column that can be read again. Priorities stay: every lease looks at them."""
        if self.sealed is not None and self.columns is not None and column != "priority":
            self.columns.pop(column, None)

    def priorities(self) -> NDArray[np.uint8] | None:
        """Priority of each message, None when all have the default."""
        return self._column("priority") if self.flags & layout.PRIORITY else None

    def priorities_present(self) -> list[int]:
        """The priorities that occur; empty when there is no column."""
        priorities = self.priorities()
        return [] if priorities is None else [int(priority) for priority in np.unique(priorities)]

    def dues(self) -> Int64s | None:
        """When each message is due, µs; 0 for at once. None when all are due at once."""
        return self._column("available_at") if self.flags & DUE else None

    def expiries(self) -> Int64s | None:
        """When each message expires, µs; 0 for never. None when none expires."""
        return self._column("expires_at") if self.flags & layout.TTL else None

    def key_hashes(self) -> NDArray[np.uint32] | None:
        """Hash of each message's key; 0 for none. None when no message has one."""
        return self._column("key_hash") if self.flags & layout.KEY else None

    def attempts_max(self, offset: int) -> int:
        """The message's own limit of attempts; 0 when it has none."""
        return int(self._column("max_attempts")[offset - self.first]) if self.flags & layout.MAX_ATTEMPTS else 0

    def is_task(self, offset: int) -> bool:
        """Whether the message is a task."""
        if not self.flags & layout.CONTENT_TYPE:
            return False
        return bool(self._column("content_type")[offset - self.first] == ContentType.TASK)

    def pushed_last_at(self) -> int:
        """When the last message was pushed."""
        return int(self.pushed_at if self.sealed is None else self.sealed.pushed_last_at)

    def pushed_times(self) -> Int64s:
        """When each message was pushed."""
        values: Int64s = self._column("pushed_at")
        return values

    def row_of(self, offset: int) -> int:
        """The row of an offset in `batch`."""
        return offset - self.first if self.rows is None else int(self.rows[offset - self.first])

    def message(self, offset: int) -> tuple[Batch, int]:
        """The batch that holds one message, and its row there. May raise `ColumnNotLoaded`."""
        if self.batch is not None:
            return self.batch, self.row_of(offset)
        batch = (self.columns or {}).get("batch")
        if batch is None:
            raise ColumnNotLoaded((self, "batch"))
        return batch, self.sealed.row + offset - self.first

    def stored_bytes(self, start: int, end: int) -> int:
        """Bytes of the messages of [start, end), as a share of the extent: parts that meet add up to the whole."""
        first, count = self.first, self.end - self.first
        start, end = max(start, first), min(end, self.end)
        if self.sealed is not None:
            size = int(self.sealed.bytes)
        else:
            assert self.source is not None
            size, rows = plain_bytes(self.source.data if isinstance(self.source, Batch) else self.source)
            size = size if rows == count else size * count // rows
        return size if end - start == count else size * (end - first) // count - size * (start - first) // count

    def _column(self, name: str) -> Any:
        if self.columns is not None and name in self.columns:
            return self.columns[name]
        if self.batch is None:
            raise ColumnNotLoaded((self, name))
        self.load(name, _COLUMNS[name](self))
        return self.columns[name] if self.columns else None

    def of_batch(self, values: Any) -> Any:
        """This extent's part of a column of its batch."""
        return values[: self.end - self.first] if self.rows is None else values[self.rows]


def dues_of(batch: Batch, pushed_at: int) -> Int64s:
    """When each message of a batch that has columns for it is due, µs; 0 for at once."""
    dues = np.zeros(batch.count, np.int64)
    if batch.delay is not None:
        dues = np.where(batch.delay > 0, pushed_at + batch.delay, 0)
    return dues if batch.deliver_at is None else np.maximum(dues, batch.deliver_at)


def _dues_of(extent: Extent) -> Int64s:
    assert extent.batch is not None
    dues: Int64s = extent.of_batch(dues_of(extent.batch, extent.pushed_at))
    return dues


def _expiries_of(extent: Extent) -> Int64s:
    assert extent.batch is not None
    lives = extent.of_batch(extent.batch.ttl)
    return np.where(lives > 0, extent.pushed_at + lives, 0)


_COLUMNS: Final[dict[str, Any]] = {
    "pushed_at": lambda extent: np.full(extent.end - extent.first, extent.pushed_at, np.int64),
    "priority": lambda extent: extent.of_batch(extent.batch.priority),
    "available_at": _dues_of,
    "expires_at": _expiries_of,
    "key_hash": lambda extent: extent.of_batch(extent.batch.key_hashes()),
    "content_type": lambda extent: extent.of_batch(extent.batch.content_type),
    "max_attempts": lambda extent: extent.of_batch(extent.batch.max_attempts),
}


@dataclass(slots=True, eq=False)
class Partition:
    """One ordered sequence of messages.

    Every offset in [start, end) is in exactly one extent, or it is `lost` or `removed`. An extent in a segment may span
    offsets that are removed.
    """

    queue: Queue
    id: int
    name: str
    start: int = 0  # oldest offset kept
    end: int = 0  # next offset to be written
    extents: list[Extent] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)  # extents[i].first, for bisection
    flags: int = 0  # of all extents together
    sealed_end: int = 0  # messages under it lie in segments
    pushed_at: int = 0  # last push
    delayed: int = 0  # messages whose due time has not come
    timer: int = -1
    applied: int = 0  # frames up to here are in the checkpoint this was loaded from
    lost: list[tuple[int, int]] = field(default_factory=list)  # given up by a repair: [first, end), sorted and apart
    removed: Ranges = NO_RANGES  # by compaction

    def append(self, extent: Extent) -> None:
        self.extents.append(extent)
        self.firsts.append(extent.first)
        self.end = extent.end
        self.flags |= extent.flags
        self.pushed_at = extent.pushed_at

    def replay(self, extent: Extent) -> None:
        """Replay: append an extent unless a checkpoint or the segments have it already."""
        known = self.extents[-1].end if self.extents else self.start
        if extent.end <= known:
            return
        self.extents.append(extent)
        self.firsts.append(extent.first)
        self.flags |= extent.flags
        if extent.end > self.end:
            self.end = extent.end
        if extent.pushed_at > self.pushed_at:
            self.pushed_at = extent.pushed_at

    def extent_index(self, offset: int) -> int:
        """The index in `extents` of the one that holds an offset of [start, end)."""
        return bisect_right(self.firsts, offset) - 1

    def extent_at(self, offset: int) -> Extent:
        """The extent that holds an offset of [start, end)."""
        return self.extents[bisect_right(self.firsts, offset) - 1]

    def extents_from(self, offset: int) -> Iterator[Extent]:
        """Extents that reach beyond `offset`, in order."""
        index = max(0, bisect_right(self.firsts, offset) - 1)
        for extent in self.extents[index:]:
            if extent.end > offset:
                yield extent

    def kept_from(self, offset: int, count: int) -> Sequence[int]:
        """Up to `count` offsets from `offset` on that can be read."""
        first = max(offset, self.start)
        if not self.lost and not self.removed:
            return range(first, max(first, min(self.end, first + count)))
        kept = (self._kept_in(max(extent.first, first), extent.end) for extent in self.extents_from(first))
        return list(islice(chain.from_iterable(kept), count))

    def count_kept(self, first: int, end: int) -> int:
        """How many offsets of [first, end) can be read."""
        first = max(first, self.start)
        lost = sum(max(0, min(end, last) - max(first, start)) for start, last in self.lost)
        return max(0, end - first) - lost - (self.removed.count(first, end) if self.removed and first < end else 0)

    def _kept_in(self, first: int, end: int) -> Sequence[int]:
        """The offsets of a part of an extent that are not removed."""
        if not self.removed.count(first, end):
            return range(first, end)
        kept: list[int] = (np.flatnonzero(~self.removed.mask(first, end)) + first).tolist()
        return kept

    def offset_at(self, instant: int) -> int:
        """The first offset pushed at or after an instant; `end` when there is none. May raise `ColumnNotLoaded`."""
        index = bisect_left(self.extents, instant, key=Extent.pushed_last_at)
        if index == len(self.extents):
            return self.end
        extent = self.extents[index]
        if extent.pushed_at >= instant:
            return max(extent.first, self.start)
        return max(extent.first + int(np.searchsorted(extent.pushed_times(), instant)), self.start)

    def pushed_time(self, offset: int) -> int:
        """When one message was pushed. May raise `ColumnNotLoaded`."""
        extent = self.extent_at(offset)
        if extent.sealed is None or offset == extent.first or extent.sealed.pushed_last_at == extent.pushed_at:
            return extent.pushed_at
        return int(extent.pushed_times()[offset - extent.first])

    def key_hash(self, offset: int) -> int:
        """The hash of a message's key, 0 when it has none. May raise `ColumnNotLoaded`."""
        extent = self.extent_at(offset)
        hashes = extent.key_hashes()
        return 0 if hashes is None else int(hashes[offset - extent.first])

    def stored_bytes(self, below: int | None = None) -> int:
        """Bytes of what is kept, or of what lies under an offset."""
        end = self.end if below is None else min(below, self.end)
        return sum(extent.stored_bytes(self.start, end) for extent in takewhile(lambda e: e.first < end, self.extents))

    def trim(self, start: int) -> None:
        """Retention: forget what lies wholly under `start`."""
        self.start = max(self.start, min(start, self.end))
        gone = 0
        while gone < len(self.extents) and self.extents[gone].end <= self.start:
            gone += 1
        del self.extents[:gone], self.firsts[:gone]
        self.lost = [(first, end) for first, end in self.lost if end > self.start]
        self.removed = self.removed.after(self.start)
        if not self.extents:
            self.flags = 0

    def reseal(self, sealed: list[Extent], sequence: int) -> None:
        """The messages of frames up to `sequence` are in segments now: put `sealed` in place of their batches."""
        kept = bisect_left(self.extents, True, key=lambda extent: extent.sealed is None)  # those come last
        tail = [extent for extent in self.extents[kept:] if extent.sequence > sequence]
        later = [*(extent for extent in sealed if extent.end > self.start), *tail]
        if self.queue.namespace is not None:
            before = sum(extent.stored_bytes(self.start, self.end) for extent in self.extents[kept:])
            self.queue.count_bytes(sum(extent.stored_bytes(self.start, self.end) for extent in later) - before)
        self.extents[kept:] = later
        self.firsts[kept:] = [extent.first for extent in later]
        self.sealed_end = max([self.sealed_end, *(extent.end for extent in sealed)])

    def replace_files(self, gone: AbstractSet[str], extents: list[Extent]) -> None:
        """Compaction wrote what is left of some files to others: `extents` are what it kept of this partition."""
        stay = [extent for extent in self.extents if extent.sealed is None or extent.sealed.file not in gone]
        if self.queue.namespace is not None:
            before = sum(extent.stored_bytes(self.start, self.end) for extent in self.extents)
            self.queue.count_bytes(sum(e.stored_bytes(self.start, self.end) for e in [*stay, *extents]) - before)
        self.extents = sorted([*stay, *extents], key=lambda extent: extent.first)
        self.firsts = [extent.first for extent in self.extents]

    def relocate(self, moved: list[Extent]) -> None:
        """Sealed extents lie elsewhere now, each with all its messages."""
        for extent in moved:
            position = bisect_left(self.firsts, extent.first)
            if position < len(self.extents) and self.extents[position].first == extent.first:
                self.extents[position] = extent


@dataclass(slots=True, eq=False)
class Queue:
    """A named destination. Its id is its incarnation: never reused."""

    id: int
    name: str
    options: QueueOptions
    created_at: int
    push_limits: PushLimits | None = None
    paused: bool = False
    partitions: list[Partition] = field(default_factory=list)
    by_name: dict[str, Partition] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    group_ids: dict[str, int] = field(default_factory=dict)
    group_id_next: int = 0  # never reused: entries of a deleted group must not meet a new one
    dedup: DedupWindow | None = None
    pushes: int = 0  # since the process started: batches without a key go to one partition after the other
    touched: int = 0  # last frame that changed it: a checkpoint rewrites what changed
    horizon: int = FOREVER  # delays up to this instant are in the timer wheel; later ones in the extents only
    near: int = 0  # how many of them
    namespace: Namespace | None = None  # of those that are declared
    stored_bytes: int = 0  # of its messages, and of tasks that wait for others; counted in a namespace only
    gated: bool = field(init=False)  # by time, beyond the delays of messages
    ttl_us: int = field(init=False)  # of messages that have none of their own; 0: none
    is_closed: bool = field(init=False)  # nobody outside may push to it
    is_shut: bool = False  # pushes are paused
    is_held: bool = False  # delivery is paused, to all groups
    plain: bool = field(init=False)  # a push of one message without options goes to the end of the only partition

    def __post_init__(self) -> None:
        self.is_closed = self.is_dlq or self.name == AUDIT_QUEUE
        self.set_options(self.options, self.created_at)

    def set_options(self, options: QueueOptions, now: int) -> None:
        self.options = options
        self.push_limits = PushLimits.renewed(self.push_limits, options, now)
        self.gated = bool(options.window_seconds or options.delay_seconds)
        self.ttl_us = round((options.ttl_seconds or 0) * 1_000_000)
        self._set_plain()

    def set_namespace(self, namespace: Namespace | None) -> None:
        self.namespace = namespace
        self._set_plain()

    def set_paused(self, *, is_shut: bool, is_held: bool) -> None:
        """What follows from the pauses of the queue and of what it is in."""
        self.is_shut, self.is_held = is_shut, is_held
        self._set_plain()

    def _set_plain(self) -> None:
        options = self.options
        is_checked = options.max_length or self.push_limits is not None or options.encryption or self.namespace
        is_checked = is_checked or options.compaction != "none"
        self.plain = options.partitions == 1 and not (is_checked or self.is_closed or self.is_shut)

    def count_bytes(self, more: int) -> None:
        """The messages of a queue in a namespace take more bytes now, or fewer."""
        assert self.namespace is not None
        self.stored_bytes += more
        self.namespace.bytes += more

    @property
    def ordered(self) -> bool:
        return self.options.ordering != "none"

    @property
    def is_dlq(self) -> bool:
        return self.name.endswith(".dlq")

    def add_partition(self, name: str) -> Partition:
        partition = Partition(self, len(self.partitions), name)
        self.partitions.append(partition)
        self.by_name[name] = partition
        return partition

    def key_hashes(self, positions: Iterable[tuple[int, int]]) -> list[int]:
        """The key hashes of messages by (partition id, offset). May raise `ColumnNotLoaded`."""
        return ask_each(lambda position: self.partitions[position[0]].key_hash(position[1]), positions)

    def messages(self) -> int:
        return sum(p.end - p.start - p.removed.count(p.start, p.end) for p in self.partitions)


def create_queue_entries(
    number: int, name: str, options: QueueOptions, partitions: Sequence[str], now: int
) -> list[Entry]:
    """A queue, its partitions and its default group."""
    entries: list[Entry] = [QueueSet(number, name, msgspec.json.encode(options), False, now)]
    if partitions:
        entries.append(PartitionsAdded(number, 0, list(partitions)))
    entries.append(GroupSet(number, 0, DEFAULT_GROUP, now, []))
    return entries


def priority_of(partition: Partition, offset: int) -> int:
    """The priority of one message."""
    if not partition.flags & layout.PRIORITY or offset < partition.start:
        return limits.priority_default
    extent = partition.extent_at(offset)
    if not extent.first <= offset < extent.end:
        return limits.priority_default  # compaction removed it
    priorities = extent.priorities()
    return limits.priority_default if priorities is None else int(priorities[offset - extent.first])
