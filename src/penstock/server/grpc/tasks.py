"""The service `penstock.v1.Tasks`: each method, between protocol buffers and the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from penstock import limits
from penstock import operations as ops
from penstock.broker import Broker, Client
from penstock.broker.callbacks import awaited_answer_of
from penstock.broker.events import INTERVAL_SECONDS_DEFAULT, Event, TasksWanted, light
from penstock.errors import PenstockError, QueueNotFound, TaskNotFound
from penstock.model import DEFAULT_GROUP, DLQ_SUFFIX
from penstock.model_tasks import Finish, Submitted, TaskSubmission
from penstock.server import tasks
from penstock.server.grpc.generated import tasks_pb2 as pb
from penstock.server.grpc.task_values import (
    claimed_of,
    filter_of,
    finish_of,
    info_of,
    moment,
    operation_of,
    schedule_of,
    spec_of,
    submission_of,
    task_of,
    worker_of,
)
from penstock.server.grpc.values import TURN_COUNT, convert, convert_many, maybe, seconds
from penstock.wire.json_protocols import Claim
from penstock.wire.json_shapes import receipt_of

Unary = Callable[[Broker, Client, Any], Awaitable[Any]]


# submitting


async def submit_task(broker: Broker, client: Client, request: pb.NewTask, trace: str | None) -> pb.SubmittedTask:
    """One task."""
    (found,) = await tasks.submit_one(broker, client, submission_of(request, broker.clock.now(), trace))
    return pb.SubmittedTask(task_id=found.task_id, is_new=found.is_new)


async def submit_tasks(
    broker: Broker, client: Client, request: pb.SubmitTasksRequest, trace: str | None
) -> pb.SubmitTasksResponse:
    """Many, all or none."""
    wanted = await convert(_submissions, request, broker.clock.now(), trace)
    found = await broker.execute(client, ops.SubmitTasks(wanted))
    return await convert_many(len(found), _submitted, found)


def _submissions(request: pb.SubmitTasksRequest, now_us: int, trace: str | None) -> list[TaskSubmission]:
    return [submission_of(task, now_us, trace, f"tasks[{index}].") for index, task in enumerate(request.tasks)]


def _submitted(found: Sequence[Submitted]) -> pb.SubmitTasksResponse:
    return pb.SubmitTasksResponse(tasks=[pb.SubmittedTask(task_id=task.task_id, is_new=task.is_new) for task in found])


# looking


async def _get_task_status(broker: Broker, client: Client, request: pb.GetTaskStatusRequest) -> pb.Task:
    return task_of(await tasks.task(broker, client, request.task_id, request.wait_ms))


async def _list_tasks(broker: Broker, client: Client, request: pb.ListTasksRequest) -> pb.ListTasksResponse:
    wanted = await convert(filter_of, request.filter, request.limit, request.cursor)
    page = await broker.execute(client, ops.ListTasks(wanted))
    return pb.ListTasksResponse(tasks=map(task_of, page.tasks), cursor=page.cursor or "")


async def _get_stats(broker: Broker, client: Client, request: pb.GetTaskStatsRequest) -> pb.TaskStats:
    names = list(request.queues) or await _task_queues(broker, client)
    answer = pb.TaskStats()
    for name in names:
        try:
            stats = await broker.execute(client, ops.Stats(name))
        except QueueNotFound:
            if request.queues:
                raise
            continue  # deleted since
        group = stats.groups[DEFAULT_GROUP]
        answer.queues.add(
            queue=name,
            pending=group.ready,
            waiting=group.waiting,
            running=group.leased,
            completed=group.acked,
            dead=group.dead,
            dropped=group.dropped,
        )
    for worker in await broker.execute(client, ops.Workers()):
        answer.workers_dead += worker.state == "dead"
        answer.workers_alive += worker.state != "dead"
    return answer


async def _task_queues(broker: Broker, client: Client) -> list[str]:
    """All queues but those of dead letters, which no worker will take."""
    names = await broker.execute(client, ops.Queues())
    return [name for name in names if not name.endswith(DLQ_SUFFIX)]


# changing


async def _cancel_task(broker: Broker, client: Client, request: pb.CancelTaskRequest) -> pb.Task:
    return task_of(await broker.execute(client, ops.CancelTask(request.task_id)))


async def _retry_task(broker: Broker, client: Client, request: pb.RetryTaskRequest) -> pb.Task:
    return task_of(await broker.execute(client, ops.RetryTask(request.task_id)))


async def _purge_tasks(broker: Broker, client: Client, request: pb.PurgeTasksRequest) -> pb.PurgeTasksResponse:
    view = await tasks.purge(broker, client, await convert(filter_of, request.filter))
    return pb.PurgeTasksResponse(count=view.purged, operation_id=view.operation_id, is_done=view.is_over)


# operations


async def _begin_operation(broker: Broker, client: Client, request: pb.BeginOperationRequest) -> pb.TaskOperation:
    wanted = await convert(filter_of, request.filter)
    given = ops.BeginOperation(request.action, wanted, request.operation_id)
    return operation_of(await broker.execute(client, given))


async def _get_operation(broker: Broker, client: Client, request: pb.GetOperationRequest) -> pb.TaskOperation:
    return operation_of(await broker.execute(client, ops.FindOperation(request.operation_id)))


async def _list_operations(
    broker: Broker, client: Client, request: pb.ListOperationsRequest
) -> pb.ListOperationsResponse:
    found = await broker.execute(client, ops.ListOperations())
    return pb.ListOperationsResponse(operations=map(operation_of, found))


async def _stop_operation(broker: Broker, client: Client, request: pb.StopOperationRequest) -> pb.TaskOperation:
    return operation_of(await broker.execute(client, ops.StopOperation(request.operation_id)))


# workers


async def _claim_tasks(broker: Broker, client: Client, request: pb.ClaimTasksRequest) -> pb.ClaimTasksResponse:
    wanted = Claim(
        worker_id=request.worker_id,
        queues=await convert(_distinct, request.queues),
        max=request.max or 1,
        wait_ms=request.wait_ms,
        lease_ms=maybe(request, "lease_ms"),
    )
    return pb.ClaimTasksResponse(tasks=map(claimed_of, (await tasks.claim(broker, client, wanted)).tasks))


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


async def _finish_tasks(broker: Broker, client: Client, request: pb.FinishTasksRequest) -> pb.FinishTasksResponse:
    runs = await convert(_runs, request)
    errors = await broker.execute(client, ops.FinishTasks(runs, request.is_again))
    return await convert_many(len(runs), _finished, runs, errors)


def _runs(request: pb.FinishTasksRequest) -> list[Finish]:
    return [finish_of(run, f"finishes[{index}].") for index, run in enumerate(request.finishes)]


def _finished(runs: list[Finish], errors: Sequence[PenstockError | None]) -> pb.FinishTasksResponse:
    response = pb.FinishTasksResponse()
    for run, error in zip(runs, errors, strict=True):
        response.results.add(
            task_id=run.task_id, error_code=error.code if error else "", error_message=error.message if error else ""
        )
    return response


async def _heartbeat(broker: Broker, client: Client, request: pb.HeartbeatWorkerRequest) -> pb.HeartbeatWorkerResponse:
    hold = (seconds(request, "lease_ms") or limits.lease_seconds_default) * 1000
    held = {}
    for index, receipt in enumerate(request.receipts):
        held[receipt] = await tasks.hold(broker, client, receipt, hold)
        if index % TURN_COUNT == TURN_COUNT - 1:
            await asyncio.sleep(0)  # others have their turn
    for index, run in enumerate(request.progress):
        proof = receipt_of(run.receipt, f"progress[{index}].")
        given = ops.NoteProgress(proof, run.task_id, run.progress.encode())
        await awaited_answer_of(broker.execute(client, given))  # of a lost lease `lost` tells
    news = await broker.execute(client, ops.HeartbeatWorker(info_of(request.info)))
    lost = [receipt for receipt, answer in held.items() if isinstance(answer, PenstockError)]
    return pb.HeartbeatWorkerResponse(cancelled=news.cancelled, lost=lost)


async def _forget_worker(broker: Broker, client: Client, request: pb.ForgetWorkerRequest) -> pb.ForgetWorkerResponse:
    await broker.execute(client, ops.ForgetWorker(request.worker_id))
    return pb.ForgetWorkerResponse()


async def _list_workers(broker: Broker, client: Client, request: pb.ListWorkersRequest) -> pb.ListWorkersResponse:
    found = await broker.execute(client, ops.Workers())
    return pb.ListWorkersResponse(workers=map(worker_of, found))


# schedules


async def _list_schedules(broker: Broker, client: Client, request: pb.ListSchedulesRequest) -> pb.ListSchedulesResponse:
    found = await broker.execute(client, ops.Schedules())
    return pb.ListSchedulesResponse(schedules=map(schedule_of, found))


async def _set_schedule(broker: Broker, client: Client, request: pb.NewSchedule) -> pb.Schedule:
    return schedule_of(await broker.execute(client, ops.SetSchedule(spec_of(request))))


async def _delete_schedule(
    broker: Broker, client: Client, request: pb.DeleteScheduleRequest
) -> pb.DeleteScheduleResponse:
    await broker.execute(client, ops.DeleteSchedule(request.name))
    return pb.DeleteScheduleResponse()


# updates


async def stream_task_updates(
    broker: Broker, client: Client, request: pb.StreamTaskUpdatesRequest, context: Any
) -> None:
    """The StreamTaskUpdates call. What waits for a slow listener is bounded as all live events are."""
    news, left = asyncio.Event(), set(request.task_ids)
    wanted = TasksWanted(
        frozenset(request.task_types) or None, frozenset(request.task_ids) or None, request.workflow or None
    )
    listener = broker.listen(client, request.queues or None, INTERVAL_SECONDS_DEFAULT, news.set, {"tasks"}, wanted)
    try:
        ready = asyncio.Event()
        listener.when_ready(ready.set)
        await ready.wait()
        for task_id in request.task_ids:
            event = await _present(broker, client, task_id)
            if event is not None and listener.wants_task(event.task):  # type: ignore[arg-type]
                await context.write(_update(event, left))
        while left or not request.task_ids:
            await news.wait()
            news.clear()
            for event in listener.take():
                await context.write(_update(event, left))
    finally:
        listener.close()


async def _present(broker: Broker, client: Client, task_id: str) -> Event | None:
    """A task as it is; one that is not there yet may come."""
    try:
        found = await broker.execute(client, ops.FindTask(task_id))
    except TaskNotFound:
        return None
    return Event("task", found.finished_at or found.started_at or found.submitted_at, found.queue, task=light(found))


def _update(event: Event, left: set[str]) -> pb.TaskUpdate:
    assert event.task is not None
    if event.task.is_final:
        left.discard(event.task.task_id)
    return pb.TaskUpdate(task=task_of(event.task, is_update=True), at=moment(event.at), missed=event.missed)


UNARY: Final[Mapping[str, Unary]] = {
    "GetTaskStatus": _get_task_status,
    "ListTasks": _list_tasks,
    "GetStats": _get_stats,
    "CancelTask": _cancel_task,
    "RetryTask": _retry_task,
    "PurgeTasks": _purge_tasks,
    "BeginOperation": _begin_operation,
    "GetOperation": _get_operation,
    "ListOperations": _list_operations,
    "StopOperation": _stop_operation,
    "ClaimTasks": _claim_tasks,
    "FinishTasks": _finish_tasks,
    "HeartbeatWorker": _heartbeat,
    "ForgetWorker": _forget_worker,
    "ListWorkers": _list_workers,
    "ListSchedules": _list_schedules,
    "SetSchedule": _set_schedule,
    "DeleteSchedule": _delete_schedule,
}
TRACED: Final[Mapping[str, Callable[[Broker, Client, Any, str | None], Awaitable[Any]]]] = {
    "SubmitTask": submit_task,
    "SubmitTasks": submit_tasks,
}
STREAMED: Final[Mapping[str, Any]] = {"StreamTaskUpdates": stream_task_updates}
