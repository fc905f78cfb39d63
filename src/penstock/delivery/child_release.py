"""Children whose time has come: they are pushed, or cancelled because a parent failed.

Applied, one decision may make more children ripe, since a cancelled task takes its children along: decide again until
there are none. Those of one queue are pushed together.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Final

from penstock import limits
from penstock.batch import Batch, join
from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import Entry, TaskFreed
from penstock.delivery.log import Queue
from penstock.delivery.push import check_allowed, decide_push
from penstock.delivery.tasks import HELD, HeldTask
from penstock.errors import PenstockError

ROOM: Final = limits.frame_bytes_max - 2 * limits.MIB
PUSH_BYTES: Final = limits.batch_bytes_max // 4


def decide_child_release(core: DeliveryState, now: int, count_max: int, room: int = ROOM) -> list[Entry]:
    """Free children that are ripe, as many as fit; nothing when there are none. `room` is what is left of the frame."""
    entries: list[Entry] = []
    pushed: dict[Queue, list[tuple[HeldTask, Batch]]] = {}
    sizes: Counter[Queue] = Counter()
    for task_id in islice(core.tasks.ripe, count_max):
        held = core.tasks.held[task_id]
        room -= len(held.batch) + limits.KIB
        if room < 0:
            break
        queue = core.queues.get(held.queue)
        why = held.doomed or _forbidden(queue, held)
        if queue is None or why:
            entries.append(cancelled(held.queue, held.task_id, why, now, held.doomed_by))
        elif not sizes[queue] or sizes[queue] + len(held.batch) <= PUSH_BYTES:  # the rest is for the next frame
            sizes[queue] += len(held.batch)
            pushed.setdefault(queue, []).append((held, Batch(held.batch)))
    for queue, children in pushed.items():
        entries += _push(core, queue, children, now)
    return entries


def _forbidden(queue: Queue | None, held: HeldTask) -> str:
    """Why the queue refuses this task now: its options may have changed since the task was submitted."""
    try:
        if queue is not None:
            check_allowed(queue, Batch(held.batch))
    except PenstockError as error:
        return str(error)
    return ""


def _push(core: DeliveryState, queue: Queue, children: list[tuple[HeldTask, Batch]], now: int) -> list[Entry]:
    decided = decide_push(core, queue, join([batch for _, batch in children]), now, is_promised=True)
    partitions, offsets = decided.push.places(len(children))
    entries = decided.entries
    for (held, _), partition, offset in zip(children, partitions.tolist(), offsets.tolist(), strict=True):
        entries.append(TaskFreed(queue.id, held.task_id, now, TaskFreed.PUSHED, partition, offset, ""))
    return entries


def cancelled(queue: int, task_id: bytes, why: str, now: int, because: bytes = b"") -> TaskFreed:
    """A held task that will not be pushed; `because` is the parent whose end it was, if that was why."""
    return TaskFreed(queue, task_id, now, TaskFreed.CANCELLED, HELD, HELD, why, because)
