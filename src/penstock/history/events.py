"""The lifecycle of messages: settled runs of offsets, from segments and from the journal, with their waits.

Beside the columns of the sealed table there are three that are worked out when somebody asks for them:

    pushed_at       when the first message of the run was pushed; null when it is no longer kept
    wait_ms         from then until it was handed out
    processing_ms   from then until it was settled
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.delivery import entries
from penstock.history import rows
from penstock.history.push_times import PushTimes
from penstock.history.slices import Slice
from penstock.storage.event_files import EventRows
from penstock.storage.schema import EVENTS, SCHEMAS, TIME

if TYPE_CHECKING:
    from penstock.history.history import History

WORKED_OUT: Final = {
    "pushed_at": pa.field("pushed_at", TIME),
    "wait_ms": pa.field("wait_ms", pa.float64()),
    "processing_ms": pa.field("processing_ms", pa.float64()),
}
SCHEMA: Final = pa.schema([*SCHEMAS[EVENTS], *WORKED_OUT.values()])

_KIND: Final = entries.Settled.__struct_config__.tag
_NEEDED_FOR_TIMES: Final = ("incarnation", "partition", "first_offset", "leased_at", "settled_at")


def read(history: History, each: Slice, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of one slice."""
    stored = [name for name in columns if name not in WORKED_OUT]
    beside = _NEEDED_FOR_TIMES if len(stored) < len(columns) else ()
    needed = dict.fromkeys((*stored, "incarnation", "settled_at", *beside))
    tables = _journal(history, each) if each.is_tail else _segment(history, each, list(needed))
    meant = pa.array(list(each.queues), pa.int64())
    for table in tables:
        found = table.filter(pc.is_in(table["incarnation"], meant))
        found = rows.bounded(found, "settled_at", each.limits)
        yield _with_times(history, found, columns).select(list(columns)).combine_chunks()


def _segment(history: History, each: Slice, columns: list[str]) -> Iterator[pa.Table]:
    file = history.segment_file(each.file)
    for row_group in range(len(file.row_groups)):
        yield history.segments.read(file, row_group, columns)


def _journal(history: History, each: Slice) -> Iterator[pa.Table]:
    gathered = EventRows(history.recent().names)
    for frame in rows.frames(history, each):
        for kind, body in entries.split(frame):
            if kind == _KIND:
                settled: Any = entries.decode_record(body)
                gathered.add(settled)
    yield from gathered.tables()


def _with_times(history: History, table: pa.Table, columns: Sequence[str]) -> pa.Table:
    wanted = [name for name in columns if name in WORKED_OUT]
    if not wanted:
        return table
    leased, settled = (table[name].cast(pa.int64()) for name in ("leased_at", "settled_at"))
    if wanted != ["processing_ms"]:
        pushed = PushTimes.of_moment(history).of_table(table)
        table = table.append_column(WORKED_OUT["pushed_at"], pushed.view(TIME))
        table = table.append_column(WORKED_OUT["wait_ms"], _milliseconds(pushed, leased))
    return table.append_column(WORKED_OUT["processing_ms"], _milliseconds(leased, settled))


def _milliseconds(since: Any, until: Any) -> Any:
    return pc.divide(pc.subtract(until, since).cast(pa.float64()), pa.scalar(1000.0))
