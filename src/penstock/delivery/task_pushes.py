"""Pushes of tasks that the passing of time or the end of another task causes: ticks of schedules, released children.

A tick that nobody was there for is *missed*. Schedules that skip run the last tick if it is no older than a minute, so
that a restart at the wrong moment costs no run, and pass over the others. Schedules that catch up run every tick, in
order. The id of a tick's task follows from the schedule's name and the instant: the queue knows it when it comes again.

A held child whose last parent ended is pushed, or cancelled because a parent failed. Applied, one decision may make
more children ripe, since a cancelled task takes its children along: decide again until there are none. Those of one
queue are pushed together.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from penstock import limits
from penstock.batch import Batch, join
from penstock.cron import next_tick
from penstock.delivery.admin import queue_to_push
from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import Entry, ScheduleFired, TaskFreed
from penstock.delivery.log import Queue
from penstock.delivery.push import check_allowed, decide_push
from penstock.delivery.tasks import HELD, HeldTask, Schedule
from penstock.envelopes import alike_batch, encode_envelope
from penstock.errors import InvalidField, PenstockError
from penstock.model import to_datetime
from penstock.model_tasks import ScheduleSpec, TaskSubmission, id_text

GRACE: Final = round(limits.schedule_grace_seconds * 1_000_000)
_decoder: Final = msgspec.json.Decoder(ScheduleSpec)


class Tick(NamedTuple):
    """One tick: whether it becomes a task, and when the next is due."""

    at: int
    next_at: int
    is_run: bool


def spec_of(schedule: Schedule) -> ScheduleSpec:
    """The schedule as it was set."""
    return _decoder.decode(schedule.spec)


def ticks(schedule: Schedule, now: int) -> Iterator[Tick]:
    """What to do about a schedule that is due, as far as the caller goes."""
    spec = spec_of(schedule)
    at = schedule.next_at
    if spec.missed == "catch_up":
        while 0 < at <= now:
            next_at = _after(spec, at)
            yield Tick(at, next_at, True)
            at = next_at
        return
    if at < now - GRACE:
        at = _after(spec, now - GRACE - 1)
    if not 0 < at <= now:
        yield Tick(schedule.next_at, at, False)
        return
    while 0 < (next_at := _after(spec, at)) <= now:
        at = next_at
    yield Tick(at, next_at, True)


def _after(spec: ScheduleSpec, at: int) -> int:
    """The next tick; 0 when there is none, as for one that is paused."""
    return _tick_after(spec.cron, spec.timezone, at)


@lru_cache(maxsize=1_000)  # many schedules share their times
def _tick_after(cron: str, timezone: str, at: int) -> int:
    try:
        return next_tick(cron, timezone, at)
    except InvalidField:
        return 0


def decide_tick(core: DeliveryState, name: str, tick: Tick, now: int) -> list[Entry]:
    """The frame of a tick, with its queue if that is new. May be refused like any push; `skipped_tick` is left then."""
    if not tick.is_run:
        return skipped_tick(name, tick)
    spec = spec_of(core.tasks.schedules.known[name])
    task_id = tick_id(name, tick.at)
    queue, created = queue_to_push(core, spec.queue, now)
    decided = decide_push(core, queue, batch_of(spec, id_text(task_id), tick.at), now)
    return [*created, *decided.entries, ScheduleFired(name, tick.at, tick.next_at, task_id)]


def skipped_tick(name: str, tick: Tick) -> list[Entry]:
    """A tick without a task."""
    return [ScheduleFired(name, tick.at, tick.next_at, b"")]


def tick_id(name: str, at: int) -> bytes:
    """The id of a tick's task: a UUID of version 8."""
    digest = bytearray(hashlib.blake2b(f"{at} {name}".encode(), digest_size=16).digest())
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    return bytes(digest)


def batch_of(spec: ScheduleSpec, task_id: str, at: int | None) -> Batch:
    """The task of a schedule as a message; `at` is the instant of the tick, None when somebody runs it by hand."""
    task = TaskSubmission(
        task_id=task_id,
        task_type=spec.task_type,
        queue=spec.queue,
        is_named=True,
        args=spec.args,
        kwargs=spec.kwargs,
        timeout_seconds=spec.timeout_seconds,
        max_attempts=spec.max_attempts,
        priority=spec.priority,
        key=spec.key,
    )
    return alike_batch(task, [encode_envelope(task, spec.name, "" if at is None else to_datetime(at).isoformat())])


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
    partitions, offsets = decided.push.positions(len(children))
    entries = decided.entries
    for (held, _), partition, offset in zip(children, partitions.tolist(), offsets.tolist(), strict=True):
        entries.append(TaskFreed(queue.id, held.task_id, now, TaskFreed.PUSHED, partition, offset, ""))
    return entries


def cancelled(queue: int, task_id: bytes, why: str, now: int, because: bytes = b"") -> TaskFreed:
    """A held task that will not be pushed; `because` is the parent whose end it was, if that was why."""
    return TaskFreed(queue, task_id, now, TaskFreed.CANCELLED, HELD, HELD, why, because)
