"""What HTTP, the JSON frames of TCP and gRPC do with tasks that is more than one operation."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from msgspec import Raw

from penstock import operations as ops
from penstock import validation
from penstock.broker import Broker, Client
from penstock.envelopes import new_task_id
from penstock.errors import InputError, PenstockError, ResultLost, TaskCancelled, TaskDied, TaskUnfinished
from penstock.model_tasks import OperationView, Submitted, TaskFilter, TaskState, TaskSubmission, TaskView
from penstock.wire import json_tasks as json

PURGE_SECONDS: Final = 10.0  # how long a purge is waited for


async def submit(broker: Broker, client: Client, body: Any, trace: str | None = None) -> Any:
    """Submit one task or many. `trace` is for those that bring none of their own."""
    if isinstance(body, json.NEW_TASKS):
        tasks = [
            json.submission_of(task, new_task_id(broker.clock.now()), f"tasks[{index}].", trace)
            for index, task in enumerate(body.tasks)
        ]
        return json.submitted_view(await broker.execute(client, ops.SubmitTasks(tasks)))
    task = json.submission_of(body, new_task_id(broker.clock.now()), "", trace)
    return json.submitted_view(await submit_one(broker, client, task))


async def submit_one(broker: Broker, client: Client, task: TaskSubmission) -> list[Submitted]:
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
    return await broker.execute(client, ops.FindTask(task_id))  # with its runs


async def purge(broker: Broker, client: Client, filter: TaskFilter) -> OperationView:
    """Begin to purge, and wait a while: most of it is over soon. Who began more asks for the operation later."""
    view = await broker.execute(client, ops.BeginOperation("purge", filter))
    left = PURGE_SECONDS
    for pause in validation.pauses():
        if view.is_over or left <= 0:
            break
        await asyncio.sleep(pause)
        left -= pause
        view = await broker.execute(client, ops.FindOperation(view.operation_id))
    return validation.succeeded(view)


def result(task: TaskView) -> Raw:
    """What a task came to, byte for byte; an error when it has no result."""
    if task.result_error:
        raise ResultLost(f"task {task.task_id} is completed, but its result could not be stored: {task.result_error}")
    if task.state is TaskState.COMPLETED:
        return Raw(task.result or b"null")
    if task.state is TaskState.DEAD:
        raise TaskDied(f"task {task.task_id} died: {task.error}")
    if task.state is TaskState.CANCELLED:
        raise TaskCancelled(f"task {task.task_id} was cancelled: {task.error}".removesuffix(": "))
    raise TaskUnfinished(f"task {task.task_id} is {task.state}", hint="wait for longer, with wait_ms")


async def finish(broker: Broker, client: Client, body: Any) -> tuple[json.FinishResults, PenstockError | None]:
    """The result of each finish, of one or of many; and the first error when none was accepted."""
    if isinstance(body, json.FINISHED_RUNS):
        runs = [json.finish_of(run, f"finishes[{index}].") for index, run in enumerate(body.finishes)]
        is_again = body.is_again
    else:
        runs, is_again = [json.finish_of(body)], False
    errors = await broker.execute(client, ops.FinishTasks(runs, is_again))
    view = json.finish_results([run.task_id for run in runs], errors)
    return view, errors[0] if all(errors) else None
