"""A trace over all queues: its messages and tasks in the order in which they were pushed, with their waits and runs.

Each queue is searched back from its newest message, as far as it may be, those that changed last first. No more than
`trace_messages_max` messages are looked at in all, and what has no trace ids costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Final

from msgspec import structs

from penstock import limits
from penstock.delivery.phases import AFTER
from penstock.envelopes import parse_envelope
from penstock.errors import InvalidField, QueueNotFound
from penstock.model import ContentType, MessageId, Outcome, to_datetime
from penstock.replies import MessageEvent, Timeline, TraceReach, TraceRun, TraceStep, TraceView
from penstock.shard import browse

if TYPE_CHECKING:
    from penstock.shard.engine import Ticket
    from penstock.shard.tasks.service import TaskService
    from penstock.shard.timeline import Timelines

_ENDS: Final = frozenset(outcome.name.lower() for outcome in Outcome if outcome in AFTER)


def trace(
    timelines: Timelines, tasks: TaskService, trace_id: str, limit: int, look_back: int
) -> tuple[TraceView, Ticket]:
    """Search all queues for a trace."""
    shard = tasks.shard
    (names, now), ticket = shard.look(
        lambda now: (
            [queue.name for queue in sorted(shard.core.queues.values(), key=lambda queue: -queue.touched)],
            now,
        )
    )
    found: list[Timeline] = []
    reaches: list[TraceReach] = []
    room = limits.trace_messages_max
    for name in names:
        if room <= 0:
            break
        try:
            search, read = timelines.search(name, None, trace_id, limit + 1, min(look_back, room))
        except QueueNotFound:  # deleted meanwhile
            continue
        ticket = max(ticket, read)
        room -= search.examined
        found += search.timelines
        reaches.append(
            TraceReach(
                queue=name,
                examined=search.examined,
                looked_back_to=search.looked_back_to,
                is_complete=search.is_complete,
            )
        )
    found.sort(key=lambda timeline: (timeline.pushed_at, str(timeline.id)))
    steps = _with_tasks(tasks, [_step(timeline, to_datetime(now)) for timeline in found[:limit]])
    ends = [run.ended_at for step in steps for run in step.runs if run.ended_at is not None]
    view = TraceView(
        trace=trace_id,
        began_at=steps[0].pushed_at if steps else None,
        ended_at=max(ends, default=None),
        steps=steps,
        queues=sorted(reaches, key=lambda reach: reach.queue),
        is_cut=len(found) > limit or len(reaches) < len(names),
    )
    return view, ticket


def _step(timeline: Timeline, now: datetime) -> TraceStep:
    runs = _runs(timeline.events)
    run_seconds = sum(((run.ended_at or now) - run.started_at).total_seconds() for run in runs)
    first = runs[0].started_at if runs else now
    last = max((run.ended_at or now for run in runs), default=now)
    wait = (first - timeline.pushed_at).total_seconds()
    if len({run.group for run in runs}) == 1:  # between its attempts it waits too
        wait = (last - timeline.pushed_at).total_seconds() - run_seconds
    return TraceStep(
        kind="message",
        id=timeline.id,
        queue=timeline.id.queue,
        key=timeline.key,
        pushed_at=timeline.pushed_at,
        wait_seconds=max(0.0, wait),
        run_seconds=run_seconds,
        runs=runs,
    )


def _runs(events: Iterable[MessageEvent]) -> list[TraceRun]:
    """Deliveries, from the lease to what ended it."""
    begun: dict[str, MessageEvent] = {}
    runs: list[TraceRun] = []
    for event in events:
        if event.what == "leased":
            begun[event.group] = event
        elif event.what in _ENDS and (lease := begun.pop(event.group, None)) is not None:
            runs.append(_run(lease, event))
    runs += [_run(lease, None) for lease in begun.values()]
    return sorted(runs, key=lambda run: run.started_at)


def _run(lease: MessageEvent, end: MessageEvent | None) -> TraceRun:
    return TraceRun(
        group=lease.group,
        attempt=lease.attempt,
        consumer=lease.consumer,
        started_at=lease.at,
        ended_at=None if end is None else end.at,
        outcome="" if end is None else end.what,
        error="" if end is None else end.error,
    )


def _with_tasks(tasks: TaskService, steps: list[TraceStep]) -> list[TraceStep]:
    """Steps that are tasks, with their types and states."""
    known: dict[MessageId, tuple[str, str]] = {}
    for step in steps:
        for message in browse.read(tasks.shard, step.queue, step.id.partition, step.id.offset, None, 1)[0]:
            if message.id == step.id and message.content_type is ContentType.TASK:
                try:
                    envelope = parse_envelope(browse.payload_of(message))
                except InvalidField:
                    continue
                known[step.id] = (envelope.task_id, envelope.task_type)
    if not known:
        return steps
    states = {view.task_id: view.state for view in tasks.caught_up().views(task_id for task_id, _ in known.values())}
    return [
        structs.replace(step, kind="task", task_id=task[0], task_type=task[1], state=states.get(task[0], ""))
        if (task := known.get(step.id)) is not None
        else step
        for step in steps
    ]
