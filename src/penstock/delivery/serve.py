"""The order of service: which messages a lease gets.

Over the whole queue: higher priority first; within a priority, what came back before what is new, fair between
partitions, then by due time, then by offset. `weighted` service shares between five lanes by deficit round robin
instead. In both, a lane that leases have passed over for `starvation_seconds` is served one message, then waits anew.

Selection consumes the indexes (rings, cursors), never the state: what it selects must be leased or expired by an entry
right after. When it needs a column that is not loaded it stops with what it has, or raises `ColumnNotLoaded` when it
has nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from penstock.delivery.again import take_again
from penstock.delivery.fresh import taker_of
from penstock.delivery.group import BIT, Group, Lane
from penstock.delivery.limited import take_limited
from penstock.delivery.log import ColumnNotLoaded
from penstock.delivery.progress import Progress
from penstock.delivery.selection import Selection

LANE_STARTS: Final = (224, 160, 96, 32, 0)  # critical, high, normal, low, background
LANE_WEIGHTS: Final = (50, 25, 15, 7, 3)


# Lane of each priority: 0 for critical … 4 for background.
LANE_OF: Final = tuple(
    next(number for number, start in enumerate(LANE_STARTS) if priority >= start) for priority in range(256)
)


def select(group: Group, count_max: int, now: int, reached: int, only: Collection[Progress] | None = None) -> Selection:
    """Up to `count_max` messages for one lease. `reached`: delays up to this instant have ended."""
    selection = Selection(group, now, reached, only)
    try:
        serve(selection, count_max)
    except ColumnNotLoaded:
        if not selection.count and not selection.expired:
            for _, progress in selection.wakes:
                group.offer_all(progress)  # its timer is not set: the question is asked again
            raise
    return selection


def serve(selection: Selection, count_max: int) -> None:
    """Fill a selection. May raise `ColumnNotLoaded` when it is filled in part."""
    group = selection.group
    if len(group.order) > 1:
        _serve_lanes(selection, count_max)
    else:
        _serve_strict(selection, count_max, group.order)


def _serve_strict(selection: Selection, count_max: int, priorities: Sequence[int]) -> None:
    for priority in priorities:
        if selection.count >= count_max:
            return
        lane = selection.group.lanes[priority]
        before = selection.count
        if lane.again:
            take_again(selection, lane, count_max)
        if lane.fresh and selection.count < count_max:
            _take_fresh(selection, lane, count_max)
        if selection.count > before:
            selection.group.served_at[LANE_OF[priority]] = selection.now


def _serve_lanes(selection: Selection, count_max: int) -> None:
    """Starving lanes first, then by the queue's rule. A lane starts to wait when a lease passes it over."""
    group = selection.group
    lanes = _five_lanes(group)
    _serve_starving(selection, count_max, lanes)
    if group.queue.options.service == "weighted":
        _serve_weighted(selection, count_max, lanes)
    else:
        _serve_strict(selection, count_max, group.order)
    for number, priorities in enumerate(lanes):
        if not any(group.lanes[priority] for priority in priorities):
            group.served_at[number] = 0
        elif not group.served_at[number]:
            group.served_at[number] = selection.now


def _serve_starving(selection: Selection, count_max: int, lanes: list[list[int]]) -> None:
    """Whoever waits longest comes first, so that a slow consumer that takes one at a time serves every lane."""
    group = selection.group
    patience = round(group.queue.options.starvation_seconds * 1_000_000)
    waiting = [(since, -number) for number, since in enumerate(group.served_at) if since]
    for since, number in sorted(waiting):
        if patience and selection.now - since > patience and selection.count < count_max:
            _serve_strict(selection, selection.count + 1, lanes[-number])


def _serve_weighted(selection: Selection, count_max: int, lanes: list[list[int]]) -> None:
    group = selection.group
    idle = 0
    while selection.count < count_max and idle <= len(lanes):
        number = group.turn
        if group.deficits[number] <= 0:
            group.deficits[number] += LANE_WEIGHTS[number]
        before = selection.count
        _serve_strict(selection, min(count_max, before + int(group.deficits[number])), lanes[number])
        served = selection.count - before
        group.deficits[number] -= served
        idle = 0 if served else idle + 1
        if selection.count < count_max or group.deficits[number] <= 0:
            # The lane ran dry or spent its share. A dry lane keeps no credit.
            group.deficits[number] = 0
            group.turn = (number + 1) % len(lanes)


def _five_lanes(group: Group) -> list[list[int]]:
    lanes: list[list[int]] = [[] for _ in LANE_STARTS]
    for priority in group.order:
        lanes[LANE_OF[priority]].append(priority)
    return lanes


def _take_fresh(selection: Selection, lane: Lane, count_max: int) -> None:
    """One pass over the ring after the other, an equal share to each partition."""
    ring = lane.fresh
    group = selection.group
    take = taker_of(group.queue) if group.gate is None or group.queue.ordered else take_limited
    sharing = len(ring) if selection.only is None else max(1, min(len(ring), len(selection.only)))
    share = max(1, (count_max - selection.count) // sharing)
    unwanted = 0
    while ring and selection.count < count_max and unwanted < len(ring):
        progress = ring[0]
        if selection.only is not None and progress not in selection.only:
            ring.rotate(-1)
            unwanted += 1
            continue
        if take(selection, progress, lane.priority, min(share, count_max - selection.count)):
            ring.rotate(-1)
        else:
            ring.popleft()
            progress.offered &= ~BIT[lane.priority]
            if progress in selection.gates:
                selection.wakes.append((selection.gates[progress], progress))
        unwanted = 0
