"""Taking messages that nobody has leased yet, by each of the three orderings.

Every taker gets the room it may fill, adds takes to the selection, moves the cursor past what it looked at, and
answers whether the partition may have more right now. A partition that is held (ordering), not quiet yet (window) or
not due yet (delay) answers no, and is offered again when that ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain

import numpy as np

from penstock import limits
from penstock.delivery.entries import Int64s
from penstock.delivery.group import DEFAULT
from penstock.delivery.keys import recall
from penstock.delivery.leases import Take
from penstock.delivery.log import SPECIAL, ColumnNotLoaded, Extent, Queue
from penstock.delivery.phases import FRESH, READY, SETTLED
from penstock.delivery.progress import Progress
from penstock.delivery.selection import Selection
from penstock.model import as_run

Taker = Callable[[Selection, Progress, int, int], bool]


def taker_of(queue: Queue) -> Taker:
    """The way this queue hands out fresh messages."""
    return _TAKERS[queue.options.ordering]


def take_any(selection: Selection, progress: Progress, priority: int, room: int) -> bool:
    """No ordering: whatever is ready, in offset order within the priority."""
    partition = progress.partition
    end = available_end(selection, progress, priority) if partition.queue.gated else partition.end
    if partition.flags & SPECIAL:
        return _take_special(selection, progress, priority, room, end)
    first, run_end = progress.fresh_run(progress.cursor, end, room)
    if run_end > first:
        selection.add(Take(progress, range(first, run_end), 1, run_end - first))
    if run_end > progress.cursor:
        progress.cursor = run_end
    return progress.cursor < end


def available_end(selection: Selection, progress: Progress, priority: int = DEFAULT) -> int:
    """Where the queue's own delay and window let this partition be read to, now."""
    partition = progress.partition
    options = partition.queue.options
    if options.window_seconds:
        quiet_at = partition.pushed_at + round(options.window_seconds * 1_000_000)
        if quiet_at > selection.now:
            selection.gates[progress] = quiet_at
            return cursor_of(progress, priority)
    if options.delay_seconds:
        delay = round(options.delay_seconds * 1_000_000)
        end = partition.offset_at(selection.now - delay + 1)
        if end < partition.end:
            selection.gates[progress] = partition.pushed_time(end) + delay
        return end
    return partition.end


def _take_special(selection: Selection, progress: Progress, priority: int, room: int, end: int) -> bool:
    for extent, low, high in unread(progress, priority, end):
        cursor, taken = _take_from_extent(selection, progress, extent, priority, low, high, room)
        set_cursor(progress, priority, cursor)
        room -= taken
        if room <= 0:
            break
    return cursor_of(progress, priority) < end


def unread(progress: Progress, priority: int, end: int) -> Iterator[tuple[Extent, int, int]]:
    """Walk from the cursor of a priority to `end`: each extent, and the part [low, high) of it that is to be looked at.

    A walk to the end has seen everything and leaves the cursor at `end`, also where no extent is left: retention
    removed what was settled, a repair gave up what was lost. A walk ends before where the cursor was not moved past
    the part, because enough was taken or parked. So a partition that says it has more has moved.
    """
    cursor = max(cursor_of(progress, priority), progress.base)
    for extent in progress.partition.extents_from(cursor):
        low, high = max(cursor, extent.first), min(extent.end, end)
        if high <= low:
            break
        yield extent, low, high
        if cursor_of(progress, priority) < high:
            return
    set_cursor(progress, priority, max(cursor, end))


def _take_from_extent(
    selection: Selection, progress: Progress, extent: Extent, priority: int, low: int, high: int, room: int
) -> tuple[int, int]:
    """Take from [low, high) of one extent; returns where to look next, and how many were taken."""
    found = ready_offsets(selection, progress, extent, priority, low, high)
    offsets: list[int] = found[:room].tolist()
    if offsets:
        add_offsets(selection, progress, offsets)
    return (offsets[-1] + 1 if len(found) > room else high), len(offsets)


def ready_offsets(
    selection: Selection, progress: Progress, extent: Extent, priority: int, low: int, high: int
) -> Int64s:
    """The offsets of one priority in [low, high) of one extent that may be leased; expired ones are noted."""
    priorities = extent.priorities()
    if priorities is None and priority != DEFAULT:
        return np.empty(0, np.int64)
    mask = progress.fresh_mask(low, high)
    part = slice(low - extent.first, high - extent.first)
    if priorities is not None:
        mask &= priorities[part] == priority
    dues = extent.dues()
    if dues is not None:
        mask &= dues[part] <= selection.reached
    expiries = extent.expiries()
    if expiries is not None:
        gone = mask & (expiries[part] > 0) & (expiries[part] <= selection.now)
        if gone.any():
            selection.expired.append((progress, (np.flatnonzero(gone) + low).tolist()))
            mask &= ~gone
    return np.flatnonzero(mask) + low


def add_offsets(selection: Selection, progress: Progress, offsets: list[int]) -> None:
    """Lease fresh messages, as a run when they are neighbours."""
    selection.add(Take(progress, as_run(offsets), 1, len(offsets)))


def cursor_of(progress: Progress, priority: int) -> int:
    """Where to look next for fresh messages of a priority."""
    if priority == DEFAULT:
        return progress.cursor
    return progress.base if progress.cursors is None else progress.cursors.get(priority, progress.base)


def set_cursor(progress: Progress, priority: int, cursor: int) -> None:
    """Everything before this was looked at."""
    if priority == DEFAULT:
        progress.cursor = cursor
    else:
        progress.cursors = progress.cursors or {}
        progress.cursors[priority] = cursor


def take_in_order(selection: Selection, progress: Progress, priority: int, room: int) -> bool:
    """Partition order: one lease at a time, and nothing passes a message that waits for its retry."""
    if progress.leased:
        return False
    end = available_end(selection, progress)
    known = progress.base + len(progress.states)
    offsets: list[int] = []
    # Between the mark and the highest touched offset there are only retries here; what was brought back is under it.
    for offset in chain(sorted(progress.sparse or ()), range(progress.base, min(known, end))):
        state = progress.state_of(offset)
        if state in (READY, FRESH) and len(offsets) < room:
            offsets.append(offset)
        elif state != SETTLED:
            break
    else:
        if len(offsets) < room:
            offsets.extend(range(known, min(end, known + room - len(offsets))))
    offsets = [offset for offset in offsets if selection.claim(progress, offset, (READY, FRESH))]
    if progress.partition.flags & SPECIAL:
        offsets = selection.without_expired(progress, offsets)
    if offsets:
        progress.cursor = max(progress.cursor, offsets[-1] + 1)
        attempts = [progress.attempt_next(offset) for offset in offsets] if progress.attempts else 1
        selection.add(Take(progress, as_run(offsets), attempts, len(offsets)))
    return False


def take_by_key(selection: Selection, progress: Progress, priority: int, room: int) -> bool:
    """Key order: one message of a key at a time; those behind it are parked, other keys flow."""
    end = available_end(selection, progress)
    recall(progress)
    chosen: list[int] = []
    for extent, low, high in unread(progress, DEFAULT, end):
        if len(chosen) >= room or progress.parked_count >= limits.parked_messages_max:
            break
        try:
            progress.cursor = _walk_keys(selection, progress, extent, low, high, room, chosen)
        except ColumnNotLoaded:
            if not chosen:
                raise
            break  # what was chosen has its key already
    if progress.partition.flags & SPECIAL:
        chosen = selection.without_expired(progress, chosen)
    if chosen:
        add_offsets(selection, progress, chosen)
    return progress.cursor < end and progress.parked_count < limits.parked_messages_max


def _walk_keys(
    selection: Selection, progress: Progress, extent: Extent, low: int, high: int, room: int, chosen: list[int]
) -> int:
    hashes = extent.key_hashes()
    keys, parked, gate = progress.keys, progress.parked, progress.group.gate
    assert keys is not None
    assert parked is not None
    for offset in range(low, high):
        if progress.state_of(offset) != FRESH:
            continue
        key = 0 if hashes is None else int(hashes[offset - extent.first])
        if key and key in parked:
            parked[key].append(offset)
            progress.parked_count += 1
            continue
        if key:
            keys[offset] = key
            parked[key] = deque()
        if gate is not None and not gate.admit(progress, offset, DEFAULT, key, selection.now):
            continue  # it has its key, and waits at the gate
        chosen.append(offset)
        if len(chosen) >= room:
            return offset + 1
    return high


_TAKERS: dict[str, Taker] = {"none": take_any, "partition": take_in_order, "key": take_by_key}
