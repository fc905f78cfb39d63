"""What compaction removed, applied: the partition remembers it, and every group is done with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.delivery.entries import Compacted
from penstock.delivery.phases import SETTLED
from penstock.delivery.progress import span_of
from penstock.delivery.ranges import Ranges
from penstock.model import Outcome

if TYPE_CHECKING:
    from penstock.delivery.core import DeliveryState


def apply_compacted(core: DeliveryState, compacted: Compacted) -> None:
    """Forget messages in every group, unless a checkpoint has done so already."""
    queue = core.queues.get(compacted.queue)
    if queue is None or (core.replaying and core.sequence <= queue.partitions[compacted.partition].applied):
        return
    partition = queue.partitions[compacted.partition]
    ranges = Ranges.from_bytes(compacted.ranges).after(partition.start)
    partition.removed |= ranges
    core.compactions += 1
    for group in queue.groups.values():
        progress = group.progress[partition.id]
        progress.forget_removed_dead(ranges)
        finished, touched = progress.remove(ranges)
        group.backlog -= finished
        group.outcomes[Outcome.COMPACTED] += finished
        group.change_count += bool(finished)
        if len(touched):
            span = span_of(partition.id, touched.tolist())
            if not core.replaying and queue.ordered:
                core.index_settled(progress, span, SETTLED, compacted.at)
            if group.gate is not None:
                group.gate.settled(progress, span, compacted.at)
