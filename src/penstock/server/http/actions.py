"""What the routes do that are not derived from one operation: from a decoded request to the JSON of its reply."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import Raw

from penstock import operations as ops
from penstock.broker import health as conditions
from penstock.broker.access import Client
from penstock.broker.broker import Broker
from penstock.broker.past_state import state_at
from penstock.errors import PenstockError, QueueNotFound, ScheduleNotFound, Unavailable
from penstock.model import MessageId, QueueOptions, check_name
from penstock.model_tasks import TaskState
from penstock.operations import Action
from penstock.operations.base import SOME_QUEUE
from penstock.replies import PastState
from penstock.requests import Operation, PushOperation, SettleOperation
from penstock.server import tasks
from penstock.server.http.site import Site
from penstock.telemetry.metrics import Metrics
from penstock.wire import json_models as models
from penstock.wire import json_tasks as json
from penstock.wire.json_messages import batch_of, producer_of, receipts_of, settling_of
from penstock.wire.json_operations import LETTER_SEARCH, SEEK, TASK_OPERATION, WORKFLOW_OPERATION, json_of
from penstock.wire.json_options import changes_of, state_of
from penstock.wire.json_shapes import Shape

R = TypeVar("R")
# A report is somebody's HTML: it runs nothing and loads nothing, and only the dashboard may frame it.
REPORT_HEADERS: Final = {
    "content-security-policy": (
        "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
    )
}
PAST_STATE: Final = Shape(PastState, "PastState")
HEALTH: Final = Shape(conditions.Health, "Health")


class RequestParts(msgspec.Struct, frozen=True):
    """A request, decoded: its path, its query and its body; and who sent it to which broker."""

    site: Site
    client: Client
    path: dict[str, str]
    query: Any
    body: Any
    headers: Mapping[str, str]
    metrics: Metrics | None = None
    trace: str | None = None  # of the request's own headers

    @property
    def broker(self) -> Broker:
        return self.site.broker

    async def execute(self, operation: ops.Operation[R]) -> R:
        return await self.broker.execute(self.client, operation)


class AllRefused(Exception):
    """None of several things could be done: the first error, with its status, and the result of each."""

    def __init__(self, error: PenstockError, view: Any) -> None:
        super().__init__(error.message)
        self.error = error
        self.view = view


# queues


async def create_queue(request: RequestParts) -> Any:
    """POST /api/v1/queues."""
    name = request.body.name
    await request.execute(ops.CreateQueue(name, changes_of(request.body), request.query.exist_ok))
    return await _queue(request, name)


async def update_queue(request: RequestParts) -> Any:
    """PATCH /api/v1/queues/{queue}."""
    name = request.path["queue"]
    await request.execute(ops.UpdateQueue(name, changes_of(request.body)))
    return await _queue(request, name)


async def seek(request: RequestParts) -> Any:
    """POST /api/v1/queues/{queue}/groups/{group}/seek."""
    preview = SEEK.read(request.body, {"queue": request.path["queue"], "group": request.path["group"]})
    if not request.body.dry_run:
        return await request.execute(ops.Seek(*msgspec.structs.astuple(preview)))
    return json_of(ops.PreviewSeek).reply.write(preview, await request.execute(preview))


async def _queue(request: RequestParts, name: str) -> Any:
    """The queue that was changed: who may do that may see its options."""
    return _state(request, name, await request.broker.looked(ops.GetOptions(name)))


async def list_queues(request: RequestParts) -> models.QueuesView:
    """GET /api/v1/queues."""
    names = await request.execute(ops.Queues())
    return models.QueuesView([models.ListedQueue(name, *_paused(request, name)) for name in names])


async def get_queue(request: RequestParts) -> Any:
    """GET /api/v1/queues/{queue}."""
    name = request.path["queue"]
    return _state(request, name, await request.execute(ops.GetOptions(name)))


def _state(request: RequestParts, name: str, options: QueueOptions) -> Any:
    paused, push_paused = _paused(request, name)
    return state_of(name, options, paused=paused, push_paused=push_paused)


def _paused(request: RequestParts, name: str) -> tuple[bool, bool]:
    """Whether delivery and pushes are paused; one look without the lock."""
    queue = request.broker.shard.core.by_name.get(name)
    return (False, False) if queue is None else (queue.is_held, queue.is_shut)


async def query_history(request: RequestParts) -> Any:
    """POST /api/v1/history/query."""
    broker, body = request.broker, request.body
    broker.require(request.client, Action.READ, SOME_QUEUE)
    queries = broker.require_history()
    queues = broker.authorisation.queryable(request.client.principal)
    return await queries.run(body.query, queues, body.limit, body.since, body.until)


async def past_state(request: RequestParts) -> Any:
    """GET /api/v1/history/state."""
    query = request.query
    queue = None if query.queue is None else check_name(query.queue)
    request.broker.require(request.client, Action.MONITOR, SOME_QUEUE if queue is None else queue)
    with request.broker.counting(queue or ""):
        return PAST_STATE.write(await state_at(request.broker, request.client, query.at, queue))


async def pipeline_report(request: RequestParts) -> Any:
    """GET /api/v1/pipelines/{name}/runs/{run}/report."""
    html = await request.execute(ops.GetPipelineReport(request.path["name"], request.path["run"]))
    return WithHeaders(Text(html.encode(errors="replace"), "text/html; charset=utf-8"), REPORT_HEADERS)


async def all_stats(request: RequestParts) -> models.StatsView:
    """GET /api/v1/stats."""
    stats = []
    for name in await request.execute(ops.Queues()):
        try:
            stats.append(await request.execute(ops.Stats(name)))
        except QueueNotFound:
            continue  # deleted since
    return models.StatsView(stats)


# messages


async def search_dead_letters(request: RequestParts) -> Any:
    """POST /api/v1/queues/{queue}/dlq/search."""
    operation = LETTER_SEARCH.read(request.body, request.path)
    return json_of(ops.DeadLetters).reply.write(operation, await request.execute(operation))


async def replace_letters(request: RequestParts) -> None:
    """POST /api/v1/queues/{queue}/dlq/replace."""
    batch = await asyncio.to_thread(batch_of, request.body.messages, "messages")
    ids = list(map(MessageId.parse, request.body.ids))
    await request.execute(ops.ReplaceLetters(request.path["queue"], ids, bytes(batch.data)))


# transactions


async def transact(request: RequestParts) -> models.TransactionView:
    """POST /api/v1/transactions."""
    parts = request.body.operations
    steps = await asyncio.to_thread(_all_steps, parts)
    ids = iter(await request.broker.transact(request.client, steps, producer_of(request.body.producer)))
    return models.TransactionView(await asyncio.to_thread(lambda: [_result(part, ids) for part in parts]))


def _all_steps(parts: Sequence[models.Part]) -> list[Operation]:
    return [step for index, part in enumerate(parts) for step in _steps(part, f"operations[{index}]")]


def _steps(part: models.Part, place: str) -> list[Operation]:
    if isinstance(part, models.PushPart):
        batch = batch_of(part.messages, f"{place}.messages")
        return [PushOperation(check_name(part.queue), batch, batch.partitions)]
    receipts = receipts_of(part.receipts, f"{place}.receipts")
    how = settling_of(part)
    return [SettleOperation(receipt, how) for receipt in receipts]


def _result(part: models.Part, ids: Any) -> models.OperationView:
    kind = str(part.__struct_config__.tag)
    return models.OperationView(kind, list(map(str, next(ids)))) if kind == "push" else models.OperationView(kind)


# tasks and schedules


async def submit(request: RequestParts) -> Any:
    """POST /api/v1/tasks."""
    return await tasks.submit(request.broker, request.client, request.body, request.trace)


async def finish(request: RequestParts) -> json.FinishResults:
    """POST /api/v1/tasks/finish."""
    view, error = await tasks.finish(request.broker, request.client, request.body)
    if error is not None:
        raise AllRefused(error, view)
    return view


async def task(request: RequestParts) -> Any:
    """GET /api/v1/tasks/{task_id}."""
    return json.task_view(await _task(request))


async def result(request: RequestParts) -> Raw | Text:
    """GET /api/v1/tasks/{task_id}/result: JSON, or bytes as they are."""
    found = tasks.result(await _task(request))
    return Text(found, "application/octet-stream") if isinstance(found, bytes) else found


async def _task(request: RequestParts) -> Any:
    return await tasks.task(request.broker, request.client, request.path["task_id"], request.query.wait_ms)


def begin(action: str) -> Callable[[RequestParts], Awaitable[Any]]:
    """POST /api/v1/tasks/retry, /cancel and /purge."""

    async def execute(request: RequestParts) -> Any:
        operation = TASK_OPERATION.read(request.body, {"action": action})
        return json_of(ops.BeginOperation).reply.write(operation, await request.execute(operation))

    return execute


def begin_on_workflow(action: str) -> Callable[[RequestParts], Awaitable[Any]]:
    """POST /api/v1/workflows/{workflow}/cancel and /retry."""
    states = (TaskState.DEAD, TaskState.CANCELLED) if action == "retry" else ()

    async def execute(request: RequestParts) -> Any:
        known = {"action": action, "workflow": request.path["workflow"], "states": states}
        operation = WORKFLOW_OPERATION.read(request.body, known)
        return json_of(ops.BeginOperation).reply.write(operation, await request.execute(operation))

    return execute


async def schedule(request: RequestParts) -> Any:
    """GET /api/v1/schedules/{name}."""
    name = request.path["name"]
    for schedule in await request.execute(ops.Schedules()):
        if schedule.spec.name == name:
            return json.SCHEDULE.write(schedule)
    raise ScheduleNotFound(f"there is no schedule {name!r}")


# the broker itself


class WithHeaders(msgspec.Struct, frozen=True):
    """A response with headers of its own."""

    result: Any
    headers: dict[str, str]


class Text(msgspec.Struct, frozen=True):
    """A response that is not JSON."""

    content: bytes
    media: str


class Unhealthy(Exception):
    """A view to be sent with 503."""

    def __init__(self, view: Any) -> None:
        super().__init__("unwell")
        self.view = view


async def livez(request: RequestParts) -> models.StatusView:
    """GET /livez."""
    if not conditions.livez(request.broker):
        raise Unhealthy(models.StatusView("failed"))
    return models.StatusView("ok")


async def readyz(request: RequestParts) -> conditions.Readiness:
    """GET /readyz."""
    ready = conditions.readyz(request.broker)
    if not ready.is_ready:
        raise Unhealthy(ready)
    return ready


async def health(request: RequestParts) -> Any:
    """GET /api/v1/health."""
    request.broker.require(request.client, Action.MONITOR, "")
    return HEALTH.write(await asyncio.to_thread(conditions.health, request.broker))


async def metrics(request: RequestParts) -> Text:
    """GET /metrics."""
    request.broker.require(request.client, Action.MONITOR, "")
    if request.metrics is None:
        raise Unavailable("this server keeps no metrics")
    return Text(*await asyncio.to_thread(request.metrics.render))


def profile(what: Literal["cpu", "memory", "threads"]) -> Callable[[RequestParts], Awaitable[Text]]:
    """GET /debug/profile, /debug/memory, /debug/threads: a profile as text and nothing else."""

    async def taken(request: RequestParts) -> Text:
        text = await request.execute(ops.TakeProfile(what, getattr(request.query, "seconds", 1.0)))
        return Text(text.encode(), "text/plain; charset=utf-8")

    return taken
