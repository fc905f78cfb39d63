"""Operations on tasks as every face of the server offers them: from the models of JSON to the broker, and to views.

HTTP and the JSON frames of TCP are thin shells around these; a name is a name of the table of operations.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from msgspec import Raw

from penstock import operations as ops
from penstock import validation
from penstock.broker import Broker, Client
from penstock.envelopes import new_task_id
from penstock.errors import InputError, PenstockError, ResultLost, TaskCancelled, TaskDied, TaskUnfinished
from penstock.model_tasks import OperationView, TaskFilter, TaskState, TaskSubmission, TaskView
from penstock.wire import json_task_views as views
from penstock.wire import json_tasks as models

PURGE_SECONDS: Final = 10.0  # how long a purge is waited for


async def submit(
    broker: Broker, client: Client, given: models.NewTask | models.NewTasks, trace: str | None = None
) -> views.SubmittedTasks:
    """One task or many. `trace` is for those that bring none of their own."""
    if isinstance(given, models.NewTasks):
        tasks = [
            models.submission_of(each, new_task_id(broker.clock.now()), f"tasks[{index}].", trace)
            for index, each in enumerate(given.tasks)
        ]
        return views.submitted_view(await broker.execute(client, ops.SubmitTasks(tasks)))
    task = models.submission_of(given, new_task_id(broker.clock.now()), "", trace)
    return views.submitted_view(await submit_one(broker, client, task))


async def submit_one(broker: Broker, client: Client, task: TaskSubmission) -> Any:
    """A single task; errors do not call it the first of several."""
    try:
        return await broker.execute(client, ops.SubmitTasks([task]))
    except InputError as error:
        message = error.message.removeprefix("item 0: ").removeprefix("tasks[0].")
        raise type(error)(message, hint=error.hint) from None


async def task(broker: Broker, client: Client, task_id: str, wait_ms: float = 0.0) -> TaskView:
    """A task as it is, or once it is final when that comes within `wait_ms`."""
    if wait_ms:
        await broker.execute(client, ops.WaitTask(task_id, wait_ms / 1000))
    found: TaskView = await broker.execute(client, ops.FindTask(task_id))  # with its runs
    return found


async def purge(broker: Broker, client: Client, wanted: TaskFilter) -> OperationView:
    """Begin to purge, and wait a while: most of it is over soon. Who began more asks for the operation later."""
    view: OperationView = await broker.execute(client, ops.BeginOperation("purge", wanted))
    left = PURGE_SECONDS
    for pause in validation.pauses():
        if view.is_over or left <= 0:
            break
        await asyncio.sleep(pause)
        left -= pause
        view = await broker.execute(client, ops.FindOperation(view.operation_id))
    return validation.succeeded(view)


def result(found: TaskView) -> Raw:
    """What a task came to, byte for byte; an error when it has no result."""
    if found.result_error:
        raise ResultLost(f"task {found.task_id} is completed, but its result could not be stored: {found.result_error}")
    if found.state is TaskState.COMPLETED:
        return Raw(found.result or b"null")
    if found.state is TaskState.DEAD:
        raise TaskDied(f"task {found.task_id} died: {found.error}")
    if found.state is TaskState.CANCELLED:
        raise TaskCancelled(f"task {found.task_id} was cancelled: {found.error}".removesuffix(": "))
    raise TaskUnfinished(f"task {found.task_id} is {found.state}", hint="wait for longer, with wait_ms")


async def tasks(broker: Broker, client: Client, wanted: TaskFilter) -> views.Tasks:
    """A page of tasks."""
    return views.tasks_view(await broker.execute(client, ops.ListTasks(wanted)))


async def finish(
    broker: Broker, client: Client, given: models.FinishedRun | models.FinishedRuns
) -> tuple[views.FinishResults, PenstockError | None]:
    """What became of each finish; and the first error when none was accepted."""
    if isinstance(given, models.FinishedRuns):
        runs = [models.finish_of(each, f"finishes[{index}].") for index, each in enumerate(given.finishes)]
        is_again = given.is_again
    else:
        runs, is_again = [models.finish_of(given)], False
    errors = await broker.execute(client, ops.FinishTasks(runs, is_again))
    view = views.finish_results([run.task_id for run in runs], errors)
    return view, errors[0] if all(errors) else None


async def progress(broker: Broker, client: Client, given: models.Progress, place: str = "") -> None:
    """How far a run is."""
    receipt = models.receipt_of(given.receipt, place)
    await broker.execute(client, ops.NoteProgress(receipt, given.task_id, bytes(given.progress)))


async def heartbeat(broker: Broker, client: Client, worker_id: str, given: models.WorkerHeartbeat) -> views.News:
    """A worker is there; its news."""
    news = await broker.execute(client, ops.HeartbeatWorker(models.info_of(worker_id, given)))
    return views.News(list(news.cancelled))
