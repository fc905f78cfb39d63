"""Deciding a lease, in three steps: what may be had, which messages those are, and what that brings along.

The first alters nothing and may refuse. The second uses up the indexes (rings, cursors, the lines of keys), though not
the state: what it selects must be leased or expired by its entries, so the shard counts as changing from there on. When
it raises `ColumnNotLoaded`, nothing was used up.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import Entry, Leased, Settled, Span
from penstock.delivery.group import Group
from penstock.delivery.lease_limits import LeaseLimits
from penstock.delivery.leases import Lease, Take
from penstock.delivery.progress import Progress, span_of
from penstock.delivery.rosters import within_membership
from penstock.delivery.selection import Selection
from penstock.delivery.serve import select
from penstock.errors import InvalidField
from penstock.model import Outcome
from penstock.requests import LeaseRequest

Room = tuple[int, Collection[Progress] | None]


def decide_room(group: Group, request: LeaseRequest, now: int) -> Room:
    """Refuse a lease, or say how many messages it may have now, and of which partitions; None: of all."""
    only = None
    if request.partitions is not None or request.member or group.roster is not None:
        only = within_membership(group, request, _chosen(group, request))
    queue = group.queue
    room = request.count_max if queue.options.max_in_flight is None else _room(group, request)
    if group.limits is not None and room > 0:
        room = group.limits.room(request.client, now, room)
    return 0 if queue.paused else room, only


def select_lease(
    core: DeliveryState, group: Group, request: LeaseRequest, room: Room, now: int, monotonic: int, nonce: int
) -> tuple[list[Entry], Lease | None, Selection | None]:
    """The entries of a lease, and the lease itself; nothing and None when there is nothing to be had."""
    count_max, only = room
    if count_max <= 0:
        return [], None, None
    if group.gate is not None:
        group.gate.recall()
        group.gate.tick(now)
    queue = group.queue
    selection = select(group, count_max, now, core.wheel.reached, only)
    entries: list[Entry] = _expired(selection) if selection.expired else []
    if not selection.count:
        return entries, None, selection
    seconds = queue.options.lease_seconds if request.lease_seconds is None else request.lease_seconds
    deadline = monotonic + round(seconds * 1_000_000)
    spans = [span_of_take(take) for take in selection.takes]
    lease = Lease(
        nonce, group, request.consumer, now, deadline, selection.takes, selection.count, spans, True, group.change_count
    )
    lease.member = request.member
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


def span_of_take(take: Take, indexes: Sequence[int] | None = None) -> Span:
    """A take, or some of its deliveries, as a span with the number of each delivery."""
    offsets, attempts = take.offsets, take.attempts
    if indexes is None and isinstance(offsets, range) and isinstance(attempts, int):
        return Span(take.progress.partition.id, offsets.start, take.open, attempts)
    if indexes is not None and len(indexes) < len(offsets):
        offsets = [offsets[index] for index in indexes]
        attempts = attempts if isinstance(attempts, int) else [attempts[index] for index in indexes]
    if isinstance(attempts, int):
        return span_of(take.progress.partition.id, offsets, attempts)
    span = span_of(take.progress.partition.id, offsets, attempts[0])
    if len(set(attempts)) > 1:
        span.attempts = np.array(attempts, np.uint16).tobytes()
    return span
