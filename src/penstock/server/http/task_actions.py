"""What the routes of tasks, workers and schedules do."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from penstock import operations as ops
from penstock.errors import ScheduleNotFound
from penstock.server import tasks
from penstock.server.http.actions import Asked, Refused
from penstock.wire import json_task_views as views
from penstock.wire import json_tasks as models


async def submit(asked: Asked) -> views.SubmittedTasks:
    """POST /api/v1/tasks."""
    return await tasks.submit(asked.broker, asked.client, asked.body, asked.trace)


async def list_tasks(asked: Asked) -> views.Tasks:
    """GET /api/v1/tasks."""
    return await tasks.tasks(asked.broker, asked.client, models.filter_of(asked.query))


async def task(asked: Asked) -> views.Task:
    """GET /api/v1/tasks/{task_id}."""
    return views.task_view(await tasks.task(asked.broker, asked.client, asked.path["task_id"], asked.query.wait_ms))


async def result(asked: Asked) -> Raw:
    """GET /api/v1/tasks/{task_id}/result."""
    return tasks.result(await tasks.task(asked.broker, asked.client, asked.path["task_id"], asked.query.wait_ms))


async def cancel(asked: Asked) -> views.Task:
    """DELETE /api/v1/tasks/{task_id}."""
    return views.task_view(await asked.execute(ops.CancelTask(asked.path["task_id"])))


async def retry(asked: Asked) -> views.Task:
    """POST /api/v1/tasks/{task_id}/retry."""
    return views.task_view(await asked.execute(ops.RetryTask(asked.path["task_id"])))


async def purge(asked: Asked) -> views.PurgedTasks:
    """POST /api/v1/tasks/purge."""
    view = await tasks.purge(asked.broker, asked.client, models.filter_of(asked.body))
    return views.PurgedTasks(view.purged, view.operation_id, view.is_over)


async def finish(asked: Asked) -> views.FinishResults:
    """POST /api/v1/tasks/finish."""
    view, error = await tasks.finish(asked.broker, asked.client, asked.body)
    if error is not None:
        raise Refused(error, view)
    return view


async def progress(asked: Asked) -> None:
    """POST /api/v1/tasks/progress."""
    await tasks.progress(asked.broker, asked.client, asked.body)


# operations


async def begin_operation(asked: Asked) -> views.Operation:
    """POST /api/v1/operations."""
    given = ops.BeginOperation(asked.body.action, models.filter_of(asked.body), asked.body.operation_id)
    return views.operation_view(await asked.execute(given))


async def operations(asked: Asked) -> views.Operations:
    """GET /api/v1/operations."""
    found = await asked.execute(ops.ListOperations())
    return views.Operations([views.operation_view(each) for each in found])


async def operation(asked: Asked) -> views.Operation:
    """GET /api/v1/operations/{operation}."""
    return views.operation_view(await asked.execute(ops.FindOperation(asked.path["operation"])))


async def stop_operation(asked: Asked) -> views.Operation:
    """DELETE /api/v1/operations/{operation}."""
    return views.operation_view(await asked.execute(ops.StopOperation(asked.path["operation"])))


# workers


async def workers(asked: Asked) -> views.Workers:
    """GET /api/v1/workers."""
    return views.Workers([views.worker_view(each) for each in await asked.execute(ops.Workers())])


async def heartbeat(asked: Asked) -> views.News:
    """POST /api/v1/workers/{worker}/heartbeat."""
    return await tasks.heartbeat(asked.broker, asked.client, asked.path["worker"], asked.body)


async def news(asked: Asked) -> views.News:
    """GET /api/v1/workers/{worker}/news."""
    given = ops.AwaitNews(asked.path["worker"], asked.query.wait_ms / 1000)
    return views.News(list((await asked.execute(given)).cancelled))


async def forget(asked: Asked) -> None:
    """DELETE /api/v1/workers/{worker}."""
    await asked.execute(ops.ForgetWorker(asked.path["worker"]))


# schedules


async def schedules(asked: Asked) -> views.Schedules:
    """GET /api/v1/schedules."""
    return views.Schedules([views.schedule_view(each) for each in await asked.execute(ops.Schedules())])


async def schedule(asked: Asked) -> views.Schedule:
    """GET /api/v1/schedules/{schedule}."""
    name = asked.path["schedule"]
    for each in await asked.execute(ops.Schedules()):
        if each.spec.name == name:
            return views.schedule_view(each)
    raise ScheduleNotFound(f"there is no schedule {name!r}")


async def set_schedule(asked: Asked) -> Any:
    """PUT /api/v1/schedules/{schedule}."""
    spec = models.spec_of(asked.path["schedule"], asked.body)
    return views.schedule_view(await asked.execute(ops.SetSchedule(spec)))


async def delete_schedule(asked: Asked) -> None:
    """DELETE /api/v1/schedules/{schedule}."""
    await asked.execute(ops.DeleteSchedule(asked.path["schedule"]))
