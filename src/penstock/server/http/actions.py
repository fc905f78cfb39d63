"""What the routes do that are not hot: each turns a request into a call of the broker, and its answer into a view."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from penstock import operations as ops
from penstock import validation
from penstock.broker import Broker, Client
from penstock.errors import MessageNotFound, PenstockError, QueueNotFound
from penstock.model import Message, MessageId, Outcome, check_name
from penstock.requests import LetterFilter, Operation, PushOperation, SettleOperation
from penstock.server.http.hot import receipts_of
from penstock.telemetry import Metrics
from penstock.wire import json_models as models
from penstock.wire import json_views as views
from penstock.wire.json_options import changes_of, view_of
from penstock.wire.json_push import batch_of, producer_of

R = TypeVar("R")


class Asked(msgspec.Struct, frozen=True):
    """A request, parsed: what its path, its query and its body say."""

    broker: Broker
    client: Client
    path: dict[str, str]
    query: Any
    body: Any
    metrics: Metrics | None = None
    trace: str | None = None  # of the request's own headers

    async def execute(self, operation: ops.Operation[R]) -> R:
        return await self.broker.execute(self.client, operation)

    @property
    def queue(self) -> str:
        return self.path["queue"]

    @property
    def id(self) -> str:
        """The id of a message whose parts stand in the path."""
        return "/".join((self.queue, self.path["partition"], self.path["offset"]))


Action = Callable[[Asked], Awaitable[Any]]


class Refused(Exception):
    """Nothing of several things could be done: the first error, with its status, and what became of each."""

    def __init__(self, error: PenstockError, view: Any) -> None:
        super().__init__(error.message)
        self.error = error
        self.view = view


# queues


async def queues(asked: Asked) -> views.QueuesView:
    """GET /api/v1/queues."""
    return views.QueuesView([views.QueueName(name) for name in await asked.execute(ops.Queues())])


async def create_queue(asked: Asked) -> Any:
    """POST /api/v1/queues."""
    name = asked.body.name
    await asked.execute(ops.CreateQueue(name, changes_of(asked.body), asked.query.exist_ok))
    return await _queue(asked, name)


async def queue(asked: Asked) -> Any:
    """GET /api/v1/queues/{queue}."""
    return await _queue(asked, asked.queue)


async def _queue(asked: Asked, name: str) -> Any:
    return view_of(name, await asked.execute(ops.GetOptions(name)))


async def update_queue(asked: Asked) -> Any:
    """PATCH /api/v1/queues/{queue}."""
    await asked.execute(ops.UpdateQueue(asked.queue, changes_of(asked.body)))
    return await _queue(asked, asked.queue)


async def delete_queue(asked: Asked) -> None:
    """DELETE /api/v1/queues/{queue}."""
    await asked.execute(ops.DeleteQueue(asked.queue))


async def pause(asked: Asked) -> None:
    """POST /api/v1/queues/{queue}/pause."""
    await asked.execute(ops.Pause(asked.queue))


async def resume(asked: Asked) -> None:
    """POST /api/v1/queues/{queue}/resume."""
    await asked.execute(ops.Resume(asked.queue))


async def purge(asked: Asked) -> None:
    """POST /api/v1/queues/{queue}/purge."""
    await asked.execute(ops.Purge(asked.queue))


async def stats(asked: Asked) -> Any:
    """GET /api/v1/queues/{queue}/stats."""
    return await asked.execute(ops.Stats(asked.queue))


async def all_stats(asked: Asked) -> views.StatsView:
    """GET /api/v1/stats."""
    found = []
    for name in await asked.execute(ops.Queues()):
        try:
            found.append(await asked.execute(ops.Stats(name)))
        except QueueNotFound:
            continue  # deleted since
    return views.StatsView(found)


# messages


async def read(asked: Asked) -> views.MessagesView:
    """GET /api/v1/queues/{queue}/messages."""
    query = asked.query
    given = ops.Read(asked.queue, query.partition, query.offset, _instant(query.timestamp), query.limit)
    return _messages(await asked.execute(given))


async def message(asked: Asked) -> views.MessageView:
    """GET /api/v1/queues/{queue}/messages/{partition}/{offset}."""
    id = MessageId.parse(asked.id)
    for found in await asked.execute(ops.Read(id.queue, id.partition, id.offset, None, 1)):
        if found.id == id:
            return views.message_view(found)
    raise MessageNotFound(f"there is no message {id}")


async def peek(asked: Asked) -> views.MessagesView:
    """GET /api/v1/queues/{queue}/peek."""
    return _messages(await asked.execute(ops.Peek(asked.queue, asked.query.limit)))


async def delayed(asked: Asked) -> views.MessagesView:
    """GET /api/v1/queues/{queue}/delayed."""
    return _messages(await asked.execute(ops.Delayed(asked.queue, asked.query.limit)))


async def cancel(asked: Asked) -> None:
    """DELETE /api/v1/queues/{queue}/messages/{partition}/{offset}."""
    await asked.execute(ops.Cancel(validation.message_id(asked.id)))


async def why(asked: Asked) -> views.ReasonsView:
    """GET /api/v1/queues/{queue}/messages/{partition}/{offset}/why."""
    return views.ReasonsView(
        [views.ReasonView(*reason) for reason in await asked.execute(ops.Why(validation.message_id(asked.id)))]
    )


def _messages(found: list[Message]) -> views.MessagesView:
    return views.MessagesView([views.message_view(each) for each in found])


# transactions and producers


async def transact(asked: Asked) -> views.TransactionView:
    """POST /api/v1/transactions."""
    steps = await asyncio.to_thread(_all_steps, asked.body.operations)
    producer = producer_of(asked.body.producer)
    ids = iter(await asked.broker.transact(asked.client, steps, producer))
    results = await asyncio.to_thread(lambda: [_result(part, ids) for part in asked.body.operations])
    return views.TransactionView(results)


def _all_steps(parts: Sequence[models.Part]) -> list[Operation]:
    return [step for index, part in enumerate(parts) for step in _steps(part, f"operations[{index}]")]


def _steps(part: models.Part, place: str) -> list[Operation]:
    if isinstance(part, models.PushPart):
        batch = batch_of(part.messages, f"{place}.messages")
        return [PushOperation(check_name(part.queue), batch, batch.partitions)]
    receipts = receipts_of(part.receipts, f"{place}.receipts")
    outcome, delay, error = Outcome.ACKED, None, ""
    if isinstance(part, models.NackPart):
        outcome, error = Outcome.RETRIED, part.error
        delay = None if part.delay_ms is None else part.delay_ms / 1000
    elif isinstance(part, models.SnoozePart):
        outcome, delay = Outcome.SNOOZED, part.delay_ms / 1000
    elif isinstance(part, models.RejectPart):
        outcome, error = Outcome.REJECTED, part.reason
    elif isinstance(part, models.ReleasePart):
        outcome = Outcome.RELEASED
    how = validation.settling(outcome, delay, error)
    return [SettleOperation(receipt, how) for receipt in receipts]


def _result(part: models.Part, ids: Any) -> views.OperationView:
    kind = str(part.__struct_config__.tag)
    return views.OperationView(kind, list(map(str, next(ids)))) if kind == "push" else views.OperationView(kind)


async def init_producer(asked: Asked) -> views.ProducerView:
    """POST /api/v1/producers."""
    id, epoch = await asked.execute(ops.InitProducer(asked.body.name))
    return views.ProducerView(f"{id:016x}", epoch)


# groups and members


async def groups(asked: Asked) -> views.GroupsView:
    """GET /api/v1/queues/{queue}/groups."""
    return views.groups_view(await asked.execute(ops.Groups(asked.queue)))


async def create_group(asked: Asked) -> views.QueueName:
    """POST /api/v1/queues/{queue}/groups."""
    body = asked.body
    await asked.execute(ops.CreateGroup(asked.queue, body.name, body.start, body.observes))
    return views.QueueName(body.name)


async def delete_group(asked: Asked) -> None:
    """DELETE /api/v1/queues/{queue}/groups/{group}."""
    await asked.execute(ops.DeleteGroup(asked.queue, asked.path["group"]))


async def seek(asked: Asked) -> None:
    """POST /api/v1/queues/{queue}/groups/{group}/seek."""
    await asked.execute(ops.Seek(asked.queue, asked.path["group"], asked.body.to, asked.body.partition))


async def members(asked: Asked) -> views.MembersView:
    """GET /api/v1/queues/{queue}/groups/{group}/members."""
    found = await asked.execute(ops.Members(asked.queue, asked.path["group"]))
    return views.MembersView(found)


async def join(asked: Asked) -> views.MembershipView:
    """POST /api/v1/queues/{queue}/groups/{group}/members."""
    body = asked.body
    given = ops.Join(asked.queue, asked.path["group"], body.member, body.session_ms / 1000, body.start)
    return views.membership_view(await asked.execute(given))


async def heartbeat(asked: Asked) -> views.MembershipView:
    """POST /api/v1/queues/{queue}/groups/{group}/members/{member}/heartbeat."""
    body, path = asked.body, asked.path
    given = ops.Heartbeat(asked.queue, path["group"], path["member"], body.generation, body.held)
    return views.membership_view(await asked.execute(given))


async def leave(asked: Asked) -> None:
    """DELETE /api/v1/queues/{queue}/groups/{group}/members/{member}."""
    path = asked.path
    await asked.execute(ops.Leave(asked.queue, path["group"], path["member"], asked.query.generation))


# dead letters


async def dead_letters(asked: Asked) -> views.MessagesView:
    """GET /api/v1/queues/{queue}/dlq."""
    return _messages(await asked.execute(ops.DeadLetters(asked.queue, _filter(asked.query))))


async def search_dead_letters(asked: Asked) -> views.MessagesView:
    """POST /api/v1/queues/{queue}/dlq/search."""
    return _messages(await asked.execute(ops.DeadLetters(asked.queue, _filter(asked.body))))


async def replace_letters(asked: Asked) -> None:
    """POST /api/v1/queues/{queue}/dlq/replace."""
    batch = await asyncio.to_thread(batch_of, asked.body.messages, "messages")
    await asked.execute(ops.ReplaceLetters(asked.queue, list(map(MessageId.parse, asked.body.ids)), bytes(batch.data)))


async def redrive(asked: Asked) -> views.RedriveView:
    """POST /api/v1/queues/{queue}/dlq/redrive."""
    given = ops.Redrive(asked.queue, _filter(asked.body), asked.body.rate)
    return views.RedriveView(await asked.execute(given))


async def purge_dead_letters(asked: Asked) -> None:
    """DELETE /api/v1/queues/{queue}/dlq."""
    await asked.execute(ops.PurgeDeadLetters(asked.queue))


# the broker itself


async def info(asked: Asked) -> Any:
    """GET /api/v1/info."""
    return await asked.execute(ops.Info())


async def seal(asked: Asked) -> views.SealView:
    """POST /api/v1/seal."""
    return views.SealView(await asked.execute(ops.Seal()))


async def compact(asked: Asked) -> Any:
    """POST /api/v1/compact."""
    return await asked.execute(ops.Compact())


def _instant(text: str | None) -> datetime | None:
    return None if text is None else validation.instant(text, "timestamp")


def _filter(choice: models.LetterChoice) -> LetterFilter:
    ids = getattr(choice, "ids", None)
    return LetterFilter(
        group=choice.group,
        reason=choice.reason,
        error_contains=choice.error_contains,
        key=choice.key,
        since=choice.since,
        until=choice.until,
        ids=None if ids is None else frozenset(map(MessageId.parse, ids)),
        limit=choice.limit,
        from_offset=choice.from_offset,
    )
