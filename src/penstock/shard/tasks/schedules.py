"""Schedules as they are set, deleted and shown. What the clock does with them is `delivery.task_pushes`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from penstock import limits
from penstock.cron import next_tick, zone_of
from penstock.delivery import task_pushes
from penstock.delivery.admin import queue_to_push, reserved_name
from penstock.delivery.entries import Entry, ScheduleSet
from penstock.delivery.push import decide_push
from penstock.delivery.task_pushes import spec_of
from penstock.delivery.tasks import Schedule
from penstock.envelopes import new_task_id
from penstock.errors import InvalidField, QueueFull, ScheduleNotFound, TooLarge
from penstock.model import AUDIT_QUEUE, DLQ_SUFFIX, to_datetime
from penstock.model_tasks import (
    NextTick,
    PastRun,
    ScheduleRun,
    ScheduleSpec,
    ScheduleTicks,
    ScheduleView,
    TaskFilter,
    TaskView,
    id_text,
)

if TYPE_CHECKING:
    from penstock.shard.engine import Ticket
    from penstock.shard.shard import Shard
    from penstock.shard.tasks.service import TaskService


# The ids of ticks are UUIDs of version 8 (`task_pushes.tick_id`), all others of version 7.
VERSION: Final = 14
TICK_VERSION: Final = "8"


def set_schedule(shard: Shard, spec: ScheduleSpec) -> tuple[ScheduleView, Ticket]:
    """Make a schedule, or change it; the same again changes nothing."""
    data = msgspec.json.encode(spec)
    if len(data) > limits.schedule_bytes_max:
        raise TooLarge(f"schedule: {len(data):,} bytes is over the limit of {limits.schedule_bytes_max:,}")
    if spec.queue.endswith(DLQ_SUFFIX) or spec.queue == AUDIT_QUEUE:
        raise reserved_name(spec.queue)
    next_tick(spec.cron, spec.timezone, shard.clock.now())  # refused before the shard is held: it may take a while
    known = shard.core.tasks.schedules.known

    def decide(now: int) -> list[Entry]:
        before = known.get(spec.name)
        if before is not None and before.spec == data:
            return []
        if before is None and len(known) >= limits.schedules_max:
            raise QueueFull(f"there are already {len(known):,} schedules", hint="delete some that are not needed")
        return [ScheduleSet(spec.name, data, _next_at(before, spec, now), now, False)]

    return _changed(shard, decide, spec.name)


def _next_at(before: Schedule | None, spec: ScheduleSpec, now: int) -> int:
    if spec.is_paused:
        return 0
    if before is not None and before.next_at:
        old = spec_of(before)
        if (old.cron, old.timezone) == (spec.cron, spec.timezone):
            return before.next_at  # ticks that were missed are not forgotten because something else changed
    return next_tick(spec.cron, spec.timezone, now)


def _changed(shard: Shard, decide: Callable[[int], list[Entry]], name: str) -> tuple[ScheduleView, Ticket]:
    ticket = shard.change(decide)

    def question(now: int) -> ScheduleView:
        shard.on_deadline(shard.core.tasks.schedules.next_at)
        return _view(_known(shard, name))

    view, read = shard.look(question)
    return view, max(ticket, read)


def decide_encrypt_schedules(shard: Shard, queue: str, now: int) -> list[Entry]:
    """The schedules of a queue that is encrypted from now on, written again: encrypted."""
    return [
        ScheduleSet(name, schedule.spec, schedule.next_at, now, False)
        for name, schedule in shard.core.tasks.schedules.known.items()
        if spec_of(schedule).queue == queue
    ]


def delete_schedule(shard: Shard, name: str) -> Ticket:
    """Forget a schedule; tasks that it has made stay."""

    def decide(now: int) -> list[Entry]:
        _known(shard, name)
        return [ScheduleSet(name, b"", 0, now, True)]

    return shard.change(decide)


def schedules(shard: Shard) -> tuple[list[ScheduleView], Ticket]:
    """All of them, by name."""
    return shard.look(lambda now: [_view(schedule) for _, schedule in sorted(shard.core.tasks.schedules.known.items())])


def run_schedule(shard: Shard, name: str) -> tuple[ScheduleRun, Ticket]:
    """Submit the task of a schedule now. Its clock does not notice: the next tick comes when it would have come."""
    shard.check_space()
    made: list[ScheduleRun] = []

    def decide(now: int) -> list[Entry]:
        spec = spec_of(_known(shard, name))
        task_id = new_task_id(now)
        queue, created = queue_to_push(shard.core, spec.queue, now)
        decided = decide_push(shard.core, queue, task_pushes.batch_of(spec, task_id, None), now)
        run = ScheduleRun(task_id=task_id, schedule=name, queue=spec.queue, submitted_at=to_datetime(now))
        made[:] = [run]
        return [*created, *decided.entries]

    ticket = shard.change(decide)
    return made[0], ticket


def ticks(tasks: TaskService, name: str, count: int, runs: int) -> tuple[ScheduleTicks, Ticket]:
    """When a schedule is due next, and what it has submitted."""
    shard = tasks.shard
    (schedule, now), ticket = shard.look(lambda now: (_known(shard, name), now))
    spec = spec_of(schedule)
    page = tasks.caught_up().page(TaskFilter(schedule=name, limit=runs))
    found = ScheduleTicks(
        schedule=name,
        cron=spec.cron,
        timezone=spec.timezone,
        is_paused=spec.is_paused,
        next=list(islice(_next_ticks(spec, schedule.next_at or 0, now), count)),
        runs=[_past_run(task) for task in page.tasks],
    )
    return found, ticket


def _next_ticks(spec: ScheduleSpec, first: int, now: int) -> Iterator[NextTick]:
    at = first or now
    if first:
        yield _next_tick(spec, first)
    while True:
        try:
            at = next_tick(spec.cron, spec.timezone, at)
        except InvalidField:  # there is none after this
            return
        yield _next_tick(spec, at)


def _next_tick(spec: ScheduleSpec, at: int) -> NextTick:
    moment = to_datetime(at)
    return NextTick(moment, moment.astimezone(zone_of(spec.timezone)).isoformat())


def _past_run(task: TaskView) -> PastRun:
    return PastRun(
        task_id=task.task_id,
        trigger="tick" if task.task_id[VERSION] == TICK_VERSION else "manual",
        at=task.submitted_at,
        state=task.state,
        started_at=task.started_at,
        finished_at=task.finished_at,
        error=task.error,
    )


def queue_of_schedule(shard: Shard, name: str) -> str | None:
    """The queue that a schedule submits to; None when there is no such schedule."""

    def question(now: int) -> str | None:
        schedule = shard.core.tasks.schedules.known.get(name)
        return None if schedule is None else spec_of(schedule).queue

    return shard.look(question)[0]


def _known(shard: Shard, name: str) -> Schedule:
    schedule = shard.core.tasks.schedules.known.get(name)
    if schedule is None:
        raise ScheduleNotFound(f"there is no schedule {name!r}")
    return schedule


def _view(schedule: Schedule) -> ScheduleView:
    return ScheduleView(
        spec=spec_of(schedule),
        next_at=to_datetime(schedule.next_at) if schedule.next_at else None,
        last_at=to_datetime(schedule.last_at) if schedule.last_at else None,
        last_task_id=id_text(schedule.last_task_id) if schedule.last_task_id else "",
    )
