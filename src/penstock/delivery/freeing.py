"""Children whose time has come: they are pushed, or cancelled because a parent failed.

Each step is applied before the next is decided, since it may bring more: who is cancelled takes its own children along.
The caller appends all of it as one frame with the lock held.
"""

from __future__ import annotations

from typing import Final

from penstock import limits
from penstock.batch import Batch
from penstock.delivery.core import Delivery
from penstock.delivery.entries import Entry, TaskFreed
from penstock.delivery.push import decide_push
from penstock.delivery.tasks import HELD, Held
from penstock.errors import PenstockError

CHUNK: Final = 1_000
ROOM: Final = limits.frame_bytes_max - 2 * limits.MIB


def free_some(core: Delivery, now: int, sequence: int, room: int = ROOM) -> list[Entry]:
    """Free children that are ripe, as many as one frame takes; `room` is what is left of it."""
    tasks = core.tasks
    entries: list[Entry] = []
    for _ in range(CHUNK):
        held = tasks.held[next(iter(tasks.ripe))] if tasks.ripe else None
        if held is None or len(held.batch) > room:
            break
        room -= len(held.batch) + limits.KIB
        freed = _decide(core, held, now)
        core.apply(freed, sequence)
        entries += freed
    return entries


def _decide(core: Delivery, held: Held, now: int) -> list[Entry]:
    queue = core.queues.get(held.queue)
    if queue is None or held.doomed:
        return cancelled(held, held.doomed, now)
    try:
        decided = decide_push(core, queue, Batch.parse(held.batch, validate=False), now, is_promised=True)
    except PenstockError as error:  # the queue has other options now, which forbid what this one asks for
        return cancelled(held, str(error), now)
    ((partition, _, offset),) = decided.push.parts
    return [*decided.entries, TaskFreed(queue.id, held.task_id, now, TaskFreed.PUSHED, partition, offset, "")]


def cancelled(held: Held, why: str, now: int) -> list[Entry]:
    """A held task that will never be pushed."""
    return [TaskFreed(held.queue, held.task_id, now, TaskFreed.CANCELLED, HELD, HELD, why)]
