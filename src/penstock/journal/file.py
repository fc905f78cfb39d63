"""The journal in files: frames gathered in memory, written in one call, synced in groups, rotated.

- `append` takes no lock: it only adds to the end of a list, and the writer only takes from its front.
- `_writing` guards the file, its position and the counters. `_syncing` lets one thread sync at a time without keeping
  others from writing. Taken in the order `_syncing`, `_writing`.
- A frame never spans files, and the next file is created only after the last is durable.
- A failed write or sync is final: `failed` is set, memory is not to be trusted any more, the shard opens again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from penstock import limits
from penstock.errors import Closed, Damaged, PenstockError
from penstock.journal import JournalFile, outcome_unknown
from penstock.journal.following import FileReader
from penstock.storage import files
from penstock.storage.disk import Disk, File
from penstock.storage.frames import ENTRIES_BYTES_MAX, FRAME, HEADER_BYTES, PREFIX, Header, frame_head, seed_of
from penstock.storage.highwater import Mark, read_mark, write_mark
from penstock.storage.recovery import Scan, Verdict
from penstock.storage.space import SpaceGuard

logger: Final = logging.getLogger("penstock.journal")

_PIECES: Final = 3  # a frame is gathered as its head, its entries, and the batch behind them, which may be empty
_COPY_MAX: Final = 32 * limits.KIB  # a batch over this is not copied to be written in one call with what is before it
_ZEROS: Final = bytes(256 * limits.KIB)


class FileJournal:
    """The files under `journal/` of a data directory that is locked by this process.

    `known_durable` is a sequence that something else, a checkpoint or the segments, says was durable: a journal that
    ends before it has lost frames, and is refused untouched.
    """

    def __init__(
        self,
        disk: Disk,
        shard_id: bytes,
        *,
        known_durable: int = 0,
        file_bytes: int = limits.journal_file_bytes,
        file_frames_max: int = limits.journal_file_frames_max,
    ) -> None:
        self.sequence = self.written_sequence = self.durable_sequence = 0
        self.disk_full = False
        self.failed: BaseException | None = None
        self.on_rotate: Callable[[], None] = lambda: None
        self.on_fail: Callable[[], None] = lambda: None
        self._disk = disk
        self._shard_id = shard_id
        self._seed = seed_of(shard_id)
        self._file_bytes = file_bytes
        self._file_frames_max = file_frames_max
        self._guard = SpaceGuard(disk)
        self._pending: list[Any] = []
        self._writing = threading.Lock()
        self._syncing = threading.Lock()
        self._retired: list[File] = []  # full files that a sync may still be at work on
        self._marked = read_mark(disk)
        self._closed = False
        self._refusing = False  # closed or failed, in one look for append
        self._open(max(known_durable, self._marked.durable_sequence))

    # Appending and committing.

    def append(self, entries: bytes, batch: bytes | memoryview = b"") -> int:
        size = len(entries) + len(batch)
        if self._refusing or size & 7 or size > ENTRIES_BYTES_MAX:
            self._refuse(size)
        self.sequence = sequence = self.sequence + 1
        # One extend, so that the writer never sees half a frame.
        self._pending += (frame_head(entries, sequence, self.durable_sequence, self._seed, batch), entries, batch)
        return sequence

    def append_written(self, entries: bytes, batch: bytes | memoryview = b"") -> int:
        with self._writing:
            if not (self._pending or self._refusing or batch or len(entries) & 7) and self._fits(len(entries)):
                # Nothing stands before it: it need not be gathered.
                sequence = self.sequence + 1
                self._or_fail(self._put, frame_head(entries, sequence, self.durable_sequence, self._seed) + entries, 1)
                self.sequence = sequence
                return sequence
        sequence = self.append(entries, batch)
        self.write()
        return sequence

    def write(self) -> None:
        with self._writing:
            if self._pending or self._refusing:
                self._write_pending()

    def sync(self) -> None:
        with self._syncing:
            with self._writing:
                self._write_pending()
                target, file = self.written_sequence, self._file
            if target <= self.durable_sequence:
                return
            try:
                file.sync()
            except (PenstockError, OSError) as error:
                raise self._fail(error) from error
            with self._writing:
                # A rotation may have gone further meanwhile.
                self.durable_sequence = max(self.durable_sequence, target)
            self._close_retired()

    def rotate(self) -> None:
        with self._writing:
            self._write_pending()
            if self._closed:
                raise Closed("the journal is closed")
            if self._frames:
                self._or_fail(self._rotate)

    def close(self) -> None:
        if self._closed:
            return
        try:
            if self.failed is None:
                self.sync()
        finally:
            self._closed = self._refusing = True
            with self._syncing, self._writing:
                self._close_retired()
                self._file.close()

    # Reading.

    def replay(self, after: int) -> Iterator[tuple[int, memoryview]]:
        first = self._full[0].first_sequence if self._full else self._first_sequence
        if after > self.sequence:
            raise Damaged(f"{self._disk.root}: the journal ends at sequence {self.sequence}, before {after}")
        if after + 1 < first:
            raise Damaged(f"{self._disk.root}: the journal starts at sequence {first}, after {after + 1}")
        return self._replay(after)

    def reader(self) -> FileReader:
        return FileReader(self._disk, self._shard_id)

    def full_files(self) -> list[JournalFile]:
        return list(self._full)

    def read_file(self, file: JournalFile) -> Iterator[tuple[int, memoryview]]:
        return self._scan_full(file).frames()

    def remove_file(self, file: JournalFile) -> None:
        if not self._full or self._full[0] != file:
            raise ValueError(f"{file.name} is not the oldest full file: removing it would leave a gap")
        with self._syncing:
            self._close_retired()
        if self._disk.exists(file.name):  # else it was removed before, by somebody who was interrupted
            self._disk.remove(file.name)
        self._disk.sync_directory(files.DIRECTORY)
        del self._full[0]

    def size_bytes(self) -> int:
        return sum(file.bytes for file in self.full_files()) + self._position

    # The disk.

    def check_space(self) -> bool:
        is_short = self._guard.check()
        with self._writing:  # a rotation may be taking the reserve
            has_reserve = is_short or files.make_reserve(self._disk, self._file_bytes)
            self.disk_full = is_short or not has_reserve
        return self.disk_full

    def mark(self) -> None:
        with self._writing:
            mark = Mark(self.durable_sequence, self._first_sequence, self._allocated)
        self._mark(mark)

    def _mark(self, mark: Mark) -> None:
        if mark != self._marked:
            write_mark(self._disk, mark)
            self._marked = mark

    def free_bytes(self) -> int | None:
        return self._disk.free_bytes()

    # Opening.

    def _open(self, known_durable: int) -> None:
        files.remove_leftovers(self._disk)
        self._full = files.complete_files(self._disk)
        starts = files.first_sequences(self._disk)
        self._incarnation = 1
        self._opened: Scan | None = None
        for start in starts:
            self._incarnation = files.read_header(self._disk, start, self._shard_id).incarnation + 1
        if starts:
            self._continue(starts[-1], known_durable)
        elif known_durable:
            raise Damaged(f"{self._disk.root}: there are no journal files, and sequence {known_durable} was durable")
        else:
            self._start(1)
        self.sequence = self.written_sequence = self.durable_sequence = self._first_sequence + self._frames - 1
        self._mark(Mark(self.durable_sequence, self._first_sequence, self._allocated))
        files.make_reserve(self._disk, self._file_bytes)  # even when space is short: this is what it is for
        self.check_space()

    def _continue(self, first_sequence: int, known_durable: int) -> None:
        """Take up the last file after its last sound frame."""
        found = files.require_sound(self._disk, files.scan_file(self._disk, first_sequence, self._shard_id))
        name = files.name_of(first_sequence)
        if found.end_sequence <= known_durable:
            raise Damaged(
                f"{self._disk.root / name} ends at sequence {found.end_sequence - 1}, and {known_durable} was durable"
            )
        size = self._disk.size(name)
        if self._marked.is_cut(first_sequence, size, found.end_position):
            was = f"it has {size:,} bytes, and had {self._marked.file_bytes:,}"
            raise Damaged(f"{self._disk.root / name} was cut after sequence {found.end_sequence - 1}: {was}")
        self._file = files.reopen_file(self._disk, name, self._file_bytes)
        if found.verdict is Verdict.TORN:
            logger.warning("%s: cut a torn tail at position %d", self._disk.root / name, found.end_position)
            files.erase_tail(self._file, found)
        # What a process before this one wrote may be in memory only; the next frame will call it durable.
        files.write_again(self._file, found)
        self._file.sync()
        self._disk.sync_directory(files.DIRECTORY)
        self._first_sequence = first_sequence
        self._position = found.end_position
        self._frames = len(found.positions)
        self._touched_end, self._allocated = 0, self._file.size()
        self._opened = found

    def _start(self, first_sequence: int) -> None:
        header = Header(self._shard_id, self._incarnation, first_sequence)
        self._file, reserve_used = files.create_file(self._disk, header, self._file_bytes)
        self.disk_full = self.disk_full or reserve_used
        self._first_sequence = first_sequence
        self._position = HEADER_BYTES
        self._frames = 0
        self._touched_end, self._allocated = 0, self._file.size()

    def _replay(self, after: int) -> Iterator[tuple[int, memoryview]]:
        for file in self._full:
            if file.end_sequence > after + 1:
                yield from self._scan_full(file).frames(after)
        found, self._opened = self._opened, None
        if found is None or found.end_sequence <= self.written_sequence:
            found = files.require_sound(self._disk, files.scan_file(self._disk, self._first_sequence, self._shard_id))
        yield from found.frames(after)

    def _scan_full(self, file: JournalFile) -> Scan:
        return files.require_sound(
            self._disk, files.scan_file(self._disk, file.first_sequence, self._shard_id, file.end_sequence)
        )

    # Writing; the caller holds `_writing`.

    def _write_pending(self) -> None:
        if self._refusing:
            self._refuse_if_failed()
        pending = self._pending
        pieces = len(pending)  # append may add more meanwhile
        if not pieces:
            return
        if self._closed:
            raise Closed("the journal is closed")
        self._or_fail(self._write_frames, pending, pieces)

    def _or_fail(self, action: Callable[..., None], *arguments: Any) -> None:
        """Do what must not be left half done."""
        try:
            action(*arguments)
        except (PenstockError, OSError) as error:
            raise self._fail(error) from error
        except BaseException as error:
            # Interrupted midway: what is in the file and what we believe is there may differ.
            self._fail(error)
            raise

    def _write_frames(self, pending: list[Any], pieces: int) -> None:
        if pieces == _PIECES and len(pending[2]) > _COPY_MAX and self._fits(len(pending[1]) + len(pending[2])):
            self._put(pending[0] + pending[1], 0)
            self._put(pending[2], 1)
        else:
            data, count = b"".join(pending[:pieces]), pieces // _PIECES
            if self._position + len(data) <= self._file_bytes and self._frames + count <= self._file_frames_max:
                self._put(data, count, self._ahead(len(data)))
            else:
                self._write_split(memoryview(data))
        # In here: an interrupt between writing and forgetting must be final, or they would be written twice.
        del pending[:pieces]

    def _fits(self, entries_bytes: int) -> bool:
        """Whether one more frame has its place in this file."""
        end = self._position + FRAME.size + entries_bytes
        return end <= self._file_bytes and self._frames < self._file_frames_max

    def _write_split(self, data: memoryview) -> None:
        """Write frames that reach the end of the file, and go on in the next."""
        start = end = count = 0
        while end < len(data):
            frame_bytes = PREFIX.size + PREFIX.unpack_from(data, end)[0]
            is_full = self._position + end + frame_bytes - start > self._file_bytes
            if (is_full or self._frames + count >= self._file_frames_max) and self._frames + count:
                self._put(data[start:end], count)
                self._rotate()
                start, count = end, 0
            end += frame_bytes
            count += 1
        self._put(data[start:end], count)

    def _ahead(self, size: int) -> bytes:
        """Zeros to be written, over zeros, behind a small write of `size` bytes that comes to a new place.

        The first write to a place that was only allocated changes what the file system knows of the file, and the sync
        waits until that is stored too; the next ones have but the bytes to wait for.
        """
        end = self._position + size
        if end <= self._touched_end or size > _COPY_MAX:
            return b""
        self._touched_end = max(end, min(end + len(_ZEROS), self._allocated))
        return _ZEROS[: self._touched_end - end]

    def _put(self, data: bytes | memoryview, count: int, ahead: bytes = b"") -> None:
        """Write at the end; `count` frames are complete with it."""
        if data:
            self._file.write_at(b"".join((data, ahead)) if ahead else data, self._position)
            self._position += len(data)
            self._frames += count
            self.written_sequence += count

    def _rotate(self) -> None:
        # Before its end is cut: a file that a power cut leaves shorter than its mark says must end with a whole frame.
        self._file.sync()
        self._file.truncate(self._position)
        self._file.sync()
        self.durable_sequence = self.written_sequence
        self._retired.append(self._file)
        name = files.name_of(self._first_sequence)
        full = JournalFile(name, self._first_sequence, self.written_sequence + 1, self._position)
        self._start(self.written_sequence + 1)
        self._full.append(full)
        # At once: housekeeping may be busy for long, and of a file without a mark nobody knows how long it was.
        self._mark(Mark(self.durable_sequence, self._first_sequence, self._allocated))
        self.on_rotate()
        self.disk_full = self.disk_full or self._guard.check()

    def _close_retired(self) -> None:
        while self._retired:
            self._retired.pop().close()

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
        self._refuse_if_failed()
        if self._closed:
            raise Closed("the journal is closed")
        raise ValueError(f"a frame cannot hold {size} bytes of entries")


assert FRAME.size + HEADER_BYTES < limits.journal_file_bytes - limits.frame_bytes_max
