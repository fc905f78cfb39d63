"""Messages in JSON: from a push to a batch, and from a lease to its reply, a whole column at a time.

Most pushes hold payloads and nothing else: these are decoded to their bytes alone. Any other field makes the decoder
look again, for all of them; then only the fields that someone set become columns. Replies are written straight from
columns, one formatting step for each message.

Names of queues and partitions hold nothing that JSON would have to escape, and ids and receipts are made of them and of
numbers, so they go into the text as they are. A payload goes in as it is only when it is JSON indeed: whoever pushed a
batch said so, and nobody has looked.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, Final, cast

import msgspec
import numpy as np
from msgspec import UNSET, Raw

from penstock import limits, validation
from penstock.batch import Batch, encode_one_with, fields, layout
from penstock.batch.fields import seal_columns, seal_fields
from penstock.batch.layout import PADS, Buffer
from penstock.errors import BadReceipt, InputError, InvalidField, PenstockError
from penstock.model import CONTENT_TYPE_NAMES, ContentType, Durability, Message, Receipt, to_datetime
from penstock.push_items import Some, build_some
from penstock.replies import LeaseReplies, LeaseReply, Piece, PushFailure, PushReply
from penstock.requests import PartitionChoice, Settling
from penstock.wire import json_reader
from penstock.wire.errors import to_reply
from penstock.wire.json_models import (
    MediaType,
    MessageView,
    NewMessage,
    PlainPush,
    ProducerSequence,
    Push,
    RetryView,
    Settle,
    SettlePart,
    SkippingPush,
)
from penstock.wire.json_reader import Reader, placed

_plain: Final = msgspec.json.Decoder(PlainPush).decode
_full: Final = Reader(Push)
_skipping: Final = Reader(SkippingPush)
_one: Final = Reader(NewMessage)
# What is pushed: a tombstone that was read is JSON, and where it goes it is marked again.
_CONTENT_TYPES: Final = {name: fields.check_content_type(kind) for kind, name in CONTENT_TYPE_NAMES.items()}

_FREED_MAX: Final = 20_000
Producer = tuple[int, int, int]


class PushRequest(msgspec.Struct, frozen=True, gc=False):
    """What a push asks for, as a broker takes it."""

    batch: Batch
    partition: PartitionChoice = None
    durability: Durability | None = None
    producer: Producer | None = None
    skips: bool = False
    rows: Sequence[int] = ()  # with `skips`: the places of the messages of the batch
    failures: Mapping[int, PushFailure] = {}  # the others

    def whole(self, reply: PushReply) -> PushReply:
        """The reply to the push, from that to its batch."""
        if not self.skips:
            return reply
        return reply.among(self.rows, len(self.rows) + len(self.failures), self.failures)


def read_push(body: bytes, trace: str | None = None) -> PushRequest:
    """The messages of a push. `trace` is for those that bring none of their own."""
    plain = read_plain(body) if trace is None else None
    if plain is not None and plain.messages:
        batch = _plain_batch([message.payload for message in plain.messages])
        free(plain.messages)
        return PushRequest(batch, producer=producer_of(plain.producer))
    if b'"on_error"' in body:
        some = _skipping.read(body)
        if some.on_error == "skip":
            return skipping_request(some, trace)
    push = _full.read(body)
    batch = batch_of(push.messages, "messages", trace)
    free(push.messages)
    return PushRequest(batch, batch.partitions, push.durability, producer_of(push.producer))


def skipping_request(push: SkippingPush, trace: str | None) -> PushRequest:
    """Those messages of a push that can be read and stored."""
    batch, rows, failures = _some_of(push.messages, trace)
    return PushRequest(batch, batch.partitions, push.durability, producer_of(push.producer), True, rows, failures)


def _some_of(messages: Sequence[Raw], trace: str | None = None) -> Some:
    """A batch of those messages that can be read and stored; errors are those of one message, not of its place."""

    def build(items: Any) -> Batch:
        try:
            return batch_of([_one.read(bytes(item)) for item in items], "", trace)
        except InputError as error:
            raise type(error)(error.message.removeprefix("[0].").lstrip("."), hint=error.hint) from None

    return build_some(messages, build)


def free(items: list[Any]) -> None:
    """Empty a list a few items at a time: to free a million of them at once takes long, and nobody else runs then."""
    while len(items) > _FREED_MAX:
        del items[-_FREED_MAX:]


def producer_of(sequence: ProducerSequence | None) -> Producer | None:
    """Who pushes, and which of its pushes this is."""
    return None if sequence is None else (int(sequence.id, 16), sequence.epoch, sequence.sequence)


def read_plain(body: bytes) -> PlainPush | None:
    """A push of messages that are nothing but JSON; None when there is more to them, or something is wrong."""
    try:
        plain = _plain(body) if len(body) <= json_reader.PIECE_BYTES else json_reader.decode(PlainPush, body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # the full reader finds out what it is
    if len(plain.messages) > limits.batch_messages_max:
        return None
    return plain if body.isascii() or _is_utf8(body) else None


def _is_utf8(body: bytes) -> bool:
    try:
        json_reader.check_utf8(body)
    except UnicodeDecodeError:
        return False
    return True


def _plain_batch(payloads: Sequence[Any]) -> Batch:
    """Payloads of JSON. They are not copied but once, into the batch."""
    count = len(payloads)
    try:
        if count == 1:
            return Batch(encode_one_with(bytes(payloads[0]), content_type=ContentType.JSON))
        column = fields.binary(payloads, "payload", limits.payload_bytes_max)
        kinds: list[Buffer] = [bytes((ContentType.JSON,)) * count, PADS[-count % 8]]
        return Batch(seal_columns(layout.CONTENT_TYPE, kinds, column))
    except InputError as error:
        raise placed(_item(error), "messages") from None


def batch_of(messages: Sequence[NewMessage], within: str, trace: str | None = None) -> Batch:
    """A batch of messages with any fields; errors are placed `within` the body."""
    try:
        contents, kinds = _contents(messages)
        columns = [
            fields.priorities([message.priority for message in messages]),
            fields.delays([message.delay_ms / 1000 for message in messages]),
            fields.deliver_ats([message.deliver_at for message in messages]),
            _ttls(messages),
            fields.max_attempts([message.max_attempts for message in messages]),
            fields.fixed(layout.CONTENT_TYPE, kinds),
            fields.texts(layout.KEY, [message.key for message in messages]),
            fields.texts(layout.DEDUP_KEY, [message.dedup_key for message in messages]),
            fields.texts(layout.TRACE, [message.trace if message.trace is not None else trace for message in messages]),
            fields.headers([message.headers for message in messages]),
        ]
        data = seal_fields(columns, contents)
        return Batch(data, fields.partitions([message.partition for message in messages]))
    except InputError as error:
        raise placed(_item(error), within) from None


def _item(error: InputError) -> InputError:
    """A batch of one does not say which item it was."""
    if error.message.startswith(("item ", "batch: ")):
        return error
    return type(error)(f"item 0: {error.message}", hint=error.hint)


def _contents(messages: Sequence[NewMessage]) -> tuple[list[Any], Any]:
    """Payloads and their content types; None when all are bytes."""
    contents: list[Any] = [message.payload for message in messages]
    encoded = [message.payload_base64 for message in messages]
    content_types = [message.content_type for message in messages]
    if encoded.count(None) == content_types.count(None) == len(messages) and UNSET not in contents:
        return contents, np.full(len(messages), ContentType.JSON, np.uint8)
    kinds = bytearray()
    for row, message in enumerate(messages):
        content, kind = _content(message, row)
        contents[row] = content
        kinds.append(kind)
    return contents, np.frombuffer(kinds, np.uint8) if any(kinds) else None


def _content(message: NewMessage, row: int) -> tuple[Any, ContentType]:
    is_json = message.payload is not UNSET
    if is_json == (message.payload_base64 is not None):
        both = "both are given" if is_json else "neither is given"
        raise InvalidField(f"item {row}: payload: {both}", hint="give either payload (JSON) or payload_base64 (bytes)")
    if is_json:
        kind = _CONTENT_TYPES[message.content_type or CONTENT_TYPE_NAMES[ContentType.JSON]]
        if kind == ContentType.TEXT:
            return _text_of(message, row), kind
        if kind not in (ContentType.JSON, ContentType.TASK):
            hint = "use application/json, text/plain for a string, or payload_base64 for bytes"
            raise InvalidField(f"item {row}: content_type: a payload in JSON is not {message.content_type}", hint=hint)
        return message.payload, kind
    return message.payload_base64, _CONTENT_TYPES[message.content_type or CONTENT_TYPE_NAMES[ContentType.BYTES]]


def _text_of(message: NewMessage, row: int) -> bytes:
    """Text is a JSON string in JSON, and is stored without its quotes and escapes."""
    try:
        return msgspec.json.decode(cast(msgspec.Raw, message.payload), type=str).encode()
    except (msgspec.DecodeError, UnicodeEncodeError):
        problem = f"item {row}: payload: with content_type text/plain it must be a JSON string"
        raise InvalidField(problem, hint="omit content_type to push JSON") from None


def _ttls(messages: Sequence[NewMessage]) -> fields.Field:
    column = [message.ttl_ms for message in messages]
    return fields.ttls([None if life is None else life / 1000 for life in column])


encode: Final = msgspec.json.Encoder().encode
_raw: Final = msgspec.json.Decoder(msgspec.Raw).decode
_NOTHING: Final = b'{"lease_id":null,"expires_at":null,"messages":[]}'
_JSON_KINDS: Final = (ContentType.JSON, ContentType.TASK, ContentType.TOMBSTONE)
_KINDS: Final = {kind: b',"content_type":"%b"' % name.encode() for kind, name in CONTENT_TYPE_NAMES.items()}


def is_json(payload: bytes) -> bool:
    """Whether bytes may stand where a JSON value is wanted, and come back as they are: no space around them."""
    try:
        return len(memoryview(_raw(payload))) == len(payload) and (payload.isascii() or bool(payload.decode()))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def are_json(payloads: Sequence[bytes]) -> bool:
    """Whether `is_json()` holds for every payload."""
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
    """An error as JSON has it; `retry_after_ms` only when waiting helps, `address` only when another node is asked."""
    reply = to_reply(error)
    fields: dict[str, Any] = {"code": reply.code, "message": reply.message, "hint": reply.hint}
    if reply.retry_after_seconds:
        fields["retry_after_ms"] = reply.retry_after_seconds * 1000
    if reply.address:
        fields["address"] = reply.address
    return fields


# pushes


def push_reply(reply: PushReply) -> bytes:
    """`{"results": [{"id", "status"}]}`, in the order of the messages."""
    if reply.failures:
        return _some_results(reply)
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


def _some_results(reply: PushReply) -> bytes:
    results: list[dict[str, Any]] = []
    for row, id in enumerate(reply.places()):
        failure = reply.failures.get(row)
        if failure is not None:
            error = {"code": failure.code, "message": failure.message, "hint": failure.hint}
            results.append({"status": "failed", "error": error})
        else:
            results.append({"id": str(id), "status": "duplicate" if row in reply.duplicates else "queued"})
    return encode({"results": results})


def push_one_reply(queue: str, place: tuple[str, int]) -> bytes:
    """The reply to a push of one message, in the partition and at the offset of `place`."""
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


def lease_queues_reply(reply: LeaseReplies) -> bytes:
    """`{"leases": [{"queue", "lease_id", "expires_at", "messages": […]}, …]}`."""
    leases = (b'{"queue":%b,%b' % (encode(lease.queue), lease_reply(lease)[1:]) for lease in reply.leases)
    return b'{"leases":[%b]}' % b",".join(leases)


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
        f'{{"id":"{queue}/{partition}/%d",{content}{_KINDS[kind].decode()},"key":null,"headers":{{}},"priority":{limits.priority_default},'
        f'"attempt":{attempt},"receipt":"{queue}:{partition}:%d:{attempt}:{reply.nonce:016x}",'
        f'"pushed_at":{instant(piece.pushed(0)).decode()},"expires_at":{expires_at.decode()}}}'
    ).encode()
    contents = payloads if kind == ContentType.JSON else [b2a_base64(payload, newline=False) for payload in payloads]
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
    """The payload and its content type: JSON as it is, text as a string, and in base64 what is neither."""
    json = json_of(payload, kind)
    name = _KINDS[ContentType(kind)]
    if json is not None:
        return b'"payload":%b%b' % (json, name)
    return b'"payload_base64":"%b"%b' % (b2a_base64(payload, newline=False), name)


def json_of(payload: bytes, kind: int) -> bytes | None:
    """A payload as a JSON value; None when it is bytes, or not what its content type says."""
    if kind in _JSON_KINDS:
        return payload if is_json(payload) else None
    if kind != ContentType.TEXT:
        return None
    try:
        return encode(payload.decode())
    except UnicodeDecodeError:
        return None


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


# messages that were read


def message_view(message: Message) -> MessageView:
    """A message as it lies in its queue."""
    assert message.id is not None
    assert message.pushed_at is not None
    kind = message.content_type or ContentType.BYTES
    payload = cast(bytes, message.payload)  # of a message that was read
    json = json_of(payload, kind)
    shown = {"payload_base64": payload} if json is None else {"payload": msgspec.Raw(json)}
    return MessageView(
        id=str(message.id),
        partition=message.id.partition,
        offset=message.id.offset,
        content_type=cast(MediaType, CONTENT_TYPE_NAMES[kind]),
        key=message.key,
        headers=message.headers or {},
        priority=int(message.priority),
        dedup_key=message.dedup_key,
        max_attempts=message.max_attempts,
        trace=message.trace,
        pushed_at=message.pushed_at,
        available_at=message.available_at or message.pushed_at,
        expires_at=message.expires_at,
        retry=msgspec.UNSET if message.retry is None else RetryView(**message.retry._asdict()),
        **shown,
    )


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


# settling


def settling_of(request: Settle | SettlePart) -> Settling:
    """How deliveries end, as a request says."""
    delay_ms = getattr(request, "delay_ms", None)
    error = getattr(request, "error", "") or getattr(request, "reason", "")
    return validation.settling(request.outcome, None if delay_ms is None else delay_ms / 1000, error)


def lease_of(request: Settle) -> int | None:
    """The lease that is meant; None when it is receipts instead."""
    if (request.receipts is None) == (request.lease_id is None):
        which = "neither is given" if request.receipts is None else "both are given"
        raise InvalidField(f"receipts: {which}", hint="give either receipts or lease_id")
    return None if request.lease_id is None else int(request.lease_id, 16)


def extension_view(answer: Any) -> dict[str, Any]:
    """The result for a lease that was to be held: when it expires now, or why it is lost."""
    if isinstance(answer, PenstockError):
        return {"status": "error", "error": error_fields(answer)}
    return {"status": "ok", "expires_at": msgspec.Raw(instant(answer))}


def receipts_of(texts: Sequence[str], place: str = "receipts") -> list[Receipt]:
    """Receipts from their texts; the first that is none is named."""
    try:
        return [Receipt.parse(text) for text in texts]
    except BadReceipt:
        for index, text in enumerate(texts):
            try:
                Receipt.parse(text)
            except BadReceipt as error:
                raise BadReceipt(f"{place}[{index}]: {error.message}") from None
        raise
