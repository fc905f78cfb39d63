"""The end of the journal that is not sealed yet, followed frame by frame.

What is kept of a frame is where it lies and what it is about, as rows of numbers: whoever wants the messages reads the
bytes again. A frame that is not sound ends what can be read for now: somebody may be writing it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock import limits
from penstock.delivery import entries
from penstock.errors import Damaged
from penstock.history.catalogue import STRUCTURE, Catalogue
from penstock.history.files import Files
from penstock.storage.frames import FRAME, HEADER_BYTES, PREFIX, STAMP, frame_is_sound, seed_of
from penstock.storage.journal_files import first_sequences, name_of

Rows = NDArray[np.int64]

# Columns of the rows kept per push and partition, and per settled entry.
PUSH_COLUMNS: Final = ("queue", "partition", "first", "count", "position", "end", "pushed_at", "sequence")
SETTLE_COLUMNS: Final = ("queue", "position", "end", "at", "sequence")

READ_BYTES: Final = 64 * limits.KIB
READ_BYTES_MAX: Final = 8 * limits.MIB
CHUNKS_MAX: Final = 64  # before they are joined

_SETTLED: Final = entries.Settled.__struct_config__.tag
_NOTED: Final = (entries.TasksNoted, entries.TaskHeld, entries.TaskFreed, entries.Revived)
_NOTES: Final = {kind.__struct_config__.tag for kind in _NOTED}
_STRUCTURE: Final = {kind.__struct_config__.tag for kind in STRUCTURE}


class Table:
    """Rows that only grow, in chunks that are never altered."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self._width = len(columns)
        self._new: list[int] = []
        self._chunks: list[Rows] = []

    def add(self, row: tuple[int, ...]) -> None:
        self._new += row

    def rows(self) -> list[Rows]:
        """All rows so far; what is added later is not in it."""
        if self._new:
            self._chunks = [*self._chunks, np.array(self._new, np.int64).reshape(-1, self._width)]
            self._new = []
            if len(self._chunks) > CHUNKS_MAX:
                self._chunks = [np.concatenate(self._chunks)]
        return self._chunks


class TailFile:
    """One journal file, as far as it was read."""

    def __init__(self, first_sequence: int) -> None:
        self.name = name_of(first_sequence)
        self.first_sequence = first_sequence
        self.next_sequence = first_sequence
        self.position = HEADER_BYTES  # of the next frame
        self.pushes = Table(PUSH_COLUMNS)
        self.settles = Table(SETTLE_COLUMNS)
        self.notes = Table(SETTLE_COLUMNS)  # what else is told of tasks


class Tail:
    """The files after the sealed ones. Teaches a catalogue what it reads."""

    def __init__(self, files: Files, shard_id: bytes, catalogue: Catalogue, after: int) -> None:
        self._files = files
        self._seed = seed_of(shard_id)
        self._catalogue = catalogue
        self._after = after  # frames up to this one are in segments, and in the catalogue
        self.files: list[TailFile] = []
        self.starts: list[int] = []

    @property
    def sequence(self) -> int:
        """The last frame that was read."""
        return self.files[-1].next_sequence - 1 if self.files else self._after

    def is_whole(self) -> bool:
        """Whether the files begin where the segments, or the checkpoint, end."""
        return not self.files or self.files[0].first_sequence <= self._after + 1

    def follow(self, durable: int | None) -> None:
        """Read what has come since. `FileNotFoundError` when a file went before it was read."""
        self.starts = first_sequences(self._files)
        for first, end in zip(self.starts, [*self.starts[1:], None], strict=True):
            if end is not None and end <= self._after + 1:
                continue
            file = self._file(first)
            if file is None or (end is not None and file.next_sequence >= end):
                continue
            self._read(file, durable)
            if end is not None and file.next_sequence < end:
                if durable is not None and file.next_sequence > durable:
                    return
                raise Damaged(
                    f"{file.name}: the frame of sequence {file.next_sequence} at {file.position} is not sound"
                )

    def forget(self, sealed_sequence: int) -> None:
        """Let go of files whose frames are all in segments."""
        while len(self.files) > 1 and self.files[0].next_sequence - 1 <= sealed_sequence:
            del self.files[0]
            self._after = max(self._after, self.files[0].first_sequence - 1)

    def _file(self, first: int) -> TailFile | None:
        """The file that starts with this sequence; None for one that was forgotten."""
        for file in self.files:
            if file.first_sequence == first:
                return file
        if self.files and first != self.files[-1].next_sequence:
            if first < self.files[-1].next_sequence:
                return None
            raise FileNotFoundError(name_of(self.files[-1].next_sequence))
        self.files.append(TailFile(first))
        return self.files[-1]

    def _read(self, file: TailFile, durable: int | None) -> None:
        before, size = file.next_sequence, READ_BYTES
        while True:
            data = self._files.read(file.name, file.position, size)
            missing = self._take(file, memoryview(data), durable)
            if missing == 0 or len(data) < size:
                break
            size = max(min(4 * size, READ_BYTES_MAX), missing)
        if durable is None and file.next_sequence > before:
            self._files.make_durable(file.name)

    def _take(self, file: TailFile, data: memoryview, durable: int | None) -> int:
        """Take all whole frames; how many bytes the next one needs, 0 when there is none to be had."""
        position = 0
        while position + FRAME.size <= len(data):
            length, crc, sequence, _ = FRAME.unpack_from(data, position)
            if sequence != file.next_sequence or length < STAMP.size or length & 7 or length > limits.frame_bytes_max:
                file.position += position
                return 0
            end = position + PREFIX.size + length
            if end > len(data):
                file.position += position
                return int(PREFIX.size + length)
            if (durable is not None and sequence > durable) or not frame_is_sound(
                data, position, length, crc, self._seed
            ):
                file.position += position
                return 0
            self._note(file, sequence, data[position + FRAME.size : end], file.position + position)
            file.next_sequence += 1
            position = end
        file.position += position
        return FRAME.size

    def _note(self, file: TailFile, sequence: int, frame: memoryview, position: int) -> None:
        """Remember what a frame is about."""
        end = position + FRAME.size + len(frame)
        if len(frame) >= entries.PUSH_ONE.size:
            # By far the most frames push one batch to one partition: all of it is read at once.
            kind, length, queue, _, pushed_at, _, _, _, parts, partition, count, first = entries.PUSH_ONE.unpack_from(
                frame
            )
            if kind == entries.PUSH and parts == 1 and entries.HEAD.size + length + -length % 8 == len(frame):
                file.pushes.add((queue, partition, first, count, position, end, pushed_at, sequence))
                self._catalogue.pushed(queue, partition, first + count)
                return
        for kind, body in entries.split(frame):
            if kind == entries.PUSH:
                queue, _, pushed_at, _, _, _, parts = entries.PUSH_HEAD.unpack_from(body)
                start = entries.PUSH_HEAD.size
                parted = body[start : start + parts * entries.PUSH_PART.size]
                for partition, count, first in entries.PUSH_PART.iter_unpack(parted):
                    file.pushes.add((queue, partition, first, count, position, end, pushed_at, sequence))
                    self._catalogue.pushed(queue, partition, first + count)
            elif kind == _SETTLED:
                settled = entries.decode_record(body)
                assert isinstance(settled, entries.Settled)
                file.settles.add((settled.queue, position, end, settled.at, sequence))
            elif kind in _NOTES:
                noted = entries.decode_record(body)
                assert isinstance(noted, _NOTED)
                file.notes.add((noted.queue, position, end, noted.at, sequence))
            elif kind in _STRUCTURE and sequence > self._catalogue.sequence:
                self._catalogue.apply(entries.decode_record(body))
