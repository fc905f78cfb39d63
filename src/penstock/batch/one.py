"""A batch of one, by `struct` alone: for a single message NumPy would cost more than all the rest.

With one row every fixed value is one padded word and every pair of offsets is (0, length).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

from crc32c import crc32c

from penstock import limits
from penstock.batch import layout
from penstock.batch.layout import CRC, HEAD, HEADER, MAGIC, PADS, PLAIN, VERSION
from penstock.batch.payloads import payload_of
from penstock.batch.rules import FIXED_MAX, TEXT_BYTES_MAX, check_batch_bytes, too_long
from penstock.errors import InvalidField
from penstock.model import ContentType, check_priority

_BOUNDS: Final = layout.BOUNDS.pack
_WORD: Final = struct.Struct("<q").pack
_TEXT: Final = struct.Struct("<qii").pack  # one valid row, then its offsets
_CRC: Final = CRC.pack
_HEAD: Final = HEAD.pack
_SIZE: Final = HEADER.size + layout.BOUNDS.size  # of a batch of one, but for its payload


def encode_one(payload: bytes) -> bytes:
    """The batch of one message without options."""
    size = len(payload)
    if size > limits.payload_bytes_max:
        raise too_long("payload", size, limits.payload_bytes_max)
    padding = -size & 7
    head = _HEAD(MAGIC, VERSION, PLAIN, 0, 1, size, size, 0, _SIZE + size + padding)
    body = _BOUNDS(0, size) + payload + PADS[padding]
    return head + _CRC(crc32c(body, crc32c(head))) + body


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
    flags = 0
    columns: list[bytes] = []
    words = (
        (layout.PRIORITY, limits.priority_default, check_priority(priority)),
        (layout.DELAY, 0, delay_us),
        (layout.DELIVER_AT, 0, deliver_at_us),
        (layout.TTL, 0, ttl_us),
        (layout.MAX_ATTEMPTS, 0, check_attempts(max_attempts)),
        (layout.CONTENT_TYPE, 0, kind if content_type is None else check_content_type(content_type)),
    )
    for flag, default, value in words:
        if value != default:
            flags |= flag
            columns.append(_WORD(_checked(flag, value)))
    for flag, text in ((layout.KEY, key), (layout.DEDUP_KEY, dedup_key), (layout.TRACE, trace)):
        if text is not None:
            flags |= flag
            columns += _text(flag, text)
    if headers:
        flags |= layout.HEADERS
        columns += _headers(headers)
    if not flags:
        return encode_one(content)
    if len(content) > limits.payload_bytes_max:
        raise too_long("payload", len(content), limits.payload_bytes_max)
    data = layout.seal(1, flags, columns, _BOUNDS(0, len(content)), content)
    check_batch_bytes(len(data))
    return data


def check_attempts(value: Any) -> int:
    """`max_attempts` as it is stored: 0 for none."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limits.attempts_max:
        raise InvalidField(f"max_attempts: {value!r} is outside 1 to {limits.attempts_max}")
    return value


def check_content_type(value: Any) -> ContentType:
    try:
        return ContentType(value)
    except ValueError:
        raise InvalidField(f"content_type: {value!r} is not a ContentType") from None


def encode_text(flag: int, text: Any) -> bytes:
    """A key, dedup key or trace as bytes, within its limit."""
    name = layout.NAMES[flag]
    if not isinstance(text, str):
        raise InvalidField(f"{name}: {text!r} is not text")
    encoded = utf8(text, name)
    if len(encoded) > TEXT_BYTES_MAX[flag]:
        raise too_long(name, len(encoded), TEXT_BYTES_MAX[flag])
    return encoded


def utf8(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidField(f"{name}: {text!r} is not valid text: {error.reason}") from None


def encode_headers(headers: Any) -> tuple[list[bytes], list[bytes]]:
    """Names and values as bytes, together within their limit."""
    if not isinstance(headers, Mapping):
        raise InvalidField(f"headers: {headers!r} is not a mapping of text to text")
    for name, value in headers.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise InvalidField(f"headers: {name!r}: {value!r} is not text to text")
    names = [utf8(name, "headers") for name in headers]
    values = [utf8(value, "headers") for value in headers.values()]
    length = sum(map(len, names)) + sum(map(len, values))
    if length > limits.headers_bytes_max:
        raise too_long("headers", length, limits.headers_bytes_max)
    return names, values


def _checked(flag: int, value: int) -> int:
    limit = FIXED_MAX.get(flag)
    if limit is not None and not (isinstance(value, int) and 0 <= value <= limit):
        raise InvalidField(f"{layout.NAMES[flag]}: {value!r} µs is outside 0 to {limit}")
    return value


def _text(flag: int, text: str) -> tuple[bytes, bytes, bytes]:
    encoded = encode_text(flag, text)
    return _TEXT(1, 0, len(encoded)), encoded, PADS[-len(encoded) % 8]


def _headers(headers: Mapping[str, str]) -> list[bytes]:
    names, values = encode_headers(headers)
    return [_BOUNDS(0, len(names)), *_binary(names), *_binary(values)]


def _binary(values: list[bytes]) -> list[bytes]:
    offsets = [0]
    for value in values:
        offsets.append(offsets[-1] + len(value))
    packed = struct.pack(f"<{len(offsets)}i", *offsets)
    return [packed, PADS[-len(packed) % 8], *values, PADS[-offsets[-1] % 8]]
