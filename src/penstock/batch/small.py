"""Small batches, packed by `struct` alone: below some dozens of messages NumPy would cost more than all the rest.

With one row every fixed value is one padded word and every pair of offsets is (0, length). Plain batches, payloads of
one content type and nothing else or with the same few options, are the most common kind.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from penstock import limits
from penstock.batch import fields, layout
from penstock.batch.fields import FIXED_MAX, check_batch_bytes, payload_of, seal_columns, too_long
from penstock.batch.layout import HEADER_BYTES, MAGIC, PADS, PLAIN, VERSION, Buffer
from penstock.errors import InvalidField
from penstock.model import ContentType, check_priority

_bounds: Final = layout.BOUNDS.pack
_crc: Final = layout.CRC.pack
_head: Final = layout.HEAD.pack
_word: Final = layout.WORD.pack
_text_head: Final = struct.Struct("<qii").pack  # the bit of the one row, then its offsets
_TYPED_START: Final = HEADER_BYTES + 8 + layout.BOUNDS.size  # of the payload, after its content type
ALIKE: Final = layout.PRIORITY | layout.DELAY | layout.TTL | layout.MAX_ATTEMPTS | layout.CONTENT_TYPE
_DEFAULTS: Final = (limits.priority_default, 0, 0, 0, None, ContentType.BYTES)  # of the fixed columns, in their order

FEW: Final = 100


def encode_one(payload: bytes) -> bytes:
    """The batch of one message without options."""
    head, crc, bounds, padding = _frame(len(payload))
    blob = payload + padding
    return b"".join((head, _crc(crc32c(blob, crc)), bounds, blob))


@lru_cache(maxsize=2048)
def _frame(length: int, content: ContentType = ContentType.BYTES) -> tuple[bytes, int, bytes, bytes]:
    """All that is the same for every payload of one length and kind: the header, the CRC so far, what lies before the
    payload, the padding behind it.
    """
    if length > limits.payload_bytes_max:
        raise too_long("payload", length, limits.payload_bytes_max)
    flags, column = (layout.CONTENT_TYPE, _word(content)) if content else (0, b"")
    front, padding = column + _bounds(0, length), PADS[-length % 8]
    total = HEADER_BYTES + len(front) + length + len(padding)
    head = _head(MAGIC, VERSION, PLAIN, flags, 1, length, length, 0, total)
    return head, crc32c(front, crc32c(head)), front, padding


def encode_one_task(payload: bytes) -> bytes:
    """The batch of one task without other options."""
    head, crc, front, padding = _frame(len(payload), ContentType.TASK)
    blob = payload + padding
    return b"".join((head, _crc(crc32c(blob, crc)), front, blob))


def encode_one_with(
    payload: Any,
    *,
    key: str | None = None,
    priority: int | str = limits.priority_default,
    delay_us: int = 0,
    deliver_at_us: int = 0,
    ttl_us: int = 0,
    headers: Mapping[str, str] | None = None,
    dedup_key: str | None = None,
    max_attempts: int | None = None,
    trace: str | None = None,
    content_type: ContentType | None = None,
) -> bytes:
    """The batch of one message with options; those at their default take no room."""
    content, kind = payload_of(payload)
    if content_type is not None:
        kind = fields.check_content_type(content_type)
    flags = 0
    columns: list[bytes] = []
    words = (priority, delay_us, deliver_at_us, ttl_us, max_attempts, kind)
    if words != _DEFAULTS:
        flags, columns = _fixed(*words)
    for flag, text in ((layout.KEY, key), (layout.DEDUP_KEY, dedup_key), (layout.TRACE, trace)):
        if text is not None:
            flags |= flag
            columns += _one_text(flag, text)
    if headers:
        flags |= layout.HEADERS
        columns += _one_headers(headers)
    return _seal(flags, columns, content) if flags else encode_one(content)


def one_with_ttl(data: bytes, flags: int, micros: int) -> tuple[bytes, int]:
    """A batch of one that is not due later and has no priority, with this time to live unless it has one; and that."""
    life: int = layout.WORD.unpack_from(data, HEADER_BYTES)[0] if flags & layout.TTL else 0
    if life or not micros:
        return data, life
    data = layout.with_ttl_column(data, _word(micros))
    check_batch_bytes(len(data))
    return data, micros


def typed_one(data: bytes) -> tuple[int, bytes] | None:
    """Content type and payload of a batch made here; None when the message has any other option, or not even that."""
    if layout.flags_of(data) != layout.CONTENT_TYPE:
        return None
    length = layout.HEAD.unpack_from(data)[5]
    return data[HEADER_BYTES], data[_TYPED_START : _TYPED_START + length]


class Alike(NamedTuple):
    """Options that several messages have in common: their columns, and the word of each in a batch of one."""

    flags: int
    words: bytes


def alike_of(data: Buffer) -> Alike | None:
    """The options in a sound batch of one; None when it has any that are not of one word, or an instant."""
    flags = layout.flags_of(data)
    if flags & ~ALIKE:
        return None
    return Alike(flags, bytes(data[HEADER_BYTES : HEADER_BYTES + 8 * flags.bit_count()]))


def encode_one_like(payload: bytes, alike: Alike) -> bytes:
    """The batch of one message with such options."""
    return _seal(alike.flags, [alike.words], payload)


def _seal(flags: int, columns: list[bytes], content: bytes) -> bytes:
    length = len(content)
    if length > limits.payload_bytes_max:
        raise too_long("payload", length, limits.payload_bytes_max)
    body = b"".join((*columns, _bounds(0, length), content, PADS[-length % 8]))
    check_batch_bytes(HEADER_BYTES + len(body))
    head = _head(MAGIC, VERSION, PLAIN, flags, 1, length, length, 0, HEADER_BYTES + len(body))
    return b"".join((head, _crc(crc32c(body, crc32c(head))), body))


def _fixed(
    priority: Any, delay_us: Any, deliver_at_us: Any, ttl_us: Any, max_attempts: Any, kind: Any
) -> tuple[int, list[bytes]]:
    flags = 0
    columns = []
    words = (
        (layout.PRIORITY, check_priority(priority), limits.priority_default),
        (layout.DELAY, delay_us, 0),
        (layout.DELIVER_AT, deliver_at_us, 0),
        (layout.TTL, ttl_us, 0),
        (layout.MAX_ATTEMPTS, fields.check_max_attempts(max_attempts), 0),
        (layout.CONTENT_TYPE, kind, 0),
    )
    for flag, value, default in words:
        if value != default:
            flags |= flag
            columns.append(_word(_in_range(flag, value)))
    return flags, columns


def _in_range(flag: int, value: Any) -> int:
    limit = FIXED_MAX.get(flag)
    if limit is not None and not (isinstance(value, int) and 0 <= value <= limit):
        raise InvalidField(f"{layout.NAMES[flag]}: {value!r} µs is outside 0 to {limit}")
    return int(value)


def _one_text(flag: int, text: str) -> tuple[bytes, bytes, bytes]:
    encoded = fields.encode_text(flag, text)
    return _text_head(1, 0, len(encoded)), encoded, PADS[-len(encoded) % 8]


def _one_headers(headers: Mapping[str, str]) -> list[bytes]:
    names, contents = fields.encode_headers(headers)
    return [_bounds(0, len(names)), *_one_binary(names), *_one_binary(contents)]


def _one_binary(contents: list[bytes]) -> list[bytes]:
    offsets = [0]
    for content in contents:
        offsets.append(offsets[-1] + len(content))
    packed = struct.pack(f"<{len(offsets)}i", *offsets)
    return [packed, PADS[-len(packed) % 8], *contents, PADS[-offsets[-1] % 8]]


def encode_plain(payloads: Sequence[bytes], content: ContentType | Alike = ContentType.BYTES) -> bytes:
    """The batch of these payloads, of which there is at least one, all with the same content type or options."""
    count = len(payloads)
    if count == 1:
        return fields.check_each(lambda payload: _encode_single(bytes(payload), content), payloads)[0]
    flags, columns = _alike_columns(content, count) if isinstance(content, Alike) else _content_types(content, count)
    if count <= FEW:
        ends = list(accumulate(map(len, payloads)))
        if ends[-1] <= limits.payload_bytes_max:  # then none of them is over it, and neither is the batch
            return layout.seal(count, flags, columns, _offsets(count).pack(0, *ends), b"".join(payloads))
    return seal_columns(flags, columns, fields.binary(payloads, "payload", limits.payload_bytes_max))


def _encode_single(payload: bytes, content: ContentType | Alike) -> bytes:
    if isinstance(content, Alike):
        return encode_one_like(payload, content)
    return encode_one_with(payload, content_type=content) if content else encode_one(payload)


@lru_cache(maxsize=FEW)
def _offsets(count: int) -> struct.Struct:
    return struct.Struct(f"<{count + 1}i")


def _content_types(content_type: ContentType, count: int) -> tuple[int, list[Buffer]]:
    if not content_type:
        return 0, []
    return layout.CONTENT_TYPE, [bytes((content_type,)) * count, PADS[-count % 8]]


def _alike_columns(alike: Alike, count: int) -> tuple[int, list[Buffer]]:
    columns: list[Buffer] = []
    position = 0
    for flag, dtype in layout.FIXED.items():
        if alike.flags & flag:
            column = alike.words[position : position + dtype.itemsize] * count
            columns += (column, PADS[-len(column) % 8])
            position += 8
    return alike.flags, columns
