"""After a restart or a repair: indexes from the state, messages that are lost, counters that add up again.

`rebuild` makes the indexes (lanes, timers, expiries, counters) once all entries are applied. The caller has loaded the
priorities of sealed extents and fetches delays itself; nothing here reads a file.

A message that no file holds any more is lost, because a repair had to give it up. Its offset stays used: none is ever
given to another message. In every group it is settled as `lost`, whenever the group was made and wherever it seeks, so
nothing ever tries to read it. A group that had settled it before keeps its own account of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.batch import layout
from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import Span
from penstock.delivery.log import Extent, Partition, priority_of
from penstock.delivery.phases import LEASED, READY, SETTLED, WAITING
from penstock.delivery.progress import Progress
from penstock.model import Outcome

Range = tuple[int, int]  # first offset, end offset


def gaps(partition: Partition) -> list[Range]:
    """Offsets of [start, end) that are in no extent and have not been given up: there are none in a sound shard."""
    missing: list[Range] = []
    position = partition.start
    for first, end in _covered(partition):
        if first > position:
            missing.append((position, first))
        position = max(position, end)
    if position < partition.end:
        missing.append((position, partition.end))
    return missing


def _covered(partition: Partition) -> Iterable[Range]:
    extents = ((extent.first, extent.end) for extent in partition.extents)
    if not partition.lost and not partition.removed:
        return extents
    return sorted([*extents, *partition.lost, *partition.removed])


def mark_lost(partition: Partition, lost: list[Range]) -> None:
    """Settle offsets as lost in every group, now and for all groups to come."""
    queue = partition.queue
    partition.lost = _merged([*partition.lost, *lost])
    for first, end in lost:
        partition.end = max(partition.end, end)
        for group in queue.groups.values():
            progress = group.progress[partition.id]
            if end > progress.start:
                low = max(first, progress.start)
                progress.settle(Span(partition.id, low, end - low), Outcome.LOST, 0)
            _forget_dead(progress, first, end)
        if queue.dedup is not None:
            # Whoever sends it again means a message that we no longer have.
            queue.dedup.drop(partition.id, first, end)


def _forget_dead(progress: Progress, first: int, end: int) -> None:
    """A dead letter is a copy and stays; what it came from can no longer be brought back, and counts as lost."""
    gone = {offset for offset in progress.dead_offsets or () if first <= offset < end}
    if progress.dead_offsets and gone:
        progress.dead_offsets -= gone
        progress.dead -= len(gone)
        progress.dropped = progress.dropped or {}
        progress.dropped[Outcome.LOST] = progress.dropped.get(Outcome.LOST, 0) + len(gone)


def _merged(ranges: list[Range]) -> list[Range]:
    merged: list[Range] = []
    for first, end in sorted(ranges):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((first, end))
    return merged


def recount(progress: Progress) -> None:
    """Make the counters follow the states.

    Entries that are applied after a hole may count what was counted before it. The states are right whatever was lost:
    each is what the last entry about it said.
    """
    sparse = progress.sparse or {}
    states = list(sparse.values())
    progress.leased = progress.states.count(LEASED) + states.count(LEASED)
    progress.waiting = progress.states.count(WAITING) + states.count(WAITING)
    progress.dues = {
        offset: due for offset, due in (progress.dues or {}).items() if progress.state_of(offset) == WAITING
    }
    settled = progress.base - progress.start - len(sparse) + progress.states.count(SETTLED)
    progress.dead_offsets = {o for o in progress.dead_offsets or () if progress.state_of(o) == SETTLED} or None
    progress.dead = len(progress.dead_offsets or ())
    progress.dropped = _at_most(progress.dropped or {}, settled - progress.dead)
    progress.acked = settled - progress.dead - progress.dropped_count()


def _at_most(dropped: dict[int, int], room: int) -> dict[int, int]:
    kept: dict[int, int] = {}
    for outcome, count in dropped.items():
        kept[outcome] = min(count, room - sum(kept.values()))
    return {outcome: count for outcome, count in kept.items() if count > 0}


def attach_sealed(partition: Partition, extents: list[Extent]) -> None:
    """Extents from segments, oldest first, ahead of what replay will bring."""
    end, pushed_at = partition.end, partition.pushed_at
    for extent in extents:
        partition.append(extent)
        partition.sealed_end = extent.end
    partition.end = max(end, partition.end)
    partition.pushed_at = max(pushed_at, partition.pushed_at)


def rebuild(core: DeliveryState) -> None:
    """Everything that follows from the state, once all entries are applied."""
    core.replaying = False
    for queue in core.queues.values():
        for partition in queue.partitions:
            partition.applied = 0
        for group in queue.groups.values():
            group.clear_lanes()
            group.outcomes = [0] * len(group.outcomes)
            group.backlog = sum(progress.unsettled() for progress in group.progress)
            for progress in group.progress:
                _index(core, progress)
        for partition in queue.partitions:
            if partition.flags & layout.TTL:
                for extent in partition.extents:
                    if extent.flags & layout.TTL:
                        core.index_expiry(queue, partition, extent)
    core.tasks.find_lost(core)


def _index(core: DeliveryState, progress: Progress) -> None:
    progress.offered = 0
    core.index_progress(progress)
    group, partition = progress.group, progress.partition
    for offset, due in list((progress.dues or {}).items()):
        if due > core.wheel.reached:
            core.wheel.add(due, core.owner_of(progress), offset)
        else:
            progress.become_ready([offset])
    if partition.queue.options.ordering != "partition":
        for offset in progress.offsets_in(READY):
            group.offer_retry(progress, offset, priority_of(partition, offset))
    elif progress.unsettled():
        group.offer(progress)
