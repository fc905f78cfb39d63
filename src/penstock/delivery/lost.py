"""Messages that no file holds any more, because a repair had to give them up.

Their offsets stay used: none is ever given to another message. In every group they are settled as `lost`, whenever
the group was made and wherever it seeks, so nothing ever tries to read them. A group that had settled one before keeps
its own account of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.delivery.entries import Span
from penstock.delivery.log import Partition
from penstock.delivery.progress import Progress
from penstock.model import Outcome

Range = tuple[int, int]  # first offset, end offset


def gaps(partition: Partition) -> list[Range]:
    """Offsets of [start, end) that are in no extent and have not been given up: there are none in a sound shard."""
    found: list[Range] = []
    position = partition.start
    for first, end in _covered(partition):
        if first > position:
            found.append((position, first))
        position = max(position, end)
    if position < partition.end:
        found.append((position, partition.end))
    return found


def _covered(partition: Partition) -> Iterable[Range]:
    extents = ((extent.first, extent.end) for extent in partition.extents)
    return sorted([*extents, *partition.lost]) if partition.lost else extents


def give_up(partition: Partition, lost: list[Range]) -> None:
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
