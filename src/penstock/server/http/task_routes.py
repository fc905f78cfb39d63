"""The routes of tasks, workers and schedules."""

from __future__ import annotations

from typing import Any, Final

from penstock.server.http import task_actions as actions
from penstock.server.http.route import PUSHING, SETTLING, Route
from penstock.wire import json_task_views as views
from penstock.wire import json_tasks as models

IN_TASK: Final = ("task_not_found",)
WORKER: Final = ("invalid_field", "invalid_name")

_TASKS: Final = "/api/v1/tasks"
_TASK: Final = f"{_TASKS}/{{task_id}}"
_WORKER: Final = "/api/v1/workers/{worker}"
_OPERATIONS: Final = "/api/v1/operations"
_OPERATION: Final = f"{_OPERATIONS}/{{operation}}"
_SCHEDULE: Final = "/api/v1/schedules/{schedule}"

OF_TASKS: Final = (
    Route(
        *("POST", _TASKS, "Submit a task, or many: all of them or none", actions.submit, models.submission),
        result=views.SubmittedTasks,
        errors=(*PUSHING, "invalid_name", "task_conflict"),
        status=201,
    ),
    Route(
        *("GET", _TASKS, "List and search tasks, newest first", actions.list_tasks),
        query=models.TasksQuery,
        result=views.Tasks,
        errors=("invalid_field",),
    ),
    Route(
        *("POST", f"{_TASKS}/purge", "Forget final tasks, and cancel and forget those that wait", actions.purge),
        body=models.TaskChoice,
        result=views.PurgedTasks,
        errors=("invalid_field", "queue_full", "disk_full"),
    ),
    Route(
        *("POST", f"{_TASKS}/finish", "Say how runs ended", actions.finish, models.finished),
        result=views.FinishResults,
        errors=(*SETTLING, "invalid_field", "task_not_found", "disk_full"),
    ),
    Route(
        *("POST", f"{_TASKS}/progress", "Say how far a run is", actions.progress, models.Progress),
        errors=(*SETTLING, "invalid_field"),
    ),
    Route(
        *("GET", _TASK, "A task and its runs; waits up to wait_ms for its end", actions.task),
        query=models.WaitQuery,
        result=views.Task,
        errors=(*IN_TASK, "invalid_field"),
    ),
    Route(
        *("GET", f"{_TASK}/result", "The result, as the worker gave it", actions.result),
        query=models.WaitQuery,
        result=Any,
        errors=(*IN_TASK, "invalid_field", "task_died", "task_cancelled", "result_lost", "task_unfinished"),
    ),
    Route(
        *("DELETE", _TASK, "Cancel a task, waiting or running", actions.cancel),
        result=views.Task,
        errors=(*IN_TASK, "invalid_field", "task_conflict"),
    ),
    Route(
        *("POST", f"{_TASK}/retry", "Run a dead, cancelled or failed task again", actions.retry),
        result=views.Task,
        errors=(*IN_TASK, "invalid_field", "task_conflict", "disk_full", "queue_full", "queue_not_found"),
    ),
)
OF_OPERATIONS: Final = (
    Route(
        *("POST", _OPERATIONS, "Purge or cancel all tasks that match, in the background", actions.begin_operation),
        body=models.NewOperation,
        result=views.Operation,
        errors=("invalid_field", "queue_full", "disk_full"),
        status=202,
    ),
    Route("GET", _OPERATIONS, "Operations that run, and those that did", actions.operations, result=views.Operations),
    Route(
        *("GET", _OPERATION, "How far an operation is", actions.operation),
        result=views.Operation,
        errors=("operation_not_found", "invalid_field"),
    ),
    Route(
        *("DELETE", _OPERATION, "Stop an operation; what was done stays done", actions.stop_operation),
        result=views.Operation,
        errors=("operation_not_found", "task_conflict", "invalid_field"),
    ),
)
OF_WORKERS: Final = (
    Route("GET", "/api/v1/workers", "Workers that were heard of lately", actions.workers, result=views.Workers),
    Route(
        *("POST", f"{_WORKER}/heartbeat", "A worker is there", actions.heartbeat, models.WorkerHeartbeat),
        result=views.News,
        errors=WORKER,
        is_body_optional=True,
    ),
    Route(
        *("GET", f"{_WORKER}/news", "Which of its tasks were cancelled; waits for the first", actions.news),
        query=models.WaitQuery,
        result=views.News,
        errors=WORKER,
    ),
    Route("DELETE", _WORKER, "A worker has stopped; what it holds is released", actions.forget, errors=WORKER),
)
OF_SCHEDULES: Final = (
    Route("GET", "/api/v1/schedules", "All schedules", actions.schedules, result=views.Schedules),
    Route("GET", _SCHEDULE, "A schedule", actions.schedule, result=views.Schedule, errors=("schedule_not_found",)),
    Route(
        *("PUT", _SCHEDULE, "Make a schedule, or change it", actions.set_schedule, models.NewSchedule),
        result=views.Schedule,
        errors=("invalid_field", "invalid_name", "disk_full"),
    ),
    Route("DELETE", _SCHEDULE, "It fires no more", actions.delete_schedule, errors=("schedule_not_found",)),
)
