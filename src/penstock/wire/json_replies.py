"""Replies of the hot routes as JSON, written straight from columns: one formatting step for each message.

Names of queues and partitions hold nothing that JSON would have to escape, and ids and receipts are made of them and of
numbers, so they go into the text as they are. A payload goes in as it is only when it is JSON indeed: whoever pushed a
batch said so, and nobody has looked.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any, Final

import msgspec
import numpy as np

from penstock import limits
from penstock.batch import Batch, layout
from penstock.errors import PenstockError
from penstock.model import CONTENT_TYPE_NAMES, ContentType, to_datetime
from penstock.replies import LeaseReply, Piece, PushReply
from penstock.wire.errors import to_reply

encode: Final = msgspec.json.Encoder().encode
_raw: Final = msgspec.json.Decoder(msgspec.Raw).decode
_NOTHING: Final = b'{"lease_id":null,"expires_at":null,"messages":[]}'
# The content type of what is not plain JSON; bytes need not say so.
_KINDS: Final = {kind: b',"content_type":"%b"' % name.encode() for kind, name in CONTENT_TYPE_NAMES.items() if kind}


def is_json(payload: bytes) -> bool:
    """Whether bytes may stand where a JSON value is wanted, and come back as they are: no space around them."""
    try:
        return len(memoryview(_raw(payload))) == len(payload) and (payload.isascii() or bool(payload.decode()))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def are_json(payloads: Sequence[bytes]) -> bool:
    """The same of many."""
    try:
        if sum([len(memoryview(value)) for value in map(_raw, payloads)]) < sum(map(len, payloads)):
            return False
        everything = b",".join(payloads)
        return everything.isascii() or bool(everything.decode())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def instant(micros: int) -> bytes:
    """µs UTC as RFC 3339, in quotes."""
    return encode(to_datetime(micros))


def error_body(error: PenstockError) -> bytes:
    """`{"error": {"code", "message", "hint"}}`."""
    return encode({"error": error_fields(error)})


def error_fields(error: PenstockError) -> dict[str, Any]:
    """An error as JSON has it; `retry_after_ms` only when waiting helps."""
    reply = to_reply(error)
    fields: dict[str, Any] = {"code": reply.code, "message": reply.message, "hint": reply.hint}
    if reply.retry_after_seconds:
        fields["retry_after_ms"] = reply.retry_after_seconds * 1000
    return fields


# pushes


def push_reply(reply: PushReply) -> bytes:
    """`{"results": [{"id", "status"}]}`, in the order of the messages."""
    if len(reply.parts) == 1 and not reply.duplicates:
        partition, accepted, first, _ = reply.parts[0]
        before = f'{{"id":"{reply.queue}/{partition}/'
        numbers = f'","status":"queued"}},{before}'.join(map(str, range(first, first + accepted)))
        return f'{{"results":[{before}{numbers}","status":"queued"}}]}}'.encode()
    statuses = ["queued"] * reply.count
    for row in reply.duplicates:
        statuses[row] = "duplicate"
    results = [f'{{"id":"{id}","status":"{how}"}}' for id, how in zip(reply.ids(), statuses, strict=True)]
    return f'{{"results":[{",".join(results)}]}}'.encode()


def push_one_reply(queue: str, place: tuple[str, int]) -> bytes:
    """The same for one message, in the partition and at the offset of `place`."""
    return f'{{"results":[{{"id":"{queue}/{place[0]}/{place[1]}","status":"queued"}}]}}'.encode()


# leases


def lease_reply(reply: LeaseReply) -> bytes:
    """`{"lease_id", "expires_at", "messages": […]}`; all pieces are loaded."""
    if not reply.count:
        return _NOTHING
    expires_at = instant(reply.expires_at)
    messages = b",".join(chain.from_iterable(_rows(reply, piece, expires_at) for piece in reply.pieces))
    about = (reply.nonce, expires_at, reply.lease_seconds * 1000, reply.batch_max)
    return b'{"lease_id":"%016x","expires_at":%b,"lease_ms":%.3f,"batch_max":%d,"messages":[%b]}' % (*about, messages)


def _rows(reply: LeaseReply, piece: Piece, expires_at: bytes) -> Iterator[bytes]:
    payloads = piece.payloads()
    kind = None if piece.batch.flags & ~layout.CONTENT_TYPE else _one_kind(piece, payloads)
    if kind is None or not isinstance(piece.attempts, int) or not isinstance(piece.pushed_at, int):
        return _full_rows(reply, piece, payloads, expires_at)
    return _plain_rows(reply, piece, payloads, kind, expires_at)


def _one_kind(piece: Piece, payloads: Sequence[bytes]) -> ContentType | None:
    """The content type of all rows, when it is one and the payloads keep to it."""
    if not isinstance(piece.partitions, str):
        return None
    column = piece.batch.content_type
    if column is None:
        return ContentType.BYTES
    kinds = set(column[_index(piece.rows)].tolist())
    if kinds == {ContentType.JSON} and are_json(payloads):
        return ContentType.JSON
    return ContentType.BYTES if kinds == {ContentType.BYTES} else None


def _plain_rows(
    reply: LeaseReply, piece: Piece, payloads: Sequence[bytes], kind: ContentType, expires_at: bytes
) -> Iterator[bytes]:
    """Messages that differ in nothing but offset and payload: all the rest is written once."""
    queue, partition, attempt = reply.queue, piece.partition(0), piece.attempt(0)
    content = '"payload":%b' if kind == ContentType.JSON else '"payload_base64":"%b"'
    template = (
        f'{{"id":"{queue}/{partition}/%d",{content},"key":null,"headers":{{}},"priority":{limits.priority_default},'
        f'"attempt":{attempt},"receipt":"{queue}:{partition}:%d:{attempt}:{reply.nonce:016x}",'
        f'"pushed_at":{instant(piece.pushed(0)).decode()},"expires_at":{expires_at.decode()}}}'
    ).encode()
    contents = payloads if kind == ContentType.JSON else [b2a_base64(each, newline=False) for each in payloads]
    offsets = _listed(piece.offsets)
    return map(template.__mod__, zip(offsets, contents, offsets, strict=True))


def _full_rows(reply: LeaseReply, piece: Piece, payloads: Sequence[bytes], expires_at: bytes) -> Iterator[bytes]:
    """Messages with fields of their own."""
    batch, count = piece.batch, len(piece.offsets)
    rows = np.arange(batch.count)[_index(piece.rows)]
    kinds = _fixed(batch.content_type, rows, ContentType.BYTES)
    columns = zip(
        _listed(piece.offsets),
        _partitions(piece),
        map(content_of, payloads, kinds),
        map(encode, _texts(batch, layout.KEY, rows)),
        _headers(batch, rows),
        _fixed(batch.priority, rows, limits.priority_default),
        repeat(piece.attempts, count) if isinstance(piece.attempts, int) else piece.attempts,
        _pushed(piece),
        _named(b"trace", _texts(batch, layout.TRACE, rows)),
        _named(b"dedup_key", _texts(batch, layout.DEDUP_KEY, rows)),
        strict=True,
    )
    queue, nonce = reply.queue.encode(), b"%016x" % reply.nonce
    for offset, partition, content, key, headers, priority, attempt, pushed_at, trace, dedup_key in columns:
        yield (
            b'{"id":"%b/%b/%d",%b,"key":%b,"headers":%b,"priority":%d,"attempt":%d,"receipt":"%b:%b:%d:%d:%b",'
            b'"pushed_at":%b,"expires_at":%b%b%b}'
        ) % (
            *(queue, partition, offset, content, key, headers, priority, attempt),
            *(queue, partition, offset, attempt, nonce, pushed_at, expires_at, trace, dedup_key),
        )


def _partitions(piece: Piece) -> Iterable[bytes]:
    if isinstance(piece.partitions, str):
        return repeat(piece.partitions.encode(), len(piece.offsets))
    return [partition.encode() for partition in piece.partitions]


def _headers(batch: Batch, rows: Any) -> Iterable[bytes]:
    if not batch.flags & layout.HEADERS:
        return repeat(b"{}", len(rows))
    return [encode(batch.headers(row) or {}) for row in rows.tolist()]


def _pushed(piece: Piece) -> Iterable[bytes]:
    if isinstance(piece.pushed_at, int):
        return repeat(instant(piece.pushed_at), len(piece.offsets))
    return [instant(int(micros)) for micros in piece.pushed_all()]


def content_of(payload: bytes, kind: int) -> bytes:
    """The payload with its name: as it is when it is JSON, in base64 otherwise."""
    if kind == ContentType.JSON and is_json(payload):
        return b'"payload":%b' % payload
    if kind == ContentType.TASK and is_json(payload):
        return b'"payload":%b%b' % (payload, _KINDS[ContentType.TASK])
    return b'"payload_base64":"%b"%b' % (
        b2a_base64(payload, newline=False),
        _KINDS.get(ContentType(kind), b""),
    )


def _named(name: bytes, values: Sequence[str | None]) -> list[bytes]:
    """Fields that only those have that say something."""
    return [b"" if value is None else b',"%b":%b' % (name, encode(value)) for value in values]


def _index(rows: Any) -> Any:
    return np.array(rows, np.int64) if isinstance(rows, list) else rows


def _listed(offsets: Any) -> Sequence[int]:
    return offsets if isinstance(offsets, range) else list(map(int, offsets))


def _texts(batch: Batch, flag: int, rows: Any) -> Sequence[str | None]:
    column = batch.text(flag)
    return [None] * len(rows) if column is None else column.take(rows).to_list()


def _fixed(column: Any, rows: Any, default: int) -> Sequence[int]:
    return [default] * len(rows) if column is None else column[rows].tolist()


# settles


def settle_reply(receipts: Sequence[str], outcomes: Sequence[PenstockError | None]) -> bytes:
    """`{"results": [{"receipt", "status"}]}`; when nothing could be settled, the first error stands beside them."""
    refused = [outcome for outcome in outcomes if outcome is not None]
    if not refused:
        # Receipts that were good are those that were issued: nothing in them is to be escaped.
        rows = '","status":"ok"},{"receipt":"'.join(receipts)
        return f'{{"results":[{{"receipt":"{rows}","status":"ok"}}]}}'.encode()
    results = [_settled(receipt, outcome) for receipt, outcome in zip(receipts, outcomes, strict=True)]
    if len(refused) < len(results):
        return encode({"results": results})
    return encode({"error": error_fields(refused[0]), "results": results})


def _settled(receipt: str, outcome: PenstockError | None) -> dict[str, Any]:
    if outcome is None:
        return {"receipt": receipt, "status": "ok"}
    return {"receipt": receipt, "status": "error", "error": error_fields(outcome)}
