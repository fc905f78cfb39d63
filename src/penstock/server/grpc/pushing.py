"""From a push to a batch, a whole column at a time; and its reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock import limits
from penstock.batch import Batch, fields, layout
from penstock.batch.build import seal_columns
from penstock.errors import InvalidField
from penstock.model import to_datetime
from penstock.replies import PushReply
from penstock.server.grpc.generated import queues_pb2 as pb
from penstock.server.grpc.values import micros


def batch_of(request: pb.PushRequest) -> Batch:
    """The messages of a push, however they came."""
    given = [name for name in ("messages", "payloads", "batch") if getattr(request, name)]
    if len(given) > 1:
        raise InvalidField(
            f"push: {' and '.join(given)} are both there", hint="messages, payloads or a batch: one of them"
        )
    if request.batch:
        return Batch.parse(request.batch, validate=True)
    return _batch_of_messages(request.messages) if request.messages else Batch.build(list(request.payloads))


def _batch_of_messages(given: Sequence[pb.NewMessage]) -> Batch:
    messages = list(given)
    columns = [
        fields.priorities([m.priority if m.HasField("priority") else limits.priority_default for m in messages]),
        fields.delays([m.delay_ms / 1000 for m in messages]),
        fields.deliver_ats(_instants(messages)),
        fields.ttls([m.ttl_ms / 1000 or None for m in messages]),
        fields.max_attempts([m.max_attempts or None for m in messages]),
        _content_types([m.content_type for m in messages]),
        fields.texts(layout.KEY, _texts(messages, "key")),
        fields.texts(layout.DEDUP_KEY, _texts(messages, "dedup_key")),
        fields.texts(layout.TRACE, _texts(messages, "trace")),
        fields.headers([dict(headers) if (headers := m.headers) else None for m in messages]),
    ]
    flags = sum(flag for flag, _ in columns)
    buffers = [buffer for _, column in columns for buffer in column]
    payloads = fields.binary([m.payload for m in messages], "payload", limits.payload_bytes_max)
    return Batch(seal_columns(flags, buffers, payloads), fields.partitions(_texts(messages, "partition")))


def _texts(messages: list[pb.NewMessage], field: str) -> list[Any]:
    values = [getattr(m, field) for m in messages]
    if not any(values) and not any(m.HasField(field) for m in messages):
        return [None] * len(messages)
    return [value if m.HasField(field) else None for value, m in zip(values, messages, strict=True)]


def _instants(messages: list[pb.NewMessage]) -> list[Any]:
    return [to_datetime(micros(m.deliver_at, "deliver_at")) if m.HasField("deliver_at") else None for m in messages]


def _content_types(kinds: list[Any]) -> fields.Field:
    return fields.content_types(kinds, np.zeros(len(kinds), np.uint8)) if any(kinds) else fields.ABSENT


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
