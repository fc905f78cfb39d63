"""How far the journal was known to be durable, and how long its last file was: a small file, written now and then.

    ┌─────────────┬─────────────┬────────────────┬──────────────┬───────────┬───────────┐
    │ "PNSTKHW1"  │ durable u64 │ first seq. u64 │ file size u64│ CRC32C u32│ zeros u32 │
    └─────────────┴─────────────┴────────────────┴──────────────┴───────────┴───────────┘

The last file of a journal tells by itself how far it goes, so of a file that was cut nobody would know. A journal that
ends before the mark, or whose last file is shorter than it was made, has lost frames. The mark is evidence and nothing
else: one that is missing, damaged or old tells less, never something wrong.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.errors import PenstockError
from penstock.storage.disk import Disk, ReadableDisk

NAME: Final = "high-water"
MARK: Final = struct.Struct("<8sQQQII")
MAGIC: Final = b"PNSTKHW1"


class Mark(NamedTuple):
    """See the module's rules."""

    durable_sequence: int = 0
    first_sequence: int = 0  # of the last file
    file_bytes: int = 0

    def is_cut(self, first_sequence: int, size: int, end_position: int) -> bool:
        """Whether the last file is shorter than it was. One that ends with its last frame was full, and cut by us."""
        return first_sequence == self.first_sequence and size < self.file_bytes and size != end_position


def encode_mark(mark: Mark) -> bytes:
    """The bytes of the file."""
    head = MARK.pack(MAGIC, *mark, 0, 0)[:-8]
    return head + struct.pack("<II", crc32c(head), 0)


def decode_mark(data: bytes) -> Mark:
    """The mark; one that says nothing when it cannot be read."""
    if len(data) != MARK.size:
        return Mark()
    magic, durable, first, size, crc, _ = MARK.unpack(data)
    return Mark(durable, first, size) if magic == MAGIC and crc == crc32c(data[:-8]) else Mark()


def read_mark(disk: ReadableDisk) -> Mark:
    """What the directory says."""
    try:
        return decode_mark(disk.read(NAME))
    except (FileNotFoundError, PenstockError):
        return Mark()


def write_mark(disk: Disk, mark: Mark) -> None:
    """Put it down. A disk that is full has other worries."""
    with suppress(PenstockError):
        disk.write_whole(NAME, encode_mark(mark))
