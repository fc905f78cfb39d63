"""The files of a journal: their names, how one is created, how one is read, and how far it was known to be durable.

A file appears under its name only once its header is durable, so a named file without a sound header is damaged. It is
created as `journal/next` and renamed; what a crash leaves under that name is removed. `journal/reserve` is a
preallocated file of zeros: when the disk is full it becomes the next file, so that what consumers do still works.

The high-water mark is a small file, written now and then:

    ┌─────────────┬─────────────┬────────────────┬──────────────┬───────────┬───────────┐
    │ "PNSTKHW1"  │ durable u64 │ first seq. u64 │ file size u64│ CRC32C u32│ zeros u32 │
    └─────────────┴─────────────┴────────────────┴──────────────┴───────────┴───────────┘

The last file of a journal says by itself how far it goes, so a truncated one would go unnoticed. A journal that ends
before the mark, or whose last file is shorter than it was created, has lost frames. A mark that is missing, damaged or
old proves less, never something wrong.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from crc32c import crc32c

from penstock.errors import Damaged, DiskFull, PenstockError
from penstock.storage.disk import Disk, File, ReadableDisk, free_bytes_min
from penstock.storage.frames import (
    FRAME,
    HEADER_BYTES,
    Header,
    Scan,
    Verdict,
    decode_header,
    encode_header,
    scan,
    seed_of,
)

DIRECTORY: Final = "journal"
NEXT: Final = f"{DIRECTORY}/next"
RESERVE: Final = f"{DIRECTORY}/reserve"
SUFFIX: Final = ".log"
_DIGITS: Final = 20


@dataclass(frozen=True, slots=True)
class JournalFile:
    """A file that is complete: `end_sequence` is the first sequence that is not in it."""

    name: str
    first_sequence: int
    end_sequence: int
    bytes: int


def name_of(first_sequence: int) -> str:
    """The name of the file that starts with this sequence."""
    return f"{DIRECTORY}/{first_sequence:0{_DIGITS}d}{SUFFIX}"


def first_sequences(disk: ReadableDisk) -> list[int]:
    """Where each journal file starts, in order."""
    stems = [name.removesuffix(SUFFIX) for name in disk.list(DIRECTORY) if name.endswith(SUFFIX)]
    return [int(stem) for stem in stems if len(stem) == _DIGITS and stem.isdigit()]


def complete_files(disk: Disk) -> list[JournalFile]:
    """All files but the last, which is still being written."""
    starts = first_sequences(disk)
    names = [name_of(start) for start in starts]
    bounds = zip(names, starts, starts[1:], strict=False)
    return [JournalFile(name, first, end, disk.size(name)) for name, first, end in bounds]


def create_file(disk: Disk, header: Header, size: int) -> tuple[File, bool]:
    """Create a file, durable and open; returns it, and whether the reserve had to be used for it."""
    file, is_reserve = _allocate(disk, size)
    file.write_at(encode_header(header), 0)
    file.sync()
    file.close()
    name = name_of(header.first_sequence)
    disk.rename(NEXT, name)
    disk.sync_directory(DIRECTORY)
    return disk.open(name), is_reserve


def reopen_file(disk: Disk, name: str, size: int) -> File:
    """Open an existing file, preallocated again if there is room."""
    try:
        return disk.open(name, create_bytes=size)
    except DiskFull:
        return disk.open(name)


def rewrite_frames(file: File, scanned: Scan) -> None:
    """Rewrite, in place, the frames that may never have reached the disk.

    After a failed sync the system may hold them in memory and take them for stored: a sync alone would prove nothing.
    """
    if scanned.positions:
        _, _, _, durable = FRAME.unpack_from(scanned.data, scanned.positions[-1])
        start = scanned.positions[max(0, durable + 1 - scanned.first_sequence)]
        file.write_at(scanned.data[start : scanned.end_position], start)


def erase_tail(file: File, scanned: Scan) -> None:
    """Write zeros over a torn tail. Truncating would give up disk space that may not come back."""
    tail = np.frombuffer(scanned.data, np.uint8)[scanned.end_position :]
    dirty_bytes = int(np.flatnonzero(tail)[-1]) + 1
    file.write_at(bytes(dirty_bytes), scanned.end_position)


def remove_leftovers(disk: Disk) -> None:
    """Remove what a crash left between creating a file and naming it."""
    if disk.exists(NEXT):
        disk.remove(NEXT)


def make_reserve(disk: Disk, size: int) -> bool:
    """Keep the reserve ready; False when there is no room for it."""
    if disk.exists(RESERVE) and disk.size(RESERVE) >= size:
        return True
    try:
        disk.open(RESERVE, create_bytes=size).close()
        disk.sync_directory(DIRECTORY)
    except DiskFull:
        if disk.exists(RESERVE):
            disk.remove(RESERVE)
        return False
    return True


def read_header(disk: ReadableDisk, first_sequence: int, shard_id: bytes) -> Header:
    """The header of a file, checked against its name and the shard."""
    name = name_of(first_sequence)
    path = str(disk.root / name)
    header = decode_header(disk.read(name, 0, HEADER_BYTES), path)
    if header.shard_id != shard_id:
        raise Damaged(f"{path} belongs to shard {header.shard_id.hex()}, not to {shard_id.hex()}")
    if header.first_sequence != first_sequence:
        raise Damaged(f"{path} starts with sequence {header.first_sequence} and is named otherwise")
    return header


def scan_file(disk: Disk, first_sequence: int, shard_id: bytes, end_sequence: int | None = None) -> Scan:
    """Read a file and find its sound frames; damage behind the header is reported, not raised."""
    read_header(disk, first_sequence, shard_id)
    data = disk.read(name_of(first_sequence))
    return scan(data, seed_of(shard_id), first_sequence, end_sequence=end_sequence)


def require_sound(disk: Disk, scanned: Scan) -> Scan:
    """The scan itself, or `Damaged` naming file, position and what follows."""
    if scanned.verdict is Verdict.DAMAGED:
        raise Damaged(f"{disk.root / name_of(scanned.first_sequence)}: {scanned.describe()}")
    return scanned


def _allocate(disk: Disk, size: int) -> tuple[File, bool]:
    try:
        return disk.open(NEXT, create_bytes=size), False
    except DiskFull:
        if disk.exists(NEXT):
            disk.remove(NEXT)
        if not disk.exists(RESERVE):
            raise
        disk.rename(RESERVE, NEXT)
        return disk.open(NEXT), True


MARK_FILE: Final = "high-water"
MARK_FORMAT: Final = struct.Struct("<8sQQQII")
MARK_MAGIC: Final = b"PNSTKHW1"


class Mark(NamedTuple):
    """How far the journal was durable, and the length of its last file, when the mark was written."""

    durable_sequence: int = 0
    first_sequence: int = 0  # of the last file
    file_bytes: int = 0

    def is_cut(self, first_sequence: int, size: int, end_position: int) -> bool:
        """Whether the last file is shorter than it was. One that ends with its last frame was full, then truncated."""
        return first_sequence == self.first_sequence and size < self.file_bytes and size != end_position


def encode_mark(mark: Mark) -> bytes:
    """The bytes of the file."""
    head = MARK_FORMAT.pack(MARK_MAGIC, *mark, 0, 0)[:-8]
    return head + struct.pack("<II", crc32c(head), 0)


def decode_mark(data: bytes) -> Mark:
    """Decode a mark; an empty one when it cannot be read."""
    if len(data) != MARK_FORMAT.size:
        return Mark()
    magic, durable, first, size, crc, _ = MARK_FORMAT.unpack(data)
    return Mark(durable, first, size) if magic == MARK_MAGIC and crc == crc32c(data[:-8]) else Mark()


def read_mark(disk: ReadableDisk) -> Mark:
    """The mark of a directory."""
    try:
        return decode_mark(disk.read(MARK_FILE))
    except (FileNotFoundError, PenstockError):
        return Mark()


def write_mark(disk: Disk, mark: Mark) -> None:
    """Write the mark. A full disk is ignored: the mark is only evidence."""
    with suppress(PenstockError):
        disk.write_whole(MARK_FILE, encode_mark(mark))


def is_short_of_space(disk: Disk) -> bool:
    """Whether pushes must be refused, so that there is still room for what consumers do. Costs two system calls."""
    return disk.free_bytes() < free_bytes_min(disk)
