"""The JSON of tasks, workers, schedules and operations on many tasks: shapes of the structs of `model_tasks`.

Of a task that has no result yet there is no field `result`: null is a result too. When a completed task has none
because it could not be stored, there is `result_error` instead; when it is bytes, `result_base64`. `runs` is there when
one task is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from penstock import limits
from penstock.errors import InputError, InvalidField, PenstockError
from penstock.model import to_micros
from penstock.model_tasks import (
    Finish,
    ScheduleView,
    Submitted,
    TaskFilter,
    TaskPage,
    TaskSubmission,
    TaskView,
    WorkerView,
    result_of_bytes,
)
from penstock.wire.json_messages import error_fields
from penstock.wire.json_models import ErrorFields, Request, TaskId, Wait
from penstock.wire.json_reader import OneOrMany
from penstock.wire.json_shapes import KINDS, Kind, Shape, list_of, new_struct, shape_of

T = TypeVar("T")
TASKS_MAX: Final = limits.tasks_submitted_max
PAGE_MAX: Final = limits.task_page_max
FINISHES_MAX: Final = limits.lease_messages_max
DEFAULT_QUEUE: Final = "default"

_ANY_TEXT: Final = Kind(str | None)
_SEARCH: Final[dict[str, Any]] = {"is_request": True, "omit_defaults": True, "kinds": {"task_type": _ANY_TEXT}}

TASK: Final = Shape(
    TaskView,
    "Task",
    absent=("result", "progress", "runs"),
    more=[
        ("result_error", str | UnsetType, UNSET),
        ("result_base64", bytes | UnsetType, UNSET),
        ("attempts_lost", int | UnsetType, UNSET),
    ],
)
TASK_FILTER: Final = Shape(TaskFilter, "TaskFilter", without=("limit", "cursor"), **_SEARCH)
TASK_SEARCH: Final = Shape(
    TaskFilter,
    "TaskSearch",
    is_request=True,
    kinds={"task_type": _ANY_TEXT, "limit": Kind(Annotated[int, Meta(ge=1, le=PAGE_MAX)])},
)
WORKER: Final = Shape(WorkerView, "Worker", flat=("info",), without=("is_stopping", "is_quiet", "owner"))
SCHEDULE: Final = Shape(ScheduleView, "Schedule", flat=("spec",))
NEW_TASK: Final = Shape(
    TaskSubmission,
    "NewTask",
    is_request=True,
    without=("is_named",),
    kinds={"task_id": Kind(TaskId | None), "payload": Kind(bytes | None)},
    names={"payload": "payload_base64"},
    defaults={"task_id": None, "queue": DEFAULT_QUEUE},
)
FINISHED_RUN: Final = Shape(
    Finish,
    "FinishedRun",
    is_request=True,
    kinds={"task_type": Kind(Annotated[str, Meta(max_length=200, description="For the metrics, like `run_ms`.")])},
    more=[("result_base64", bytes | UnsetType, UNSET)],
)

# Many at a time.
SUBMITTED_TASKS: Final = new_struct(
    "SubmittedTasks", "One result for each task, in order.", [("tasks", list_of(shape_of(Submitted).type))]
)
TASK_PAGE: Final = new_struct(
    "TaskPage",
    "A page of tasks, newest first, and the cursor of the next page; null on the last page.",
    [("tasks", list_of(TASK.type)), ("cursor", str | None)],
)
NEW_TASKS: Final = new_struct(
    "NewTasks",
    "Tasks to submit. Either all of them are stored, or none. Parents can be among them, in any order.",
    [("tasks", Annotated[list_of(NEW_TASK.type), Meta(min_length=1, max_length=TASKS_MAX)])],
    forbid_unknown_fields=True,
)
FINISHED_RUNS: Final = new_struct(
    "FinishedRuns",
    "Runs that ended, each accepted or refused individually. Set `is_again` to repeat a request whose reply was lost.",
    [
        ("finishes", Annotated[list_of(FINISHED_RUN.type), Meta(min_length=1, max_length=FINISHES_MAX)]),
        ("is_again", bool, False),
    ],
    forbid_unknown_fields=True,
)
submission: Final = OneOrMany(NEW_TASK.type, NEW_TASKS, "tasks")
finished: Final = OneOrMany(FINISHED_RUN.type, FINISHED_RUNS, "finishes")


class WaitQuery(Request):
    """How long to wait until the task is final."""

    wait_ms: Wait = 0.0


# requests


def submission_of(task: Any, new_id: str, place: str = "", trace: str | None = None) -> TaskSubmission:
    """A task to store. `new_id` is for one that brings none, `place` what errors begin with: `tasks[3].`."""
    if task.deliver_at is not None:
        to_micros(task.deliver_at, f"{place}deliver_at")  # refuses what its zone moves out of the calendar
    if task.unique_ms is not None and task.unique_key is None:
        raise InvalidField(f"{place}unique_ms: needs unique_key")
    known = {"task_id": task.task_id or new_id, "is_named": task.task_id is not None, "trace": task.trace or trace}
    return _placed(NEW_TASK, task, place, known)


def finish_of(run: Any, place: str = "") -> Finish:
    """The end of a run."""
    finish = _placed(FINISHED_RUN, run, place)
    if run.result_base64 is UNSET:
        return finish
    if run.result is not UNSET:
        raise InvalidField(
            f"{place}result: result and result_base64 are both given",
            hint="give either result (JSON) or result_base64 (bytes)",
        )
    return structs.replace(finish, result=result_of_bytes(run.result_base64))


def _placed(shape: Shape[T], json: Any, place: str, known: dict[str, Any] | None = None) -> T:
    """The value of an item of a list; an error names its place."""
    try:
        return shape.read(json, known)
    except InputError as error:
        raise type(error)(f"{place}{error.message}", hint=error.hint) from None


# replies


def submitted_view(tasks: Sequence[Submitted]) -> Any:
    """Tasks that are stored."""
    return SUBMITTED_TASKS(list(map(shape_of(Submitted).write, tasks)))


def task_view(task: TaskView, with_runs: bool = True) -> Any:
    """A task as JSON shows it."""
    view = TASK.write(task)
    if task.result_error:
        view.result, view.result_error = UNSET, task.result_error
    elif (returned := task.result_bytes) is not None:
        view.result, view.result_base64 = UNSET, returned
    if with_runs:
        view.attempts_lost = task.attempts_lost
    else:
        view.runs = UNSET
    return view


def tasks_view(page: TaskPage) -> Any:
    """A page of tasks."""
    return TASK_PAGE([task_view(task, with_runs=False) for task in page.tasks], page.cursor)


def task_update(task: TaskView) -> dict[str, Any]:
    """What an event tells of a task: all but its arguments, result and runs."""
    view = task_view(task, with_runs=False)
    fields = {name: getattr(view, name) for name in TASK.type.__struct_fields__ if name not in _LARGE}
    return {name: value for name, value in fields.items() if value is not UNSET}


_LARGE: Final = ("args", "kwargs", "result", "result_base64", "result_error", "runs", "attempts_lost")


class FinishResult(Struct):
    """The result of one report."""

    task_id: str
    status: Literal["ok", "error"]
    error: ErrorFields | UnsetType = UNSET


class FinishResults(Struct):
    """One result for each report, in order. If none was accepted, the status is that of the first error."""

    results: list[FinishResult]


def finish_results(task_ids: Sequence[str], errors: Sequence[PenstockError | None]) -> FinishResults:
    """The results of finishes."""
    return FinishResults([_finish_result(id, error) for id, error in zip(task_ids, errors, strict=True)])


def _finish_result(task_id: str, error: PenstockError | None) -> FinishResult:
    if error is None:
        return FinishResult(task_id, "ok")
    return FinishResult(task_id, "error", ErrorFields(**error_fields(error)))


KINDS[TaskView] = Kind(TASK.type, task_view)
KINDS[TaskFilter] = Kind(TASK_FILTER.type, TASK_FILTER.write, TASK_FILTER.read)
KINDS[WorkerView] = Kind(WORKER.type, WORKER.write)
KINDS[ScheduleView] = Kind(SCHEDULE.type, SCHEDULE.write)
