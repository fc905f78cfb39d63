"""A journal in files on a `Disk`, of whatever kind: its files are read in one way, and it refuses in one way.

Journals in the file system and in PostgreSQL differ in how frames get there, which is theirs alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, Final

from penstock import limits
from penstock.errors import Closed, Damaged, PenstockError
from penstock.journal import Frame, JournalFile, OpenFrame, as_it_is, outcome_unknown
from penstock.storage import journal_files
from penstock.storage.disk import Disk, ReadableDisk
from penstock.storage.frames import FRAME, HEADER_BYTES, PREFIX, Scan, frame_is_sound, seed_of

BUFFERS: Final = 3  # of a pending frame: its head, its entries, and the batch behind them, which may be empty
_READ_BYTES: Final = 256 * limits.KIB


class StoredJournal:
    """The state that both kinds keep, and what can be done with it alone. Opening the journal fills it in."""

    _full: list[JournalFile]  # files that will not be written again, oldest first
    _first_sequence: int  # of the file that is being written
    _position: int  # where its next frame goes
    _frames: int  # that it has

    def __init__(self, disk: Disk, shard_id: bytes, unseal: OpenFrame) -> None:
        self.sequence = self.written_sequence = self.durable_sequence = 0
        self.failed: BaseException | None = None
        self.on_rotate: Callable[[], None] = lambda: None
        self.on_fail: Callable[[], None] = lambda: None
        self._disk = disk
        self._shard_id = shard_id
        self._seed = seed_of(shard_id)
        self._unseal = unseal
        self._pending: list[Any] = []  # frames that are not written yet, as `BUFFERS` buffers each
        self._opened: Scan | None = None  # what was read when it was opened, until it is replayed
        self._closed = False
        self._refusing = False  # closed or failed, as one flag for append

    # Reading.

    def replay(self, after: int) -> Iterator[tuple[int, memoryview]]:
        first = self._full[0].first_sequence if self._full else self._first_sequence
        if after > self.sequence:
            raise Damaged(f"{self._disk.root}: the journal ends at sequence {self.sequence}, before {after}")
        if after + 1 < first:
            raise Damaged(f"{self._disk.root}: the journal starts at sequence {first}, after {after + 1}")
        return ((sequence, self._unseal(frame)) for sequence, frame in self._replay(after))

    def _replay(self, after: int) -> Iterator[tuple[int, memoryview]]:
        for file in self._full:
            if file.end_sequence > after + 1:
                yield from self._scan(file.first_sequence, file.end_sequence).frames(after)
        scan, self._opened = self._opened, None
        if scan is None or scan.end_sequence <= self.written_sequence:
            scan = self._scan(self._first_sequence)
        yield from scan.frames(after)

    def _scan(self, first_sequence: int, end_sequence: int | None = None) -> Scan:
        scan = journal_files.scan_file(self._disk, first_sequence, self._shard_id, end_sequence)
        return journal_files.require_sound(self._disk, scan)

    def reader(self) -> FileReader:
        return FileReader(self._disk, self._shard_id, self._unseal)

    def full_files(self) -> list[JournalFile]:
        return list(self._full)

    def read_file(self, file: JournalFile) -> Iterator[tuple[int, memoryview]]:
        scan = self._scan(file.first_sequence, file.end_sequence)
        return ((sequence, self._unseal(frame)) for sequence, frame in scan.frames())

    def size_bytes(self) -> int:
        return sum(file.bytes for file in self.full_files()) + self._position

    # Refusing.

    def fail(self, error: BaseException) -> None:
        self._fail(error)

    def _fail(self, error: BaseException) -> PenstockError:
        self._refusing = True
        if self.failed is None:
            self.failed = error
            self.on_fail()
        return outcome_unknown(self.failed)

    def _refuse_if_failed(self) -> None:
        if self.failed is not None:
            raise outcome_unknown(self.failed) from self.failed

    def _refuse(self, size: int) -> None:
        """Why a frame with so many bytes of entries was not appended."""
        self._refuse_if_failed()
        if self._closed:
            raise Closed("the journal is closed")
        raise ValueError(f"a frame cannot hold {size} bytes of entries")

    def _require_oldest(self, file: JournalFile) -> None:
        if not self._full or self._full[0] != file:
            raise ValueError(f"{file.name} is not the oldest full file: removing it would leave a gap")


class FileReader:
    """Reads the files under `journal/` while they are written.

    It remembers its position in the files, so that the next read costs only what is new. Files that are gone were
    sealed meanwhile: `FileNotFoundError` says that what they held must be read from the segments.
    """

    def __init__(self, disk: ReadableDisk, shard_id: bytes, unseal: OpenFrame = as_it_is) -> None:
        self._disk = disk
        self._seed = seed_of(shard_id)
        self._unseal = unseal
        self._file = 0  # the first sequence of the file that is being read
        self._next = 0  # the sequence of the next frame, at `_position`
        self._position = 0

    def read(self, after: int, until: int) -> Iterator[Frame]:
        if until <= after:
            return
        if self._next != after + 1:
            self._find(after + 1)
        elif not self._disk.exists(journal_files.name_of(self._file)):
            self._find(after + 1)  # it was sealed after all of it was read
        while self._next <= until:
            before = self._next
            yield from self._frames_of_file(after, until)
            if self._next == before:
                self._next_file()

    def _find(self, sequence: int) -> None:
        """Begin at the start of the file that holds a sequence."""
        starts = journal_files.first_sequences(self._disk)
        index = bisect_right(starts, sequence) - 1
        if index < 0:
            raise FileNotFoundError(f"{self._disk.root}: the journal does not hold sequence {sequence} any more")
        self._begin(starts[index])

    def _next_file(self) -> None:
        """The file has no more frames: the next one must begin here."""
        if self._next == self._file or self._next not in journal_files.first_sequences(self._disk):
            path = self._disk.root / journal_files.name_of(self._file)
            raise Damaged(f"{path}: sequence {self._next} is not at position {self._position}")
        self._begin(self._next)

    def _begin(self, first_sequence: int) -> None:
        self._file = self._next = first_sequence
        self._position = HEADER_BYTES

    def _frames_of_file(self, after: int, until: int) -> Iterator[Frame]:
        """Frames of the current file, as far as they go."""
        name, size = journal_files.name_of(self._file), _READ_BYTES
        while self._next <= until:
            data = memoryview(self._disk.read(name, self._position, size))
            taken = 0
            while self._next <= until and taken + FRAME.size <= len(data):
                length, crc, sequence, _ = FRAME.unpack_from(data, taken)
                end = taken + PREFIX.size + length
                if sequence != self._next or end > len(data):
                    break
                if not frame_is_sound(data, taken, length, crc, self._seed):
                    raise Damaged(f"{self._disk.root / name}: the frame of sequence {sequence} is damaged")
                entries = data[taken + FRAME.size : end]
                self._next += 1
                self._position += end - taken
                taken = end
                if sequence > after:
                    yield sequence, crc, self._unseal(entries)
            if taken == 0:
                if len(data) < size or size >= limits.frame_bytes_max + FRAME.size:
                    return
                size = limits.frame_bytes_max + FRAME.size  # the frame is larger than most
