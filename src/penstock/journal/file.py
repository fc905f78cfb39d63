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
from collections.abc import Callable
from typing import Any, Final

from penstock import limits
from penstock.errors import Closed, Damaged, PenstockError
from penstock.journal import JournalFile, LocalJournal, OpenFrame, as_it_is
from penstock.journal.stored import BUFFERS, StoredJournal
from penstock.storage import journal_files
from penstock.storage.disk import Disk, File
from penstock.storage.frames import (
    ENTRIES_BYTES_MAX,
    FRAME,
    HEADER_BYTES,
    PREFIX,
    Header,
    Verdict,
    frame_head,
)
from penstock.storage.journal_files import Mark, is_short_of_space, read_mark, write_mark

logger: Final = logging.getLogger("penstock.journal")

_COPY_MAX: Final = 32 * limits.KIB  # a batch over this is not copied to be written in one call with what is before it
_ZEROS: Final = bytes(256 * limits.KIB)


class FileJournal(StoredJournal, LocalJournal):
    """The files under `journal/` of a data directory that is locked by this process.

    `known_durable` is a sequence that something else, a checkpoint or the segments, says was durable: a journal that
    ends before it has lost frames, and is refused untouched. `unseal` is applied to the entries of every frame that is
    read: those of encrypted queues are sealed.
    """

    def __init__(
        self,
        disk: Disk,
        shard_id: bytes,
        *,
        known_durable: int = 0,
        file_bytes: int = limits.journal_file_bytes,
        file_frames_max: int = limits.journal_file_frames_max,
        unseal: OpenFrame = as_it_is,
    ) -> None:
        super().__init__(disk, shard_id, unseal)
        self.disk_full = False
        self._file_bytes = file_bytes
        self._file_frames_max = file_frames_max
        self._writing = threading.Lock()
        self._syncing = threading.Lock()
        self._marking = threading.Lock()  # taken last
        self._retired: list[File] = []  # full files that a sync may still be using
        self._marked = read_mark(disk)
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
                # Nothing is ahead of it: it need not be gathered.
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

    def remove_file(self, file: JournalFile) -> None:
        self._require_oldest(file)
        with self._syncing:
            self._close_retired()
        if self._disk.exists(file.name):  # else it was removed before, by somebody who was interrupted
            self._disk.remove(file.name)
        self._disk.sync_directory(journal_files.DIRECTORY)
        del self._full[0]

    # The disk.

    def check_space(self) -> bool:
        is_short = is_short_of_space(self._disk)
        with self._writing:  # a rotation may be taking the reserve
            has_reserve = is_short or journal_files.make_reserve(self._disk, self._file_bytes)
            self.disk_full = is_short or not has_reserve
        return self.disk_full

    def mark(self) -> None:
        with self._writing:
            mark = Mark(self.durable_sequence, self._first_sequence, self._allocated)
        self._mark(mark)

    def _mark(self, mark: Mark) -> None:
        # One at a time: housekeeping and a rotation may both be here. What was true before the rotation is not written.
        with self._marking:
            if mark != self._marked and mark.first_sequence == self._first_sequence:
                write_mark(self._disk, mark)
                self._marked = mark

    def free_bytes(self) -> int | None:
        return self._disk.free_bytes()

    # Opening.

    def _open(self, known_durable: int) -> None:
        journal_files.remove_leftovers(self._disk)
        self._full = journal_files.complete_files(self._disk)
        starts = journal_files.first_sequences(self._disk)
        self._incarnation = 1
        for start in starts:
            self._incarnation = journal_files.read_header(self._disk, start, self._shard_id).incarnation + 1
        if starts:
            self._continue(starts[-1], known_durable)
        elif known_durable:
            raise Damaged(f"{self._disk.root}: there are no journal files, and sequence {known_durable} was durable")
        else:
            self._start(1)
        self.sequence = self.written_sequence = self.durable_sequence = self._first_sequence + self._frames - 1
        self._mark(Mark(self.durable_sequence, self._first_sequence, self._allocated))
        journal_files.make_reserve(self._disk, self._file_bytes)  # even when space is short: this is what it is for
        self.check_space()

    def _continue(self, first_sequence: int, known_durable: int) -> None:
        """Continue the last file after its last sound frame."""
        scan = self._scan(first_sequence)
        name = journal_files.name_of(first_sequence)
        if scan.end_sequence <= known_durable:
            raise Damaged(
                f"{self._disk.root / name} ends at sequence {scan.end_sequence - 1}, and {known_durable} was durable"
            )
        size = self._disk.size(name)
        if self._marked.is_cut(first_sequence, size, scan.end_position):
            sizes = f"it has {size:,} bytes, and had {self._marked.file_bytes:,}"
            raise Damaged(f"{self._disk.root / name} was cut after sequence {scan.end_sequence - 1}: {sizes}")
        self._file = journal_files.reopen_file(self._disk, name, self._file_bytes)
        if scan.verdict is Verdict.TORN:
            logger.warning("%s: cut a torn tail at position %d", self._disk.root / name, scan.end_position)
            journal_files.erase_tail(self._file, scan)
        # What an earlier process wrote may be in memory only; the next frame will call it durable.
        journal_files.rewrite_frames(self._file, scan)
        self._file.sync()
        self._disk.sync_directory(journal_files.DIRECTORY)
        self._first_sequence = first_sequence
        self._position = scan.end_position
        self._frames = len(scan.positions)
        self._touched_end, self._allocated = 0, self._file.size()
        self._opened = scan

    def _start(self, first_sequence: int) -> None:
        header = Header(self._shard_id, self._incarnation, first_sequence)
        self._file, reserve_used = journal_files.create_file(self._disk, header, self._file_bytes)
        self.disk_full = self.disk_full or reserve_used
        self._first_sequence = first_sequence
        self._position = HEADER_BYTES
        self._frames = 0
        self._touched_end, self._allocated = 0, self._file.size()

    # Writing; the caller holds `_writing`.

    def _write_pending(self) -> None:
        if self._refusing:
            self._refuse_if_failed()
        pending = self._pending
        buffers = len(pending)  # append may add more meanwhile
        if not buffers:
            return
        if self._closed:
            raise Closed("the journal is closed")
        self._or_fail(self._write_frames, pending, buffers)

    def _or_fail(self, action: Callable[..., None], *arguments: Any) -> None:
        """Run an action whose failure stops the journal."""
        try:
            action(*arguments)
        except (PenstockError, OSError) as error:
            raise self._fail(error) from error
        except BaseException as error:
            # Interrupted midway: the file may hold something else than the counters say.
            self._fail(error)
            raise

    def _write_frames(self, pending: list[Any], buffers: int) -> None:
        if buffers == BUFFERS and len(pending[2]) > _COPY_MAX and self._fits(len(pending[1]) + len(pending[2])):
            self._put(pending[0] + pending[1], 0)
            self._put(pending[2], 1)
        else:
            data, count = b"".join(pending[:buffers]), buffers // BUFFERS
            if self._position + len(data) <= self._file_bytes and self._frames + count <= self._file_frames_max:
                self._put(data, count, self._ahead(len(data)))
            else:
                self._write_split(memoryview(data))
        # Inside `_or_fail`: an interrupt between writing and forgetting must be final, or they would be written twice.
        del pending[:buffers]

    def _fits(self, entries_bytes: int) -> bool:
        """Whether one more frame fits into this file."""
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
        """Zeros to write, over zeros, behind a small write of `size` bytes to a region not written before.

        The first write to a region that was only allocated changes the metadata of the file, and the sync waits until
        that is stored too; later writes there wait for the bytes alone.
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
        name = journal_files.name_of(self._first_sequence)
        full = JournalFile(name, self._first_sequence, self.written_sequence + 1, self._position)
        self._start(self.written_sequence + 1)
        self._full.append(full)
        # At once: housekeeping may be busy for long, and of a file without a mark nobody knows how long it was.
        self._mark(Mark(self.durable_sequence, self._first_sequence, self._allocated))
        self.on_rotate()
        self.disk_full = self.disk_full or is_short_of_space(self._disk)

    def _close_retired(self) -> None:
        while self._retired:
            self._retired.pop().close()


assert FRAME.size + HEADER_BYTES < limits.journal_file_bytes - limits.frame_bytes_max
