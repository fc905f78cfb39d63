"""Tasks, workers and schedules in JSON, from the client's side: the inverse of `json_tasks` and `json_task_views`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock.errors import PenstockError
from penstock.model_tasks import (
    Finish,
    Run,
    ScheduleSpec,
    ScheduleView,
    Submitted,
    TaskFilter,
    TaskPage,
    TaskSubmission,
    TaskView,
    WorkerInfo,
    WorkerView,
)
from penstock.wire import json_task_views as views
from penstock.wire import json_tasks as models
from penstock.wire.errors import ErrorReply, to_error
from penstock.wire.json_views import ErrorFields

_SAME_OF_TASK: Final = (
    "task_type", "queue", "task_id", "priority", "deliver_at", "max_attempts", "key", "unique_key", "depends_on",
    "on_parent_failure", "takes", "workflow", "headers", "trace",
)  # fmt: skip
_SAME_OF_SPEC: Final = (
    "cron", "task_type", "queue", "timezone", "missed", "max_attempts", "priority", "key", "is_paused",
)  # fmt: skip
_CHOICE: Final = ("task_type", "queue", "worker", "workflow", "schedule", "argument", "error_contains")


# what is asked


def new_task(task: TaskSubmission) -> models.NewTask:
    """A task to submit, with its id."""
    return models.NewTask(
        **{name: getattr(task, name) for name in _SAME_OF_TASK},
        args=models.raw(task.args, b"[]"),
        kwargs=models.raw(task.kwargs, b"{}"),
        delay_ms=task.delay_seconds * 1000,
        ttl_ms=models.milliseconds(task.ttl_seconds),
        timeout_ms=models.milliseconds(task.timeout_seconds),
        unique_ms=models.milliseconds(task.unique_seconds),
    )


def finished_run(finish: Finish) -> models.FinishedRun:
    """How a run ended."""
    return models.FinishedRun(
        str(finish.receipt),
        finish.task_id,
        finish.outcome,
        models.raw(finish.result, b"null"),
        finish.error,
        models.milliseconds(finish.delay_seconds),
    )


def choice_of(wanted: TaskFilter) -> dict[str, Any]:
    """Which tasks are meant; only what is set."""
    fields: dict[str, Any] = {name: getattr(wanted, name) for name in _CHOICE}
    fields |= {"since": wanted.submitted_since, "until": wanted.submitted_until}
    return {name: value for name, value in fields.items() if value is not None}


def heartbeat_of(info: WorkerInfo) -> models.WorkerHeartbeat:
    """What a worker tells; its id is in the path."""
    fields = msgspec.structs.asdict(info)
    del fields["worker_id"]
    return models.WorkerHeartbeat(**fields)


def new_schedule(spec: ScheduleSpec) -> models.NewSchedule:
    """A schedule; its name is in the path."""
    return models.NewSchedule(
        **{name: getattr(spec, name) for name in _SAME_OF_SPEC},
        args=models.raw(spec.args, b"[]"),
        kwargs=models.raw(spec.kwargs, b"{}"),
        timeout_ms=models.milliseconds(spec.timeout_seconds),
    )


# what is answered


def submitted_of(view: views.SubmittedTasks) -> list[Submitted]:
    """What became of submissions."""
    return [Submitted(each.task_id, each.is_new) for each in view.tasks]


def refusals_of(view: views.FinishResults) -> list[PenstockError | None]:
    """For each finish None, or why it was not accepted."""
    return [_error(each.error) if isinstance(each.error, ErrorFields) else None for each in view.results]


def _error(fields: ErrorFields) -> PenstockError:
    wait = 0.0 if fields.retry_after_ms is msgspec.UNSET else fields.retry_after_ms / 1000
    return to_error(ErrorReply(fields.code, fields.message, fields.hint, wait))


def task_of(view: views.Task) -> TaskView:
    """A task."""
    runs: Sequence[views.TaskRun] = () if view.runs is msgspec.UNSET else view.runs
    return TaskView(
        **{name: getattr(view, name) for name in views.TASK},
        state=view.status,
        args=bytes(view.args),
        kwargs=bytes(view.kwargs),
        result=None if view.result is msgspec.UNSET else bytes(view.result),
        progress=None if view.progress is msgspec.UNSET else bytes(view.progress),
        timeout_seconds=_seconds(view.timeout_ms),
        depends_on=tuple(view.depends_on),
        runs=tuple(Run(**{name: getattr(run, name) for name in views.RUN}) for run in runs),
    )


def page_of(view: views.Tasks) -> TaskPage:
    """A page of tasks."""
    return TaskPage([task_of(each) for each in view.tasks], view.cursor)


def worker_of(view: views.Worker) -> WorkerView:
    """A worker."""
    fields = msgspec.structs.asdict(view)
    state, first, last = (fields.pop(name) for name in ("status", "first_seen_at", "last_heartbeat_at"))
    fields |= {"queues": tuple(view.queues), "task_types": tuple(view.task_types)}
    info = WorkerInfo(**fields, is_stopping=state == "stopping")
    return WorkerView(info=info, state=state, first_seen_at=first, last_heartbeat_at=last)


def schedule_of(view: views.Schedule) -> ScheduleView:
    """A schedule."""
    spec = ScheduleSpec(
        **{name: getattr(view, name) for name in views.SPEC},
        args=bytes(view.args),
        kwargs=bytes(view.kwargs),
        timeout_seconds=_seconds(view.timeout_ms),
    )
    return ScheduleView(spec=spec, next_at=view.next_at, last_at=view.last_at, last_task_id=view.last_task_id)


def _seconds(ms: float | None) -> float | None:
    # Milliseconds and back may be off by the last bit.
    return None if ms is None else round(ms / 1000, 9)
