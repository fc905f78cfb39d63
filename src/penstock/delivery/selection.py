"""Selecting messages for a lease: new ones by each of the three orderings, and those that come back.

`take_retries` takes what comes back: retries, releases, delays that ended, redrives, and those that a limit of their
key had passed over. A lane may name what is no longer available, or the same message twice; the state decides. Columns
that may not be loaded are looked at before the message leaves the lane.

The takers of new messages get the room they may fill, add takes to the selection, move the cursor past what they looked
at, and return whether the partition may have more right now. A partition that is held (ordering), not quiet yet
(window) or not due yet (delay) answers no, and is offered again when that ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from itertools import chain

import msgspec
import numpy as np

from penstock import limits
from penstock.delivery.entries import Int64s
from penstock.delivery.group import DEFAULT, Group, Lane, Take
from penstock.delivery.keys import KeyGate, is_its_turn, rebuild_keys
from penstock.delivery.log import SPECIAL, ColumnNotLoaded, Extent, Queue
from penstock.delivery.phases import FRESH, LEASABLE, SETTLED
from penstock.delivery.progress import Progress
from penstock.model import as_run


class Selection(msgspec.Struct):
    """Takes for a lease, and messages found expired on the way."""

    group: Group
    now: int
    reached: int  # delays up to this instant have ended
    only: Collection[Progress] | None
    takes: list[Take] = []
    count: int = 0
    expired: list[tuple[Progress, list[int]]] = []
    gates: dict[Progress, int] = {}  # when the queue's delay or window lets more of a partition be read
    wakes: list[tuple[int, Progress]] = []  # partitions to offer again at an instant
    types: frozenset[str] | None = None  # of tasks; None: whatever there is
    looked: int = 0  # messages whose types were looked at
    _claimed: set[tuple[int, int]] | None = None

    def add(self, take: Take) -> None:
        self.takes.append(take)
        self.count += take.open

    def claim(self, progress: Progress, offset: int) -> bool:
        """Claim a returned message: whether it is still available; an index may name it twice."""
        if progress.state_of(offset) not in LEASABLE:
            return False
        self._claimed = set() if self._claimed is None else self._claimed
        mark = (progress.partition.id, offset)
        if mark in self._claimed:
            return False
        self._claimed.add(mark)
        return True

    def is_free(self, progress: Progress, offset: int) -> bool:
        """Whether `claim` would say yes."""
        is_claimed = self._claimed is not None and (progress.partition.id, offset) in self._claimed
        return not is_claimed and progress.state_of(offset) in LEASABLE

    def without_expired(self, progress: Progress, offsets: list[int]) -> list[int]:
        """Those that have not expired; the others are noted."""
        alive: list[int] = []
        gone: list[int] = []
        for offset in offsets:
            extent = progress.partition.extent_at(offset)
            try:
                expiries = extent.expiries()
            except ColumnNotLoaded:
                # Deliver rather than wait: the upkeep finds it if it comes back once more.
                expiries = None
            expires_at = 0 if expiries is None else int(expiries[offset - extent.first])
            (gone if 0 < expires_at <= self.now else alive).append(offset)
        if gone:
            self.expired.append((progress, gone))
        return alive


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
    ready = ready_offsets(selection, progress, extent, priority, low, high)
    offsets: list[int] = ready[:room].tolist()
    if offsets:
        add_offsets(selection, progress, offsets)
    return (offsets[-1] + 1 if len(ready) > room else high), len(offsets)


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
        if state in LEASABLE and len(offsets) < room:
            offsets.append(offset)
        elif state != SETTLED:
            break
    else:
        if len(offsets) < room:
            offsets.extend(range(known, min(end, known + room - len(offsets))))
    offsets = [offset for offset in offsets if selection.claim(progress, offset)]
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
    rebuild_keys(progress)
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


# new messages whose keys have limits


def take_limited(selection: Selection, progress: Progress, priority: int, room: int) -> bool:
    """No ordering: whatever is ready and its key allows; the rest of a key is parked, other keys flow."""
    partition, gate = progress.partition, progress.group.gate
    assert gate is not None
    end = available_end(selection, progress, priority) if partition.queue.gated else partition.end
    for extent, low, high in unread(progress, priority, end):
        if room <= 0 or gate.is_full():
            break
        cursor, taken = _admit_from_extent(selection, progress, extent, priority, low, high, room)
        set_cursor(progress, priority, cursor)
        room -= taken
    has_more = cursor_of(progress, priority) < end
    if has_more and gate.is_full():
        gate.block(progress)
        return False
    return has_more


def _admit_from_extent(
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


# messages that come back


def take_retries(selection: Selection, lane: Lane, count_max: int) -> None:
    """Fill the selection from what has come back to a lane."""
    skipped: list[tuple[Progress, int | Int64s]] = []
    gate = selection.group.gate
    by_key = selection.group.queue.options.ordering == "key"
    try:
        while lane.retries and selection.count < count_max:
            progress, what = lane.retries[0]
            if selection.only is not None and progress not in selection.only:
                skipped.append(lane.retries.popleft())
            elif gate is not None:
                _take_limited_retry(selection, lane, gate, by_key=by_key)
            elif isinstance(what, int):
                its_turn = not by_key or is_its_turn(progress, what)
                lane.retries.popleft()
                _take_returned(selection, progress, [what] if its_turn else [])
            else:
                lane.retries.popleft()
                room = count_max - selection.count
                if len(what) > room:
                    lane.retries.appendleft((progress, what[room:]))
                _take_returned(selection, progress, what[:room].tolist())
    finally:
        lane.retries.extendleft(reversed(skipped))


def _take_limited_retry(selection: Selection, lane: Lane, gate: KeyGate, *, by_key: bool) -> None:
    """The first message of the lane, if the limits of its key let it go."""
    progress, what = lane.retries[0]
    offset = what if isinstance(what, int) else int(what[0])
    may_go = _may_go(selection, lane.priority, gate, progress, offset, by_key=by_key)
    lane.retries.popleft()
    if not isinstance(what, int) and len(what) > 1:
        lane.retries.appendleft((progress, what[1:]))
    if may_go:
        _take_returned(selection, progress, [offset])


def _may_go(
    selection: Selection, priority: int, gate: KeyGate, progress: Progress, offset: int, *, by_key: bool
) -> bool:
    if not selection.is_free(progress, offset):
        gate.dismiss(progress, offset, selection.now)
        return False
    if not by_key:
        return gate.admit(progress, offset, priority, progress.partition.key_hash(offset), selection.now)
    if not is_its_turn(progress, offset):
        return False
    return gate.admit(progress, offset, priority, (progress.keys or {}).get(offset, 0), selection.now)


def _take_returned(selection: Selection, progress: Progress, offsets: list[int]) -> None:
    """Lease those of `offsets` that are still available; the index may be behind the state."""
    offsets = [offset for offset in offsets if selection.claim(progress, offset)]
    if progress.partition.flags:
        offsets = selection.without_expired(progress, offsets)
    if offsets:
        offsets.sort()
        tried = progress.attempts
        attempts = [progress.attempt_next(offset) for offset in offsets] if tried else 1
        selection.add(Take(progress, offsets, attempts, len(offsets)))
