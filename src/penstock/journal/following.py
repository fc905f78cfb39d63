"""Reading a journal while it is written: the frames after a sequence, up to one that is known to be written.

Whoever follows keeps a reader, which remembers where it is in the files, so that the next look costs what is new. Files
that are gone were sealed meanwhile: `FileNotFoundError` says that what they held must be had from the segments.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from penstock import limits
from penstock.errors import Damaged
from penstock.storage.disk import ReadableDisk
from penstock.storage.frames import FRAME, HEADER_BYTES, PREFIX, frame_is_sound, seed_of
from penstock.storage.journal_files import first_sequences, name_of

Frame = tuple[int, int, memoryview]  # sequence, checksum, entries

READ_BYTES: Final = 256 * limits.KIB


class FrameReader(Protocol):
    """For one thread at a time."""

    def read(self, after: int, until: int) -> Iterator[Frame]:
        """The frames over `after`, up to and including `until`, which must be written."""


class FileReader:
    """Reads the files under `journal/`."""

    def __init__(self, disk: ReadableDisk, shard_id: bytes) -> None:
        self._disk = disk
        self._seed = seed_of(shard_id)
        self._file = 0  # the first sequence of the file that is read
        self._next = 0  # the sequence of the next frame, and where it lies
        self._position = 0

    def read(self, after: int, until: int) -> Iterator[Frame]:
        if until <= after:
            return
        if self._next != after + 1:
            self._find(after + 1)
        elif not self._disk.exists(name_of(self._file)):
            self._find(after + 1)  # sealed, after all of it was read
        while self._next <= until:
            before = self._next
            yield from self._of_file(after, until)
            if self._next == before:
                self._go_on()

    def _find(self, sequence: int) -> None:
        """Begin at the start of the file that holds a sequence."""
        starts = first_sequences(self._disk)
        index = bisect_right(starts, sequence) - 1
        if index < 0:
            raise FileNotFoundError(f"{self._disk.root}: the journal does not hold sequence {sequence} any more")
        self._begin(starts[index])

    def _go_on(self) -> None:
        """The file has no more: the next one must begin here."""
        if self._next == self._file or self._next not in first_sequences(self._disk):
            raise Damaged(f"{self._disk.root / name_of(self._file)}: sequence {self._next} is not at {self._position}")
        self._begin(self._next)

    def _begin(self, first_sequence: int) -> None:
        self._file = self._next = first_sequence
        self._position = HEADER_BYTES

    def _of_file(self, after: int, until: int) -> Iterator[Frame]:
        """Frames of the present file, as far as they go."""
        name, size = name_of(self._file), READ_BYTES
        while self._next <= until:
            data = memoryview(self._disk.read(name, self._position, size))
            taken = 0
            while self._next <= until and taken + FRAME.size <= len(data):
                length, crc, sequence, _ = FRAME.unpack_from(data, taken)
                end = taken + PREFIX.size + length
                if sequence != self._next or end > len(data):
                    break
                if not frame_is_sound(data, taken, length, crc, self._seed):
                    raise Damaged(f"{self._disk.root / name}: the frame of sequence {sequence} is not sound")
                entries = data[taken + FRAME.size : end]
                self._next += 1
                self._position += end - taken
                taken = end
                if sequence > after:
                    yield sequence, crc, entries
            if taken == 0:
                if len(data) < size or size >= limits.frame_bytes_max + FRAME.size:
                    return
                size = limits.frame_bytes_max + FRAME.size  # one that is larger than most


class MemoryReader:
    """Reads a list of frames that only grows."""

    def __init__(self, frames: Sequence[bytes]) -> None:
        self._frames = frames

    def read(self, after: int, until: int) -> Iterator[Frame]:
        for sequence in range(after + 1, until + 1):
            yield sequence, 0, memoryview(self._frames[sequence - 1])
