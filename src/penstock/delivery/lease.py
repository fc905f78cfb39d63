"""Deciding a lease, in three steps: how many messages it may have, which ones, and what follows from it.

The first step alters nothing and may refuse. The second uses up the indexes (rings, cursors, the lines of keys), though
not the state: what it selects must be leased or expired by its entries, so the shard counts as changing from there on.
When it needs a column that is not loaded it stops with what it has, or raises `ColumnNotLoaded` when it has nothing;
then nothing was used up.

The order of service, over the whole queue: higher priority first; within a priority, what came back before what is new,
fair between partitions, then by due time, then by offset. `weighted` service shares between five lanes by deficit round
robin instead. In both, a lane that leases have passed over for `starvation_seconds` is served one message, then waits
again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import Entry, Leased, Settled
from penstock.delivery.group import BIT, Group, Lane, Lease, LeaseLimits
from penstock.delivery.log import ColumnNotLoaded
from penstock.delivery.membership import within_membership
from penstock.delivery.progress import Progress, span_of
from penstock.delivery.selection import Selection, take_limited, take_retries, taker_of
from penstock.delivery.typed_selection import LOOKED_MAX, take_passed, take_typed, take_typed_retries
from penstock.errors import InvalidField
from penstock.model import Outcome
from penstock.requests import LeaseRequest

LANE_STARTS: Final = (224, 160, 96, 32, 0)  # critical, high, normal, low, background
LANE_WEIGHTS: Final = (50, 25, 15, 7, 3)


# Lane of each priority: 0 for critical … 4 for background.
LANE_OF: Final = tuple(
    next(number for number, start in enumerate(LANE_STARTS) if priority >= start) for priority in range(256)
)

Room = tuple[int, Collection[Progress] | None]


def select(
    group: Group,
    count_max: int,
    now: int,
    reached: int,
    only: Collection[Progress] | None = None,
    types: frozenset[str] | None = None,
) -> Selection:
    """Up to `count_max` messages for one lease. `reached`: delays up to this instant have ended."""
    selection = Selection(group, now, reached, only)
    if types is not None and not group.queue.ordered:
        selection.types = types
    try:
        serve(selection, count_max)
    except ColumnNotLoaded:
        if not selection.count and not selection.expired:
            for _, progress in selection.wakes:
                group.offer_all(progress)  # its timer is not set: the caller tries again
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
        if lane.passed:
            take_passed(selection, lane, count_max)
        if lane.retries and selection.count < count_max:
            (take_retries if selection.types is None else take_typed_retries)(selection, lane, count_max)
        if lane.fresh and selection.count < count_max:
            take_new(selection, lane, count_max)
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


def take_new(selection: Selection, lane: Lane, count_max: int) -> None:
    """One pass over the ring after the other, an equal share to each partition."""
    ring = lane.fresh
    group = selection.group
    take = taker_of(group.queue) if group.gate is None or group.queue.ordered else take_limited
    if selection.types is not None:
        take = take_typed
    sharing = len(ring) if selection.only is None else max(1, min(len(ring), len(selection.only)))
    share = max(1, (count_max - selection.count) // sharing)
    unwanted = 0
    while ring and selection.count < count_max and unwanted < len(ring) and selection.looked < LOOKED_MAX:
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


def decide_room(group: Group, request: LeaseRequest, now: int) -> Room:
    """Refuse a lease, or say how many messages it may have now, and of which partitions; None: of all."""
    only = None
    if request.partitions is not None or request.member or group.roster is not None:
        only = within_membership(group, request, _chosen(group, request))
    queue = group.queue
    room = request.count_max if queue.options.max_in_flight is None else _room(group, request)
    if group.limits is not None and room > 0:
        room = group.limits.room(request.client, now, room)
    return 0 if group.is_held else room, only


def select_lease(
    core: DeliveryState, group: Group, request: LeaseRequest, room: Room, now: int, monotonic: int, nonce: int
) -> tuple[list[Entry], Lease | None, Selection | None]:
    """The entries of a lease, and the lease itself; nothing and None when no message is available."""
    count_max, only = room
    if count_max <= 0:
        return [], None, None
    if group.gate is not None:
        group.gate.count_in_flight()
        group.gate.tick(now)
    queue = group.queue
    selection = select(group, count_max, now, core.wheel.reached, only, request.task_types)
    entries: list[Entry] = _expired(selection) if selection.expired else []
    if not selection.count:
        return entries, None, selection
    seconds = queue.options.lease_seconds if request.lease_seconds is None else request.lease_seconds
    deadline = monotonic + round(seconds * 1_000_000)
    spans = [take.span() for take in selection.takes]
    lease = Lease(
        nonce, group, request.consumer, now, deadline, selection.takes, selection.count, spans, True, group.change_count
    )
    lease.member, lease.owner = request.member, request.owner
    entries.append(Leased(queue.id, group.id, nonce, now, request.consumer, spans))
    if request.auto_ack:
        entries.append(Settled(queue.id, group.id, int(Outcome.ACKED), now, now, request.consumer, "", spans))
    return entries, lease, selection


def leased(core: DeliveryState, group: Group, client: str, selection: Selection | None, now: int) -> None:
    """After the entries were applied: tokens are taken, and timers wake whoever waits when there is more."""
    if selection is not None:
        for instant, progress in selection.wakes:
            core.wake_at(instant, progress)
    if group.limits is not None:
        if selection is not None:
            group.limits.take(client, selection.count, now)
        _arm(core, group, group.limits, client, now)


def _room(group: Group, request: LeaseRequest) -> int:
    per_consumer = group.queue.options.max_in_flight
    assert per_consumer is not None
    return min(request.count_max, per_consumer - group.in_flight(request.consumer))


def _arm(core: DeliveryState, group: Group, limits: LeaseLimits, client: str, now: int) -> None:
    """Have those who wait woken when there are tokens again: one timer for a group, the earliest."""
    instant = limits.more_at(client, now)
    if instant is not None and group.progress and not now < limits.armed_at <= instant:
        limits.armed_at = instant
        core.wake_at(instant, group.progress[0])


def _chosen(group: Group, request: LeaseRequest) -> Collection[Progress] | None:
    if request.partitions is None:
        return None
    return {group.progress[_partition(group, name)] for name in request.partitions}


def _partition(group: Group, name: int | str) -> int:
    known = group.queue.by_name.get(str(name))
    if known is None:
        raise InvalidField(f"partitions: queue {group.queue.name!r} has no partition {name!r}")
    return known.id


def _expired(selection: Selection) -> list[Entry]:
    group = selection.group
    spans = [span_of(progress.partition.id, sorted(offsets)) for progress, offsets in selection.expired]
    return [Settled(group.queue.id, group.id, int(Outcome.EXPIRED), selection.now, 0, "", "", spans)]
