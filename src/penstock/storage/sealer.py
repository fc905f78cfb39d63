"""Sealing: a stretch of the journal becomes Parquet files.

Runs in a thread beside the shard. It only adds files: they count once a manifest names them. Memory is bounded by
`limits.seal_bytes_max` of payload at a time, however well the batches in the journal were compressed; events and
changes of tasks are compressed as they are gathered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock import limits
from penstock.delivery.entries import Push, Settled, decode
from penstock.storage import parquet
from penstock.storage.disk import Disk
from penstock.storage.event_files import EventFileWriter, EventRows
from penstock.storage.extents import Extent
from penstock.storage.manifest import SegmentFile
from penstock.storage.message_rows import Keep, PushedBatch, message_table, pushed_batch, single_push
from penstock.storage.parquet import extents_of, row_ends, row_sizes, write_messages
from penstock.storage.schema import EVENTS, MESSAGES, TASKS, Names
from penstock.storage.task_rows import TaskRows

Frames = Iterable[tuple[int, memoryview]]


class Sealed(NamedTuple):
    """What a seal wrote."""

    files: list[SegmentFile]
    extents: list[Extent]


class Sealer:
    """Seals one stretch of the journal."""

    def __init__(
        self,
        disk: Disk,
        names: Names,
        keep: Keep,
        first_sequence: int,
        end_sequence: int,
        tasks: TaskRows | None = None,
    ) -> None:
        self._disk = disk
        self._tasks = tasks or TaskRows(names)
        self._names = names
        self._keep = keep
        self._sequences = (first_sequence, end_sequence)
        self._starts: dict[tuple[int, int], int] = {}
        self._events = EventRows(names)
        self._events_file = self._event_file(EVENTS)
        self._tasks_file = self._event_file(TASKS)
        self._sealed = Sealed([], [])

    def run(self, frames: Frames) -> Sealed:
        """Write all files; nothing is visible yet."""
        for pushed in self._stretches(frames):
            for group in self._by_file(pushed):
                self._write_messages(group)
        self._events_file.add(self._events.tables())
        self._tasks.finish()
        self._tasks_file.add(self._tasks.tables())
        for file in (self._events_file, self._tasks_file):
            self._sealed.files.extend(file.finish(self._sequences))
        return self._sealed

    def _event_file(self, kind: str) -> EventFileWriter:
        return EventFileWriter(self._disk, parquet.file_name(kind, self._sequences[0], 0), kind)

    def start_of(self, queue: int, partition: int) -> int:
        """The first offset to keep: asked once per partition, so that one seal uses one answer."""
        start = self._starts.get((queue, partition))
        if start is None:
            start = self._starts[queue, partition] = self._keep(queue, partition)
        return start

    def _stretches(self, frames: Frames) -> Iterator[list[PushedBatch]]:
        """Pushes that are still needed, as many at a time as may be in memory."""
        pushed: list[PushedBatch] = []
        size = 0
        for sequence, frame in frames:
            if not self._sequences[0] <= sequence < self._sequences[1]:
                continue
            single = single_push(frame)
            for item in self._read(frame, sequence) if single is None else (single,):
                if self._is_needed(item):
                    pushed.append(item)
                    size += item.payload_bytes
            if size >= limits.seal_bytes_max:
                yield pushed
                pushed, size = [], 0
        yield pushed

    def _read(self, frame: memoryview, sequence: int) -> Iterator[PushedBatch]:
        entries = list(decode(frame))
        self._tasks.take(sequence, entries)
        self._tasks_file.add(self._tasks.tables())
        for entry in entries:
            if isinstance(entry, Push):
                yield pushed_batch(entry)
            elif isinstance(entry, Settled):
                self._events.add(entry)

    def _is_needed(self, item: PushedBatch) -> bool:
        if item.queue not in self._names.queues:
            return False
        if len(item.parts) != 1:
            return any(first + count > self.start_of(item.queue, part) for part, count, first in item.parts)
        ((partition, count, first),) = item.parts
        return first + count > self.start_of(item.queue, partition)

    def _by_file(self, pushed: list[PushedBatch]) -> list[list[PushedBatch]]:
        """A queue with many bytes gets a file of its own; the others share one."""
        sizes: defaultdict[int, int] = defaultdict(int)
        for item in pushed:
            sizes[item.queue] += item.payload_bytes
        groups: defaultdict[int, list[PushedBatch]] = defaultdict(list)
        for item in pushed:
            has_own_file = sizes[item.queue] > limits.segment_own_file_bytes
            groups[item.queue if has_own_file else -1].append(item)
        return list(groups.values())

    def _write_messages(self, pushed: list[PushedBatch]) -> None:
        table, flags = message_table(pushed, self._names, self.start_of)
        if not len(table):
            return
        name = parquet.file_name(MESSAGES, self._sequences[0], len(self._sealed.files))
        ends = row_ends(row_sizes(table))
        extents = extents_of(table, flags, name, ends)
        self._sealed.files.append(write_messages(self._disk, table, ends, extents, self._sequences))
        self._sealed.extents.extend(extents)
