"""The service `penstock.v1.Tasks`: tasks, workers and schedules between protocol buffers and the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, get_args

from msgspec import UnsetType

from penstock import limits
from penstock import operations as ops
from penstock.broker.access import Client
from penstock.broker.broker import Broker
from penstock.broker.callbacks import awaited_answer_of
from penstock.broker.events import INTERVAL_SECONDS_DEFAULT, Event, TasksWanted, light
from penstock.envelopes import new_task_id
from penstock.errors import InvalidField, PenstockError, QueueNotFound, TaskNotFound
from penstock.model import DEFAULT_GROUP, DLQ_SUFFIX, to_datetime, to_micros
from penstock.model_tasks import (
    Finish,
    MissedPolicy,
    OperationView,
    ScheduleSpec,
    ScheduleView,
    Submitted,
    Takes,
    TaskFilter,
    TaskState,
    TaskSubmission,
    TaskView,
    WorkerInfo,
    WorkerView,
)
from penstock.server import tasks
from penstock.server.grpc.generated import tasks_pb2 as pb
from penstock.server.grpc.values import TURN_COUNT, convert, convert_many, maybe, micros, seconds, timestamp
from penstock.wire.json_protocols import Claim, ClaimedTask, Parent
from penstock.wire.json_shapes import receipt_of
from penstock.wire.json_tasks import DEFAULT_QUEUE

PAGE: Final = 50
TAKES: Final[tuple[Takes, ...]] = get_args(Takes)
MISSED: Final[tuple[MissedPolicy, ...]] = get_args(MissedPolicy)
OUTCOMES: Final = ("completed", "failed", "dead", "snoozed", "cancelled", "released")
STATES: Final = (None, *TaskState)  # by their numbers


def submission_of(task: pb.NewTask, now_us: int, trace: str | None, place: str = "") -> TaskSubmission:
    """A task to store. `trace` is the call's own."""
    if not 0 <= task.takes < len(TAKES):
        raise InvalidField(f"{place}takes: {task.takes} is not one of its values")
    return TaskSubmission(
        task_id=task.task_id or new_task_id(now_us),
        task_type=task.task_type,
        queue=task.queue or DEFAULT_QUEUE,
        is_named=bool(task.task_id),
        args=task.args.encode() or b"[]",
        kwargs=task.kwargs.encode() or b"{}",
        timeout_seconds=task.timeout_ms / 1000 or None,
        depends_on=tuple(task.depends_on),
        on_parent_failure="run" if task.run_despite_parent_failure else "cancel",
        takes=TAKES[task.takes],
        workflow=task.workflow,
        unique_key=task.unique_key or None,
        unique_seconds=task.unique_ms / 1000 or None,
        key=task.key or None,
        priority=task.priority if task.HasField("priority") else 128,
        delay_seconds=task.delay_ms / 1000,
        deliver_at=instant(task, "deliver_at", place),
        ttl_seconds=task.ttl_ms / 1000 or None,
        max_attempts=task.max_attempts or None,
        headers=dict(task.headers) or None,
        trace=task.trace or trace,
    )


def instant(message: Any, field: str, place: str = "") -> datetime | None:
    """A timestamp that may be set."""
    return to_datetime(micros(getattr(message, field), place + field)) if message.HasField(field) else None


def moment(at: datetime | None) -> Any:
    """An instant as a timestamp."""
    return None if at is None else timestamp(to_micros(at, "at"))


def filter_of(filter: pb.TaskFilter, limit: int = PAGE, cursor: str = "") -> TaskFilter:
    """Which tasks are meant."""
    for number in filter.states:
        if not 0 < number < len(STATES):
            raise InvalidField(f"filter.states: {number} is not a state")
    return TaskFilter(
        states=tuple(TaskState(str(STATES[number])) for number in filter.states),
        **{name: maybe(filter, name) for name in _TEXTS},
        submitted_since=instant(filter, "since", "filter."),
        submitted_until=instant(filter, "until", "filter."),
        limit=limit or PAGE,
        cursor=cursor or None,
    )


def operation_of(operation: OperationView) -> pb.TaskOperation:
    """An operation, and how far it is."""
    filter = operation.filter
    chosen = pb.TaskFilter(
        states=map(state_of, filter.states),
        **{name: getattr(filter, name) for name in _TEXTS},
        since=moment(filter.submitted_since),
        until=moment(filter.submitted_until),
    )
    return pb.TaskOperation(
        **{name: getattr(operation, name) for name in ("operation_id", "matched", "cancelled", "purged", "error")},
        action=operation.action.value,
        state=operation.state.value,
        filter=chosen,
        started_at=moment(operation.started_at),
        updated_at=moment(operation.updated_at),
        ended_at=moment(operation.ended_at),
    )


_TEXTS: Final = ("task_type", "queue", "worker", "workflow", "schedule", "argument", "error_contains")


def state_of(state: TaskState) -> Any:
    """A state by its number."""
    return STATES.index(state)


def task_of(task: TaskView, is_update: bool = False) -> pb.Task:
    """A task as it stands; an update has no arguments."""
    runs = [
        pb.TaskRun(
            attempt=run.attempt,
            worker=run.worker,
            started_at=moment(run.started_at),
            ended_at=moment(run.ended_at),
            outcome=run.outcome,
            error=run.error,
        )
        for run in task.runs
    ]
    return pb.Task(
        **{name: getattr(task, name) for name in _SAME},
        state=state_of(task.state),
        args="" if is_update else task.args.decode(),
        kwargs="" if is_update else task.kwargs.decode(),
        result=None if task.result_error else _text(task.result),
        result_error=task.result_error,
        progress=_text(task.progress),
        **{name: moment(getattr(task, name)) for name in ("submitted_at", "due_at", "started_at", "finished_at")},
        timeout_ms=round((task.timeout_seconds or 0) * 1000),
        runs=runs,
    )


_SAME: Final = (
    "task_id", "task_type", "queue", "priority", "attempt", "max_attempts", "error", "worker", "key", "depends_on",
    "workflow", "schedule", "message_id", "trace",
)  # fmt: skip


def _text(json: bytes | None) -> str | None:
    return None if json is None else json.decode()


def claimed_of(task: ClaimedTask) -> pb.ClaimedTask:
    """A task to run."""
    return pb.ClaimedTask(
        **{name: getattr(task, name) for name in _CLAIMED},
        args=bytes(task.args).decode(),
        kwargs=bytes(task.kwargs).decode(),
        expires_at=moment(task.expires_at),
        submitted_at=moment(task.submitted_at),
        timeout_ms=round(task.timeout_ms or 0),
        takes=TAKES.index(task.takes),  # type: ignore[arg-type]
        parents=map(_parent, task.parents or ()),
    )


_CLAIMED: Final = (
    "task_id", "task_type", "queue", "attempt", "receipt", "priority", "key", "headers", "depends_on", "workflow",
    "schedule", "scheduled_at", "trace",
)  # fmt: skip


def _parent(parent: Parent) -> pb.ParentResult:
    result = None if isinstance(parent.result, UnsetType) else bytes(parent.result).decode()
    return pb.ParentResult(task_id=parent.task_id, state=state_of(parent.status), result=result)


def finish_of(run: pb.FinishedRun, place: str) -> Finish:
    """How a run ended."""
    if run.outcome not in OUTCOMES:
        raise InvalidField(f"{place}outcome: {run.outcome!r} is no way to end", hint=f"one of {', '.join(OUTCOMES)}")
    return Finish(
        receipt=receipt_of(run.receipt, place),
        task_id=run.task_id,
        outcome=run.outcome,  # type: ignore[arg-type]
        result=run.result.encode() or b"null",
        error=run.error,
        delay_seconds=seconds(run, "delay_ms"),
    )


def info_of(info: pb.WorkerInfo) -> WorkerInfo:
    """What a worker tells of itself."""
    fields = {name: getattr(info, name) for name in WorkerInfo.__struct_fields__}
    return WorkerInfo(**fields | {"queues": tuple(info.queues), "task_types": tuple(info.task_types)})


def worker_of(worker: WorkerView) -> pb.Worker:
    """A worker, as it is shown."""
    info = pb.WorkerInfo(**{name: getattr(worker.info, name) for name in WorkerInfo.__struct_fields__})
    return pb.Worker(
        info=info,
        state=worker.state,
        first_seen_at=moment(worker.first_seen_at),
        last_heartbeat_at=moment(worker.last_heartbeat_at),
    )


def spec_of(schedule: pb.NewSchedule) -> ScheduleSpec:
    """A schedule to set."""
    if not 0 <= schedule.missed < len(MISSED):
        raise InvalidField(f"missed: {schedule.missed} is not one of its values")
    return ScheduleSpec(
        **{name: getattr(schedule, name) for name in _SPEC},
        timezone=schedule.timezone or "UTC",
        missed=MISSED[schedule.missed],
        queue=schedule.queue or DEFAULT_QUEUE,
        args=schedule.args.encode() or b"[]",
        kwargs=schedule.kwargs.encode() or b"{}",
        timeout_seconds=schedule.timeout_ms / 1000 or None,
        max_attempts=schedule.max_attempts or None,
        priority=schedule.priority if schedule.HasField("priority") else 128,
        key=schedule.key or None,
    )


_SPEC: Final = ("name", "cron", "task_type", "is_paused", "is_declared")


def schedule_of(schedule: ScheduleView) -> pb.Schedule:
    """A schedule, as it is shown."""
    spec = schedule.spec
    shown = pb.NewSchedule(
        **{name: getattr(spec, name) for name in (*_SPEC, "timezone", "queue", "max_attempts", "priority", "key")},
        missed=MISSED.index(spec.missed),  # type: ignore[arg-type]
        args=spec.args.decode(),
        kwargs=spec.kwargs.decode(),
        timeout_ms=round((spec.timeout_seconds or 0) * 1000),
    )
    return pb.Schedule(
        spec=shown,
        next_at=moment(schedule.next_at),
        last_at=moment(schedule.last_at),
        last_task_id=schedule.last_task_id,
    )


Unary = Callable[[Broker, Client, Any], Awaitable[Any]]


# submitting


async def submit_task(broker: Broker, client: Client, request: pb.NewTask, trace: str | None) -> pb.SubmittedTask:
    """One task."""
    (submitted,) = await tasks.submit_one(broker, client, submission_of(request, broker.clock.now(), trace))
    return pb.SubmittedTask(task_id=submitted.task_id, is_new=submitted.is_new)


async def submit_tasks(
    broker: Broker, client: Client, request: pb.SubmitTasksRequest, trace: str | None
) -> pb.SubmitTasksResponse:
    """Many, all or none."""
    submissions = await convert(_submissions, request, broker.clock.now(), trace)
    submitted = await broker.execute(client, ops.SubmitTasks(submissions))
    return await convert_many(len(submitted), _submitted, submitted)


def _submissions(request: pb.SubmitTasksRequest, now_us: int, trace: str | None) -> list[TaskSubmission]:
    return [submission_of(task, now_us, trace, f"tasks[{index}].") for index, task in enumerate(request.tasks)]


def _submitted(submitted: Sequence[Submitted]) -> pb.SubmitTasksResponse:
    return pb.SubmitTasksResponse(
        tasks=[pb.SubmittedTask(task_id=task.task_id, is_new=task.is_new) for task in submitted]
    )


# looking


async def _get_task_status(broker: Broker, client: Client, request: pb.GetTaskStatusRequest) -> pb.Task:
    return task_of(await tasks.task(broker, client, request.task_id, request.wait_ms))


async def _list_tasks(broker: Broker, client: Client, request: pb.ListTasksRequest) -> pb.ListTasksResponse:
    filter = await convert(filter_of, request.filter, request.limit, request.cursor)
    page = await broker.execute(client, ops.ListTasks(filter))
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
    filter = await convert(filter_of, request.filter)
    operation = ops.BeginOperation(request.action, filter, request.operation_id)
    return operation_of(await broker.execute(client, operation))


async def _get_operation(broker: Broker, client: Client, request: pb.GetOperationRequest) -> pb.TaskOperation:
    return operation_of(await broker.execute(client, ops.FindOperation(request.operation_id)))


async def _list_operations(
    broker: Broker, client: Client, request: pb.ListOperationsRequest
) -> pb.ListOperationsResponse:
    operations = await broker.execute(client, ops.ListOperations())
    return pb.ListOperationsResponse(operations=map(operation_of, operations))


async def _stop_operation(broker: Broker, client: Client, request: pb.StopOperationRequest) -> pb.TaskOperation:
    return operation_of(await broker.execute(client, ops.StopOperation(request.operation_id)))


# workers


async def _claim_tasks(broker: Broker, client: Client, request: pb.ClaimTasksRequest) -> pb.ClaimTasksResponse:
    claim = Claim(
        worker_id=request.worker_id,
        queues=await convert(_distinct, request.queues),
        max=request.max or 1,
        wait_ms=request.wait_ms,
        lease_ms=maybe(request, "lease_ms"),
    )
    return pb.ClaimTasksResponse(tasks=map(claimed_of, (await tasks.claim(broker, client, claim)).tasks))


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
        progress = ops.NoteProgress(proof, run.task_id, run.progress.encode())
        await awaited_answer_of(broker.execute(client, progress))  # of a lost lease `lost` tells
    news = await broker.execute(client, ops.HeartbeatWorker(info_of(request.info)))
    lost = [receipt for receipt, answer in held.items() if isinstance(answer, PenstockError)]
    return pb.HeartbeatWorkerResponse(cancelled=news.cancelled, lost=lost)


async def _forget_worker(broker: Broker, client: Client, request: pb.ForgetWorkerRequest) -> pb.ForgetWorkerResponse:
    await broker.execute(client, ops.ForgetWorker(request.worker_id))
    return pb.ForgetWorkerResponse()


async def _list_workers(broker: Broker, client: Client, request: pb.ListWorkersRequest) -> pb.ListWorkersResponse:
    workers = await broker.execute(client, ops.Workers())
    return pb.ListWorkersResponse(workers=map(worker_of, workers))


# schedules


async def _list_schedules(broker: Broker, client: Client, request: pb.ListSchedulesRequest) -> pb.ListSchedulesResponse:
    schedules = await broker.execute(client, ops.Schedules())
    return pb.ListSchedulesResponse(schedules=map(schedule_of, schedules))


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
