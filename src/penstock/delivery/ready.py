"""How many messages something may have made ready, and in which group: as many who wait are woken, and no more."""

from __future__ import annotations

from typing import Final

from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import AttemptsLost, Entry, Int64s, Leased, Push, Revived, Settled, Span
from penstock.delivery.log import DUE, Queue, dues_of
from penstock.delivery.phases import AFTER, READY, WAITING

EVERYONE: Final = 1 << 30
NOTHING: Final = (0, None)


def made_ready(core: DeliveryState, each: Entry) -> tuple[int, int | None]:
    """How many messages, or more, an entry that was applied has made ready, and in which group; None: in all."""
    queue = core.queues.get(each.queue)
    if isinstance(each, Leased | AttemptsLost):
        return NOTHING
    if queue is None:  # it was deleted: whoever waits for it is told so
        return EVERYONE, None
    if isinstance(each, Push):
        return ready_of_push(queue, each), None
    if isinstance(each, Revived):
        return sum(_due_by(span, each.at) for span in each.spans), each.group
    if not isinstance(each, Settled):
        return EVERYONE, None
    if _frees_others(queue):
        return EVERYONE, each.group
    after = AFTER[each.outcome]
    if after == WAITING:
        return sum(_due_by(span, each.at) for span in each.spans), each.group
    return sum(span.count for span in each.spans) if after == READY else 0, each.group


def ready_of_push(queue: Queue, push: Push) -> int:
    """How many of the messages of a push can be had at once. A queue that holds all back must be looked at to know."""
    count = sum(count for _, count, _ in push.parts)
    batch = push.columns
    if batch is None or queue.gated or not batch.flags & DUE:
        return count
    return min(count, int((dues_of(batch, push.pushed_at) <= push.pushed_at).sum()))


def _frees_others(queue: Queue) -> bool:
    """Whether the end of a delivery lets other messages be had: those behind it, or those for which there was no room.
    How many is not known.
    """
    options = queue.options
    return queue.ordered or options.max_in_flight is not None or options.key_max_in_flight is not None


def _due_by(span: Span, now: int) -> int:
    dues: Int64s = span.due_array()
    return int((dues <= now).sum())
