"""The bytes of a journal file, and reading them back. docs/formats/journal.md has the same pictures in prose.

A file is a header of 64 bytes, then frames without gaps, then zeros where it was preallocated. Little-endian.

    header   "PENSTOCK" | version u32 | 0 u32 | shard 16 bytes | incarnation u64 | first_sequence u64 | 0 × 12 | crc u32
    frame    length u32 | crc u32 | sequence u64 | durable_sequence u64 | entries

`length` counts the bytes from `sequence` to the end of the entries, a multiple of 8; length 0 ends a file.
The checksum covers `sequence` to the end and starts from crc32c(shard) ^ length, so shard and length are covered too.
`durable_sequence` is what the writer knew to be durable when it made the frame: `scan` tells damage from a torn tail
by it.

    CLEAN     zeros, or the end of the file, follow the last sound frame
    TORN      something follows that never was durable: a write that a crash cut short. The log ends before it.
    DAMAGED   a frame that was durable is no longer sound: a later frame of this file says that it was durable, or a
              later file exists (a file is only followed by another once all of it is durable)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

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
SEQUENCE_MAX: Final = (1 << 64) - 1
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
    """The inverse of `encode_header`; `name` is for the error."""
    if len(data) < HEADER_BYTES:
        raise Damaged(f"{name}: the header is cut short at {len(data)} bytes")
    magic, version, _, shard_id, incarnation, first_sequence, crc = HEADER.unpack_from(data)
    if crc != crc32c(data[: HEADER_BYTES - CRC.size]):
        raise Damaged(f"{name}: the header at position 0 does not match its checksum")
    if magic != MAGIC or version != VERSION:
        raise StorageError(f"{name}: this version does not know format {version}", hint="open it with a newer Penstock")
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


# Bytes of checksum work allowed in search of later frames. A payload may be full of bytes that look like frames.
# Past this the tail counts as damaged: refusing to open loses nothing.
SEARCH_BYTES_MAX: Final = 8 * limits.GIB


class Verdict(Enum):
    """How a file ends."""

    CLEAN = "clean"
    TORN = "torn"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Scan:
    """The sound frames at the beginning of a file, and what comes after them."""

    data: memoryview = field(repr=False)
    first_sequence: int
    positions: list[int] = field(repr=False)  # where each sound frame starts
    end_position: int  # just past the last sound frame
    verdict: Verdict
    resume_position: int | None = None  # of the first sound frame after damage, if there is one
    resume_sequence: int | None = None

    @property
    def end_sequence(self) -> int:
        """The sequence that would come next."""
        return self.first_sequence + len(self.positions)

    def frames(self, after: int = 0) -> Iterator[tuple[int, memoryview]]:
        """(sequence, entries) of the sound frames with a sequence over `after`."""
        skipped = max(0, after + 1 - self.first_sequence)
        for sequence, position in enumerate(self.positions[skipped:], self.first_sequence + skipped):
            length, _ = PREFIX.unpack_from(self.data, position)
            yield sequence, self.data[position + FRAME.size : position + PREFIX.size + length]

    def describe(self) -> str:
        """Where the damage is and what is known to follow, for an error message."""
        where = f"the frame of sequence {self.end_sequence} at position {self.end_position} is damaged"
        if self.resume_sequence is None:
            return f"{where}; no intact frame follows it in this file"
        return (
            f"{where}; intact frames continue with sequence {self.resume_sequence} at position {self.resume_position}"
        )


def scan(
    data: bytes | memoryview,
    seed: int,
    first_sequence: int,
    *,
    end_sequence: int | None = None,
    position: int = HEADER_BYTES,
) -> Scan:
    """Read frames from `position` on. `end_sequence` is where the next file starts; None for the last file."""
    view = memoryview(data)
    positions, position = _sound_frames(view, seed, first_sequence, position)
    sequence = first_sequence + len(positions)
    if end_sequence is not None and sequence == end_sequence:
        return Scan(view, first_sequence, positions, position, Verdict.CLEAN)
    if end_sequence is None and not _words(view, position).any() and not any(view[len(view) & ~7 :]):
        return Scan(view, first_sequence, positions, position, Verdict.CLEAN)
    resume, was_durable = _search(view, seed, sequence, position)
    verdict = Verdict.DAMAGED if was_durable or end_sequence is not None else Verdict.TORN
    if verdict is Verdict.TORN or resume is None:
        return Scan(view, first_sequence, positions, position, verdict)
    return Scan(view, first_sequence, positions, position, verdict, *resume)


def _sound_frames(
    view: memoryview, seed: int, sequence: int, position: int, last: int = SEQUENCE_MAX
) -> tuple[list[int], int]:
    positions = []
    unpack, end = FRAME.unpack_from, len(view)
    while position + FRAME.size <= end and sequence <= last:
        length, crc, frame_sequence, _ = unpack(view, position)
        if frame_sequence != sequence or length < STAMP.size or length & 7 or position + PREFIX.size + length > end:
            break
        if not frame_is_sound(view, position, length, crc, seed):
            break
        positions.append(position)
        position += PREFIX.size + length
        sequence += 1
    return positions, position


def position_after(data: memoryview, seed: int, first_sequence: int, sequence: int) -> int:
    """Where the frame of a sequence ends in a file that may still be written; `Damaged` when it is not in it."""
    positions, _ = _sound_frames(data, seed, first_sequence, HEADER_BYTES, sequence)
    if first_sequence + len(positions) <= sequence:
        raise Damaged(f"the journal file of sequence {first_sequence} has no intact frame {sequence}")
    position = positions[sequence - first_sequence]
    return position + int(PREFIX.size) + int(PREFIX.unpack_from(data, position)[0])


def _search(view: memoryview, seed: int, sequence: int, position: int) -> tuple[tuple[int, int] | None, bool]:
    """The first sound frame past the bad one, as (position, sequence), and whether any says that it was durable."""
    first = None
    work = 0
    passed = position
    for start, length, crc, frame_sequence, durable in _candidates(view, sequence, position):
        if start < passed:
            continue  # inside a frame that is sound: payload
        work += length
        if work > SEARCH_BYTES_MAX:
            return first, True
        if not frame_is_sound(view, start, length, crc, seed):
            continue
        passed = start + PREFIX.size + length
        first = first or (start, frame_sequence)
        if durable >= sequence:
            return first, True
    return first, False


def _candidates(view: memoryview, sequence: int, position: int) -> Iterator[tuple[int, int, int, int, int]]:
    """(position, length, crc, sequence, durable_sequence) of whatever might be a frame after the bad one."""
    words = _words(view, position)
    if len(words) < 3:
        return
    prefix, sequences, durable = words[:-2], words[1:-1], words[2:]
    likely = np.flatnonzero((sequences > sequence) & (sequences <= sequence + len(words)) & (durable < sequences))
    lengths = (prefix[likely] & 0xFFFFFFFF).astype(np.int64)
    room = (len(words) - 1 - likely) * 8
    likely = likely[(lengths >= STAMP.size) & (lengths % 8 == 0) & (lengths <= room)]
    for index in likely.tolist():
        start = position + index * 8
        yield (start, *FRAME.unpack_from(view, start))


def _words(view: memoryview, position: int) -> NDArray[np.uint64]:
    return np.frombuffer(view[position : len(view) & ~7], np.dtype("<u8"))
