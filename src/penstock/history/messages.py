"""Messages, from row groups of segments and from pushes in the journal, as one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock import limits as bounds
from penstock.delivery import entries
from penstock.history import rows
from penstock.history.slices import Limits, Run, Slice
from penstock.storage.gather import gather
from penstock.storage.manifest import SegmentFile
from penstock.storage.names import Names
from penstock.storage.pieces import Pushed, single_of
from penstock.storage.schema import MESSAGES, SCHEMAS

if TYPE_CHECKING:
    from penstock.history.history import History

BATCH_BYTES: Final = 16 * bounds.MIB  # of payload in a record batch, about


def read_segment(history: History, each: Slice, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of a slice of a segment, row group by row group."""
    file = history.segment_file(each.file)
    needed = list(dict.fromkeys((*columns, *_limiting(each.limits))))
    for row_group, runs in groupby(each.runs, key=lambda run: run.row_group):
        if _is_out_of_bounds(history, file, row_group, each.limits):
            continue
        table = _of_runs(history.segments.read(file, row_group, needed), list(runs))
        yield _limited(table, each.limits).select(list(columns))


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


def _limited(table: pa.Table, limits: Limits) -> pa.Table:
    """Only rows within bounds."""
    return rows.bounded(table, "pushed_at", limits, has_priority=limits.has_priority)


def read_journal(history: History, each: Slice, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of a stretch of the journal."""
    ((incarnation, queue),) = each.queues.items()
    names = Names({incarnation: (queue, {id: name for id, (name, _, _) in each.partitions.items()})}, {})
    pushed: list[Pushed] = []
    size = 0
    for frame in rows.frames(history, each):
        single = single_of(frame)
        found = [single] if single is not None else [Pushed(push) for push in entries.decode_pushes(frame)]
        for item in found:
            if item.queue == incarnation and any(part in each.partitions for part, _, _ in item.parts):
                pushed.append(item)
                size += item.payload_bytes
        if size >= BATCH_BYTES:
            yield _gathered(pushed, names, each, columns)
            pushed, size = [], 0
    if pushed:
        yield _gathered(pushed, names, each, columns)


def _gathered(pushed: list[Pushed], names: Names, each: Slice, columns: Sequence[str]) -> pa.Table:
    """The wanted rows of some pushes, in the plain types of the table."""
    nowhere = bounds.instant_us_max  # an offset that no message has: nothing of that partition is wanted
    table = gather(pushed, names, lambda queue, part: each.partitions.get(part, ("", nowhere, 0))[1]).table
    ends = {id: end for id, (_, _, end) in each.partitions.items()}
    if any(first + count > ends.get(part, nowhere) for item in pushed for part, count, first in item.parts):
        limit = pa.array([ends.get(id, 0) for id in range(max(ends) + 1)], pa.int64())
        table = table.filter(pc.less(table["offset"], limit.take(table["partition_id"].combine_chunks())))
    needed = _limited(table, each.limits).select(list(columns))
    schema = pa.schema([SCHEMAS[MESSAGES].field(name) for name in columns])
    return needed.cast(schema).combine_chunks()
