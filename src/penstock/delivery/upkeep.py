"""What time does to messages: leases run out, messages expire or wait too long, idle groups are forgotten.

Each role looks at deadlines, never at everything, and decides about a slice of at most `CHUNK` messages, in one frame.
A tick brings one slice of each, the next tick the next, so that a wave of a million expiries does not hold up the
shard. Until its turn has come, a lease that ran out is over all the same: `DeliveryState.over_at` says so.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.delivery.core import GROUP_LOOK_EVERY, ONCE, WAIT_LOOK_EVERY, DeliveryState
from penstock.delivery.entries import FOREVER, Entry, GroupDeleted, Settled
from penstock.delivery.group import Group, Lease, Take
from penstock.delivery.log import ColumnNotLoaded, Extent, Queue, ask_each
from penstock.delivery.phases import LEASED
from penstock.delivery.progress import Progress, span_of
from penstock.delivery.settle import Chosen, DeadDelivery, decide_dead, decide_what_fits
from penstock.errors import TooLarge
from penstock.model import DEFAULT_GROUP, DLQ_SUFFIX, Outcome
from penstock.requests import Settling

if TYPE_CHECKING:
    import random

CHUNK: Final = 1_000
LATE: Final = Outcome.EVICTED.name.lower()  # why such a message is dead


def next_deadline(core: DeliveryState) -> int | None:
    """No lease runs out before this, on the monotonic clock. It may belong to a lease that is settled by now."""
    return core.deadlines[0][0] if core.deadlines else None


def expired_leases(core: DeliveryState, monotonic: int) -> list[Lease]:
    """The leases that ran out first, as many as hold a slice of messages together.

    The heap is only looked at: were a deadline taken out before its lease has ended, an exception in between would make
    the lease last for ever. Deadlines of leases that have ended are forgotten when they come to the top.
    """
    heap = core.deadlines
    while heap and _lease_of(core, heap[0]) is None:
        heapq.heappop(heap)
    expired: dict[int, Lease] = {}
    left = CHUNK
    ahead = [(heap[0], 0)] if heap else []  # the next ones in order, and where they are in the heap
    while left > 0 and ahead and ahead[0][0][0] <= monotonic:
        entry, index = heapq.heappop(ahead)
        lease = _lease_of(core, entry)
        if lease is not None and lease.nonce not in expired:
            expired[lease.nonce] = lease
            left -= max(1, lease.count)
        for child in range(2 * index + 1, min(2 * index + 3, len(heap))):
            heapq.heappush(ahead, (heap[child], child))
    return list(expired.values())


def _lease_of(core: DeliveryState, entry: tuple[int, int]) -> Lease | None:
    """The lease that runs out with this entry of the heap; None when it has ended or was extended."""
    deadline, nonce = entry
    lease = core.leases.get(nonce)
    return lease if lease is not None and lease.deadline == deadline else None


def decide_timeouts(
    core: DeliveryState, leases: Sequence[Lease], now: int, rng: random.Random
) -> tuple[list[Entry], Sequence[Chosen]]:
    """Leases ran out: what they still hold is retried or dies, a slice of it, and no more than one frame takes."""
    chosen: list[Chosen] = []
    left = CHUNK
    for lease in leases:
        for take, indexes in lease.open_takes():
            held = [index for index in indexes if take.progress.state_of(take.offsets[index]) == LEASED][:left]
            if held:
                chosen.append(Chosen(lease, take, held))
                left -= len(held)
    how = Settling(Outcome.TIMED_OUT, error="the lease expired")
    return decide_what_fits(core, chosen, how, now, rng) if chosen else ([], [])


def decide_revoked(
    core: DeliveryState,
    group: Group,
    member: str,
    partitions: Collection[int],
    how: Settling,
    now: int,
    rng: random.Random,
) -> tuple[list[Entry], Sequence[Chosen]]:
    """A member loses partitions: what it holds of them ends, as much of it as one frame takes."""
    chosen = []
    for lease in group.leases.values():
        for take, indexes in lease.open_takes() if lease.member == member else ():
            held = [index for index in indexes if take.progress.state_of(take.offsets[index]) == LEASED]
            if held and take.progress.partition.id in partitions:
                chosen.append(Chosen(lease, take, held))
    return decide_what_fits(core, chosen, how, now, rng) if chosen else ([], [])


def decide_interrupted(core: DeliveryState, now: int, rng: random.Random) -> Iterator[list[Entry]]:
    """After a restart nobody holds what was leased. The attempt counts: poison must not crash-loop for ever."""
    for queue in list(core.queues.values()):
        for group in queue.groups.values():
            for progress in group.progress:
                while progress.leased and (part := progress.offsets_in(LEASED)[:CHUNK]):
                    take = Take(progress, part, [progress.attempt_next(offset) for offset in part], len(part))
                    lease = Lease(0, group, "", now, 0, [take], len(part))
                    how = Settling(Outcome.INTERRUPTED, delay_seconds=0, error="the process stopped")
                    yield decide_what_fits(core, [Chosen(lease, take, range(len(part)))], how, now, rng)[0]


def decide_expired(core: DeliveryState, now: int) -> list[Entry]:
    """A slice of the messages whose time to live is over. May raise `ColumnNotLoaded`; then nothing was consumed."""
    expired: dict[tuple[int, int, int], list[int]] = {}  # queue, group, partition: offsets
    looked: set[tuple[int, int, int]] = set()
    left = CHUNK
    while left > 0 and core.expiries and core.expiries[0][0] <= now:
        at, queue_id, number, first = core.expiries[0]
        queue = core.queues.get(queue_id)
        extent = _extent_of(queue, number, first)
        if extent is not None and (queue_id, number, extent.first) in looked:
            heapq.heappop(core.expiries)  # a seek has brought it twice: all of it is decided
            continue
        try:
            expiries = extent.expiries() if extent is not None else None
        except ColumnNotLoaded:
            if expired:
                break
            raise
        heapq.heappop(core.expiries)
        if queue is None or extent is None or expiries is None:
            left -= 1
            continue
        looked.add((queue_id, number, extent.first))
        gone = np.flatnonzero((expiries > 0) & (expiries <= now)) + extent.first
        for group in queue.groups.values():
            waiting = group.progress[number].waiting_among(gone)
            if waiting:
                expired[queue_id, group.id, number] = [*expired.get((queue_id, group.id, number), ()), *waiting[:left]]
            if len(waiting) > left:
                heapq.heappush(core.expiries, (at, queue_id, number, first))  # the rest comes with the next slice
                left = 0
                break
            left -= len(waiting)
        else:
            left -= 1
            ahead = expiries[expiries > now]
            if len(ahead) and at != ONCE:
                heapq.heappush(core.expiries, (int(ahead.min()), queue_id, number, extent.first))
    return [
        Settled(queue_id, group, int(Outcome.EXPIRED), now, 0, "", "", [span_of(number, sorted(offsets))])
        for (queue_id, group, number), offsets in expired.items()
        if offsets
    ]


def _extent_of(queue: Queue | None, number: int, first: int) -> Extent | None:
    """The extent of an expiry, unless retention has dropped all of it."""
    partition = queue.partitions[number] if queue is not None else None
    if partition is None or not partition.extents:
        return None
    extent = partition.extent_at(max(first, partition.start))
    return extent if extent.first <= first else None


def decide_evicted(core: DeliveryState, now: int) -> list[Entry]:
    """Messages that waited longer than `max_wait_seconds`. May raise `ColumnNotLoaded`."""
    for queue in core.queues.values():
        if queue.options.max_wait_seconds is None:
            continue
        since = now - round(queue.options.max_wait_seconds * 1_000_000)
        for group in queue.groups.values():
            entries = _evict_from(core, queue, group, since, now) if group.is_load else []
            if entries:
                return entries
    return []


def next_look(core: DeliveryState, now: int) -> int:
    """When to look for messages that wait too long and for idle groups again."""
    if any(queue.options.max_wait_seconds is not None for queue in core.queues.values()):
        return now + WAIT_LOOK_EVERY
    return now + GROUP_LOOK_EVERY if any(len(queue.groups) > 1 for queue in core.queues.values()) else FOREVER


def _evict_from(core: DeliveryState, queue: Queue, group: Group, since: int, now: int) -> list[Entry]:
    lates = ask_each(lambda progress: _late(progress, since), group.progress)
    evicted: list[tuple[Progress, list[int]]] = []
    left = CHUNK
    for progress, late in zip(group.progress, lates, strict=True):
        if late and left > 0:
            evicted.append((progress, late[:left]))
            left -= len(late)
    if not evicted:
        return []
    if queue.options.max_wait_action == "drop":
        spans = [span_of(progress.partition.id, late) for progress, late in evicted]
        return [Settled(queue.id, group.id, int(Outcome.EVICTED), now, 0, "", "waited too long", spans)]
    dead = [
        DeadDelivery(
            progress, offset, progress.attempt_next(offset) - 1, Outcome.DEAD, "waited too long", "", 0, now, LATE
        )
        for progress, late in evicted
        for offset in late
    ]
    return _dead_that_fit(core, queue, dead[:CHUNK], now)


def _dead_that_fit(core: DeliveryState, queue: Queue, dead: list[DeadDelivery], now: int) -> list[Entry]:
    try:
        return decide_dead(core, queue, dead, now)
    except TooLarge:
        return _dead_that_fit(core, queue, dead[: len(dead) // 2], now)


def _late(progress: Progress, since: int) -> list[int]:
    """Up to `CHUNK` messages that were available by `since` and were never delivered. May raise `ColumnNotLoaded`."""
    late: list[int] = []
    for extent in progress.partition.extents_from(progress.base):
        if extent.pushed_at > since or len(late) >= CHUNK:
            break
        low = max(extent.first, progress.base)
        waits = progress.fresh_mask(low, extent.end)
        if extent.pushed_last_at() > since:
            waits &= extent.pushed_times()[low - extent.first :] <= since
        dues = extent.dues()
        if dues is not None:
            waits &= dues[low - extent.first :] <= since
        late += (np.flatnonzero(waits)[: CHUNK - len(late)] + low).tolist()
    return late


def decide_idle_groups(core: DeliveryState, now: int) -> list[Entry]:
    """Groups that nobody has used for `group_expiry_seconds`, so that they hold retention no longer: a slice."""
    idle = (
        GroupDeleted(queue.id, group.id)
        for queue in core.queues.values()
        for group in queue.groups.values()
        if _is_idle(group, now)
    )
    return list(islice(idle, CHUNK))


def _is_idle(group: Group, now: int) -> bool:
    is_in_use = group.leases or group.waiting or (group.roster is not None and group.roster.seats)
    is_kept = group.name == DEFAULT_GROUP or group.is_archive or is_in_use
    return not is_kept and now - group.active_at > round(group.queue.options.group_expiry_seconds * 1_000_000)


def floors_of(core: DeliveryState, queue: Queue, partitions: Iterable[int] | None = None) -> dict[int, int]:
    """For some partitions, or all, the lowest offset that any group may still need, be it to redrive it."""
    dlq = core.by_name.get(queue.name + DLQ_SUFFIX)
    may_redrive = dlq is not None and dlq.groups[0].backlog > 0
    return {
        number: min(group.progress[number].floor(may_redrive=may_redrive) for group in queue.groups.values())
        for number in (range(len(queue.partitions)) if partitions is None else partitions)
    }


def archived_of(queue: Queue, partitions: Iterable[int] | None = None) -> dict[int, int]:
    """For some partitions, or all, the first offset that the group `archive` has not passed; empty when there is none.

    A group passes messages by acknowledging them or by a seek. Time and operators settle messages in every group (they
    expire, they are purged): where that happened only the last seek says what was archived.
    """
    group = next((group for group in queue.groups.values() if group.is_archive), None)
    if group is None:
        return {}
    numbers = range(len(group.progress)) if partitions is None else partitions
    return {number: _passed(group.progress[number]) for number in numbers}


def _passed(progress: Progress) -> int:
    return progress.start if progress.dropped or progress.dead else progress.floor(may_redrive=False)
