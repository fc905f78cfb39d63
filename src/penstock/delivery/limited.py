"""Taking messages that nobody has leased yet, from a queue whose keys have limits."""

from __future__ import annotations

from penstock.delivery.fresh import add_offsets, available_end, cursor_of, ready_offsets, set_cursor, unread
from penstock.delivery.log import Extent
from penstock.delivery.progress import Progress
from penstock.delivery.selection import Selection


def take_limited(selection: Selection, progress: Progress, priority: int, room: int) -> bool:
    """No ordering: whatever is ready and its key lets go; the rest of a key is parked, other keys flow."""
    partition, gate = progress.partition, progress.group.gate
    assert gate is not None
    end = available_end(selection, progress, priority) if partition.queue.gated else partition.end
    for extent, low, high in unread(progress, priority, end):
        if room <= 0 or gate.is_full():
            break
        cursor, taken = _take_from_extent(selection, progress, extent, priority, low, high, room)
        set_cursor(progress, priority, cursor)
        room -= taken
    has_more = cursor_of(progress, priority) < end
    if has_more and gate.is_full():
        gate.block(progress)
        return False
    return has_more


def _take_from_extent(
    selection: Selection, progress: Progress, extent: Extent, priority: int, low: int, high: int, room: int
) -> tuple[int, int]:
    """Take from [low, high) of one extent; returns where to look next, and how many were taken."""
    gate = progress.group.gate
    assert gate is not None
    hashes = extent.key_hashes()
    chosen: list[int] = []
    for offset in ready_offsets(selection, progress, extent, priority, low, high).tolist():
        if len(chosen) >= room or gate.is_full():
            high = offset
            break
        key = 0 if hashes is None else int(hashes[offset - extent.first])
        if gate.admit(progress, offset, priority, key, selection.now):
            chosen.append(offset)
    if chosen:
        add_offsets(selection, progress, chosen)
    return high, len(chosen)
