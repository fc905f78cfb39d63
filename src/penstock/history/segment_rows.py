"""Messages from row groups of a segment.

The manifest says which columns some message of a row group has, and the slice whose they are. All other columns have
one value: they are made, not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock import limits as bounds
from penstock.batch import layout
from penstock.history import rows
from penstock.history.slices import Limits, Run, Slice
from penstock.model import CONTENT_TYPE_NAMES, ContentType
from penstock.storage.manifest import SegmentFile
from penstock.storage.schema import MESSAGES, SCHEMAS

if TYPE_CHECKING:
    from penstock.history.history import History

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


def read_segment(history: History, each: Slice, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of a slice of a segment, row group by row group."""
    file = history.segment_file(each.file)
    needed = list(dict.fromkeys((*columns, *_limiting(each.limits))))
    for row_group, grouped in groupby(each.runs, key=lambda run: run.row_group):
        if _is_out_of_bounds(history, file, row_group, each.limits):
            continue
        runs = list(grouped)
        made = _made(each, runs, file.row_groups[row_group].flags, needed)
        # Something must be read for the rows to be counted.
        stored = [name for name in needed if name not in made] or ["offset"]
        table = _of_runs(history.segments.read(file, row_group, stored), runs)
        arrays = [made[name] if name in made else table[name] for name in needed]
        found = pa.table(arrays, schema=pa.schema([_SCHEMA.field(name) for name in needed]))
        yield rows.messages_within(found, each.limits).select(list(columns))


def _made(each: Slice, runs: list[Run], flags: int, needed: list[str]) -> dict[str, pa.Array]:
    """The columns that need not be read."""
    count = sum(run.count for run in runs)
    made = {}
    for name in needed:
        kind = _SCHEMA.field(name).type
        if name in _CONSTANT and not flags & _CONSTANT[name][0]:
            made[name] = _repeated(_CONSTANT[name][1], kind, count)
        elif name in _OF_THE_SLICE:
            made[name] = _of_the_slice(name, kind, each, runs, count)
    return made


def _of_the_slice(name: str, kind: pa.DataType, each: Slice, runs: list[Run], count: int) -> pa.Array:
    ((incarnation, queue),) = each.queues.items()
    if name in ("queue", "incarnation"):
        return _repeated(queue if name == "queue" else incarnation, kind, count)
    chunks = [
        _repeated(run.partition if name == "partition_id" else each.partitions[run.partition][0], kind, run.count)
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
    found = column.statistics
    return found is not None and found.has_min_max and not limits.meets_priority(found.min, found.max)


def _of_runs(table: pa.Table, runs: list[Run]) -> pa.Table:
    """The rows of some runs; runs that follow each other are one slice."""
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
