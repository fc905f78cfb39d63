"""From a producer's items to the bytes of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock import limits
from penstock.batch import fields, layout
from penstock.batch.columns import Binary
from penstock.batch.fields import Partitions
from penstock.batch.payloads import payloads_of
from penstock.batch.plain import encode_plain
from penstock.batch.rules import check_count
from penstock.batch.sealing import seal_columns
from penstock.model import Message


def encode_items(items: Sequence[Any], *, small: bool) -> tuple[bytes, Partitions | None]:
    """The batch of these items, and the partition that each one names. `small`: compress payloads if it pays."""
    check_count(len(items))
    kinds = list(map(type, items))
    if kinds.count(bytes) == len(items):
        plain = seal_columns(0, [], _payloads(items), small=True) if small or not items else encode_plain(items)
        return plain, None
    if Message in kinds:
        messages = [item if type(item) is Message else Message(payload=item) for item in items]
        return _encode_messages(messages, small), fields.partitions([message.partition for message in messages])
    contents, content_types = payloads_of(items)
    flag, column = fields.fixed(layout.CONTENT_TYPE, content_types)
    return seal_columns(flag, column, _payloads(contents), small=small), None


def _encode_messages(messages: list[Message], small: bool) -> bytes:
    contents, found = payloads_of([message.payload for message in messages])
    columns = [
        fields.priorities([message.priority for message in messages]),
        fields.delays([message.delay for message in messages]),
        fields.deliver_ats([message.deliver_at for message in messages]),
        fields.ttls([message.ttl for message in messages]),
        fields.max_attempts([message.max_attempts for message in messages]),
        fields.content_types([message.content_type for message in messages], found),
        fields.texts(layout.KEY, [message.key for message in messages]),
        fields.texts(layout.DEDUP_KEY, [message.dedup_key for message in messages]),
        fields.texts(layout.TRACE, [message.trace for message in messages]),
        fields.headers([message.headers for message in messages]),
    ]
    flags = sum(flag for flag, _ in columns)
    buffers = [buffer for _, column in columns for buffer in column]
    return seal_columns(flags, buffers, _payloads(contents), small=small)


def _payloads(contents: Sequence[bytes]) -> Binary:
    return fields.binary(contents, "payload", limits.payload_bytes_max)
