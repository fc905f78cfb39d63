"""The bytes of a batch: where every column lies, and nothing about what is in it.

    magic "PB" | version u8 | compression u8 | columns u32 | count u32 | payload_bytes u32 |
    blob_bytes u32 | reserved u32 | length u32 | crc32c u32                                      32 bytes
    fixed columns        count values each         priority, delay, deliver_at, ttl, max_attempts, content_type
    text columns         validity bitmap · int32 offsets[count + 1] · UTF-8 blob       key, dedup_key, trace
    headers              int32 rows[count + 1] · names: int32 offsets, blob · values: int32 offsets, blob
    payload              int32 offsets[count + 1] · blob, compressed or not

Little-endian. Columns lie in the order of their bits, and only those whose bit is set; the payload is always there
and always last. Every buffer is padded with zeros to a multiple of 8, so all of them lie aligned and Arrow can use
them in place. The CRC covers all bytes but its own four. docs/formats/batch.md has the full account.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import numpy as np
from crc32c import crc32c

from penstock.errors import BadBatch

Buffer = bytes | memoryview

MAGIC: Final = b"PB"
VERSION: Final = 1

PLAIN: Final = 0
ZSTD: Final = 1

PRIORITY: Final = 1 << 0
DELAY: Final = 1 << 1
DELIVER_AT: Final = 1 << 2
TTL: Final = 1 << 3
MAX_ATTEMPTS: Final = 1 << 4
CONTENT_TYPE: Final = 1 << 5
KEY: Final = 1 << 6
DEDUP_KEY: Final = 1 << 7
TRACE: Final = 1 << 8
HEADERS: Final = 1 << 9
KNOWN: Final = (1 << 10) - 1
PAYLOAD: Final = 1 << 31  # never in the bitmask: names the payload where a column must be named

FIXED: Final[dict[int, np.dtype[np.generic]]] = {
    PRIORITY: np.dtype("<u1"),
    DELAY: np.dtype("<i8"),
    DELIVER_AT: np.dtype("<i8"),
    TTL: np.dtype("<i8"),
    MAX_ATTEMPTS: np.dtype("<u2"),
    CONTENT_TYPE: np.dtype("<u1"),
}
TEXTS: Final = (KEY, DEDUP_KEY, TRACE)
OFFSET: Final = np.dtype("<i4")

NAMES: Final = {
    PRIORITY: "priority",
    DELAY: "delay",
    DELIVER_AT: "deliver_at",
    TTL: "ttl",
    MAX_ATTEMPTS: "max_attempts",
    CONTENT_TYPE: "content_type",
    KEY: "key",
    DEDUP_KEY: "dedup_key",
    TRACE: "trace",
    HEADERS: "headers",
    PAYLOAD: "payload",
}

HEADER: Final = struct.Struct("<2sBBIIIIIII")
HEAD: Final = struct.Struct("<2sBBIIIIII")  # the header up to its CRC
HEADER_BYTES: Final = HEADER.size
SHAPE: Final = struct.Struct("<3xBIIII")  # of the header, what a reader needs: compression to blob_bytes
CRC: Final = struct.Struct("<I")
INT32: Final = struct.Struct("<i")
WORD: Final = struct.Struct("<q")
BOUNDS: Final = struct.Struct("<ii")  # two offsets that follow each other
PADS: Final = tuple(bytes(n) for n in range(8))

_WIDTHS: Final = tuple((flag, dtype.itemsize) for flag, dtype in FIXED.items())


def padded(length: int) -> int:
    """`length` rounded up to a multiple of 8."""
    return (length + 7) & ~7


def bitmap_bytes(count: int) -> int:
    """Length of a validity bitmap, padded."""
    return padded((count + 7) >> 3)


def offsets_bytes(count: int) -> int:
    """Length of the offsets of `count` values, padded."""
    return padded(4 * count + 4)


def flags_of(data: Buffer) -> int:
    """The columns of a batch, without parsing it."""
    return int.from_bytes(data[4:8], "little")


def places(data: Buffer, count: int, flags: int) -> dict[int, int]:
    """The position of each column that is present, by its bit.

    Positions only grow, so on foreign bytes too this ends; whoever does not trust them compares the end with `length`.
    """
    if not flags:
        return {PAYLOAD: HEADER_BYTES}
    positions: dict[int, int] = {}
    position = HEADER_BYTES
    for flag, width in _WIDTHS:
        if flags & flag:
            positions[flag] = position
            position += padded(width * count)
    for flag in TEXTS:
        if flags & flag:
            positions[flag] = position
            position = _binary_end(data, position + bitmap_bytes(count), count)
    if flags & HEADERS:
        positions[HEADERS] = position
        pairs = _offset(data, position + 4 * count)
        values = _binary_end(data, position + offsets_bytes(count), pairs)
        position = _binary_end(data, values, pairs)
    positions[PAYLOAD] = position
    return positions


def _binary_end(data: Buffer, position: int, count: int) -> int:
    return position + offsets_bytes(count) + padded(_offset(data, position + 4 * count))


def _offset(data: Buffer, position: int) -> int:
    value: int = INT32.unpack_from(data, position)[0]
    if value < 0:
        raise BadBatch(f"an offset at position {position} is negative")
    return value


def seal(
    count: int,
    flags: int,
    columns: Sequence[Buffer],
    payload_offsets: Buffer,
    blob: Buffer,
    compression: int = PLAIN,
    payload_bytes: int | None = None,
) -> bytes:
    """The bytes of a batch from its buffers; `columns` are padded, the payload's two buffers are not."""
    body = [*columns, payload_offsets, PADS[-len(payload_offsets) % 8], blob, PADS[-len(blob) % 8]]
    length = HEADER_BYTES + sum(map(len, body))
    if payload_bytes is None:
        payload_bytes = len(blob)
    head = HEAD.pack(MAGIC, VERSION, compression, flags, count, payload_bytes, len(blob), 0, length)
    crc = crc32c(head)
    for piece in body:
        crc = crc32c(piece, crc)
    return b"".join((head, CRC.pack(crc), *body))


def with_ttl_column(data: Buffer, lives: Buffer) -> bytes:
    """The bytes of the same batch with this column of times to live, in place of its own if it has one."""
    magic, version, compression, flags, count, payload_bytes, blob_bytes, reserved, _ = HEAD.unpack_from(data)
    position = HEADER_BYTES
    if flags & (TTL - 1):
        position += sum(padded(width * count) for flag, width in _WIDTHS if flag < TTL and flags & flag)
    view = memoryview(data)
    behind = view[position + len(lives) :] if flags & TTL else view[position:]
    body = b"".join((view[HEADER_BYTES:position], lives, behind))
    length = HEADER_BYTES + len(body)
    head = HEAD.pack(magic, version, compression, flags | TTL, count, payload_bytes, blob_bytes, reserved, length)
    return b"".join((head, CRC.pack(crc32c(body, crc32c(head))), body))


def crc_of(data: Buffer) -> int:
    """The CRC that belongs into the header of these bytes."""
    view = memoryview(data)
    return crc32c(view[HEADER_BYTES:], crc32c(view[: HEAD.size]))
