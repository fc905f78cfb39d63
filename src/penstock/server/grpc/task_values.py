"""Tasks, workers, schedules and filters between protocol buffers and the values of `model_tasks`."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, get_args

from msgspec import UnsetType

from penstock.envelopes import new_task_id
from penstock.errors import InvalidField
from penstock.model import to_datetime, to_micros
from penstock.model_tasks import (
    Finish,
    MissedPolicy,
    OperationView,
    ScheduleSpec,
    ScheduleView,
    Takes,
    TaskFilter,
    TaskState,
    TaskSubmission,
    TaskView,
    WorkerInfo,
    WorkerView,
)
from penstock.server.grpc.generated import tasks_pb2 as pb
from penstock.server.grpc.values import maybe, micros, seconds, timestamp
from penstock.wire.json_protocols import ClaimedTask, Parent
from penstock.wire.json_shapes import receipt_of
from penstock.wire.json_tasks import DEFAULT_QUEUE

PAGE: Final = 50
TAKES: Final[tuple[Takes, ...]] = get_args(Takes)
MISSED: Final[tuple[MissedPolicy, ...]] = get_args(MissedPolicy)
OUTCOMES: Final = ("completed", "failed", "dead", "snoozed", "cancelled", "released")
STATES: Final = (None, *TaskState)  # by their numbers


def submission_of(task: pb.NewTask, now_us: int, trace: str | None, place: str = "") -> TaskSubmission:
    """A task to store. `trace` is the call's own."""
    if not 0 <= task.takes < len(TAKES):
        raise InvalidField(f"{place}takes: {task.takes} is not one of its values")
    return TaskSubmission(
        task_id=task.task_id or new_task_id(now_us),
        task_type=task.task_type,
        queue=task.queue or DEFAULT_QUEUE,
        is_named=bool(task.task_id),
        args=task.args.encode() or b"[]",
        kwargs=task.kwargs.encode() or b"{}",
        timeout_seconds=task.timeout_ms / 1000 or None,
        depends_on=tuple(task.depends_on),
        on_parent_failure="run" if task.run_despite_parent_failure else "cancel",
        takes=TAKES[task.takes],
        workflow=task.workflow,
        unique_key=task.unique_key or None,
        unique_seconds=task.unique_ms / 1000 or None,
        key=task.key or None,
        priority=task.priority if task.HasField("priority") else 128,
        delay_seconds=task.delay_ms / 1000,
        deliver_at=instant(task, "deliver_at", place),
        ttl_seconds=task.ttl_ms / 1000 or None,
        max_attempts=task.max_attempts or None,
        headers=dict(task.headers) or None,
        trace=task.trace or trace,
    )


def instant(message: Any, field: str, place: str = "") -> datetime | None:
    """A timestamp that may be set."""
    return to_datetime(micros(getattr(message, field), place + field)) if message.HasField(field) else None


def moment(at: datetime | None) -> Any:
    """An instant as a timestamp."""
    return None if at is None else timestamp(to_micros(at, "at"))


def filter_of(given: pb.TaskFilter, limit: int = PAGE, cursor: str = "") -> TaskFilter:
    """Which tasks are meant."""
    for number in given.states:
        if not 0 < number < len(STATES):
            raise InvalidField(f"filter.states: {number} is not a state")
    return TaskFilter(
        states=tuple(TaskState(str(STATES[number])) for number in given.states),
        **{name: maybe(given, name) for name in _TEXTS},
        submitted_since=instant(given, "since", "filter."),
        submitted_until=instant(given, "until", "filter."),
        limit=limit or PAGE,
        cursor=cursor or None,
    )


def operation_of(operation: OperationView) -> pb.TaskOperation:
    """An operation, and how far it is."""
    wanted = operation.filter
    chosen = pb.TaskFilter(
        states=map(state_of, wanted.states),
        **{name: getattr(wanted, name) for name in _TEXTS},
        since=moment(wanted.submitted_since),
        until=moment(wanted.submitted_until),
    )
    return pb.TaskOperation(
        **{name: getattr(operation, name) for name in ("operation_id", "matched", "cancelled", "purged", "error")},
        action=operation.action.value,
        state=operation.state.value,
        filter=chosen,
        started_at=moment(operation.started_at),
        updated_at=moment(operation.updated_at),
        ended_at=moment(operation.ended_at),
    )


_TEXTS: Final = ("task_type", "queue", "worker", "workflow", "schedule", "argument", "error_contains")


def state_of(state: TaskState) -> Any:
    """A state by its number."""
    return STATES.index(state)


def task_of(task: TaskView, is_update: bool = False) -> pb.Task:
    """A task as it stands; an update has no arguments."""
    runs = [
        pb.TaskRun(
            attempt=run.attempt,
            worker=run.worker,
            started_at=moment(run.started_at),
            ended_at=moment(run.ended_at),
            outcome=run.outcome,
            error=run.error,
        )
        for run in task.runs
    ]
    return pb.Task(
        **{name: getattr(task, name) for name in _SAME},
        state=state_of(task.state),
        args="" if is_update else task.args.decode(),
        kwargs="" if is_update else task.kwargs.decode(),
        result=None if task.result_error else _text(task.result),
        result_error=task.result_error,
        progress=_text(task.progress),
        **{name: moment(getattr(task, name)) for name in ("submitted_at", "due_at", "started_at", "finished_at")},
        timeout_ms=round((task.timeout_seconds or 0) * 1000),
        runs=runs,
    )


_SAME: Final = (
    "task_id", "task_type", "queue", "priority", "attempt", "max_attempts", "error", "worker", "key", "depends_on",
    "workflow", "schedule", "message_id", "trace",
)  # fmt: skip


def _text(json: bytes | None) -> str | None:
    return None if json is None else json.decode()


def claimed_of(task: ClaimedTask) -> pb.ClaimedTask:
    """A task to run."""
    return pb.ClaimedTask(
        **{name: getattr(task, name) for name in _CLAIMED},
        args=bytes(task.args).decode(),
        kwargs=bytes(task.kwargs).decode(),
        expires_at=moment(task.expires_at),
        submitted_at=moment(task.submitted_at),
        timeout_ms=round(task.timeout_ms or 0),
        takes=TAKES.index(task.takes),  # type: ignore[arg-type]
        parents=map(_parent, task.parents or ()),
    )


_CLAIMED: Final = (
    "task_id", "task_type", "queue", "attempt", "receipt", "priority", "key", "headers", "depends_on", "workflow",
    "schedule", "scheduled_at", "trace",
)  # fmt: skip


def _parent(parent: Parent) -> pb.ParentResult:
    result = None if isinstance(parent.result, UnsetType) else bytes(parent.result).decode()
    return pb.ParentResult(task_id=parent.task_id, state=state_of(parent.status), result=result)


def finish_of(run: pb.FinishedRun, place: str) -> Finish:
    """How a run ended."""
    if run.outcome not in OUTCOMES:
        raise InvalidField(f"{place}outcome: {run.outcome!r} is no way to end", hint=f"one of {', '.join(OUTCOMES)}")
    return Finish(
        receipt=receipt_of(run.receipt, place),
        task_id=run.task_id,
        outcome=run.outcome,  # type: ignore[arg-type]
        result=run.result.encode() or b"null",
        error=run.error,
        delay_seconds=seconds(run, "delay_ms"),
    )


def info_of(info: pb.WorkerInfo) -> WorkerInfo:
    """What a worker tells of itself."""
    told = {name: getattr(info, name) for name in WorkerInfo.__struct_fields__}
    return WorkerInfo(**told | {"queues": tuple(info.queues), "task_types": tuple(info.task_types)})


def worker_of(worker: WorkerView) -> pb.Worker:
    """A worker, as it is shown."""
    info = pb.WorkerInfo(**{name: getattr(worker.info, name) for name in WorkerInfo.__struct_fields__})
    return pb.Worker(
        info=info,
        state=worker.state,
        first_seen_at=moment(worker.first_seen_at),
        last_heartbeat_at=moment(worker.last_heartbeat_at),
    )


def spec_of(given: pb.NewSchedule) -> ScheduleSpec:
    """A schedule to set."""
    if not 0 <= given.missed < len(MISSED):
        raise InvalidField(f"missed: {given.missed} is not one of its values")
    return ScheduleSpec(
        **{name: getattr(given, name) for name in _SPEC},
        timezone=given.timezone or "UTC",
        missed=MISSED[given.missed],
        queue=given.queue or DEFAULT_QUEUE,
        args=given.args.encode() or b"[]",
        kwargs=given.kwargs.encode() or b"{}",
        timeout_seconds=given.timeout_ms / 1000 or None,
        max_attempts=given.max_attempts or None,
        priority=given.priority if given.HasField("priority") else 128,
        key=given.key or None,
    )


_SPEC: Final = ("name", "cron", "task_type", "is_paused", "is_declared")


def schedule_of(schedule: ScheduleView) -> pb.Schedule:
    """A schedule, as it is shown."""
    spec = schedule.spec
    shown = pb.NewSchedule(
        **{name: getattr(spec, name) for name in (*_SPEC, "timezone", "queue", "max_attempts", "priority", "key")},
        missed=MISSED.index(spec.missed),  # type: ignore[arg-type]
        args=spec.args.decode(),
        kwargs=spec.kwargs.decode(),
        timeout_ms=round((spec.timeout_seconds or 0) * 1000),
    )
    return pb.Schedule(
        spec=shown,
        next_at=moment(schedule.next_at),
        last_at=moment(schedule.last_at),
        last_task_id=schedule.last_task_id,
    )
