"""Compaction of queues that keep the latest message of each key. The storekeeper's thread does it, beside the shard.

Keys are read and compared without the lock. Then each portion of a partition is decided and applied with it, in one
frame; when all frames are durable the files are rewritten. A crash in between leaves messages in the files that nobody
is given any more: the next compaction drops them.

What is sealed is looked at only when it may be worth it: at most so many messages are superseded as were when it was
looked at last, plus those that were sealed since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock import limits
from penstock.batch import layout
from penstock.delivery.compaction import Bounds, decide_compacted
from penstock.delivery.entries import Int64s
from penstock.delivery.log import Extent, Partition, Queue
from penstock.delivery.ranges import NO_RANGES, Ranges
from penstock.model import Freed
from penstock.storage.compaction import PartitionPlan, Plan
from penstock.storage.extents import Extent as SealedExtent

if TYPE_CHECKING:
    from penstock.shard.shard import Shard
    from penstock.storage.segments import SegmentStore


PARTITIONS_AT_ONCE: Final = 256  # that learn of new places while the shard is held
Runs = dict[tuple[int, int], list[Extent]]  # extents by queue and partition


@dataclass(slots=True)
class Look:
    """What a look at a queue has found."""

    at: int
    sealed: int  # messages up to the last sealed one of each partition
    left: int  # superseded ones that stayed


class Compactor:
    """Compacts one queue after the other. One thread at a time may call it."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._looks: dict[int, Look] = {}

    def due(self) -> list[Queue]:
        """The queues to look at now."""
        with self._shard.locked():
            queues = self._shard.core.queues
            self._looks = {number: look for number, look in self._looks.items() if number in queues}
            candidates = [queue for queue in queues.values() if queue.options.compaction == "latest"]
        now = self._shard.clock.now()
        return [queue for queue in candidates if self._is_due(queue, now)]

    def _is_due(self, queue: Queue, now: int) -> bool:
        sealed, look = _sealed(queue), self._looks.get(queue.id)
        if look is None:
            return sealed > 0
        if now - look.at < round(queue.options.compaction_seconds * 1_000_000):
            return False
        stored = sum(
            extent.stored_rows for partition in queue.partitions for extent in _sealed_extents(partition.extents)
        )
        # What waited for a group may go now, and a tombstone may have become old.
        return look.left + sealed - look.sealed >= queue.options.compaction_ratio * max(1, stored)

    def run(self, queue: Queue, ratio: float = 0.0) -> Freed:
        """Compact a queue if at least this share of its sealed messages can be removed; returns what was freed."""
        shard, store = self._shard, self._shard.store
        assert store is not None
        with shard.locked():
            now, sealed = shard.clock.now(), _sealed(queue)
            extents = sorted(store.of_queue(queue.id))
            bounds = {partition.id: Bounds() for partition in queue.partitions}
            for number, bound in bounds.items():
                bound.shrink(shard.core, queue, number)
        until = now - round(queue.options.tombstone_seconds * 1_000_000)
        plan = store.planner(until).plan(extents, {number: bound.end for number, bound in bounds.items()})
        is_worth_it = plan.removable > 0 and plan.removable >= ratio * plan.stored
        if is_worth_it:
            self._remove(queue, plan, bounds)
        self._looks[queue.id] = Look(now, sealed, 0 if is_worth_it else plan.removable)
        return self._rewrite(queue, store) if is_worth_it or not ratio else Freed()

    def _remove(self, queue: Queue, plan: Plan, bounds: dict[int, Bounds]) -> None:
        shard = self._shard
        for number, part in plan.partitions.items():
            for superseded, tombstones in portions(part):
                with shard.locked():
                    if queue.id not in shard.core.queues:
                        return
                    bounds[number].shrink(shard.core, queue, number)
                    now = shard.clock.now()
                    shard.upkeep_commit(decide_compacted(queue, number, superseded, tombstones, bounds[number], now))
                    sequence = shard.core.sequence
                shard.commit.wait(sequence)

    def _rewrite(self, queue: Queue, store: SegmentStore) -> Freed:
        def removed(queue_id: int, number: int) -> Ranges:
            return queue.partitions[number].removed if queue_id == queue.id else NO_RANGES

        return store.drop(queue.id, removed, self._replace)

    def _replace(self, gone: set[str], old: list[SealedExtent], new: list[SealedExtent]) -> None:
        """Files were replaced."""

        def replace(partition: Partition, extents: list[Extent]) -> None:
            partition.replace_files(gone, extents)
            for extent in extents:
                if extent.flags & layout.TTL:  # expiries are found by where extents begin
                    self._shard.core.index_expiry(partition.queue, partition, extent)

        relocate(self._shard, new, replace, {(extent.queue, extent.partition): [] for extent in old})


def relocate(
    shard: Shard, sealed: list[SealedExtent], put: Callable[[Partition, list[Extent]], None], runs: Runs | None = None
) -> None:
    """Have each partition learn where its messages are now; the shard goes on between some and the next.

    `runs` names partitions that learn of it although nothing is left of them.
    """
    runs = {} if runs is None else runs
    for extent in map(shard.extent_of, sealed):
        runs.setdefault((extent.sealed.queue, extent.sealed.partition), []).append(extent)
    positions = list(runs.items())
    for first in range(0, len(positions), PARTITIONS_AT_ONCE):
        with shard.locked():
            shard.changing = True
            for (queue_id, number), run in positions[first : first + PARTITIONS_AT_ONCE]:
                queue = shard.core.queues.get(queue_id)
                if queue is not None:
                    put(queue.partitions[number], run)
            shard.changing = False


def portions(part: PartitionPlan) -> Iterator[tuple[Ranges, Int64s]]:
    """What one entry may remove, from the first offset on: so many ranges, and so many offsets."""
    ranges, tombstones = part.superseded, part.tombstones
    index = 0
    while index < len(ranges) or len(tombstones):
        last = min(index + limits.compaction_ranges_max, len(ranges))
        if index < last:
            reach = int(ranges.firsts[index]) + limits.compaction_offsets_max
            last = max(index + 1, min(last, int(np.searchsorted(ranges.firsts, reach))))
        portion = Ranges(ranges.firsts[index:last], ranges.ends[index:last])
        index = last
        end = int(ranges.firsts[index]) if index < len(ranges) else None
        count = min(
            len(tombstones) if end is None else int(np.searchsorted(tombstones, end)), limits.compaction_ranges_max
        )
        yield portion, tombstones[:count]
        tombstones = tombstones[count:]


def _sealed(queue: Queue) -> int:
    return sum(partition.sealed_end for partition in queue.partitions)


def _sealed_extents(extents: list[Extent]) -> Iterator[SealedExtent]:
    return (extent.sealed for extent in list(extents) if extent.sealed is not None)
