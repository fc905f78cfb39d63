"""Messages as Arrow tables, from row groups of a segment and from frames of the journal.

The manifest says which columns the messages of a row group have, and the slice says whose they are. All other columns
hold one value: they are built, not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from penstock import limits as bounds
from penstock.batch import layout
from penstock.delivery import entries
from penstock.errors import Damaged
from penstock.history.slices import Limits, Run, Slice
from penstock.model import CONTENT_TYPE_NAMES, ContentType
from penstock.storage.frames import FRAME, PREFIX, frame_is_sound, seed_of
from penstock.storage.manifest import SegmentFile
from penstock.storage.message_rows import PushedBatch, message_table, pushed_batch, single_push
from penstock.storage.schema import MESSAGES, SCHEMAS, TIME, Names

if TYPE_CHECKING:
    from penstock.history.history import History

BATCH_BYTES: Final = 16 * bounds.MIB  # of payload in a record batch, about

# Columns with one value unless a message has the batch column of one of these bits.
_CONSTANT: Final[dict[str, tuple[int, Any]]] = {
    "available_at": (layout.DELAY | layout.DELIVER_AT, None),
    "expires_at": (layout.TTL, None),
    "key": (layout.KEY, None),
    "priority": (layout.PRIORITY, bounds.priority_default),
    "headers": (layout.HEADERS, None),
    "content_type": (layout.CONTENT_TYPE, CONTENT_TYPE_NAMES[ContentType.BYTES]),
    "dedup_key": (layout.DEDUP_KEY, None),
    "trace_id": (layout.TRACE, None),
    "max_attempts": (layout.MAX_ATTEMPTS, None),
}
_OF_THE_SLICE: Final = ("queue", "incarnation", "partition", "partition_id")
_SCHEMA: Final = SCHEMAS[MESSAGES]


def frames(history: History, part: Slice) -> Iterator[memoryview]:
    """The frames of a stretch of a journal file, each checked by its checksum."""
    data = memoryview(history.files.read(part.file, part.start, part.end - part.start))
    seed, position = seed_of(history.shard_id), 0
    while position < len(data):
        length, crc, _, _ = FRAME.unpack_from(data, position)
        if not frame_is_sound(data, position, length, crc, seed):
            raise Damaged(f"{part.file}: the frame at position {part.start + position} is damaged")
        yield history.unsealed(part, data[position + FRAME.size : position + PREFIX.size + length])
        position += PREFIX.size + length


def within_limits(table: pa.Table, time: str, limits: Limits, *, has_priority: bool = False) -> pa.Table:
    """The rows whose `time`, and priority, are within the limits."""
    masks = []
    if limits.since is not None:
        masks.append(pc.greater_equal(table[time], pa.scalar(limits.since, pa.int64()).cast(TIME)))
    if limits.until is not None:
        masks.append(pc.less(table[time], pa.scalar(limits.until, pa.int64()).cast(TIME)))
    if has_priority and limits.priority_min is not None:
        masks.append(pc.greater_equal(table["priority"], limits.priority_min))
    if has_priority and limits.priority_max is not None:
        masks.append(pc.less_equal(table["priority"], limits.priority_max))
    for mask in masks[1:]:
        masks[0] = pc.and_(masks[0], mask)
    return table.filter(masks[0]) if masks else table


def messages_within(table: pa.Table, limits: Limits) -> pa.Table:
    """The messages within the limits."""
    return within_limits(table, "pushed_at", limits, has_priority=limits.has_priority)


def read_segment(history: History, part: Slice, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of a slice of a segment, row group by row group."""
    file = history.segment_file(part.file)
    needed = list(dict.fromkeys((*columns, *_limiting(part.limits))))
    for row_group, grouped in groupby(part.runs, key=lambda run: run.row_group):
        if _is_out_of_bounds(history, file, row_group, part.limits):
            continue
        runs, flags = list(grouped), file.row_groups[row_group].flags
        # Something must be read for the rows to be counted, and offsets for those among gaps to be found.
        stored = [name for name in needed if not _is_built(name, flags)] or ["offset"]
        if "offset" not in stored and any(run.stored for run in runs):
            stored.append("offset")
        table, runs = _of_runs(history.read_group(part, file, row_group, stored), runs)
        built = _built_columns(part, runs, flags, needed)
        arrays = [built[name] if name in built else table[name] for name in needed]
        rows = pa.table(arrays, schema=pa.schema([_SCHEMA.field(name) for name in needed]))
        yield messages_within(rows, part.limits).select(list(columns))


def _is_built(name: str, flags: int) -> bool:
    return name in _OF_THE_SLICE or (name in _CONSTANT and not flags & _CONSTANT[name][0])


def _built_columns(part: Slice, runs: list[Run], flags: int, needed: list[str]) -> dict[str, pa.Array]:
    """The columns that need not be read."""
    count = sum(run.count for run in runs)
    built = {}
    for name in needed:
        kind = _SCHEMA.field(name).type
        if name in _OF_THE_SLICE:
            built[name] = _of_the_slice(name, kind, part, runs, count)
        elif _is_built(name, flags):
            built[name] = _repeated(_CONSTANT[name][1], kind, count)
    return built


def _of_the_slice(name: str, kind: pa.DataType, part: Slice, runs: list[Run], count: int) -> pa.Array:
    ((incarnation, queue),) = part.queues.items()
    if name in ("queue", "incarnation"):
        return _repeated(queue if name == "queue" else incarnation, kind, count)
    chunks = [
        _repeated(run.partition if name == "partition_id" else part.partitions[run.partition][0], kind, run.count)
        for run in runs
    ]
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def _repeated(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)


def _is_out_of_bounds(history: History, file: SegmentFile, row_group: int, limits: Limits) -> bool:
    """Whether the statistics of a row group rule it out."""
    if not limits.has_priority:
        return False
    group = history.segments.footer(file).row_group(row_group)
    column = group.column(SCHEMAS[MESSAGES].get_field_index("priority"))
    statistics = column.statistics
    return (
        statistics is not None and statistics.has_min_max and not limits.meets_priority(statistics.min, statistics.max)
    )


def _of_runs(table: pa.Table, runs: list[Run]) -> tuple[pa.Table, list[Run]]:
    """The rows of some runs, and the runs with as many rows as they have."""
    if not any(run.stored for run in runs):
        return _joined(table, runs), runs
    tables = [_among_gaps(table, run) if run.stored else table.slice(run.row, run.count) for run in runs]
    counted = [replace(run, count=len(rows)) for run, rows in zip(runs, tables, strict=True)]
    return pa.concat_tables(tables), counted


def _among_gaps(table: pa.Table, run: Run) -> pa.Table:
    rows = table.slice(run.row, run.stored)
    offsets = rows["offset"].to_numpy()
    return rows.filter(pa.array((offsets >= run.first) & (offsets < run.first + run.count)))


def _joined(table: pa.Table, runs: list[Run]) -> pa.Table:
    """The rows of runs without gaps; those that follow each other are one slice."""
    stretches: list[tuple[int, int]] = []
    for run in runs:
        if stretches and sum(stretches[-1]) == run.row:
            stretches[-1] = (stretches[-1][0], stretches[-1][1] + run.count)
        else:
            stretches.append((run.row, run.count))
    if len(stretches) == 1:
        return table.slice(*stretches[0])
    return pa.concat_tables([table.slice(row, count) for row, count in stretches])


def _limiting(limits: Limits) -> list[str]:
    """The columns that limits are about."""
    times = ["pushed_at"] if limits.since is not None or limits.until is not None else []
    return [*times, *(["priority"] if limits.has_priority else [])]


def read_journal(history: History, part: Slice, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of a stretch of the journal."""
    ((incarnation, queue),) = part.queues.items()
    names = Names({incarnation: (queue, {id: name for id, (name, _, _) in part.partitions.items()})}, {})
    partitions = set(part.partitions)
    pushed: list[PushedBatch] = []
    size = 0
    for frame in frames(history, part):
        single = single_push(frame)
        for item in (single,) if single is not None else map(pushed_batch, entries.decode_pushes(frame)):
            if item.queue == incarnation and not partitions.isdisjoint([id for id, _, _ in item.parts]):
                pushed.append(item)
                size += item.payload_bytes
        if size >= BATCH_BYTES:
            yield _gathered(pushed, names, part, columns)
            pushed, size = [], 0
    if pushed:
        yield _gathered(pushed, names, part, columns)


def _gathered(pushed: list[PushedBatch], names: Names, part: Slice, columns: Sequence[str]) -> pa.Table:
    """The rows of some pushes that the slice is about, in the plain types of the table."""
    nowhere = bounds.instant_us_max  # an offset that no message has: nothing of that partition is read
    table = message_table(pushed, names, lambda queue, id: part.partitions.get(id, ("", nowhere, 0))[1]).table
    ends = {id: end for id, (_, _, end) in part.partitions.items()}
    if any(first + count > ends.get(id, nowhere) for item in pushed for id, count, first in item.parts):
        limit = pa.array([ends.get(id, 0) for id in range(max(ends) + 1)], pa.int64())
        table = table.filter(pc.less(table["offset"], limit.take(table["partition_id"].combine_chunks())))
    needed = messages_within(table, part.limits).select(list(columns))
    schema = pa.schema([SCHEMAS[MESSAGES].field(name) for name in columns])
    return needed.cast(schema).combine_chunks()
