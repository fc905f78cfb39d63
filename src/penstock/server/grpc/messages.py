"""Pushes, leases and settlements between protocol buffers and the broker.

A push becomes a batch a whole column at a time. Settling has a result for each receipt, and one commit for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np

from penstock import limits, validation
from penstock.batch import Batch, fields, layout
from penstock.batch.fields import seal_fields
from penstock.batch.layout import CONTENT_TYPE, HEADERS, KEY, PRIORITY, TRACE
from penstock.broker.access import Client
from penstock.broker.broker import Broker
from penstock.broker.streams import StreamRequest
from penstock.errors import InvalidField, PenstockError
from penstock.model import Outcome, Receipt, to_datetime
from penstock.push_items import Some, build_some
from penstock.replies import LeaseReply, Piece, PushReply
from penstock.requests import LeaseRequest, QueueChoice, Settling
from penstock.server.grpc.generated import queues_pb2 as pb
from penstock.server.grpc.values import (
    TURN_COUNT,
    convert,
    convert_many,
    error_of,
    group_of,
    micros,
    nonce_of,
    seconds,
    start_of,
    timestamp,
)

ORDERS: Final = ("fair", "listed")  # by their numbers
TOGETHER: Final = 2000  # messages that are looked at in one go


def batch_of(request: pb.PushRequest) -> Batch:
    """The messages of a push, however they came."""
    names = [name for name in ("messages", "payloads", "batch") if getattr(request, name)]
    if len(names) > 1:
        raise InvalidField(f"push: {' and '.join(names)} are both set", hint="use one of messages, payloads and batch")
    if request.batch:
        return Batch.parse(request.batch, validate=True)
    if not request.messages:
        return Batch.build(list(request.payloads))
    messages = list(request.messages)
    payloads = [m.payload for m in messages]
    return Batch.build(payloads) if _are_plain(request, payloads) else _with_fields(messages, payloads)


def some_of(request: pb.PushRequest) -> Some:
    """Those messages of a push that can be stored."""
    messages = list(request.messages)
    if request.batch or (messages and request.payloads):
        batch = batch_of(request)  # refuses what is there twice
        return batch, range(batch.count), {}
    if not messages:
        return build_some(list(request.payloads))
    return build_some(messages, lambda some: _with_fields(some, [message.payload for message in some]))


def check_count(request: pb.PushRequest) -> None:
    """Refuse more messages than a batch may have before anything is made of them."""
    count = len(request.messages) + len(request.payloads)
    if count > limits.batch_messages_max:
        raise InvalidField(f"batch: {count:,} messages is over the limit of {limits.batch_messages_max:,}")


def carry_trace(request: pb.PushRequest, trace: str) -> None:
    """Give the trace of a call to the messages that bring none of their own; a batch is taken as it is."""
    for payload in request.payloads:
        request.messages.add(payload=payload)
    del request.payloads[:]
    for message in request.messages:
        message.trace = message.trace or trace


def _with_fields(messages: list[pb.NewMessage], contents: list[bytes]) -> Batch:
    """Messages with more than a payload. A column that nobody set is known by its being empty throughout."""
    priorities, delays, ttls, attempts, kinds, keys, dedup_keys, traces, partitions, headers = _columns(messages)
    columns = [
        fields.priorities([value or _zero(m) for value, m in zip(priorities, messages, strict=True)]),
        fields.delays([value / 1000 for value in delays]) if any(delays) else fields.ABSENT,
        fields.deliver_ats(_instants(messages)),
        fields.ttls([value / 1000 or None for value in ttls]) if any(ttls) else fields.ABSENT,
        fields.max_attempts([value or None for value in attempts]) if any(attempts) else fields.ABSENT,
        fields.content_types(kinds, np.zeros(len(kinds), np.uint8)) if any(kinds) else fields.ABSENT,
        _texts(layout.KEY, keys),
        _texts(layout.DEDUP_KEY, dedup_keys),
        _texts(layout.TRACE, traces),
        fields.headers([dict(value) if value else None for value in headers]) if any(headers) else fields.ABSENT,
    ]
    places = fields.partitions([name or None for name in partitions]) if any(partitions) else None
    return Batch(seal_fields(columns, contents), places)


_FIELDS: Final = attrgetter(
    "priority",
    "delay_ms",
    "ttl_ms",
    "max_attempts",
    "content_type",
    "key",
    "dedup_key",
    "trace",
    "partition",
    "headers",
)


def _columns(messages: list[pb.NewMessage]) -> list[list[Any]]:
    """The fields of messages, some messages at a time: no other thread runs meanwhile."""
    columns: list[list[Any]] = [[] for _ in range(10)]
    for first in range(0, len(messages), TOGETHER):
        rows = zip(*map(_FIELDS, messages[first : first + TOGETHER]), strict=True)
        for column, values in zip(columns, rows, strict=True):
            column.extend(values)
    return columns


def _texts(flag: int, values: list[str]) -> fields.Field:
    return fields.texts(flag, [value or None for value in values]) if any(values) else fields.ABSENT


def _are_plain(request: pb.PushRequest, payloads: list[bytes]) -> bool:
    """Whether the messages are nothing but payloads: then the request is as long as those make it, and no longer."""
    bare = pb.PushRequest(queue=request.queue, durability=request.durability)
    if request.HasField("partition"):
        bare.partition = request.partition
    lengths = np.fromiter(map(len, payloads), np.int64, len(payloads))
    inner = np.where(lengths > 0, _field_bytes(lengths), 0)
    return int(_field_bytes(inner).sum()) + bare.ByteSize() == request.ByteSize()


def _field_bytes(lengths: Any) -> Any:
    """How long fields of these lengths are with their tag and their length, a varint."""
    return lengths + 2 + sum((lengths >> bits) > 0 for bits in (7, 14, 21, 28))


def _zero(message: pb.NewMessage) -> int:
    return 0 if message.HasField("priority") else limits.priority_default


def _instants(messages: list[pb.NewMessage]) -> list[Any]:
    return [to_datetime(micros(m.deliver_at, "deliver_at")) if m.HasField("deliver_at") else None for m in messages]


def partition_of(request: pb.PushRequest, batch: Batch) -> Any:
    """Where the messages want to go: all to one partition, or each to its own."""
    if request.HasField("partition"):
        if batch.partitions is not None:
            raise InvalidField("partition: set both for the push and for single messages", hint="use one of them")
        return fields.partitions([request.partition])[0]  # type: ignore[index]
    return batch.partitions


def push_response(reply: PushReply) -> pb.PushResponse:
    """Ids in the order of the messages."""
    if reply.failures:
        failures = [
            pb.PushFailure(place=row, error=pb.Error(code=why.code, message=why.message, hint=why.hint))
            for row, why in sorted(reply.failures.items())
        ]
        ids = ("" if id is None else str(id) for id in reply.places())
        return pb.PushResponse(ids=ids, duplicates=sorted(reply.duplicates), failures=failures)
    if len(reply.parts) == 1 and not reply.duplicates:
        partition, count, first, _ = reply.parts[0]
        place = f"{reply.queue}/{partition}/"
        return pb.PushResponse(ids=[f"{place}{offset}" for offset in range(first, first + count)])
    return pb.PushResponse(ids=map(str, reply.ids()), duplicates=sorted(reply.duplicates))


RESPONSE_BYTES: Final = 3 * limits.MIB  # about: clients take 4 MiB by default
STREAM_BATCH: Final = 100


def lease_request(request: pb.LeaseRequest) -> LeaseRequest:
    """What a consumer asks for."""
    leasing = validation.lease_request(
        request.max or 1,
        seconds(request, "lease_ms"),
        request.consumer,
        list(request.partitions) or None,
        request.auto_ack,
        start=start_of(request),
        types=list(request.task_types) or None,
    )
    return msgspec.structs.replace(leasing, member=request.member, generation=request.generation)


def lease_queues_request(request: pb.LeaseQueuesRequest) -> tuple[QueueChoice, LeaseRequest]:
    """What a consumer of several queues asks for."""
    choice = validation.queue_choice(list(request.queues), order_of(request))
    about = (request.max or 1, seconds(request, "lease_ms"), request.consumer, None, request.auto_ack)
    types = list(request.task_types) or None
    return choice, validation.lease_request(*about, start=start_of(request), types=types)


def order_of(request: pb.LeaseQueuesRequest | pb.StreamOpen) -> str:
    """Which queue comes first."""
    if not 0 <= request.order < len(ORDERS):
        raise InvalidField(f"order: {request.order} is not the number of an order")
    return ORDERS[request.order]


def stream_request(opening: pb.StreamOpen) -> StreamRequest:
    """What a stream is to deliver."""
    partitions = tuple(opening.partitions) or None
    queue, choice = validation.stream_queues(opening.queue, opening.queues, order_of(opening), partitions)
    return StreamRequest(
        queue,
        group_of(opening),
        opening.batch or STREAM_BATCH,
        seconds(opening, "lease_ms"),
        opening.consumer,
        partitions,
        opening.auto_ack,
        start_of(opening),
        choice,
    )


def lease_response(reply: LeaseReply) -> pb.LeaseResponse:
    """A lease as one answer; an empty one when nothing was leased."""
    if not reply.nonce:
        return pb.LeaseResponse()
    response = pb.LeaseResponse(lease_id=f"{reply.nonce:016x}", expires_at=timestamp(reply.expires_at))
    for piece in reply.pieces:
        columns = _Columns(reply, piece)
        for index, payload in enumerate(piece.payloads()):
            columns.add(response, index, payload)
    return response


class _Columns:
    """The deliveries of one piece; columns that are not there cost nothing."""

    def __init__(self, reply: LeaseReply, piece: Piece) -> None:
        self._queue = reply.queue
        self._nonce = f"{reply.nonce:016x}"
        self._piece = piece
        self._flags: int = piece.batch.flags
        self._pushed_at = timestamp(piece.pushed_at) if isinstance(piece.pushed_at, int) else None

    def add(self, response: pb.LeaseResponse, index: int, payload: bytes) -> None:
        piece, queue = self._piece, self._queue
        partition, offset, attempt = piece.partition(index), piece.offsets[index], piece.attempt(index)
        response.deliveries.add(
            id=f"{queue}/{partition}/{offset}",
            receipt=f"{queue}:{partition}:{offset}:{attempt}:{self._nonce}",
            payload=payload,
            attempt=attempt,
            pushed_at=self._pushed_at or timestamp(piece.pushed(index)),
            **self._rest(piece.row(index)) if self._flags else {"priority": limits.priority_default},
        )

    def _rest(self, row: int) -> dict[str, Any]:
        batch, flags = self._piece.batch, self._flags
        columns: dict[str, Any] = {
            "priority": int(batch.priority[row]) if flags & PRIORITY else limits.priority_default
        }
        if flags & CONTENT_TYPE:
            columns["content_type"] = int(batch.content_type[row])
        if flags & KEY:
            columns["key"] = batch.key(row)
        if flags & TRACE:
            columns["trace"] = batch.trace(row)
        if flags & HEADERS:
            columns["headers"] = batch.headers(row)
        return columns


def settling(settlement: pb.Settlement) -> Settling:
    """How deliveries are to end."""
    match settlement.WhichOneof("how"):
        case "ack":
            return validation.settling(Outcome.ACKED)
        case "nack":
            return validation.settling(Outcome.RETRIED, seconds(settlement.nack, "delay_ms"), settlement.nack.error)
        case "reject":
            return validation.settling(Outcome.REJECTED, error=settlement.reject.reason)
        case "release":
            return validation.settling(Outcome.RELEASED)
        case "snooze":
            return validation.settling(Outcome.SNOOZED, settlement.snooze.delay_ms / 1000)
        case _:
            raise InvalidField("how: not set", hint="use one of ack, nack, reject, release, snooze")


async def settle(broker: Broker, client: Client, settlements: Sequence[pb.Settlement]) -> pb.SettleResponse:
    """All of them. One that says nothing sensible is refused before any is begun."""
    checked = await convert(_checked, settlements)
    results: list[pb.SettleResult] = []
    for first in range(0, len(checked), TURN_COUNT):
        for some in await asyncio.gather(
            *(_one(broker, client, *pair) for pair in checked[first : first + TURN_COUNT])
        ):
            results += some
    return await convert_many(len(results), pb.SettleResponse, results=results)


def _checked(settlements: Sequence[pb.Settlement]) -> list[tuple[pb.Settlement, Settling]]:
    checked = [(settlement, settling(settlement)) for settlement in settlements]
    for settlement in settlements:
        if bool(settlement.lease_id) == bool(settlement.receipts):
            raise InvalidField("settle: needs either receipts or a lease_id", hint="use one of them")
    _check_count("settle", sum(len(settlement.receipts) or 1 for settlement in settlements))
    return checked


def _check_count(what: str, count: int) -> None:
    limit = limits.lease_messages_max
    if count > limit:
        raise InvalidField(f"{what}: {count:,} receipts is over the limit of {limit:,}", hint="send several requests")


async def _one(broker: Broker, client: Client, settlement: pb.Settlement, how: Settling) -> list[pb.SettleResult]:
    if settlement.lease_id:
        return [await _lease(broker, client, settlement.lease_id, how)]
    results, sound, receipts = await convert(_parsed_receipts, settlement)
    if receipts:
        await convert(_note_errors, sound, await broker.settled_each(client, receipts, how))
    return results


def _parsed_receipts(settlement: pb.Settlement) -> tuple[list[pb.SettleResult], list[pb.SettleResult], list[Receipt]]:
    """A result for each receipt, with an error for what is no receipt; those that are sound, and their receipts."""
    results = [pb.SettleResult(receipt=receipt) for receipt in settlement.receipts]
    receipts: list[Receipt] = []
    sound: list[pb.SettleResult] = []
    for result in results:
        try:
            receipts.append(Receipt.parse(result.receipt))
            sound.append(result)
        except PenstockError as error:
            result.error.CopyFrom(error_of(error))
    return results, sound, receipts


def _note_errors(results: list[pb.SettleResult], answers: Sequence[PenstockError | None]) -> None:
    for result, answer in zip(results, answers, strict=True):
        if answer is not None:
            result.error.CopyFrom(error_of(answer))


async def _lease(broker: Broker, client: Client, lease_id: str, how: Settling) -> pb.SettleResult:
    try:
        await broker.settled_lease(client, nonce_of(lease_id), how)
    except PenstockError as error:
        return pb.SettleResult(receipt=lease_id, error=error_of(error))
    return pb.SettleResult(receipt=lease_id)


async def extend(broker: Broker, client: Client, request: pb.ExtendRequest) -> pb.ExtendResponse:
    """Hold leases, each by itself."""
    seconds = validation.extension(request.lease_ms / 1000)
    _check_count("extend", len(request.receipts) + len(request.lease_ids))
    response = pb.ExtendResponse()
    for index, name in enumerate((*request.receipts, *request.lease_ids)):
        if index % TURN_COUNT == TURN_COUNT - 1:
            await asyncio.sleep(0)  # others have their turn
        result = response.results.add(receipt=name)
        try:
            nonce = Receipt.parse(name).nonce if ":" in name else nonce_of(name)
            result.expires_at.CopyFrom(timestamp(await broker.extended(client, nonce, seconds)))
        except PenstockError as error:
            result.error.CopyFrom(error_of(error))
    return response
