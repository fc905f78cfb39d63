"""Is this a sound batch? Asked once, where bytes come in; behind this check everything trusts them.

Whole columns are compared at a time. Order matters: a thing is used only after what bounds it was checked, and nothing
is allocated on the word of the batch alone. A batch of one is checked without arrays: single pushes are many, and
NumPy's fixed cost is felt there. `check_one` says what `check_columns` says of the same bytes; a test holds the two
together.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock import limits
from penstock.batch import layout
from penstock.batch.fields import FIXED_MAX, TEXT_BYTES_MAX, check_lengths, check_range, too_long
from penstock.batch.layout import (
    BOUNDS,
    HEADER,
    SHAPE,
    Binary,
    Buffer,
    Headers,
    Int32s,
    Text,
    bitmap_bytes,
    offsets_bytes,
    padded,
)
from penstock.errors import BadBatch, InputError, InvalidField
from penstock.model import ContentType

if TYPE_CHECKING:
    from penstock.batch import Batch


_INT64: Final = struct.Struct("<q")
STORED_MAX: Final = {**FIXED_MAX, layout.CONTENT_TYPE: max(ContentType)}

FEW: Final = 100


def check_one(
    data: Buffer, flags: int, positions: dict[int, int], payload_bytes: int, fixed_max: Mapping[int, int] = FIXED_MAX
) -> None:
    """Every column of a batch of one whose payload is not compressed."""
    if flags:
        _check_one_options(data, flags, positions, fixed_max)
    if BOUNDS.unpack_from(data, positions[layout.PAYLOAD]) != (0, payload_bytes):
        raise BadBatch("item 0: payload: its offsets are not those of its bytes")
    if payload_bytes > limits.payload_bytes_max:
        raise too_long("item 0: payload", payload_bytes, limits.payload_bytes_max)


def _check_one_options(data: Buffer, flags: int, positions: dict[int, int], fixed_max: Mapping[int, int]) -> None:
    for flag, greatest in fixed_max.items():
        if flags & flag:
            _check_one_number(data, positions[flag], flag, greatest)
    for flag, limit in TEXT_BYTES_MAX.items():
        if flags & flag:
            _check_one_text(data, positions[flag], layout.NAMES[flag], limit)
    if flags & layout.HEADERS:
        _check_one_headers(data, positions[layout.HEADERS])


def _check_one_number(data: Buffer, position: int, flag: int, greatest: int) -> None:
    value = data[position] if flag == layout.CONTENT_TYPE else _INT64.unpack_from(data, position)[0]
    if not 0 <= value <= greatest:
        raise InvalidField(f"item 0: {layout.NAMES[flag]}: {value} is outside 0 to {greatest}")


def _check_one_text(data: Buffer, position: int, name: str, limit: int) -> None:
    present = data[position] & 1
    bounds = position + bitmap_bytes(1)
    end = _check_one_values(data, bounds, 1, name)
    if end > limit:
        raise too_long(f"item 0: {name}", end, limit)
    if end and not present:
        raise BadBatch(f"item 0: {name}: marked absent, but has bytes")


def _check_one_headers(data: Buffer, position: int) -> None:
    first, pairs = BOUNDS.unpack_from(data, position)
    if first != 0:
        raise BadBatch(f"headers: offsets begin at {first}, not 0")
    names = position + offsets_bytes(1)
    names_end = _check_one_values(data, names, pairs, "headers")
    values_end = _check_one_values(data, names + offsets_bytes(pairs) + padded(names_end), pairs, "headers")
    if names_end + values_end > limits.headers_bytes_max:
        raise too_long("item 0: headers", names_end + values_end, limits.headers_bytes_max)


def _check_one_values(data: Buffer, position: int, count: int, name: str) -> int:
    """Offsets in order and UTF-8 between them; the length of the blob."""
    offsets = struct.unpack_from(f"<{count + 1}i", data, position)
    if offsets[0] != 0 or any(end < start for start, end in pairwise(offsets)):
        raise BadBatch(f"{name}: offsets do not run from 0 upwards")
    blob = position + offsets_bytes(count)
    whole = bytes(data[blob : blob + offsets[-1]])
    if not whole.isascii():
        _check_one_utf8(whole, offsets, name)
    return int(offsets[-1])


def _check_one_utf8(whole: bytes, offsets: tuple[int, ...], name: str) -> None:
    for row, (start, end) in enumerate(pairwise(offsets)):
        try:
            whole[start:end].decode()
        except UnicodeDecodeError:
            raise BadBatch(f"{name}: value {row} is not UTF-8") from None


def check_header(data: Buffer) -> None:
    """The header agrees with itself, with the length of the bytes and with their CRC."""
    if len(data) < HEADER.size:
        raise BadBatch(f"{len(data)} bytes are too few for a header")
    magic, version, *shape, reserved, length, crc = HEADER.unpack_from(data)
    compression, flags, count, payload_bytes, blob_bytes = shape
    if magic != layout.MAGIC:
        raise BadBatch(f"it begins with {magic!r}, not {layout.MAGIC!r}")
    if version != layout.VERSION:
        raise BadBatch(f"unknown version {version}", hint=f"this release reads version {layout.VERSION}")
    if length != len(data):
        raise BadBatch(f"its header says {length:,} bytes, there are {len(data):,}")
    if crc != layout.crc_of(data):
        raise BadBatch("its checksum does not match")
    if compression not in (layout.PLAIN, layout.ZSTD) or flags & ~layout.KNOWN or reserved:
        raise BadBatch(f"compression {compression}, columns {flags:#x} or reserved {reserved} is unknown")
    if compression == layout.PLAIN and blob_bytes != payload_bytes:
        raise BadBatch(f"payload: {blob_bytes:,} bytes stored, {payload_bytes:,} announced, and not compressed")
    if length - padded(blob_bytes) + padded(payload_bytes) > limits.batch_bytes_max:
        raise BadBatch(f"payload: {payload_bytes:,} bytes make it larger than {limits.batch_bytes_max:,}")
    if count > limits.batch_messages_max:
        raise BadBatch(f"{count:,} messages is over the limit of {limits.batch_messages_max:,}")


def check_positions(data: Buffer, positions: dict[int, int], count: int) -> None:
    """The columns fill the bytes exactly. Positions only grow, so then each of them lies inside."""
    blob_bytes: int = SHAPE.unpack_from(data)[4]
    end = positions[layout.PAYLOAD] + layout.offsets_bytes(count) + padded(blob_bytes)
    if end != len(data):
        raise BadBatch(f"its columns end at {end:,}, the batch at {len(data):,}")


def check_columns(batch: Batch, fixed_max: Mapping[int, int] = FIXED_MAX) -> None:
    """The content of every column, the payload last because it may have to be decompressed."""
    for flag, greatest in fixed_max.items():
        values = batch.fixed(flag)
        if values is not None:
            check_range(values, layout.NAMES[flag], greatest)
    for flag, limit in TEXT_BYTES_MAX.items():
        text = batch.text(flag)
        if text is not None:
            _check_text(text, layout.NAMES[flag], limit)
    headers = batch.headers_column()
    if headers is not None:
        _check_headers(headers)
    payloads = batch.payload_column()
    _check_offsets(payloads.offsets, "payload")
    if payloads.offsets[-1] != batch.payload_bytes:
        raise BadBatch(f"payload: offsets end at {payloads.offsets[-1]}, the header says {batch.payload_bytes}")
    check_lengths(payloads.lengths(), "payload", limits.payload_bytes_max)


def check(batch: Batch, data: Buffer, *, is_stored: bool = False) -> None:
    """`BadBatch` unless all of it is sound; `batch` has looked at nothing but the header so far.

    One that `is_stored` may have marks that nobody pushes.
    """
    fixed_max = STORED_MAX if is_stored else FIXED_MAX
    try:
        check_positions(data, batch.positions(), batch.count)
        if batch.count == 1 and not batch.compressed:
            check_one(data, batch.flags, batch.positions(), batch.payload_bytes, fixed_max)
        elif not _is_small_and_sound(batch, data):
            check_columns(batch, fixed_max)
    except BadBatch:
        raise
    except InputError as error:
        raise BadBatch(error.message) from None
    except struct.error:
        raise BadBatch("its columns reach beyond its end") from None


def _is_small_and_sound(batch: Batch, data: Buffer) -> bool:
    """Whether some dozens of payloads without options are in order: looked at without NumPy, which would cost more.

    What is not is for the check of columns, which has the words for it.
    """
    if batch.flags or batch.compressed or not 0 < batch.count <= FEW or batch.payload_bytes > limits.payload_bytes_max:
        return False
    offsets = struct.unpack_from(f"<{batch.count + 1}i", data, layout.HEADER_BYTES)
    return offsets[0] == 0 and offsets[-1] == batch.payload_bytes and list(offsets) == sorted(offsets)


def _check_offsets(offsets: Int32s, name: str) -> None:
    if offsets[0] != 0:
        raise BadBatch(f"{name}: offsets begin at {offsets[0]}, not 0")
    falls = offsets[1:] < offsets[:-1]
    if falls.any():
        raise BadBatch(f"item {int(np.argmax(falls))}: {name}: offsets run backwards")


def _check_utf8(values: Binary, name: str) -> None:
    """The whole blob is UTF-8 and no value begins in the middle of a character."""
    blob = bytes(values.blob)
    if blob.isascii():
        return
    try:
        blob.decode()
    except UnicodeDecodeError as error:
        row = int(np.searchsorted(values.offsets, error.start, "right")) - 1
        raise BadBatch(f"{name}: value {row} is not UTF-8") from None
    starts = values.offsets[values.offsets < len(blob)]
    inside = np.frombuffer(blob, np.uint8)[starts] & 0xC0 == 0x80
    if inside.any():
        raise BadBatch(f"{name}: value {int(np.argmax(inside))} begins inside a character")


def _check_text(text: Text, name: str, limit: int) -> None:
    _check_offsets(text.values.offsets, name)
    lengths = text.values.lengths()
    check_lengths(lengths, name, limit)
    filled = (lengths > 0) & ~text.present()
    if filled.any():
        raise BadBatch(f"item {int(np.argmax(filled))}: {name}: marked absent, but has bytes")
    _check_utf8(text.values, name)


def _check_headers(headers: Headers) -> None:
    _check_offsets(headers.rows, "headers")
    for values in (headers.names, headers.values):
        _check_offsets(values.offsets, "headers")
        _check_utf8(values, "headers")
    check_lengths(headers.lengths(), "headers", limits.headers_bytes_max)
