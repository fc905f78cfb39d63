"""After replay: make the indexes (lanes, timers, expiries, counters) from the state.

The caller has loaded the priorities of sealed extents and fetches delays through `delays`; nothing here reads a file.
"""

from __future__ import annotations

from penstock.batch import layout
from penstock.delivery.core import DeliveryState
from penstock.delivery.indexes import priority_of
from penstock.delivery.log import Extent, Partition
from penstock.delivery.phases import READY
from penstock.delivery.progress import Progress


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
        for offset in _ready_offsets(progress):
            group.offer_again(progress, offset, priority_of(partition, offset))
    elif progress.unsettled():
        group.offer(progress)


def _ready_offsets(progress: Progress) -> list[int]:
    low = sorted(offset for offset, state in (progress.sparse or {}).items() if state == READY)
    if READY not in progress.states:
        return low
    return low + [progress.base + index for index, state in enumerate(progress.states) if state == READY]
