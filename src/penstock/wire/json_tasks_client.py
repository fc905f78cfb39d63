"""JSON about tasks, workers and schedules from the client's side: requests made from values, answers read into them."""

from __future__ import annotations

from typing import Any, Final

from msgspec import UnsetType

from penstock.errors import PenstockError
from penstock.model_tasks import (
    Finish,
    OperationView,
    Run,
    ScheduleSpec,
    ScheduleView,
    Submitted,
    TaskFilter,
    TaskPage,
    TaskSubmission,
    TaskView,
    WorkerInfo,
    WorkerNews,
    WorkerView,
    result_error_json,
)
from penstock.wire.errors import ErrorReply, to_error
from penstock.wire.json_task_views import (
    OPERATION,
    RUN,
    SPEC,
    TASK,
    FinishResults,
    News,
    Operation,
    Schedule,
    SubmittedTasks,
    Task,
    Tasks,
    Worker,
)
from penstock.wire.json_tasks import (
    SAME,
    FinishedRun,
    NewSchedule,
    NewTask,
    WorkerHeartbeat,
    filter_of,
    milliseconds,
    raw,
    seconds,
)
from penstock.wire.json_views import ErrorFields

# requests; encoded, they hold what differs from the defaults


def new_task(task: TaskSubmission) -> NewTask:
    """A task to submit. It always has its id, so that it may be sent again."""
    return NewTask(
        **{name: getattr(task, name) for name in _SUBMITTED},
        args=raw(task.args, b"[]"),
        kwargs=raw(task.kwargs, b"{}"),
        delay_ms=task.delay_seconds * 1000,
        ttl_ms=milliseconds(task.ttl_seconds),
        timeout_ms=milliseconds(task.timeout_seconds),
        unique_ms=milliseconds(task.unique_seconds),
        depends_on=task.depends_on,
    )


_SUBMITTED: Final = (
    "task_type", "queue", "task_id", "priority", "deliver_at", "max_attempts", "key", "unique_key", "on_parent_failure",
    "takes", "workflow", "headers", "trace",
)  # fmt: skip


def finished_run(finish: Finish) -> FinishedRun:
    """How a run ended."""
    return FinishedRun(
        receipt=str(finish.receipt),
        task_id=finish.task_id,
        outcome=finish.outcome,
        result=raw(finish.result, b"null"),
        error=finish.error,
        delay_ms=milliseconds(finish.delay_seconds),
        task_type=finish.task_type,
        run_ms=round(finish.run_seconds * 1000, 3),
    )


def query(wanted: TaskFilter) -> dict[str, str]:
    """Which tasks to list, as the parameters of a URL."""
    given: dict[str, Any] = {name: getattr(wanted, name) for name in (*SAME, "cursor")}
    given["status"] = ",".join(wanted.states) or None
    given["since"] = wanted.submitted_since and wanted.submitted_since.isoformat()
    given["until"] = wanted.submitted_until and wanted.submitted_until.isoformat()
    return {name: value for name, value in given.items() if value is not None} | {"limit": str(wanted.limit)}


def heartbeat(info: WorkerInfo) -> WorkerHeartbeat:
    """What a worker tells about itself; its id stands in the path."""
    return WorkerHeartbeat(**{name: getattr(info, name) for name in WorkerHeartbeat.__struct_fields__})


def new_schedule(spec: ScheduleSpec) -> NewSchedule:
    """A schedule to set; its name stands in the path."""
    same = {name: getattr(spec, name) for name in SPEC if name != "name"}
    return NewSchedule(
        **same,
        args=raw(spec.args, b"[]"),
        kwargs=raw(spec.kwargs, b"{}"),
        timeout_ms=milliseconds(spec.timeout_seconds),
    )


# answers


def submitted_from(view: SubmittedTasks) -> list[Submitted]:
    """What became of submissions."""
    return [Submitted(each.task_id, each.is_new) for each in view.tasks]


def _result(view: Task) -> bytes | None:
    if not isinstance(view.result_error, UnsetType):
        return result_error_json(view.result_error)
    return None if isinstance(view.result, UnsetType) else bytes(view.result)


def task_from(view: Task) -> TaskView:
    """A task that was asked for."""
    runs = () if isinstance(view.runs, UnsetType) else view.runs
    return TaskView(
        **{name: getattr(view, name) for name in TASK},
        state=view.status,
        args=bytes(view.args),
        kwargs=bytes(view.kwargs),
        result=_result(view),
        progress=None if isinstance(view.progress, UnsetType) else bytes(view.progress),
        timeout_seconds=seconds(view.timeout_ms),
        depends_on=tuple(view.depends_on),
        runs=tuple(Run(**{name: getattr(run, name) for name in RUN}) for run in runs),
    )


def page_from(view: Tasks) -> TaskPage:
    """A page that was asked for."""
    return TaskPage(list(map(task_from, view.tasks)), view.cursor)


def finishes_from(view: FinishResults) -> list[PenstockError | None]:
    """What became of finishes."""
    return [None if isinstance(each.error, UnsetType) else _error(each.error) for each in view.results]


def _error(fields: ErrorFields) -> PenstockError:
    after = 0.0 if isinstance(fields.retry_after_ms, UnsetType) else fields.retry_after_ms / 1000
    return to_error(ErrorReply(fields.code, fields.message, fields.hint, after))


def news_from(view: News) -> WorkerNews:
    """What a worker is told."""
    return WorkerNews(tuple(view.cancelled))


def worker_from(view: Worker) -> WorkerView:
    """A worker that was asked for."""
    told = {name: getattr(view, name) for name in WorkerInfo.__struct_fields__ if name != "is_stopping"}
    told["queues"], told["task_types"] = tuple(view.queues), tuple(view.task_types)
    return WorkerView(
        info=WorkerInfo(**told, is_stopping=view.status == "stopping"),
        state=view.status,
        first_seen_at=view.first_seen_at,
        last_heartbeat_at=view.last_heartbeat_at,
    )


def operation_from(view: Operation) -> OperationView:
    """An operation that was asked for."""
    same = {name: getattr(view, name) for name in OPERATION}
    return OperationView(**same, state=view.status, filter=filter_of(view.filter))


def schedule_from(view: Schedule) -> ScheduleView:
    """A schedule that was asked for."""
    spec = ScheduleSpec(
        **{name: getattr(view, name) for name in SPEC},
        args=bytes(view.args),
        kwargs=bytes(view.kwargs),
        timeout_seconds=seconds(view.timeout_ms),
    )
    return ScheduleView(spec=spec, next_at=view.next_at, last_at=view.last_at, last_task_id=view.last_task_id)
