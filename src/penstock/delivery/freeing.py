"""Children whose time has come: they are pushed, or cancelled because a parent failed.

Each round is applied before the next is decided, since it may bring more: who is cancelled takes its children along.
Those of one queue are pushed together. The caller appends all of it as one frame with the lock held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from penstock import limits
from penstock.batch import Batch, join
from penstock.delivery.core import Delivery
from penstock.delivery.entries import Entry, TaskFreed
from penstock.delivery.log import Queue
from penstock.delivery.push import check_allowed, decide_push
from penstock.delivery.tasks import HELD, Held
from penstock.errors import PenstockError

CHUNK: Final = 1_000
ROOM: Final = limits.frame_bytes_max - 2 * limits.MIB
PUSH_BYTES: Final = limits.batch_bytes_max // 4


def free_some(core: Delivery, now: int, sequence: int, room: int = ROOM) -> list[Entry]:
    """Free children that are ripe, as many as one frame takes; `room` is what is left of it."""
    tasks = core.tasks
    entries: list[Entry] = []
    left = CHUNK
    while left > 0 and tasks.ripe:
        chosen: list[Held] = []
        for task_id in islice(tasks.ripe, left):
            held = tasks.held[task_id]
            room -= len(held.batch) + limits.KIB
            if room < 0:
                left = 0
                break
            chosen.append(held)
        left -= len(chosen)
        freed = _decide(core, chosen, now, sequence)
        entries += freed
    return entries


def _decide(core: Delivery, chosen: Sequence[Held], now: int, sequence: int) -> list[Entry]:
    """Decide and apply."""
    entries: list[Entry] = []
    pushed: dict[Queue, list[tuple[Held, Batch]]] = {}
    for held in chosen:
        queue = core.queues.get(held.queue)
        why = held.doomed
        if queue is not None and not why:
            batch = Batch(held.batch)
            try:
                check_allowed(queue, batch)
                pushed.setdefault(queue, []).append((held, batch))
                continue
            except PenstockError as error:  # the queue has other options now, which forbid what this one asks for
                why = str(error)
        entries.append(cancelled(held.queue, held.task_id, why, now, held.doomed_by))
    core.apply(entries, sequence)
    for queue, some in pushed.items():
        for part in _batches(some):
            freed = _push(core, queue, part, now)
            core.apply(freed, sequence)
            entries += freed
    return entries


def _batches(some: list[tuple[Held, Batch]]) -> Iterator[list[tuple[Held, Batch]]]:
    """As many at a time as make a batch of a good size."""
    part: list[tuple[Held, Batch]] = []
    size = 0
    for each in some:
        if part and size + len(each[0].batch) > PUSH_BYTES:
            yield part
            part, size = [], 0
        part.append(each)
        size += len(each[0].batch)
    yield part


def _push(core: Delivery, queue: Queue, some: list[tuple[Held, Batch]], now: int) -> list[Entry]:
    decided = decide_push(core, queue, join([batch for _, batch in some]), now, is_promised=True)
    partitions, offsets = decided.push.places(len(some))
    entries = decided.entries
    for (held, _), partition, offset in zip(some, partitions.tolist(), offsets.tolist(), strict=True):
        entries.append(TaskFreed(queue.id, held.task_id, now, TaskFreed.PUSHED, partition, offset, ""))
    return entries


def cancelled(queue: int, task_id: bytes, why: str, now: int, because: bytes = b"") -> TaskFreed:
    """A held task that will not be pushed; `because` is the parent whose end it was, if that was why."""
    return TaskFreed(queue, task_id, now, TaskFreed.CANCELLED, HELD, HELD, why, because)
