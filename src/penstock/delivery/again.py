"""Taking messages that come back: retries, releases, delays that ended, redrives, and those that a limit of their key
had passed over.

A lane may name what is no longer to be had, or the same message twice; the state decides. What a question may need
from a column that is not loaded is asked before the message leaves the lane.
"""

from __future__ import annotations

from penstock.delivery.entries import Int64s
from penstock.delivery.gate import KeyGate
from penstock.delivery.group import Lane
from penstock.delivery.keys import is_its_turn, key_of
from penstock.delivery.leases import Take
from penstock.delivery.phases import FRESH, READY
from penstock.delivery.progress import Progress
from penstock.delivery.selection import Selection


def take_again(selection: Selection, lane: Lane, count_max: int) -> None:
    """Fill the selection from what has come back to a lane."""
    skipped: list[tuple[Progress, int | Int64s]] = []
    gate = selection.group.gate
    by_key = selection.group.queue.options.ordering == "key"
    try:
        while lane.again and selection.count < count_max:
            progress, what = lane.again[0]
            if selection.only is not None and progress not in selection.only:
                skipped.append(lane.again.popleft())
            elif gate is not None:
                _take_limited(selection, lane, gate, by_key=by_key)
            elif isinstance(what, int):
                its_turn = not by_key or is_its_turn(progress, what)
                lane.again.popleft()
                _take_returned(selection, progress, [what] if its_turn else [])
            else:
                lane.again.popleft()
                room = count_max - selection.count
                if len(what) > room:
                    lane.again.appendleft((progress, what[room:]))
                _take_returned(selection, progress, what[:room].tolist())
    finally:
        lane.again.extendleft(reversed(skipped))


def _take_limited(selection: Selection, lane: Lane, gate: KeyGate, *, by_key: bool) -> None:
    """The first message of the lane, if the limits of its key let it go."""
    progress, what = lane.again[0]
    offset = what if isinstance(what, int) else int(what[0])
    may_go = _may_go(selection, lane.priority, gate, progress, offset, by_key=by_key)
    lane.again.popleft()
    if not isinstance(what, int) and len(what) > 1:
        lane.again.appendleft((progress, what[1:]))
    if may_go:
        _take_returned(selection, progress, [offset])


def _may_go(
    selection: Selection, priority: int, gate: KeyGate, progress: Progress, offset: int, *, by_key: bool
) -> bool:
    if not selection.is_free(progress, offset, (READY, FRESH)):
        gate.dismiss(progress, offset, selection.now)
        return False
    if not by_key:
        return gate.admit(progress, offset, priority, key_of(progress.partition, offset), selection.now)
    if not is_its_turn(progress, offset):
        return False
    return gate.admit(progress, offset, priority, (progress.keys or {}).get(offset, 0), selection.now)


def _take_returned(selection: Selection, progress: Progress, offsets: list[int]) -> None:
    """Lease those of `offsets` that are still to be had; the index may be behind the state."""
    offsets = [offset for offset in offsets if selection.claim(progress, offset, (READY, FRESH))]
    if progress.partition.flags:
        offsets = selection.without_expired(progress, offsets)
    if offsets:
        offsets.sort()
        tried = progress.attempts
        attempts = [progress.attempt_next(offset) for offset in offsets] if tried else 1
        selection.add(Take(progress, offsets, attempts, len(offsets)))
