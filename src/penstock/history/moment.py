"""One moment of a data directory: the queues, the sealed segments, and the end of the journal that is not sealed yet.

`QueueIndex` knows names and offsets, no delivery state. It starts from a checkpoint and follows the journal. Ends,
starts and names only grow, so parts of a checkpoint that were taken at different times, and frames that it includes
already, are harmless.

`Tail` follows the unsealed journal frame by frame. It keeps the position of a frame and what it is about, as rows of
numbers; a reader of messages reads the bytes again. A frame that is damaged ends what can be read for now: it may be
half written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock import limits
from penstock.delivery import entries, snapshot
from penstock.errors import Damaged, QueueNotFound
from penstock.history.files import Files
from penstock.history.slices import OffsetRange
from penstock.model import QueueOptions, queue_options_decode
from penstock.refusals import suggestion
from penstock.storage.checkpoint import Checkpoint
from penstock.storage.frames import FRAME, HEADER_BYTES, PREFIX, STAMP, frame_is_sound, seed_of
from penstock.storage.journal_files import first_sequences, name_of
from penstock.storage.manifest import Manifest
from penstock.storage.schema import Names
from penstock.storage.sealed_frames import clear_entries

Rows = NDArray[np.int64]

# Columns of the rows kept per push and partition, and per settled entry.
_PUSH_COLUMNS: Final = ("queue", "partition", "first", "count", "position", "end", "pushed_at", "sequence")
_CHANGE_COLUMNS: Final = ("queue", "position", "end", "at", "sequence")
PUSH: Final = {name: index for index, name in enumerate(_PUSH_COLUMNS)}
CHANGE: Final = {name: index for index, name in enumerate(_CHANGE_COLUMNS)}

READ_BYTES: Final = 64 * limits.KIB
READ_BYTES_MAX: Final = 8 * limits.MIB
CHUNKS_MAX: Final = 64  # before they are joined

_SETTLED: Final = entries.Settled.__struct_config__.tag
_NOTED: Final = (entries.TasksNoted, entries.TaskHeld, entries.TaskFreed, entries.Revived)
_NOTES: Final = {kind.__struct_config__.tag for kind in _NOTED}
_STRUCTURE: Final = {
    kind.__struct_config__.tag
    for kind in (
        entries.QueueSet,
        entries.QueueDeleted,
        entries.PartitionsAdded,
        entries.GroupSet,
        entries.GroupDeleted,
        entries.Trimmed,
    )
}
QUEUE_PART: Final = "queue-"  # of a checkpoint


class PartitionView(msgspec.Struct, frozen=True, gc=False):
    """One partition: the offsets [start, end) are kept, and durable."""

    name: str
    id: int
    start: int
    end: int


class QueueView(msgspec.Struct, frozen=True):
    """One queue at one moment."""

    name: str
    incarnation: int
    options: QueueOptions
    partitions: Mapping[str, PartitionView]
    groups: tuple[str, ...]


class _Queue:
    """A queue, as far as is known."""

    def __init__(self, id: int, name: str, options: bytes) -> None:
        self.id = id
        self.name = name
        self.options = options
        self.names: list[str] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.groups: dict[int, str] = {}
        self.view: QueueView | None = None  # as it was handed out last; None when something has changed since

    def add_partitions(self, first: int, names: list[str]) -> None:
        for name in names[max(0, len(self.names) - first) :]:
            self.names.append(name)
            self.starts.append(0)
            self.ends.append(0)

    def snapshot(self) -> QueueView:
        if self.view is None:
            rows = enumerate(zip(self.names, self.starts, self.ends, strict=True))
            views = {name: PartitionView(name, id, start, end) for id, (name, start, end) in rows}
            options = queue_options_decode(self.options)
            self.view = QueueView(self.name, self.id, options, views, tuple(self.groups.values()))
        return self.view


class QueueIndex:
    """All queues. `sequence` is that of the last frame whose changes are known."""

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        self.sequence = 0
        self._queues: dict[int, _Queue] = {}
        self._names: Names | None = None
        if checkpoint is not None:
            self.sequence = checkpoint.sequence
            for name, data in checkpoint.parts.items():
                if name.startswith(QUEUE_PART):
                    self._restore(snapshot.decode_queue(data))

    def _restore(self, part: snapshot.QueuePart) -> None:
        queue = self._queues[part.head.id] = _Queue(part.head.id, part.head.name, part.head.options)
        queue.groups = {number: name for number, name, *_ in part.head.groups}
        for stored in part.slices:
            queue.names += stored.names
            queue.starts += np.frombuffer(stored.starts, np.int64).tolist()
            queue.ends += np.frombuffer(stored.ends, np.int64).tolist()

    def pushed(self, queue_id: int, partition: int, end: int) -> None:
        """Messages up to `end` are there."""
        queue = self._queues.get(queue_id)
        if queue is not None and partition < len(queue.ends) and queue.ends[partition] < end:
            queue.ends[partition] = end
            queue.view = None

    def apply(self, entry: entries.Entry) -> None:
        """Learn from an entry of a frame after `sequence`."""
        if isinstance(entry, entries.QueueSet):
            queue = self._queues.get(entry.queue)
            if queue is None:
                self._queues[entry.queue] = _Queue(entry.queue, entry.name, entry.options)
            else:
                queue.options = entry.options
        elif isinstance(entry, entries.QueueDeleted):
            self._queues.pop(entry.queue, None)
        self._apply_to(self._queues.get(entry.queue), entry)

    def _apply_to(self, queue: _Queue | None, entry: entries.Entry) -> None:
        self._names = None
        if queue is None:
            return
        queue.view = None
        if isinstance(entry, entries.PartitionsAdded):
            queue.add_partitions(entry.first, entry.names)
        elif isinstance(entry, entries.GroupSet):
            queue.groups[entry.group] = entry.name
        elif isinstance(entry, entries.GroupDeleted):
            queue.groups.pop(entry.group, None)
        elif isinstance(entry, entries.Trimmed):
            for number, start in entry.starts:
                queue.starts[number] = max(queue.starts[number], start)

    def snapshot(self) -> dict[str, QueueView]:
        """The queues by name, as they are now."""
        return {queue.name: queue.snapshot() for queue in self._queues.values()}

    def names(self) -> Names:
        """The names behind the ids in the journal."""
        if self._names is None:
            queues = {queue.id: (queue.name, dict(enumerate(queue.names))) for queue in self._queues.values()}
            groups = {(queue.id, id): name for queue in self._queues.values() for id, name in queue.groups.items()}
            self._names = Names(queues, groups)
        return self._names


class Table:
    """Rows that only grow, in chunks that are never altered."""

    def __init__(self, columns: Collection[str]) -> None:
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
        self.pushes = Table(PUSH)
        self.settles = Table(CHANGE)
        self.notes = Table(CHANGE)  # other changes of tasks


class Tail:
    """The journal files after the sealed ones; what it reads goes into a `QueueIndex` too."""

    def __init__(self, files: Files, shard_id: bytes, queue_index: QueueIndex, after: int) -> None:
        self._files = files
        self._seed = seed_of(shard_id)
        self._queue_index = queue_index
        self._after = after  # frames up to this one are in segments, and in the index
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
                raise Damaged(f"{file.name}: the frame of sequence {file.next_sequence} at {file.position} is damaged")

    def forget(self, sealed_sequence: int) -> None:
        """Drop files whose frames are all in segments."""
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
        """Take all whole frames; how many bytes the next one needs, 0 when there is none."""
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
                self._queue_index.pushed(queue, partition, first + count)
                return
        for kind, body in clear_entries(frame):
            if kind == entries.PUSH:
                queue, _, pushed_at, _, _, _, parts = entries.PUSH_HEAD.unpack_from(body)
                start = entries.PUSH_HEAD.size
                parted = body[start : start + parts * entries.PUSH_PART.size]
                for partition, count, first in entries.PUSH_PART.iter_unpack(parted):
                    file.pushes.add((queue, partition, first, count, position, end, pushed_at, sequence))
                    self._queue_index.pushed(queue, partition, first + count)
            elif kind == _SETTLED:
                settled = entries.decode_record(body)
                assert isinstance(settled, entries.Settled)
                file.settles.add((settled.queue, position, end, settled.at, sequence))
            elif kind in _NOTES:
                noted = entries.decode_record(body)
                assert isinstance(noted, _NOTED)
                file.notes.add((noted.queue, position, end, noted.at, sequence))
            elif kind in _STRUCTURE and sequence > self._queue_index.sequence:
                self._queue_index.apply(entries.decode_record(body))


class TailView(msgspec.Struct, frozen=True):
    """One journal file, as far as it counts: rows with the columns `PUSH` and `CHANGE`."""

    file: str
    pushes: list[Rows]
    settles: list[Rows]
    notes: list[Rows]  # of tasks, as settles


class Moment(msgspec.Struct, frozen=True):
    """Everything up to the frame `sequence`. Nothing that happens later changes it."""

    sequence: int
    queues: dict[str, QueueView]
    manifest: Manifest
    tail: tuple[TailView, ...]
    names: Names

    def queue(self, name: str) -> QueueView:
        """The queue of this name; `QueueNotFound` suggests another."""
        queue = self.queues.get(name)
        if queue is None:
            hint = suggestion(name, tuple(sorted(self.queues))) if self.queues else "there are no queues yet"
            raise QueueNotFound(f"there is no queue {name!r}", hint=hint)
        return queue

    def everything(self, name: str) -> list[OffsetRange]:
        """All messages of a queue."""
        partitions = self.queue(name).partitions.values()
        return [OffsetRange(name, view.name, view.start, view.end) for view in partitions if view.end > view.start]
