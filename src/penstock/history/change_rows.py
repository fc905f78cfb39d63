"""Changes of messages and of tasks as Arrow tables, from the sealed tables and from the journal after them.

Events are settled runs of offsets. Beside the columns of the sealed table they have three that are computed on demand:

    pushed_at       when the first message of the run was pushed; null when it is no longer kept
    wait_ms         from `pushed_at` until it was leased
    processing_ms   from the lease until it was settled

In the journal a settlement names only the offset of a message. Which task that is, is read from the message itself,
wherever it is stored by now; messages that are gone, or are no tasks, have no rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock import limits
from penstock.delivery import entries
from penstock.envelopes import parse_envelope
from penstock.errors import InvalidField
from penstock.history.message_rows import frames, within_limits
from penstock.history.moment import PUSH, Moment, Rows
from penstock.history.slices import OffsetRange, Slice
from penstock.model import CONTENT_TYPE_NAMES, ContentType
from penstock.storage.cache import ByteCache
from penstock.storage.extents import Extent
from penstock.storage.parquet import EventRows, read_column
from penstock.storage.schema import EVENTS, SCHEMAS, TIME
from penstock.storage.task_changes import id_bytes
from penstock.storage.task_rows import Identity, Key, TaskRows

if TYPE_CHECKING:
    from penstock.history.history import History

Int64s = NDArray[np.int64]

COMPUTED: Final = {
    "pushed_at": pa.field("pushed_at", TIME),
    "wait_ms": pa.field("wait_ms", pa.float64()),
    "processing_ms": pa.field("processing_ms", pa.float64()),
}
EVENTS_SCHEMA: Final = pa.schema([*SCHEMAS[EVENTS], *COMPUTED.values()])

_SETTLED: Final = entries.Settled.__struct_config__.tag
_NEEDED_FOR_TIMES: Final = ("incarnation", "partition", "first_offset", "leased_at", "settled_at")


def read_changes(history: History, part: Slice, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of one slice of events or of tasks."""
    is_events = part.table == EVENTS
    time = "settled_at" if is_events else "at"
    incarnations = pa.array(list(part.queues), pa.int64())
    for table in _journal(history, part) if part.is_tail else _segment(history, part, columns, time):
        rows = within_limits(table.filter(pc.is_in(table["incarnation"], incarnations)), time, part.limits)
        rows = _with_times(history, rows, columns) if is_events else rows
        yield rows.select(list(columns)).combine_chunks()


def _segment(history: History, part: Slice, columns: Sequence[str], time: str) -> Iterator[pa.Table]:
    stored = columns
    if part.table == EVENTS:
        stored = [name for name in columns if name not in COMPUTED]
        stored += _NEEDED_FOR_TIMES if len(stored) < len(columns) else ()
    needed = list(dict.fromkeys((*stored, "incarnation", time)))
    file = history.segment_file(part.file)
    for row_group in range(len(file.row_groups)):
        yield history.read_group(part, file, row_group, needed)


def _journal(history: History, part: Slice) -> Iterator[pa.Table]:
    names = history.recent().names
    if part.table == EVENTS:
        events = EventRows(names)
        for frame in frames(history, part):
            for kind, body in entries.split(frame):
                if kind == _SETTLED:
                    settled: Any = entries.decode_record(body)
                    events.add(settled)
        yield from events.tables()
        return
    tasks = TaskRows(names, lambda keys: _identify(history, part, keys), part.queues, remembers=True)
    for frame in frames(history, part):
        tasks.take(0, entries.decode(frame))
    tasks.finish()
    yield from tasks.tables()


# computed columns of events


def _with_times(history: History, table: pa.Table, columns: Sequence[str]) -> pa.Table:
    computed = [name for name in columns if name in COMPUTED]
    if not computed:
        return table
    leased, settled = (table[name].cast(pa.int64()) for name in ("leased_at", "settled_at"))
    if computed != ["processing_ms"]:
        pushed = PushTimes.of_moment(history).of_table(table)
        table = table.append_column(COMPUTED["pushed_at"], pushed.view(TIME))
        table = table.append_column(COMPUTED["wait_ms"], _milliseconds(pushed, leased))
    return table.append_column(COMPUTED["processing_ms"], _milliseconds(leased, settled))


def _milliseconds(since: Any, until: Any) -> Any:
    return pc.divide(pc.subtract(until, since).cast(pa.float64()), pa.scalar(1000.0))


class PushTimes:
    """When messages were pushed, by offset, at one moment: from the manifest where one instant fits all messages of an
    extent, else from the segments and the journal.
    """

    def __init__(self, history: History, moment: Moment) -> None:
        self._history = history
        self.moment = moment
        self._ids = {view.incarnation: view.partitions for view in moment.queues.values()}
        self._columns: ByteCache[tuple[str, int, str], Int64s] = ByteCache(limits.segment_cache_bytes)
        chunks = [chunk for view in moment.tail for chunk in view.pushes]
        self._tail = np.concatenate(chunks) if chunks else np.empty((0, len(PUSH)), np.int64)

    @classmethod
    def of_moment(cls, history: History) -> PushTimes:
        """The push times of the last look, kept until the next one."""
        moment = history.recent()
        if history.push_times is None or history.push_times.moment is not moment:
            history.push_times = cls(history, moment)
        return history.push_times

    def of_table(self, table: pa.Table) -> pa.Array:
        """For each row of events the µs at which the message at `first_offset` was pushed; null when it is gone."""
        times = np.zeros(len(table), np.int64)
        queues = table["incarnation"].to_numpy()
        partitions = table["partition"].combine_chunks().dictionary_encode()
        codes, names = partitions.indices.to_numpy(), partitions.dictionary.to_pylist()
        offsets = table["first_offset"].to_numpy()
        keys = queues.astype(np.int64) * (len(names) + 1) + codes
        order = np.argsort(keys, kind="stable")
        cuts = np.flatnonzero(np.diff(keys[order])) + 1
        for rows in np.split(order, cuts) if len(order) else ():
            view = self._ids.get(int(queues[rows[0]]), {}).get(names[codes[rows[0]]])
            if view is not None:
                times[rows] = self._of(int(queues[rows[0]]), view.id, offsets[rows])
        return pa.array(times, mask=times == 0)

    def _of(self, queue: int, partition: int, offsets: Int64s) -> Int64s:
        times = np.zeros(len(offsets), np.int64)
        self._fill_sealed(self._extents(queue, partition), offsets, times)
        if (times == 0).any():
            self._fill_tail(queue, partition, offsets, times)
        return times

    def _extents(self, queue: int, partition: int) -> list[Extent]:
        extents = self.moment.manifest.extents
        first = bisect_left(extents, (queue, partition), key=lambda extent: (extent.queue, extent.partition))
        end = bisect_left(extents, (queue, partition + 1), key=lambda extent: (extent.queue, extent.partition))
        return extents[first:end]

    def _fill_sealed(self, extents: list[Extent], offsets: Int64s, times: Int64s) -> None:
        if not extents:
            return
        firsts = np.array([extent.first_offset for extent in extents], np.int64)
        where = np.searchsorted(firsts, offsets, "right") - 1
        for index in np.unique(where[where >= 0]).tolist():
            extent = extents[index]
            rows = np.flatnonzero((where == index) & (offsets < extent.end_offset))
            if extent.pushed_first_at == extent.pushed_last_at:
                times[rows] = extent.pushed_first_at
            elif len(rows):
                times[rows] = self._times(extent)[offsets[rows] - extent.first_offset]

    def _times(self, extent: Extent) -> Int64s:
        """When each message of an extent was pushed; 0 for those that compaction removed."""
        stored = slice(extent.row, extent.row + extent.stored_rows)
        times = self._column(extent, "pushed_at")[stored]
        if not extent.rows:
            return times
        spread = np.zeros(extent.count, np.int64)
        spread[self._column(extent, "offset")[stored] - extent.first_offset] = times
        return spread

    def _column(self, extent: Extent, name: str) -> Int64s:
        def load() -> tuple[Any, int]:
            file = self._history.segment_file(extent.file)
            if name == "offset":
                column = self._history.segments.read(file, extent.row_group, [name])[name].to_numpy()
            else:
                column = read_column(self._history.segments, file, extent.row_group, name)
            return column, column.nbytes

        return self._columns.get((extent.file, extent.row_group, name), load)

    def _fill_tail(self, queue: int, partition: int, offsets: Int64s, times: Int64s) -> None:
        rows: Rows = self._tail
        rows = rows[(rows[:, PUSH["queue"]] == queue) & (rows[:, PUSH["partition"]] == partition)]
        if not len(rows):
            return
        firsts = rows[:, PUSH["first"]]
        where = np.searchsorted(firsts, offsets, "right") - 1
        is_known = (where >= 0) & (times == 0)
        is_known &= offsets < firsts[where] + rows[where, PUSH["count"]]
        times[is_known] = rows[where[is_known], PUSH["pushed_at"]]


# tasks in the journal


def _identify(history: History, part: Slice, keys: Iterable[Key]) -> Mapping[Key, Identity]:
    """Which tasks the messages at these offsets are."""
    identities: dict[Key, Identity] = {}
    moment = history.recent()
    positions: list[tuple[int, int, int]] = []
    for key in keys:
        if isinstance(key, bytes):
            identities[key] = Identity(key, "", 0)  # it waited for its parents: no message says what it was
        elif key[0] in part.queues:
            positions.append(key)
    ranges = [
        OffsetRange(part.queues[queue], moment.names.partition(queue, partition), offsets[0], offsets[-1] + 1)
        for (queue, partition), group in groupby(sorted(set(positions)), key=lambda position: position[:2])
        for offsets in _consecutive([position[2] for position in group])
    ]
    ids = {name: id for id, name in part.queues.items()}
    columns = ("queue", "partition_id", "offset", "content_type", "payload")
    for batch in history.read(history.plan(moment, ranges), columns) if ranges else ():
        tasks = batch.filter(pc.equal(batch["content_type"], CONTENT_TYPE_NAMES[ContentType.TASK]))
        for queue, partition, offset, _, payload in zip(*(c.to_pylist() for c in tasks.columns), strict=True):
            try:
                envelope = parse_envelope(payload)
                identities[ids[queue], partition, offset] = Identity(id_bytes(envelope.task_id), envelope.task_type, 0)
            except InvalidField:
                continue
    return identities


def _consecutive(offsets: Sequence[int]) -> list[list[int]]:
    """Runs of offsets that follow each other."""
    runs: list[list[int]] = []
    for offset in offsets:
        if runs and runs[-1][-1] + 1 == offset:
            runs[-1].append(offset)
        else:
            runs.append([offset])
    return runs
