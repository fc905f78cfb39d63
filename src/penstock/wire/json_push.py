"""From the JSON of a push to a batch, a whole column at a time.

Most pushes hold payloads and nothing else: these are decoded to their bytes alone. Any other field makes the decoder
look again, for all of them; then only the fields that someone set become columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import UNSET

from penstock import limits
from penstock.batch import Batch, encode_one_with, fields, layout
from penstock.batch.fields import seal_columns, seal_fields
from penstock.batch.layout import PADS, Buffer
from penstock.errors import InputError, InvalidField
from penstock.model import CONTENT_TYPE_NAMES, ContentType, Durability
from penstock.requests import PartitionChoice
from penstock.wire import json_pieces
from penstock.wire.json_errors import Reader, placed
from penstock.wire.json_models import NewMessage, PlainPush, ProducerSequence, Push

_plain: Final = msgspec.json.Decoder(PlainPush).decode
_full: Final = Reader(Push)
_CONTENT_TYPES: Final = {name: kind for kind, name in CONTENT_TYPE_NAMES.items()}

_FREED_MAX: Final = 20_000
Producer = tuple[int, int, int]


class PushRequest(msgspec.Struct, frozen=True, gc=False):
    """What a push asks for, as a broker takes it."""

    batch: Batch
    partition: PartitionChoice = None
    durability: Durability | None = None
    producer: Producer | None = None


def read_push(body: bytes, trace: str | None = None) -> PushRequest:
    """The messages of a push. `trace` is for those that bring none of their own."""
    plain = read_plain(body) if trace is None else None
    if plain is not None and plain.messages:
        batch = _plain_batch([message.payload for message in plain.messages])
        free(plain.messages)
        return PushRequest(batch, producer=producer_of(plain.producer))
    push = _full.read(body)
    batch = batch_of(push.messages, "messages", trace)
    free(push.messages)
    return PushRequest(batch, batch.partitions, push.durability, producer_of(push.producer))


def free(items: list[Any]) -> None:
    """Empty a list a few items at a time: to free a million of them at once takes long, and nobody else runs then."""
    while len(items) > _FREED_MAX:
        del items[-_FREED_MAX:]


def producer_of(given: ProducerSequence | None) -> Producer | None:
    """Who pushes, and which of its pushes this is."""
    return None if given is None else (int(given.id, 16), given.epoch, given.sequence)


def read_plain(body: bytes) -> PlainPush | None:
    """A push of messages that are nothing but JSON; None when there is more to them, or something is wrong."""
    try:
        plain = _plain(body) if len(body) <= json_pieces.PIECE_BYTES else json_pieces.decode(PlainPush, body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # the full reader finds out what it is
    if len(plain.messages) > limits.batch_messages_max:
        return None
    return plain if body.isascii() or _is_utf8(body) else None


def _is_utf8(body: bytes) -> bool:
    try:
        json_pieces.check_utf8(body)
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
    told = [message.content_type for message in messages]
    if encoded.count(None) == told.count(None) == len(messages) and UNSET not in contents:
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
        both = "both are there" if is_json else "neither is there"
        raise InvalidField(f"item {row}: payload: {both}", hint="give either payload (JSON) or payload_base64 (bytes)")
    if is_json:
        kind = _CONTENT_TYPES[message.content_type or CONTENT_TYPE_NAMES[ContentType.JSON]]
        if kind not in (ContentType.JSON, ContentType.TASK):
            raise InvalidField(f"item {row}: content_type: a payload of JSON is application/json")
        return message.payload, kind
    return message.payload_base64, _CONTENT_TYPES[message.content_type or CONTENT_TYPE_NAMES[ContentType.BYTES]]


def _ttls(messages: Sequence[NewMessage]) -> fields.Field:
    column = [message.ttl_ms for message in messages]
    return fields.ttls([None if life is None else life / 1000 for life in column])
