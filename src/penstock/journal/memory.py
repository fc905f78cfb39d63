"""A journal that lasts as long as the process: for tests, and for shards that need no disk.

It keeps the order of events of the file journal, so that a caller that forgets to write or sync fails here too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from penstock.errors import Closed, Damaged
from penstock.journal import Frame, JournalFile, LocalJournal, outcome_unknown
from penstock.storage.frames import ENTRIES_BYTES_MAX


class MemoryJournal(LocalJournal):
    """Frames in a list."""

    def __init__(self) -> None:
        self.sequence = 0
        self.written_sequence = 0
        self.durable_sequence = 0
        self.disk_full = False
        self.failed: BaseException | None = None
        self.on_rotate: Callable[[], None] = lambda: None
        self.on_fail: Callable[[], None] = lambda: None
        self._frames: list[bytes] = []
        self._bytes = 0
        self._lock = threading.Lock()
        self._closed = False

    def append(self, entries: bytes, batch: bytes | memoryview = b"") -> int:
        if self.failed is not None:
            raise outcome_unknown(self.failed)
        if self._closed:
            raise Closed("the journal is closed")
        frame = b"".join((entries, batch))
        if len(frame) & 7 or len(frame) > ENTRIES_BYTES_MAX:
            raise ValueError(f"a frame cannot hold {len(frame)} bytes of entries")
        self._frames.append(frame)
        self._bytes += len(frame)
        self.sequence += 1
        return self.sequence

    def append_written(self, entries: bytes, batch: bytes | memoryview = b"") -> int:
        sequence = self.append(entries, batch)
        self.write()
        return sequence

    def write(self) -> None:
        with self._lock:
            self._refuse_if_closed()
            self.written_sequence = self.sequence

    def sync(self) -> None:
        with self._lock:
            self._refuse_if_closed()
            self.written_sequence = self.sequence
            self.durable_sequence = self.written_sequence

    def replay(self, after: int) -> Iterator[tuple[int, memoryview]]:
        if after > self.sequence:
            raise Damaged(f"the journal ends at sequence {self.sequence}, before {after}")
        frames = self._frames[after:]
        return ((after + index, memoryview(entries)) for index, entries in enumerate(frames, 1))

    def reader(self) -> MemoryReader:
        return MemoryReader(self._frames)

    def full_files(self) -> list[JournalFile]:
        return []

    def read_file(self, file: JournalFile) -> Iterator[tuple[int, memoryview]]:
        raise FileNotFoundError(file.name)

    def remove_file(self, file: JournalFile) -> None:
        raise FileNotFoundError(file.name)

    def size_bytes(self) -> int:
        return self._bytes

    def rotate(self) -> None:
        self.sync()

    def check_space(self) -> bool:
        return False

    def mark(self) -> None:
        pass

    def free_bytes(self) -> int | None:
        return None

    def fail(self, error: BaseException) -> None:
        if self.failed is None:
            self.failed = error
            self.on_fail()

    def close(self) -> None:
        if not self._closed and self.failed is None:
            self.sync()
            self._closed = True

    def _refuse_if_closed(self) -> None:
        if self.failed is not None:
            raise outcome_unknown(self.failed)
        if self._closed and self.durable_sequence < self.sequence:
            raise Closed("the journal is closed")


class MemoryReader:
    """Reads a list of frames that only grows."""

    def __init__(self, frames: Sequence[bytes]) -> None:
        self._frames = frames

    def read(self, after: int, until: int) -> Iterator[Frame]:
        for sequence in range(after + 1, until + 1):
            yield sequence, 0, memoryview(self._frames[sequence - 1])
