"""Selecting tasks by their type: a worker is given what it can run, and leaves the rest alone.

A lease that names types looks at each message once. One of another type is passed over: it goes into the line of its
type (`Lane.passed`), where a lease that knows the type, or one that names none, finds it. So however many tasks of
other types there are, leases pay for them once, and one lease for at most `LOOKED_MAX` of them: then it is cut short,
and asked again after the lock was free.

The lines are indexes like the others of a lane: after a restart messages are looked at again. Ordered queues have no
selection by type, since nothing may pass a message there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from penstock.delivery.entries import Int64s
from penstock.delivery.group import Lane
from penstock.delivery.log import Extent
from penstock.delivery.progress import Progress
from penstock.delivery.selection import (
    Selection,
    add_offsets,
    available_end,
    cursor_of,
    ready_offsets,
    set_cursor,
    take_retries,
    unread,
)
from penstock.envelopes import envelope_json

LOOKED_MAX: Final = 10_000
NO_TASK: Final = ""  # the line of messages that are no tasks


class _Typed(msgspec.Struct):
    task_type: str


_decoder: Final = msgspec.json.Decoder(_Typed)


def type_of(extent: Extent, offset: int) -> str | None:
    """The type of a task; None when it cannot be read, so that whoever gets it refuses it. May raise
    `ColumnNotLoaded`.
    """
    if not extent.is_task(offset):
        return NO_TASK
    batch, row = extent.message(offset)
    try:
        return _decoder.decode(envelope_json(batch.payload(row))).task_type
    except msgspec.MsgspecError:
        return None


def take_passed(selection: Selection, lane: Lane, count_max: int) -> None:
    """Take from the lines of the types that are wanted; of all when none is named."""
    types = selection.types
    for name in [name for name in lane.passed if types is None or name in types]:
        if selection.count >= count_max:
            return
        line = Lane(lane.priority, lane.passed[name])
        take_retries(selection, line, count_max)
        if not line.retries:
            del lane.passed[name]


def take_typed_retries(selection: Selection, lane: Lane, count_max: int) -> None:
    """Take what has come back to a lane; what is of another type is passed over."""
    own = Lane(lane.priority)
    room = count_max - selection.count
    try:
        while lane.retries and room > 0 and selection.looked < LOOKED_MAX:
            progress, what = lane.retries[0]
            offsets = [what] if isinstance(what, int) else what.tolist()
            wanted, looked = _pass_over(selection, lane, progress, offsets, room)
            lane.retries.popleft()
            if looked < len(offsets):
                lane.retries.appendleft((progress, _line_of(offsets[looked:])))
            if wanted:
                own.retries.append((progress, _line_of(wanted)))
                room -= len(wanted)
        take_retries(selection, own, count_max)
    finally:
        lane.retries.extendleft(reversed(own.retries))


def _pass_over(
    selection: Selection, lane: Lane, progress: Progress, offsets: Sequence[int], room: int
) -> tuple[list[int], int]:
    """Up to `room` messages that are wanted, and how many were looked at; others go into the lines of their types."""
    types = selection.types
    assert types is not None
    wanted: list[int] = []
    foreign: dict[str, list[int]] = {}
    looked = 0
    for offset in offsets:
        if len(wanted) >= room:
            break
        looked += 1
        if offset < progress.partition.start:
            continue  # removed meanwhile
        name = type_of(progress.partition.extent_at(offset), offset)
        if name is None or name in types:
            wanted.append(offset)
        else:
            foreign.setdefault(name, []).append(offset)
    selection.looked += looked
    for name, passed in foreign.items():
        lane.passed.setdefault(name, deque()).append((progress, _line_of(passed)))
    return wanted, looked


def _line_of(offsets: list[int]) -> int | Int64s:
    return offsets[0] if len(offsets) == 1 else np.array(offsets, np.int64)


def take_typed(selection: Selection, progress: Progress, priority: int, room: int) -> bool:
    """No ordering: whatever is ready and of a type that is wanted."""
    partition, gate = progress.partition, progress.group.gate
    end = available_end(selection, progress, priority) if partition.queue.gated else partition.end
    for extent, low, high in unread(progress, priority, end):
        if room <= 0 or selection.looked >= LOOKED_MAX or (gate is not None and gate.is_full()):
            break
        cursor, taken = _take_from(selection, progress, extent, priority, low, high, room)
        set_cursor(progress, priority, cursor)
        room -= taken
    has_more = cursor_of(progress, priority) < end
    if has_more and gate is not None and gate.is_full():
        gate.block(progress)
        return False
    return has_more


def _take_from(
    selection: Selection, progress: Progress, extent: Extent, priority: int, low: int, high: int, room: int
) -> tuple[int, int]:
    """Take from [low, high) of one extent; returns where to look next, and how many were taken."""
    high = min(high, low + LOOKED_MAX - selection.looked)
    ready = ready_offsets(selection, progress, extent, priority, low, high).tolist()
    lane, gate = progress.group.lane(priority), progress.group.gate
    hashes = extent.key_hashes() if gate is not None else None
    chosen: list[int] = []
    while ready and len(chosen) < room and not (gate is not None and gate.is_full()):
        wanted, looked = _pass_over(selection, lane, progress, ready, room - len(chosen))
        ready = ready[looked:]
        if gate is not None:
            keys = [0 if hashes is None else int(hashes[offset - extent.first]) for offset in wanted]
            offers = zip(wanted, keys, strict=True)
            wanted = [at for at, key in offers if gate.admit(progress, at, priority, key, selection.now)]
        chosen += wanted
    if ready:
        high = ready[0]
    if chosen:
        add_offsets(selection, progress, chosen)
    return high, len(chosen)
