"""Operations on tasks, workers and schedules as requests over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from penstock import validation
from penstock.errors import PenstockError
from penstock.model import check_seconds
from penstock.model_tasks import Finish, Submitted, TaskSubmission
from penstock.remote.http_request import HttpRequest, Shape, segment
from penstock.remote.request import news_of
from penstock.wire import calls
from penstock.wire import json_task_views as views
from penstock.wire import json_tasks_client as client
from penstock.wire.json_tasks import operation_of

_TASKS: Final = "/api/v1/tasks"
_WORKERS: Final = "/api/v1/workers"
_SCHEDULES: Final = "/api/v1/schedules"
_OPERATIONS: Final = "/api/v1/operations"
_submitted: Final = msgspec.json.Decoder(views.SubmittedTasks).decode
_finished: Final = msgspec.json.Decoder(views.FinishResults).decode


def submit_tasks(tasks: Sequence[TaskSubmission]) -> HttpRequest:
    """Tasks to be stored; sent again they are known by their ids."""
    checked = validation.submissions(tasks)
    if not checked:
        return _of_none([])

    def read(body: bytes) -> list[Submitted]:
        return news_of(checked, client.submitted_from(_submitted(body)))

    return HttpRequest("POST", _TASKS, lambda _: {"tasks": [client.new_task(each) for each in checked]}, read)


def finish_tasks(finishes: Sequence[Finish]) -> HttpRequest:
    """Runs that ended. Sent again it says so: what the first try has done is accepted then.

    What could not travel in JSON is refused here: one body holds them all, and none shall suffer for another.
    """
    refused = [_refusal(each) for each in finishes]
    runs = [client.finished_run(each) for each, error in zip(finishes, refused, strict=True) if error is None]
    if not runs:
        return _of_none(refused)

    def body(_: Any) -> dict[str, Any]:
        return {"finishes": runs, "is_again": request.sent > 0}

    def read(answer: bytes) -> list[PenstockError | None]:
        told = iter(client.finishes_from(_finished(answer)))
        return [next(told) if error is None else error for error in refused]

    request = HttpRequest("POST", f"{_TASKS}/finish", body, read)
    request.is_each = True
    return request


def _refusal(finish: Finish) -> PenstockError | None:
    try:
        validation.task_id(finish.task_id)
        validation.json_of(finish.result, "result")
        if finish.delay_seconds is not None:
            check_seconds(finish.delay_seconds, "delay_seconds")
    except PenstockError as error:
        return error
    return None


def _of_none(answer: list[Any]) -> HttpRequest:
    """Nothing is left to ask, as long as there is a broker."""
    return HttpRequest("GET", "/api/v1/info", read=lambda _: answer)


def _of_task(*more: str) -> Callable[[Any], str]:
    return lambda given: "/".join((_TASKS, validation.task_id(given.task_id), *more))


def _of_worker(*more: str) -> Callable[[Any], str]:
    return lambda given: "/".join((_WORKERS, segment(validation.worker_id(given.worker_id)), *more))


def _of_schedule(given: Any) -> str:
    return f"{_SCHEDULES}/{segment(validation.schedule_name(given.name))}"


def _of_operation(given: Any) -> str:
    return f"{_OPERATIONS}/{validation.operation_id(given.operation_id)}"


def _progress(given: calls.NoteProgress) -> dict[str, Any]:
    progress = msgspec.Raw(validation.json_of(given.progress, "progress"))
    return {"receipt": str(given.receipt), "task_id": given.task_id, "progress": progress}


def _wait(given: calls.WaitTask | calls.AwaitNews) -> dict[str, Any]:
    return {"wait_ms": given.seconds * 1000}


def _one(method: str, *more: str, query: Any = None) -> Shape:
    return Shape(method, _of_task(*more), None, query, views.Task, client.task_from)


def _all(path: str, kind: Any, result: Callable[[Any], Any]) -> Shape:
    return Shape("GET", lambda given: path, None, None, kind, result)


TASK_SHAPES: Final[dict[type[calls.Arguments], Shape]] = {
    calls.NoteProgress: Shape("POST", lambda given: f"{_TASKS}/progress", _progress),
    calls.FindTask: _one("GET"),
    calls.WaitTask: _one("GET", query=_wait),
    calls.CancelTask: _one("DELETE"),
    calls.RetryTask: _one("POST", "retry"),
    calls.ListTasks: Shape(
        "GET",
        lambda given: _TASKS,
        None,
        lambda given: client.query(validation.task_filter(given.filter)),
        views.Tasks,
        client.page_from,
    ),
    calls.BeginOperation: Shape(
        "POST",
        lambda given: _OPERATIONS,
        lambda given: operation_of(given.filter, given.action, given.operation_id),
        None,
        views.Operation,
        client.operation_from,
    ),
    calls.FindOperation: Shape("GET", _of_operation, None, None, views.Operation, client.operation_from),
    calls.StopOperation: Shape("DELETE", _of_operation, None, None, views.Operation, client.operation_from),
    calls.Operations: _all(
        _OPERATIONS, views.Operations, lambda view: [client.operation_from(each) for each in view.operations]
    ),
    calls.HeartbeatWorker: Shape(
        "POST",
        lambda given: _of_worker("heartbeat")(given.info),
        lambda given: client.heartbeat(validation.worker(given.info)),
        None,
        views.News,
        client.news_from,
    ),
    calls.AwaitNews: Shape("GET", _of_worker("news"), None, _wait, views.News, client.news_from),
    calls.ForgetWorker: Shape("DELETE", _of_worker()),
    calls.Workers: _all(_WORKERS, views.Workers, lambda view: [client.worker_from(each) for each in view.workers]),
    calls.SetSchedule: Shape(
        "PUT",
        lambda given: _of_schedule(given.spec),
        lambda given: client.new_schedule(validation.schedule(given.spec)),
        None,
        views.Schedule,
        client.schedule_from,
    ),
    calls.DeleteSchedule: Shape("DELETE", _of_schedule),
    calls.Schedules: _all(
        _SCHEDULES, views.Schedules, lambda view: [client.schedule_from(each) for each in view.schedules]
    ),
}
