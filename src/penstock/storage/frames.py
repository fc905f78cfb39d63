"""The bytes of a journal file. docs/formats/journal.md has the same pictures in prose.

A file is a header of 64 bytes, then frames without gaps, then zeros where it was preallocated. Little-endian.

    header   "PENSTOCK" | version u32 | 0 u32 | shard 16 bytes | incarnation u64 | first_sequence u64 | 0 × 12 | crc u32
    frame    length u32 | crc u32 | sequence u64 | durable_sequence u64 | entries

`length` counts the bytes from `sequence` to the end of the entries, a multiple of 8; length 0 ends a file.
The checksum covers `sequence` to the end and starts from crc32c(shard) ^ length, so shard and length are covered too.
`durable_sequence` is what the writer knew to be durable when it made the frame: recovery tells damage from a torn
tail by it.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock import limits
from penstock.errors import Damaged, StorageError

MAGIC: Final = b"PENSTOCK"
VERSION: Final = 1
HEADER: Final = struct.Struct("<8sII16sQQ12xI")
FRAME: Final = struct.Struct("<IIQQ")
PREFIX: Final = struct.Struct("<II")  # of a frame: what the checksum does not run over
STAMP: Final = struct.Struct("<QQ")  # of a frame: sequence and durable_sequence
CRC: Final = struct.Struct("<I")

HEADER_BYTES: Final = HEADER.size
ENTRIES_BYTES_MAX: Final = limits.frame_bytes_max - FRAME.size

assert HEADER.size == 64
assert FRAME.size == PREFIX.size + STAMP.size == 24


class Header(NamedTuple):
    """Which shard's file this is, and where it starts."""

    shard_id: bytes
    incarnation: int  # counts the times the shard was opened
    first_sequence: int


def encode_header(header: Header) -> bytes:
    """The first 64 bytes of a file."""
    body = HEADER.pack(MAGIC, VERSION, 0, *header, 0)[: -CRC.size]
    return body + CRC.pack(crc32c(body))


def decode_header(data: bytes | memoryview, name: str) -> Header:
    """The inverse; `name` is for the error."""
    if len(data) < HEADER_BYTES:
        raise Damaged(f"{name}: the header is cut short at {len(data)} bytes")
    magic, version, _, shard_id, incarnation, first_sequence, crc = HEADER.unpack_from(data)
    if crc != crc32c(data[: HEADER_BYTES - CRC.size]):
        raise Damaged(f"{name}: the header at position 0 does not match its checksum")
    if magic != MAGIC or version != VERSION:
        raise StorageError(
            f"{name}: format {version} is not known to this version", hint="open it with a newer Penstock"
        )
    return Header(shard_id, incarnation, first_sequence)


def seed_of(shard_id: bytes) -> int:
    """Where the checksums of a shard's frames start."""
    return crc32c(shard_id)


def frame_head(
    entries: bytes, sequence: int, durable_sequence: int, seed: int, batch: bytes | memoryview = b""
) -> bytes:
    """The 24 bytes that go before `entries` and the `batch` behind them."""
    length = STAMP.size + len(entries) + len(batch)
    stamp = STAMP.pack(sequence, durable_sequence)
    crc = crc32c(entries, crc32c(stamp, seed ^ length))
    return PREFIX.pack(length, crc32c(batch, crc) if batch else crc) + stamp


def frame_is_sound(data: memoryview, position: int, length: int, crc: int, seed: int) -> bool:
    """Whether the frame at `position`, whose prefix says `length` and `crc`, matches its checksum."""
    start = position + PREFIX.size
    return crc32c(data[start : start + length], seed ^ length) == crc
