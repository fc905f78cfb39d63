"""The soundness of a batch of one, without arrays: single pushes are many, and NumPy's fixed cost is felt there.

It says what `check.check_columns` says of the same bytes; a test holds the two together.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Final

from penstock import limits
from penstock.batch import layout
from penstock.batch.layout import BOUNDS, Buffer, bitmap_bytes, offsets_bytes, padded
from penstock.batch.rules import FIXED_MAX, TEXT_BYTES_MAX, too_long
from penstock.errors import BadBatch, InvalidField

_INT64: Final = struct.Struct("<q")


def check_one(data: Buffer, flags: int, places: dict[int, int], payload_bytes: int) -> None:
    """Every column of a batch of one whose payload is not compressed."""
    if flags:
        _check_options(data, flags, places)
    if BOUNDS.unpack_from(data, places[layout.PAYLOAD]) != (0, payload_bytes):
        raise BadBatch("item 0: payload: its offsets are not those of its bytes")
    if payload_bytes > limits.payload_bytes_max:
        raise too_long("item 0: payload", payload_bytes, limits.payload_bytes_max)


def _check_options(data: Buffer, flags: int, places: dict[int, int]) -> None:
    for flag, greatest in FIXED_MAX.items():
        if flags & flag:
            _check_number(data, places[flag], flag, greatest)
    for flag, limit in TEXT_BYTES_MAX.items():
        if flags & flag:
            _check_text(data, places[flag], layout.NAMES[flag], limit)
    if flags & layout.HEADERS:
        _check_headers(data, places[layout.HEADERS])


def _check_number(data: Buffer, position: int, flag: int, greatest: int) -> None:
    value = data[position] if flag == layout.CONTENT_TYPE else _INT64.unpack_from(data, position)[0]
    if not 0 <= value <= greatest:
        raise InvalidField(f"item 0: {layout.NAMES[flag]}: {value} is outside 0 to {greatest}")


def _check_text(data: Buffer, position: int, name: str, limit: int) -> None:
    present = data[position] & 1
    bounds = position + bitmap_bytes(1)
    end = _check_values(data, bounds, 1, name)
    if end > limit:
        raise too_long(f"item 0: {name}", end, limit)
    if end and not present:
        raise BadBatch(f"item 0: {name}: absent, yet it has bytes")


def _check_headers(data: Buffer, position: int) -> None:
    first, pairs = BOUNDS.unpack_from(data, position)
    if first != 0:
        raise BadBatch(f"headers: offsets begin at {first}, not 0")
    names = position + offsets_bytes(1)
    names_end = _check_values(data, names, pairs, "headers")
    values_end = _check_values(data, names + offsets_bytes(pairs) + padded(names_end), pairs, "headers")
    if names_end + values_end > limits.headers_bytes_max:
        raise too_long("item 0: headers", names_end + values_end, limits.headers_bytes_max)


def _check_values(data: Buffer, position: int, count: int, name: str) -> int:
    """Offsets in order and UTF-8 between them; the length of the blob."""
    offsets = struct.unpack_from(f"<{count + 1}i", data, position)
    if offsets[0] != 0 or any(end < start for start, end in pairwise(offsets)):
        raise BadBatch(f"{name}: offsets do not run from 0 upwards")
    blob = position + offsets_bytes(count)
    whole = bytes(data[blob : blob + offsets[-1]])
    if not whole.isascii():
        _check_utf8(whole, offsets, name)
    return int(offsets[-1])


def _check_utf8(whole: bytes, offsets: tuple[int, ...], name: str) -> None:
    for row, (start, end) in enumerate(pairwise(offsets)):
        try:
            whole[start:end].decode()
        except UnicodeDecodeError:
            raise BadBatch(f"{name}: value {row} is not UTF-8") from None
