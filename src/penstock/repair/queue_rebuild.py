"""Rebuilding a queue whose part of the checkpoint is lost.

The shard's own part has a spare of it: name, options, partitions and their offsets. Should that be lost too, the
messages show most of it. Events show what each group has settled. What is left in the journal is applied afterwards, as
always. A message without history counts as not delivered: rather delivered twice than never.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.batch import layout
from penstock.delivery.core import DeliveryState
from penstock.delivery.dedup import DedupRecord, DedupWindow, digest
from penstock.delivery.entries import Entry, GroupSet, PartitionsAdded, Push, QueueSet, Span, decode
from penstock.delivery.log import Queue
from penstock.delivery.phases import AFTER, DEAD, WAITING
from penstock.delivery.ranges import NO_RANGES, Ranges
from penstock.delivery.settle import DLQ_OPTIONS
from penstock.delivery.snapshot import QueuePart, restore
from penstock.errors import Damaged
from penstock.model import DEFAULT_GROUP, DLQ_SUFFIX, MessageId, Outcome, QueueOptions
from penstock.model_letters import DEAD_GROUP, DEAD_ORIGIN
from penstock.seals import Seals
from penstock.storage.disk import Disk
from penstock.storage.doctor import JournalCheck
from penstock.storage.extents import Extent
from penstock.storage.manifest import Manifest
from penstock.storage.parquet import SegmentReader
from penstock.storage.schema import EVENTS, MESSAGES, SCHEMAS
from penstock.storage.sealed_rows import RowSeals
from penstock.storage.segment_files import segment_files

# Where a partition without a single message left begins: beyond any offset that it can have used.
UNKNOWN_END: Final = 1 << 48

_EVENT: Final = ("group", "partition", "first_offset", "last_offset", "outcome", "settled_at")


class Event(NamedTuple):
    """A row of the events table."""

    group: str
    partition: str
    first_offset: int
    last_offset: int
    outcome: str
    settled_at: int


DeadMessage = tuple[str, str, int]  # group, partition and offset of a message that died


class JournalFacts(msgspec.Struct):
    """What the frames in the journal say about one queue."""

    settings: QueueSet | None = None
    groups: dict[str, int] = {}
    partitions: dict[int, str] = {}
    first_offsets: dict[int, int] = {}

    def add(self, entry: Entry) -> None:
        if isinstance(entry, QueueSet):
            self.settings = entry
        elif isinstance(entry, GroupSet):
            self.groups[entry.name] = entry.group
        elif isinstance(entry, PartitionsAdded):
            self.partitions |= {entry.first + index: name for index, name in enumerate(entry.names)}
        elif isinstance(entry, Push):
            for number, _, first in entry.parts:
                self.first_offsets.setdefault(number, first)


class History:
    """What segments and the journal say about queues."""

    def __init__(
        self,
        disk: Disk,
        manifest: Manifest,
        journal: JournalCheck,
        spares: dict[int, QueuePart],
        now: int,
        seals: Seals | None = None,
    ) -> None:
        self.manifest = manifest
        self.spares = spares
        self.now = now
        self._reader = SegmentReader(segment_files(disk), row_seals=None if seals is None else RowSeals(seals))
        self._journal = journal

    @property
    def is_whole(self) -> bool:
        """Whether the journal goes back to the beginning, so that nothing needs to be guessed."""
        return self._journal.first_sequence == 1 and not self._journal.holes

    def extents(self, queue: int) -> list[Extent]:
        """Where its messages are, or were: a damaged file still says how far a partition goes."""
        return [extent for extent in self.manifest.extents if extent.queue == queue]

    def rows(self, extent: Extent, columns: list[str]) -> pa.Table:
        """Some columns of the rows of an extent; no rows when they cannot be read."""
        file = self.manifest.files[extent.file]
        try:
            read = self._reader.stored if self._reader.row_seals is None else self._reader.read
            return read(file, extent.row_group, columns).slice(extent.row, extent.stored_rows)
        except (Damaged, FileNotFoundError):
            return SCHEMAS[MESSAGES].empty_table().select(columns)

    def journal_facts(self, queue: int) -> JournalFacts:
        """What the journal still says about a queue."""
        facts = JournalFacts()
        for _, data in self._journal.replay():
            for entry in decode(data):
                if entry.queue == queue:
                    facts.add(entry)
        return facts

    def partition_names(self, queue: int) -> dict[int, str]:
        """Names of the partitions that have messages."""
        names: dict[int, str] = {}
        for extent in self.extents(queue):
            if extent.partition not in names:
                rows = self.rows(extent, ["partition"])["partition"]
                names |= {extent.partition: rows[0].as_py()} if len(rows) else {}
        return names

    def settled(self, queue: int) -> Iterator[Event]:
        """The events of a queue, in order."""
        for file in sorted(self.manifest.files.values(), key=attrgetter("first_sequence")):
            if file.table != EVENTS or queue not in {about.queue for about in file.events}:
                continue
            for row_group in range(len(file.row_groups)):
                try:
                    table = self._reader.read(file, row_group, ["incarnation", *_EVENT])
                except (Damaged, FileNotFoundError):
                    continue
                table = table.filter(pc.equal(table["incarnation"], queue)).drop_columns("incarnation")
                table = table.set_column(5, "settled_at", table["settled_at"].cast(pa.int64()))
                yield from map(Event, *(table[name].to_pylist() for name in _EVENT))

    def redriven(self, queue: int) -> Iterator[DeadMessage]:
        """The origin of every dead letter of the queue that was sent back."""
        dlq_name = self.manifest.queues.get(queue, "") + DLQ_SUFFIX
        for dlq, name in self.manifest.queues.items():
            if name == dlq_name:
                extents = self.extents(dlq)
                for event in self.settled(dlq):
                    if event.outcome == "redriven":
                        yield from self._origins(extents, event)

    def _origins(self, extents: list[Extent], event: Event) -> Iterator[DeadMessage]:
        for extent in extents:
            first = max(extent.first_offset, event.first_offset)
            end = min(extent.end_offset, event.last_offset + 1)
            if first < end:
                rows = self.rows(extent, ["headers"])["headers"].slice(first - extent.first_offset, end - first)
                for headers in map(dict, rows.to_pylist()):
                    origin = MessageId.parse(headers[DEAD_ORIGIN])
                    yield headers[DEAD_GROUP], origin.partition, origin.offset


def rebuild_queue(core: DeliveryState, history: History, number: int) -> str:
    """Rebuild a queue in the core; returns a note for the report."""
    events = list(history.settled(number))
    spare = history.spares.get(number)
    known = _begin_empty(core, history, number, events) if spare is None else _begin_with(core, spare)
    queue = core.queues[number]
    deaths: Counter[DeadMessage] = Counter()
    for event in events:
        _apply(queue, event, deaths)
    for dead, count in Counter(history.redriven(number)).items():
        if deaths[dead] <= count:
            _revive(queue, dead, history.now)
    rebuild_dedup(queue, history)
    if history.is_whole:
        return f"queue {queue.name!r}: its state is rebuilt completely from the journal"
    forgotten = "messages may be delivered once more, and a seek back is forgotten"
    return f"queue {queue.name!r}: what its groups have settled is taken from the sealed history; {known}; {forgotten}"


def _begin_with(core: DeliveryState, spare: QueuePart) -> str:
    restore(core, spare)
    for partition in core.queues[spare.head.id].partitions:
        partition.applied = 0  # of what groups did, nothing
    return "its options and offsets are known"


def _begin_empty(core: DeliveryState, history: History, number: int, events: list[Event]) -> str:
    facts = history.journal_facts(number)
    name = facts.settings.name if facts.settings else history.manifest.queues.get(number, f"recovered-{number}")
    default = msgspec.json.encode(DLQ_OPTIONS if name.endswith(DLQ_SUFFIX) else QueueOptions())
    options = facts.settings.options if facts.settings else default
    core.apply([QueueSet(number, name, options, False, history.now)], 0)
    queue = core.queues[number]
    _make_partitions(core, queue, history, facts, events)
    _make_groups(core, queue, facts.groups, events, history.now)
    return "its options are those in the journal" if facts.settings else "its options are the defaults: set them again"


def _make_partitions(
    core: DeliveryState, queue: Queue, history: History, facts: JournalFacts, events: list[Event]
) -> None:
    names = facts.partitions | history.partition_names(queue.id)
    spare = iter(sorted({event.partition for event in events} - set(names.values())))
    numbers = {extent.partition for extent in history.extents(queue.id)}
    count = max([*names, *facts.first_offsets, *numbers], default=-1) + 1
    numbered = [names.get(number) or next(spare, str(number)) for number in range(count)]
    numbered += spare
    if numbered:
        core.apply([PartitionsAdded(queue.id, 0, numbered)], 0)
    ends = {event.partition: event.last_offset + 1 for event in sorted(events, key=attrgetter("last_offset"))}
    for partition in queue.partitions:
        extents = [extent for extent in history.extents(queue.id) if extent.partition == partition.id]
        # A partition that was made in the journal has nothing before it.
        last = 0 if partition.id in facts.partitions else ends.get(partition.name, UNKNOWN_END)
        unseen = facts.first_offsets.get(partition.id, last)
        partition.start = extents[0].first_offset if extents else unseen
        partition.end = extents[-1].end_offset if extents else unseen
        for extent in extents:
            partition.removed |= _gaps_in(extent, history)


def _gaps_in(extent: Extent, history: History) -> Ranges:
    """What compaction removed from the middle of an extent; all of it when its rows cannot be read."""
    if not extent.rows:
        return NO_RANGES
    stored = history.rows(extent, ["offset"])["offset"].to_numpy()
    offsets = np.arange(extent.first_offset, extent.end_offset)
    return Ranges.of_offsets(np.setdiff1d(offsets, stored)) if len(stored) else NO_RANGES


def _make_groups(core: DeliveryState, queue: Queue, ids: dict[str, int], events: list[Event], now: int) -> None:
    numbered = {DEFAULT_GROUP: 0, **ids}
    for name in dict.fromkeys(event.group for event in events if event.group):
        numbered.setdefault(name, max(numbered.values()) + 1)
    for name, number in sorted(numbered.items(), key=lambda pair: pair[1]):
        core.apply([GroupSet(queue.id, number, name, now, [])], 0)


def _apply(queue: Queue, event: Event, deaths: Counter[DeadMessage]) -> None:
    partition = queue.by_name.get(event.partition)
    if partition is None or event.group not in queue.group_ids:
        return
    first, end = max(event.first_offset, partition.start), min(event.last_offset + 1, partition.end)
    if first >= end:
        return
    progress = queue.groups[queue.group_ids[event.group]].progress[partition.id]
    outcome = Outcome[event.outcome.upper()]
    for offset in [offset for offset in progress.dead_offsets or () if first <= offset < end]:
        # It was delivered after its death, so it had been sent back.
        _revive(queue, (event.group, event.partition, offset), event.settled_at)
    span = Span(partition.id, first, end - first)
    if AFTER[outcome] == WAITING:
        span.dues = np.full(end - first, event.settled_at, np.int64).tobytes()
    progress.settle(span, outcome, event.settled_at, event.settled_at)
    if outcome in DEAD:
        deaths.update((event.group, event.partition, offset) for offset in range(first, end))


def _revive(queue: Queue, dead: DeadMessage, at: int) -> None:
    group, partition, offset = dead
    if group not in queue.group_ids or partition not in queue.by_name:
        return
    number = queue.by_name[partition].id
    progress = queue.groups[queue.group_ids[group]].progress[number]
    if offset in (progress.dead_offsets or ()):
        progress.revive(Span(number, offset, 1, dues=np.array([at], np.int64).tobytes()))


def rebuild_dedup(queue: Queue, history: History) -> str:
    """Rebuild the dedup window from the messages that are kept."""
    window = queue.dedup = DedupWindow(queue.options.dedup_seconds)
    for extent in history.extents(queue.id):
        if extent.flags & layout.DEDUP_KEY and extent.pushed_last_at > history.now - window.window:
            _learn(window, extent, history.rows(extent, ["offset", "dedup_key", "pushed_at"]))
    window.freeze()
    if not window.runs:
        queue.dedup = None
    return f"queue {queue.name!r}: its dedup window is rebuilt from the messages that are kept"


def _learn(window: DedupWindow, extent: Extent, table: pa.Table) -> None:
    times: list[Any] = table["pushed_at"].cast(pa.int64()).to_pylist()
    offsets: list[int] = table["offset"].to_pylist()
    for row, key in enumerate(table["dedup_key"].to_pylist()):
        if key is not None:
            window.hot[digest(key)] = DedupRecord(extent.partition, offsets[row], times[row])
