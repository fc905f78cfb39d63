"""What the routes do that are not derived from one operation: from a decoded request to the JSON of its reply."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from penstock import operations as ops
from penstock.broker import health as conditions
from penstock.broker.access import Client
from penstock.broker.broker import Broker
from penstock.errors import BadQuery, PenstockError, QueueNotFound, ScheduleNotFound, Unavailable
from penstock.model import MessageId, QueueOptions, check_name
from penstock.operations import Action
from penstock.operations.base import SOME_QUEUE
from penstock.requests import Operation, PushOperation, SettleOperation
from penstock.server import tasks
from penstock.server.http.site import Site
from penstock.telemetry.metrics import Metrics
from penstock.telemetry.profile import profile as take_profile
from penstock.wire import json_models as models
from penstock.wire import json_tasks as json
from penstock.wire.json_messages import batch_of, producer_of, receipts_of, settling_of
from penstock.wire.json_operations import LETTER_SEARCH, json_of
from penstock.wire.json_options import changes_of, state_of
from penstock.wire.json_shapes import Shape

R = TypeVar("R")
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
    if broker.history_queries is None:
        raise BadQuery("this broker keeps nothing on disk that could be queried", hint="start it with --data")
    queues = broker.authorisation.queryable(request.client.principal)
    return await broker.history_queries.run(body.query, queues, body.limit, body.since, body.until)


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


async def result(request: RequestParts) -> Raw:
    """GET /api/v1/tasks/{task_id}/result."""
    return tasks.result(await _task(request))


async def _task(request: RequestParts) -> Any:
    return await tasks.task(request.broker, request.client, request.path["task_id"], request.query.wait_ms)


async def purge(request: RequestParts) -> json.PurgedTasks:
    """POST /api/v1/tasks/purge."""
    return json.purged_view(await tasks.purge(request.broker, request.client, json.TASK_FILTER.read(request.body)))


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


async def profile(request: RequestParts) -> Text:
    """GET /debug/profile."""
    request.broker.require(request.client, Action.MANAGE, "")
    text = await asyncio.to_thread(take_profile, request.query.seconds)
    return Text(text.encode(), "text/plain; charset=utf-8")
