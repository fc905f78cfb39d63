"""JSON from the client's side: pushes written from columns, answers read into replies.

The inverse of `wire/json_messages.py`. Payloads are kept byte for byte: those that are JSON
travel as they are, all others in base64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import UNSET, Raw, Struct

from penstock import limits
from penstock.batch import Batch, layout
from penstock.model import CONTENT_TYPE_NAMES, ContentType, Message, MessageId, to_datetime, to_micros
from penstock.replies import LeaseReply, Piece, PushFailure, PushReply
from penstock.requests import PartitionChoice
from penstock.wire.json_messages import batch_of, is_json
from penstock.wire.json_models import MessageView, NewMessage, PushResults

PIECE_BYTES_MAX: Final = limits.batch_bytes_max // 2
_CONTENT_TYPES: Final = {name: kind for kind, name in CONTENT_TYPE_NAMES.items()}


class Delivered(NewMessage, kw_only=True, forbid_unknown_fields=False):
    """A message that was leased; what a receipt is made of, the client knows."""

    id: str
    attempt: int
    pushed_at: datetime


class Lease(Struct):
    """The answer to a lease."""

    lease_id: str | None
    expires_at: datetime | None
    messages: list[Delivered]
    lease_ms: float = 0.0
    batch_max: int = 0


_lease: Final = msgspec.json.Decoder(Lease).decode
_pushed: Final = msgspec.json.Decoder(PushResults).decode


# pushes


def messages_of(batch: Batch, partition: PartitionChoice) -> list[dict[str, Any]]:
    """The messages of a batch as JSON has them; only fields that someone set."""
    kinds = batch.content_type
    contents = batch.payloads()
    if kinds is None:
        messages: list[dict[str, Any]] = [{"payload_base64": payload} for payload in contents]
    else:
        messages = list(map(_content, contents, map(ContentType, kinds.tolist())))
    for name, values in _fields(batch, partition):
        for message, value in zip(messages, values, strict=True):
            if value is not None:
                message[name] = value
    return messages


def _content(payload: bytes, kind: ContentType) -> dict[str, Any]:
    if kind is ContentType.JSON and is_json(payload):
        return {"payload": Raw(payload)}
    if kind is ContentType.TASK and is_json(payload):
        return {"payload": Raw(payload), "content_type": CONTENT_TYPE_NAMES[kind]}
    return {"payload_base64": payload, "content_type": CONTENT_TYPE_NAMES[kind]}


def _fields(batch: Batch, partition: PartitionChoice) -> Iterator[tuple[str, Iterable[Any]]]:
    """Fields that are there, with a value or None for each message."""
    for flag, name, shown in _FIXED:
        column = batch.fixed(flag)
        if column is not None:
            yield name, map(shown, column.tolist())
    for flag in layout.TEXTS:
        texts = batch.text(flag)
        if texts is not None:
            yield layout.NAMES[flag], texts.to_list()
    if batch.flags & layout.HEADERS:
        yield "headers", [batch.headers(row) or None for row in range(batch.count)]
    if partition is not None:
        yield "partition", [partition] * batch.count if isinstance(partition, int | str) else partition


def _milliseconds(micros: int) -> float | None:
    return micros / 1000 if micros else None


_FIXED: Final = (
    (layout.PRIORITY, "priority", int),
    (layout.DELAY, "delay_ms", _milliseconds),
    (layout.DELIVER_AT, "deliver_at", lambda micros: to_datetime(micros) if micros else None),
    (layout.TTL, "ttl_ms", _milliseconds),
    (layout.MAX_ATTEMPTS, "max_attempts", lambda attempts: attempts or None),
)


def read_pushed(queue: str, body: bytes) -> PushReply:
    """Where each message went."""
    results = _pushed(body).results
    stored = [row for row, result in enumerate(results) if result.status != "failed"]
    ids = [MessageId.parse(str(results[row].id)) for row in stored]
    duplicates = {place: ids[place] for place, row in enumerate(stored) if results[row].status == "duplicate"}
    failures = {
        row: PushFailure(result.error.code, result.error.message, result.error.hint)
        for row, result in enumerate(results)
        if result.error is not UNSET
    }
    reply = PushReply(queue, len(ids), list(_parts(ids, duplicates)), duplicates)
    return reply.among(stored, len(results), failures) if failures else reply


def _parts(ids: list[MessageId], duplicates: dict[int, MessageId]) -> Iterator[tuple[str, int, int, Any]]:
    """Runs of offsets: one of each partition, since a push is appended in one go."""
    runs: dict[str, list[list[int]]] = {}
    for row, id in enumerate(ids):
        if row in duplicates:
            continue
        known = runs.setdefault(id.partition, [])
        if not known or ids[known[-1][-1]].offset + 1 != id.offset:
            known.append([])
        known[-1].append(row)
    for partition, found in runs.items():
        for rows in found:
            yield partition, len(rows), ids[rows[0]].offset, np.array(rows, np.int64)


# leases


def read_leased(queue: str, group: str, body: bytes) -> LeaseReply:
    """A lease, its messages in batches again."""
    lease = _lease(body)
    nonce = int(lease.lease_id, 16) if lease.lease_id else 0
    expires_at = 0 if lease.expires_at is None else to_micros(lease.expires_at, "expires_at")
    pieces = [_piece(messages) for messages in _portions(lease.messages)]
    seconds = lease.lease_ms / 1000
    return LeaseReply(queue, group, nonce, expires_at, pieces, len(lease.messages), seconds, lease.batch_max)


def _portions(messages: list[Delivered]) -> Iterator[list[Delivered]]:
    """As many at a time as fit into a batch with room to spare."""
    first = size = 0
    for index, message in enumerate(messages):
        content = message.payload_base64 if message.payload is UNSET else memoryview(message.payload)
        size += len(content or b"")
        if size > PIECE_BYTES_MAX and index > first:
            yield messages[first:index]
            first, size = index, 0
    if messages:
        yield messages[first:]


def _piece(messages: Sequence[Delivered]) -> Piece:
    ids = [MessageId.parse(message.id) for message in messages]
    names = [id.partition for id in ids]
    return Piece(
        batch_of(messages, "messages"),
        slice(0, len(ids)),
        names[0] if len(set(names)) == 1 else names,
        [id.offset for id in ids],
        [message.attempt for message in messages],
        [to_micros(message.pushed_at, "pushed_at") for message in messages],
    )


# browsing


def message_of(view: MessageView) -> Message:
    """A message that was read."""
    payload = view.payload_base64 if view.payload is UNSET else bytes(view.payload)
    return Message(
        payload=payload,
        key=view.key,
        priority=view.priority,
        headers=view.headers or None,
        dedup_key=view.dedup_key,
        partition=view.partition,
        max_attempts=view.max_attempts,
        trace=view.trace,
        content_type=_CONTENT_TYPES[view.content_type],
        id=MessageId.parse(view.id),
        pushed_at=view.pushed_at,
        available_at=view.available_at,
        expires_at=view.expires_at,
    )
