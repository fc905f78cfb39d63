"""What JSON answers about tasks, workers and schedules hold, and how a server makes them from the values of
`model_tasks`. Of a task that has no result yet there is no field `result`: null is a result too.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from penstock.errors import PenstockError
from penstock.model_tasks import (
    MissedPolicy,
    OperationAction,
    OperationState,
    OperationView,
    ScheduleView,
    Submitted,
    TaskPage,
    TaskState,
    TaskView,
    WorkerView,
)
from penstock.wire.json_replies import error_fields
from penstock.wire.json_tasks import Args, Kwargs, TaskChoice, choice_of, milliseconds, raw
from penstock.wire.json_views import ErrorFields

WorkerStatus = Literal["alive", "stuck", "stopping", "dead"]
NO_JSON: Final = b""  # no JSON text is empty


class SubmittedTask(Struct):
    """A task that is stored. `is_new` is false when it was there before, under its id or its unique key."""

    task_id: str
    is_new: bool


class SubmittedTasks(Struct):
    """One for each task, in order."""

    tasks: list[SubmittedTask]


class TaskRun(Struct, kw_only=True):
    """One attempt at a task; `outcome` is empty while it runs."""

    attempt: int
    worker: str
    started_at: datetime
    ended_at: datetime | None
    outcome: str
    error: str


class Task(Struct, kw_only=True):
    """A task as it stands. `result` and `progress` are there when it has them, `runs` when one task is asked for.

    `attempts_lost`, beside `runs`: how many attempts ended with their worker since the task was submitted or retried.
    `result_error` is there instead of `result` when a completed task has none, because it could not be stored.
    """

    task_id: str
    task_type: str
    queue: str
    status: TaskState
    priority: int
    attempt: int
    max_attempts: int
    args: Args
    kwargs: Kwargs
    result: Raw | UnsetType = UNSET
    result_error: str | UnsetType = UNSET
    progress: Raw | UnsetType = UNSET
    error: str
    worker: str
    key: str | None
    submitted_at: datetime
    due_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    timeout_ms: float | None
    depends_on: list[str]
    workflow: str
    schedule: str
    message_id: str
    trace: str | None
    attempts_lost: int | UnsetType = UNSET
    runs: list[TaskRun] | UnsetType = UNSET


class Tasks(Struct):
    """Tasks, newest first, and where the next page begins: null when these are the last."""

    tasks: list[Task]
    cursor: str | None


class FinishResult(Struct):
    """What became of one finish."""

    task_id: str
    status: Literal["ok", "error"]
    error: ErrorFields | UnsetType = UNSET


class FinishResults(Struct):
    """One result for each finish, in order. When none could be accepted, the status is that of the first error."""

    results: list[FinishResult]


class PurgedTasks(Struct):
    """How many tasks were forgotten so far, and the operation that goes on when it `is_done` is false."""

    purged: int
    operation_id: str
    is_done: bool


class Operation(Struct, kw_only=True):
    """An operation on many tasks, and how far it is. The filter is the one that it was begun with."""

    operation_id: str
    action: OperationAction
    status: OperationState
    filter: TaskChoice
    started_at: datetime
    updated_at: datetime
    ended_at: datetime | None
    matched: int
    cancelled: int
    purged: int
    error: str


class Operations(Struct):
    """Those that run and those that did lately, the newest first."""

    operations: list[Operation]


class News(Struct):
    """What a worker is told: tasks that were cancelled, whose runs it may break off."""

    cancelled: list[str]


class Worker(Struct, kw_only=True):
    """A worker: what it told of itself with its last heartbeat."""

    worker_id: str
    status: WorkerStatus
    host: str
    pid: int
    queues: list[str]
    task_types: list[str]
    concurrency: int
    running: int
    abandoned: int
    completed: int
    failed: int
    cpu_percent: float
    memory_bytes: int
    version: str
    is_stuck: bool
    first_seen_at: datetime
    last_heartbeat_at: datetime


class Workers(Struct):
    """All workers that were heard of lately."""

    workers: list[Worker]


class Schedule(Struct, kw_only=True):
    """A schedule. `next_at` is null while it is paused, `last_at` the last tick that became a task."""

    name: str
    cron: str
    timezone: str
    missed: MissedPolicy
    task_type: str
    queue: str
    args: Args
    kwargs: Kwargs
    timeout_ms: float | None
    max_attempts: int | None
    priority: int
    key: str | None
    is_paused: bool
    is_declared: bool = False
    next_at: datetime | None
    last_at: datetime | None
    last_task_id: str


class Schedules(Struct):
    """All schedules, by name."""

    schedules: list[Schedule]


# from values


def submitted_view(found: Sequence[Submitted]) -> SubmittedTasks:
    """What became of submissions."""
    return SubmittedTasks([SubmittedTask(each.task_id, each.is_new) for each in found])


def task_view(task: TaskView, with_runs: bool = True) -> Task:
    """A task as JSON shows it."""
    runs = [TaskRun(**{name: getattr(run, name) for name in RUN}) for run in task.runs] if with_runs else UNSET
    lost = task.result_error
    return Task(
        **{name: getattr(task, name) for name in TASK},
        status=task.state,
        args=Raw(task.args),
        kwargs=Raw(task.kwargs),
        result=UNSET if lost else raw(task.result or NO_JSON, NO_JSON),
        result_error=lost or UNSET,
        progress=raw(task.progress or NO_JSON, NO_JSON),
        timeout_ms=milliseconds(task.timeout_seconds),
        depends_on=list(task.depends_on),
        attempts_lost=task.attempts_lost if with_runs else UNSET,
        runs=runs,
    )


RUN: Final = TaskRun.__struct_fields__
TASK: Final = (
    "task_id", "task_type", "queue", "priority", "attempt", "max_attempts", "error", "worker", "key", "submitted_at",
    "due_at", "started_at", "finished_at", "workflow", "schedule", "message_id", "trace",
)  # fmt: skip


def task_update(task: TaskView) -> dict[str, Any]:
    """What an event tells of a task: all but its arguments, result and runs."""
    view = task_view(task, with_runs=False)
    told = {name: getattr(view, name) for name in Task.__struct_fields__ if name not in _LARGE}
    return {name: value for name, value in told.items() if value is not UNSET}


_LARGE: Final = ("args", "kwargs", "result", "result_error", "runs")


def tasks_view(page: TaskPage) -> Tasks:
    """A page of tasks."""
    return Tasks([task_view(task, with_runs=False) for task in page.tasks], page.cursor)


def finish_results(task_ids: Sequence[str], answers: Sequence[PenstockError | None]) -> FinishResults:
    """What became of finishes."""
    return FinishResults([_finished(id, answer) for id, answer in zip(task_ids, answers, strict=True)])


def _finished(task_id: str, answer: PenstockError | None) -> FinishResult:
    if answer is None:
        return FinishResult(task_id, "ok")
    return FinishResult(task_id, "error", ErrorFields(**error_fields(answer)))


def worker_view(worker: WorkerView) -> Worker:
    """A worker as JSON shows it."""
    info = msgspec.structs.asdict(worker.info)
    del info["is_stopping"]
    info["queues"], info["task_types"] = list(worker.info.queues), list(worker.info.task_types)
    return Worker(
        **info,
        status=worker.state,
        first_seen_at=worker.first_seen_at,
        last_heartbeat_at=worker.last_heartbeat_at,
    )


def operation_view(operation: OperationView) -> Operation:
    """An operation as JSON shows it."""
    return Operation(
        **{name: getattr(operation, name) for name in OPERATION},
        status=operation.state,
        filter=choice_of(operation.filter),
    )


OPERATION: Final = tuple(name for name in Operation.__struct_fields__ if name not in ("status", "filter"))


def schedule_view(schedule: ScheduleView) -> Schedule:
    """A schedule as JSON shows it."""
    spec = schedule.spec
    return Schedule(
        **{name: getattr(spec, name) for name in SPEC},
        args=Raw(spec.args),
        kwargs=Raw(spec.kwargs),
        timeout_ms=milliseconds(spec.timeout_seconds),
        next_at=schedule.next_at,
        last_at=schedule.last_at,
        last_task_id=schedule.last_task_id,
    )


SPEC: Final = (
    "name", "cron", "timezone", "missed", "task_type", "queue", "max_attempts", "priority", "key", "is_paused",
    "is_declared",
)  # fmt: skip
