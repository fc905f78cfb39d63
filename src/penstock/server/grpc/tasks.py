"""The service `penstock.v1.Tasks`: calls on tasks and workers that are more than one operation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import structs

from penstock import limits
from penstock import operations as ops
from penstock.broker.access import Client
from penstock.broker.broker import Broker
from penstock.broker.callbacks import awaited_answer_of
from penstock.broker.events import INTERVAL_SECONDS_DEFAULT, Event, TasksWanted, light
from penstock.envelopes import new_task_id
from penstock.errors import InvalidField, PenstockError, QueueNotFound, TaskNotFound
from penstock.model import DEFAULT_GROUP, DLQ_SUFFIX, to_micros
from penstock.model_tasks import Finish, TaskFilter, TaskSubmission, WorkerInfo, result_of_bytes
from penstock.server import tasks
from penstock.server.grpc.calls import Unary
from penstock.server.grpc.generated import tasks_pb2 as pb
from penstock.server.grpc.transcoding import read, write, write_result
from penstock.server.grpc.values import TURN_COUNT, convert, convert_many, maybe, seconds, timestamp
from penstock.wire.json_protocols import Claim
from penstock.wire.json_tasks import DEFAULT_QUEUE

# submitting


def submission_of(task: pb.NewTask, now_us: int, trace: str | None, place: str = "") -> TaskSubmission:
    """A task to store. `trace` is the call's own."""
    defaults = {"task_id": new_task_id(now_us), "queue": DEFAULT_QUEUE, "trace": trace}
    return read(
        TaskSubmission,
        task,
        place,
        defaults=defaults,
        is_named=bool(task.task_id),
        on_parent_failure="run" if task.run_despite_parent_failure else "cancel",
    )


async def submit_task(broker: Broker, client: Client, request: pb.NewTask, trace: str | None) -> pb.SubmittedTask:
    """One task."""
    (submitted,) = await tasks.submit_one(broker, client, submission_of(request, broker.clock.now(), trace))
    return write(pb.SubmittedTask, submitted)


async def submit_tasks(
    broker: Broker, client: Client, request: pb.SubmitTasksRequest, trace: str | None
) -> pb.SubmitTasksResponse:
    """Many, all or none."""
    submissions = await convert(_submissions, request, broker.clock.now(), trace)
    submitted = await broker.execute(client, ops.SubmitTasks(submissions))
    return await convert_many(len(submitted), write_result, pb.SubmitTasksResponse, submitted)


def _submissions(request: pb.SubmitTasksRequest, now_us: int, trace: str | None) -> list[TaskSubmission]:
    return [submission_of(task, now_us, trace, f"tasks[{index}].") for index, task in enumerate(request.tasks)]


# looking


async def _get_task_status(broker: Broker, client: Client, request: pb.GetTaskStatusRequest) -> pb.Task:
    return write(pb.Task, await tasks.task(broker, client, request.task_id, request.wait_ms))


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


async def _purge_tasks(broker: Broker, client: Client, request: pb.PurgeTasksRequest) -> pb.PurgeTasksResponse:
    view = await tasks.purge(broker, client, await convert(read, TaskFilter, request.filter, "filter."))
    return pb.PurgeTasksResponse(count=view.purged, operation_id=view.operation_id, is_done=view.is_over)


# workers


async def _claim_tasks(broker: Broker, client: Client, request: pb.ClaimTasksRequest) -> pb.ClaimTasksResponse:
    claim = Claim(
        worker_id=request.worker_id,
        queues=tuple(dict.fromkeys(request.queues)),
        max=request.max or 1,
        wait_ms=request.wait_ms,
        lease_ms=maybe(request, "lease_ms"),
        task_types=list(request.task_types) or None,
    )
    return write(pb.ClaimTasksResponse, await tasks.claim(broker, client, claim))


async def _finish_tasks(broker: Broker, client: Client, request: pb.FinishTasksRequest) -> pb.FinishTasksResponse:
    runs = await convert(_runs, request)
    errors = await broker.execute(client, ops.FinishTasks(runs, request.is_again))
    return await convert_many(len(runs), _finished, runs, errors)


def _runs(request: pb.FinishTasksRequest) -> list[Finish]:
    return [_run(run, f"finishes[{index}].") for index, run in enumerate(request.finishes)]


def _run(run: pb.FinishedRun, place: str) -> Finish:
    if not run.HasField("result_bytes"):
        return read(Finish, run, place)
    if run.result:
        raise InvalidField(
            f"{place}result: result and result_bytes are both given", hint="give either result (JSON) or result_bytes"
        )
    return structs.replace(read(Finish, run, place), result=result_of_bytes(run.result_bytes))


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
        progress = await convert(read, ops.NoteProgress, run, f"progress[{index}].")
        await awaited_answer_of(broker.execute(client, progress))  # of a lost lease `lost` tells
    news = await broker.execute(client, ops.HeartbeatWorker(read(WorkerInfo, request.info)))
    lost = [receipt for receipt, answer in held.items() if isinstance(answer, PenstockError)]
    grace = None if news.grace_seconds is None else round(news.grace_seconds * 1000)
    return pb.HeartbeatWorkerResponse(cancelled=news.cancelled, lost=lost, requested=news.requested, grace_ms=grace)


# updates


async def stream_task_updates(
    broker: Broker, client: Client, request: pb.StreamTaskUpdatesRequest, context: Any
) -> None:
    """The StreamTaskUpdates call. What waits for a slow listener is bounded as all live events are."""
    news, left = asyncio.Event(), set(request.task_ids)
    choice = TasksWanted(
        frozenset(request.task_types) or None, frozenset(request.task_ids) or None, request.workflow or None
    )
    listener = broker.listen(client, request.queues or None, INTERVAL_SECONDS_DEFAULT, news.set, {"tasks"}, choice)
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
        task = await broker.execute(client, ops.FindTask(task_id))
    except TaskNotFound:
        return None
    return Event("task", task.finished_at or task.started_at or task.submitted_at, task.queue, task=light(task))


def _update(event: Event, left: set[str]) -> pb.TaskUpdate:
    assert event.task is not None
    if event.task.is_final:
        left.discard(event.task.task_id)
    return pb.TaskUpdate(
        task=write(pb.Task, event.task, args="", kwargs=""),
        at=timestamp(to_micros(event.at, "at")),
        missed=event.missed,
    )


UNARY: Final[dict[str, Unary]] = {
    "GetTaskStatus": _get_task_status,
    "GetStats": _get_stats,
    "PurgeTasks": _purge_tasks,
    "ClaimTasks": _claim_tasks,
    "FinishTasks": _finish_tasks,
    "HeartbeatWorker": _heartbeat,
}
TRACED: Final[Mapping[str, Callable[[Broker, Client, Any, str | None], Awaitable[Any]]]] = {
    "SubmitTask": submit_task,
    "SubmitTasks": submit_tasks,
}
STREAMED: Final[Mapping[str, Any]] = {"StreamTaskUpdates": stream_task_updates}
