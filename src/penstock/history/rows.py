"""What readers of both tables need: frames of the journal, and rows within bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import Damaged
from penstock.history.slices import Limits, Slice
from penstock.storage.frames import FRAME, PREFIX, frame_is_sound, seed_of
from penstock.storage.schema import TIME

if TYPE_CHECKING:
    from penstock.history.history import History


def frames(history: History, each: Slice) -> Iterator[memoryview]:
    """The frames of a stretch of a journal file, each through its checksum."""
    data = memoryview(history.files.read(each.file, each.start, each.end - each.start))
    seed, position = seed_of(history.shard_id), 0
    while position < len(data):
        length, crc, _, _ = FRAME.unpack_from(data, position)
        if not frame_is_sound(data, position, length, crc, seed):
            raise Damaged(f"{each.file}: the frame at position {each.start + position} is not sound")
        yield data[position + FRAME.size : position + PREFIX.size + length]
        position += PREFIX.size + length


def bounded(table: pa.Table, time: str, limits: Limits, *, has_priority: bool = False) -> pa.Table:
    """Only rows whose `time`, and priority, are within bounds."""
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
    """Only messages within bounds."""
    return bounded(table, "pushed_at", limits, has_priority=limits.has_priority)
