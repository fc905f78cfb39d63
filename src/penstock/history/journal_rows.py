"""Messages that are not sealed yet, from the pushes of a stretch of the journal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock import limits as bounds
from penstock.delivery import entries
from penstock.history import rows
from penstock.history.slices import Slice
from penstock.storage.message_rows import PushedBatch, message_table, single_push
from penstock.storage.schema import MESSAGES, SCHEMAS, Names

if TYPE_CHECKING:
    from penstock.history.history import History

BATCH_BYTES: Final = 16 * bounds.MIB  # of payload in a record batch, about


def read_journal(history: History, each: Slice, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of a stretch of the journal."""
    ((incarnation, queue),) = each.queues.items()
    names = Names({incarnation: (queue, {id: name for id, (name, _, _) in each.partitions.items()})}, {})
    partitions = set(each.partitions)
    pushed: list[PushedBatch] = []
    size = 0
    for frame in rows.frames(history, each):
        single = single_push(frame)
        found = (single,) if single is not None else map(PushedBatch, entries.decode_pushes(frame))
        for item in found:
            if item.queue == incarnation and not partitions.isdisjoint([part for part, _, _ in item.parts]):
                pushed.append(item)
                size += item.payload_bytes
        if size >= BATCH_BYTES:
            yield _gathered(pushed, names, each, columns)
            pushed, size = [], 0
    if pushed:
        yield _gathered(pushed, names, each, columns)


def _gathered(pushed: list[PushedBatch], names: Names, each: Slice, columns: Sequence[str]) -> pa.Table:
    """The wanted rows of some pushes, in the plain types of the table."""
    nowhere = bounds.instant_us_max  # an offset that no message has: nothing of that partition is wanted
    table = message_table(pushed, names, lambda queue, part: each.partitions.get(part, ("", nowhere, 0))[1]).table
    ends = {id: end for id, (_, _, end) in each.partitions.items()}
    if any(first + count > ends.get(part, nowhere) for item in pushed for part, count, first in item.parts):
        limit = pa.array([ends.get(id, 0) for id in range(max(ends) + 1)], pa.int64())
        table = table.filter(pc.less(table["offset"], limit.take(table["partition_id"].combine_chunks())))
    needed = rows.messages_within(table, each.limits).select(list(columns))
    schema = pa.schema([SCHEMAS[MESSAGES].field(name) for name in columns])
    return needed.cast(schema).combine_chunks()
