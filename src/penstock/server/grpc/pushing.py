"""From a push to a batch, a whole column at a time; and its reply."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final

import numpy as np

from penstock import limits
from penstock.batch import Batch, fields, layout
from penstock.batch.fields import seal_fields
from penstock.errors import InvalidField
from penstock.model import to_datetime
from penstock.replies import PushReply
from penstock.server.grpc.generated import queues_pb2 as pb
from penstock.server.grpc.values import micros

TOGETHER: Final = 2000  # messages that are looked at in one go


def batch_of(request: pb.PushRequest) -> Batch:
    """The messages of a push, however they came."""
    given = [name for name in ("messages", "payloads", "batch") if getattr(request, name)]
    if len(given) > 1:
        raise InvalidField(
            f"push: {' and '.join(given)} are both there", hint="messages, payloads or a batch: one of them"
        )
    if request.batch:
        return Batch.parse(request.batch, validate=True)
    if not request.messages:
        return Batch.build(list(request.payloads))
    messages = list(request.messages)
    payloads = [m.payload for m in messages]
    return Batch.build(payloads) if _are_plain(request, payloads) else _with_fields(messages, payloads)


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
            raise InvalidField("partition: it is there for the push and for single messages", hint="one of the two")
        return fields.partitions([request.partition])[0]  # type: ignore[index]
    return batch.partitions


def push_response(reply: PushReply) -> pb.PushResponse:
    """Ids in the order of the messages."""
    if len(reply.parts) == 1 and not reply.duplicates:
        partition, count, first, _ = reply.parts[0]
        place = f"{reply.queue}/{partition}/"
        return pb.PushResponse(ids=[f"{place}{offset}" for offset in range(first, first + count)])
    return pb.PushResponse(ids=map(str, reply.ids()), duplicates=sorted(reply.duplicates))
