"""Protocol buffers of any size, as bytes: making them of values would take longer than the test."""

from __future__ import annotations

import random
from typing import Any

TEXTS = ("mail", "default", "a", "", "{}", "mail/0/1", "mail:0:1:1:0000000000000001", "é")
VARINT, LENGTH = 0, 2


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes((*found, number))


def whole(field: Any, value: bytes) -> bytes:
    """A field of bytes, text or another message."""
    return varint(field.number << 3 | LENGTH) + varint(len(value)) + value


def small(draw: random.Random, kind: Any, depth: int = 2) -> bytes:
    """A message with some of its fields set."""
    return b"".join(_small(draw, field, depth) for field in kind.fields if draw.random() < 0.7)


def _small(draw: random.Random, field: Any, depth: int) -> bytes:
    if field.message_type is not None:
        return whole(field, small(draw, field.message_type, depth - 1)) if depth else b""
    if field.type in (field.TYPE_STRING, field.TYPE_BYTES):
        return whole(field, draw.choice(TEXTS).encode())
    if field.type in (field.TYPE_DOUBLE, field.TYPE_FLOAT):
        return b""
    return varint(field.number << 3 | VARINT) + varint(draw.choice((0, 1, 2, 100)))


def filled(draw: random.Random, kind: Any, length: int) -> bytes:
    """A message as long as that, by one of its fields: one that is long, or one that is there many times."""
    fields = [field for field in kind.fields if field.message_type is not None or field.type == field.TYPE_STRING]
    fields += [field for field in kind.fields if field.type == field.TYPE_BYTES]
    if not fields:
        return small(draw, kind)
    field = draw.choice(fields)
    head = b"".join(_small(draw, other, 2) for other in kind.fields if other is not field)
    if field.is_repeated:
        unit = _small(draw, field, 2)
        return head + unit * (length // len(unit))
    if field.message_type is not None:
        return head + whole(field, filled(draw, field.message_type, length - 10))
    return head + whole(field, b"a" * length)
