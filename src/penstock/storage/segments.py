"""The sealed segments of a shard: what was full in the journal, as Parquet, and the way back to each message.

Everything that alters the set of files goes through one lock and happens when the manifest is swapped: before, files
are only added; after, files that it does not name are removed, unless a pin holds them. Reading takes no part in that
lock. Extents are values: one that was handed out can be read for as long as its messages are kept, wherever compaction
puts them meanwhile; after that the answer is `MessageNotFound`, never another message.

`Prefetcher` reads ahead: while a consumer works through one row group, a thread loads the next one of the partition
into the cache of the store, whose byte budget bounds it.

`Sealer` turns a stretch of the journal into Parquet files, in a thread beside the shard. It only adds files: they count
once a manifest names them. Memory is bounded by `limits.seal_bytes_max` of payload at a time, however well the batches
in the journal were compressed; events and changes of tasks are compressed as they are gathered.
"""

from __future__ import annotations

import ctypes
import logging
import queue
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import takewhile
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from crc32c import crc32c
from numpy.typing import NDArray

from penstock import limits
from penstock.batch import Batch
from penstock.clock import Clock, SystemClock
from penstock.delivery.entries import Push, Settled, decode
from penstock.errors import Damaged, MessageNotFound
from penstock.model import Freed
from penstock.storage import compaction, parquet, retention, segment_audit
from penstock.storage.cache import ByteCache
from penstock.storage.disk import Disk
from penstock.storage.event_lookup import EventLookup
from penstock.storage.extent_reader import ExtentReader, Moved, is_alike
from penstock.storage.extents import Extent
from penstock.storage.manifest import (
    CurrentManifest,
    Gone,
    Layer,
    Manifest,
    SegmentFile,
    extents_in,
    queues_with_history,
)
from penstock.storage.message_rows import Keep, PushedBatch, message_table, pushed_batch, single_push
from penstock.storage.parquet import (
    EventFileWriter,
    EventRows,
    SegmentReader,
    extents_of,
    row_ends,
    row_sizes,
    write_messages,
)
from penstock.storage.schema import EVENTS, MESSAGES, SCHEMAS, TASKS, Names
from penstock.storage.sealed_rows import SEALED_FLAGS, RowSeals
from penstock.storage.segment_files import SegmentFiles, segment_files
from penstock.storage.task_rows import Identify, TaskRows

OnMoved = Callable[[list[Extent]], None]
Replaced = Callable[[set[str], list[Extent], list[Extent]], None]
Read = TypeVar("Read")

READ_TRIES: Final = 5

logger: Final = logging.getLogger("penstock.storage")


class SegmentStore:
    """The segments below one data directory. Safe to use from several threads."""

    def __init__(self, disk: Disk, *, clock: Clock | None = None, row_seals: RowSeals | None = None) -> None:
        self.disk = self._disk = segment_files(disk)
        self.row_seals = row_seals
        self._changing = threading.Lock()
        self._current = CurrentManifest(self._disk, clock or SystemClock())
        self._reader = SegmentReader(self._disk, row_seals=row_seals)
        self._batches: ByteCache[tuple[str, int, int], Batch] = ByteCache(limits.segment_cache_bytes)
        self._columns: ByteCache[tuple[str, int, str], parquet.Column] = ByteCache(limits.segment_columns_bytes)
        self.events = EventLookup(self._reader)
        self._extents = ExtentReader(self._reader, self._file, self._columns)
        self._current.sweep()
        self._disk.sweep_cache()

    @property
    def manifest(self) -> Manifest:
        """What is sealed now."""
        return self._current.manifest

    @property
    def sealed_sequence(self) -> int:
        """Journal frames up to this one are in segments."""
        return self._current.sealed_sequence

    @property
    def extents(self) -> list[Extent]:
        """All extents, sorted."""
        return list(self._current.extents)

    def files(self) -> list[SegmentFile]:
        """All files that count."""
        return list(self._current.files.values())

    def queues(self) -> set[int]:
        """Queues of which something is sealed."""
        return self._current.extents.queues()

    # Reading.

    def load(self, extent: Extent) -> Batch:
        """The messages of `extent`, and perhaps others of its row group; offset o is the row `extent.row_of(o)`.

        Rows of messages that compaction has removed are empty.
        """
        return self._read(extent, lambda present: self._load(extent, present))

    def at_hand(self, extent: Extent) -> Batch | None:
        """What `load` brings if it is in memory. No file is touched."""
        return self._batches.peek(_cached_as(extent))

    def column(self, extent: Extent, name: str) -> parquet.Column:
        """One column for the rows of `extent`; 0 stands for null.

        pushed_at, available_at, expires_at (int64 µs), priority (uint8), max_attempts (uint16), key_hash (uint32).
        """
        return self._read(extent, lambda present: self._extents.column(extent, present, name))

    def pushed_at(self, extent: Extent) -> NDArray[np.int64]:
        """When each message of `extent` was pushed, µs."""
        return self.column(extent, "pushed_at")

    def rows_with(self, extent: Extent, column: str, text: str) -> list[int]:
        """Offsets of `extent` whose `column`, key or trace_id, is this text."""
        return self._read(extent, lambda present: self._extents.offsets_with(extent, present, column, text))

    def forget_loaded(self) -> None:
        """Drop what was loaded before: some of it can no longer be read."""
        self._batches.drop(lambda key: True)
        self._columns.drop(lambda key: True)

    def of_partition(self, queue: int, partition: int) -> list[Extent]:
        """The extents of one partition, in order."""
        return list(self._current.extents.of_partition(queue, partition))

    def of_queue(self, queue: int) -> list[Extent]:
        """The extents of a queue, in no order."""
        return list(self._current.extents.of_queue(queue))

    def find(self, queue: int, partition: int, offset: int) -> Extent | None:
        """The extent that holds `offset`, or else the next one after it."""
        return self._current.extents.find(queue, partition, offset)

    def offset_at(self, queue: int, partition: int, at: int) -> int | None:
        """The first offset that was pushed at `at` or later; None when no sealed one was."""
        for extent in self.of_partition(queue, partition):
            if extent.pushed_last_at >= at:
                return extent.first_offset + int(np.argmax(self.pushed_at(extent) >= at))
        return None

    def verify(self, on_progress: segment_audit.Progress | None = None) -> list[segment_audit.Problem]:
        """Read everything and check it against the manifest."""
        return segment_audit.verify(self._disk, self.manifest, on_progress)

    def keep_tasks(self, clock: Clock, seconds: float) -> None:
        """Keep changes of tasks for `seconds`, even when the messages are gone."""
        us = round(seconds * 1_000_000)
        self._current.tasks_since = lambda: clock.now() - us

    def read_tasks(self, manifest: Manifest) -> Iterator[pa.Table]:
        """All changes of tasks that `manifest` names, in order; what is damaged is skipped."""
        files = [file for file in manifest.files.values() if file.table == TASKS]
        for file in sorted(files, key=lambda file: file.first_sequence):
            for row_group in range(len(file.row_groups)):
                try:
                    yield self._reader.read(file, row_group, SCHEMAS[TASKS].names)
                except (Damaged, FileNotFoundError) as error:
                    logger.warning("some changes of tasks cannot be read: %s", error)

    # Changing.

    def seal(
        self, frames: Frames, end_sequence: int, names: Names, keep: Keep, identify: Identify | None = None
    ) -> list[Extent]:
        """Put the journal's frames below `end_sequence` into segments; those that are sealed already are skipped.

        Messages of queues that `names` does not list, and those below `keep(queue, partition)`, are left out.
        `identify` finds the tasks of messages that were sealed before.
        """
        with self._changing:
            self._current.check()
            now = self._current
            if end_sequence <= now.sealed_sequence + 1:
                return []
            self._disk.check_current()
            tasks = TaskRows(names, identify, now.task_queues)
            sealed = Sealer(self._disk, names, keep, now.sealed_sequence + 1, end_sequence, tasks, self.row_seals).run(
                frames
            )
            sealed.extents.sort()
            about = {extent.queue for extent in sealed.extents}
            about |= {events.queue for file in sealed.files for events in file.events}
            layer = Layer(
                {queue: names.queues[queue][0] for queue in about},
                {file.name: file for file in sealed.files},
                sealed.extents,
            )
            now.change(layer, sealed_sequence=end_sequence - 1)
        release_memory()
        return sealed.extents

    def remove(self, starts: Mapping[tuple[int, int], int], gone_queues: Iterable[int] = ()) -> Freed:
        """Drop extents wholly below the start of their partition, and everything of queues that are gone."""
        with self._changing:
            removed = self._current.trim(starts, set(gone_queues))
            return self._sweep() + Freed(messages_removed=removed)

    def compact(self, live: retention.Live = lambda extent: True, moved: OnMoved | None = None) -> Freed:
        """Rewrite files of which over half the rows are no longer needed.

        Extents stay whole and keep their offsets. `moved` is called, file by file, with those in another file;
        extents from before can still be read, only less quickly.
        """
        freed = Freed()
        manifest = self.manifest
        oldest, since = queues_with_history(manifest), self._current.tasks_since()
        names = retention.worth_rewriting(manifest, live, since)
        extents_of = extents_in(manifest, names)
        for name in names:
            # One file at a time and `moved` without the lock: sealing need not wait for all of it.
            with self._changing:
                new, done = self._rewrite(name, extents_of[name], live, oldest, since)
            if moved is not None and new:
                moved(new)
            freed += done
        with self._changing:
            self._current.trim()
            freed += self._sweep()
        release_memory()
        return msgspec.structs.replace(freed, bytes_freed=max(0, freed.bytes_freed))

    def planner(self, tombstones_until: int) -> compaction.Planner:
        """Finds what is superseded, and tombstones that were pushed up to an instant."""
        return compaction.Planner(self._reader, self._file, tombstones_until)

    def drop(self, queue: int, removed: compaction.Removed, replaced: Replaced) -> Freed:
        """Rewrite the files of a queue without what is removed; all of them are replaced at once.

        `replaced` is called with the names of the files that are gone, the extents in them, and those that took their
        place.
        """
        with self._changing:
            self._current.check()
            names = {extent.file for extent in self._current.extents.of_queue(queue)}
            extents = extents_in(self.manifest, names)
            done = compaction.rewrite_all(self._disk, self._reader, self._current.files, extents, removed)
            names = {file.name for part in done for file in part.replaced}
            if not names:
                return Freed()
            new = sorted(extent for part in done for extent in part.extents)
            written = {part.file.name: part.file for part in done if part.file is not None}
            layer = Layer(files=written, extents=new, gone=Gone(files=sorted(names)))
            old = sorted(extent for name in names for extent in extents[name])
            self._current.change(layer, old)
        replaced(names, old, new)
        with self._changing:
            self._current.trim()
            freed = self._sweep()
        release_memory()
        return Freed(
            freed.files_removed,
            len(written),
            max(0, freed.bytes_freed - sum(file.bytes for file in written.values())),
            sum(part.dropped for part in done),
        )

    def _rewrite(
        self, name: str, extents: list[Extent], live: retention.Live, oldest: dict[int, int], since: int
    ) -> tuple[list[Extent], Freed]:
        """Replace one file by a smaller one; returns the extents in it, and what was freed."""
        now = self._current
        file = now.files.get(name)
        if file is None:
            return [], Freed()
        old = [extent for extent in extents if now.extents.has(extent)]
        kept = [extent for extent in old if live(extent)]
        try:
            written, new = retention.rewrite(self._disk, self._reader, oldest, file, kept, since)
        except Damaged as error:
            logger.warning("compaction skipped a damaged file: %s", error)
            return [], Freed()
        files = {entry.name: entry for entry in written}
        gone = sorted(extent for extent in old if not live(extent))
        now.change(Layer(files=files, extents=sorted(new), gone=Gone(files=[name])), gone)
        removed = sum(extent.stored_rows for extent in old) - sum(extent.stored_rows for extent in kept)
        size = sum(entry.bytes for entry in written)
        return new, Freed(files_rewritten=len(written), bytes_freed=-size, messages_removed=removed)

    def move(
        self, moved: OnMoved | None = None, on_progress: segment_audit.Progress = lambda done, total: None
    ) -> tuple[int, int]:
        """Move files to where new ones go, one by one; returns how many, and how many bytes.

        `moved` is called with the extents of each. A damaged file is left where it is.
        """
        manifest = self.manifest
        names = [name for name in manifest.files if not self._disk.is_current(name)]
        extents_of = extents_in(manifest, names)
        total = sum(manifest.files[name].bytes for name in names)
        count = size = 0
        for name in names:
            with self._changing:
                new = self._move(name, extents_of[name])
            if new is not None:
                count, size = count + 1, size + manifest.files[name].bytes
                if moved is not None and new:
                    moved(new)
            on_progress(size, total)
        with self._changing:
            self._sweep()
        return count, size

    def _move(self, name: str, extents: list[Extent]) -> list[Extent] | None:
        """Copy one file, have the manifest name the copy; the extents in it, None when it stays."""
        now = self._current
        file = now.files.get(name)
        if file is None:
            return None
        data = self._disk.read(name)
        if crc32c(data) != file.crc32c:
            logger.warning("%s does not match its checksum and was left in place", name)
            return None
        copy = msgspec.structs.replace(file, name=self._disk.next_name(file.table, file.first_sequence))
        self._disk.write_whole(copy.name, data)
        present = [extent for extent in extents if now.extents.has(extent)]
        new = sorted(msgspec.structs.replace(extent, file=copy.name) for extent in present)
        now.change(Layer(files={copy.name: copy}, extents=new, gone=Gone(files=[name])))
        return new

    def _sweep(self) -> Freed:
        files, size = self._current.sweep()
        named = self._current.files
        self._batches.drop(lambda key: key[0] not in named)
        self._columns.drop(lambda key: key[0] not in named)
        self._reader.forget(lambda name: name not in named)
        self.events.forget(named)
        return Freed(files_removed=files, bytes_freed=size)

    def _read(self, extent: Extent, read: Callable[[list[Extent]], Read]) -> Read:
        """Read where the messages of `extent` are now: compaction may move them at any time, even meanwhile."""
        for _ in range(READ_TRIES):
            present = [extent] if extent.file in self._current.files else self._present(extent)
            try:
                return read(present)
            except Moved:
                pass
            except FileNotFoundError as error:
                if all(part.file in self._current.files for part in present):
                    raise Damaged(f"{present[0].file} is missing") from error
        raise _gone(extent)

    def _present(self, extent: Extent) -> list[Extent]:
        """The extents that hold what is left of these messages, in the files where compaction put them."""
        run = self._current.extents.of_partition(extent.queue, extent.partition)
        first = bisect_right(run, extent.first_offset, key=attrgetter("end_offset"))
        present = list(takewhile(lambda part: part.first_offset < extent.end_offset, run[first:]))
        if not present:
            raise _gone(extent)
        return present

    def _file(self, extent: Extent) -> SegmentFile:
        file = self._current.files.get(extent.file)
        if file is None:
            raise Moved
        return file

    def _load(self, extent: Extent, present: list[Extent]) -> Batch:
        def make() -> tuple[Batch, int]:
            batch = Batch.from_arrow(self._extents.messages(extent, present))
            return batch, batch.nbytes

        if is_alike(extent, present):
            return self._batches.get(_cached_as(present[0]), make)
        # By its old extent: rare, so not worth caching.
        return make()[0]


def _cached_as(extent: Extent) -> tuple[str, int, int]:
    """Extents without gaps share what is loaded of their row group."""
    return extent.file, extent.row_group, extent.row if extent.rows else -1


def _gone(extent: Extent) -> MessageNotFound:
    partition = f"partition {extent.partition} of queue {extent.queue}"
    return MessageNotFound(f"offsets from {extent.first_offset} on in {partition} are no longer kept")


_STOP = None


class Prefetcher:
    """Loads the row group after an extent. The thread starts with the first request."""

    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self._requests: queue.SimpleQueue[Extent | None] = queue.SimpleQueue()
        self._requested: dict[tuple[int, int], tuple[str, int]] = {}  # the last row group seen, by queue and partition
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def after(self, extent: Extent) -> None:
        """A consumer has reached this extent: load the next one."""
        row_group = extent.file, extent.row_group
        if self._requested.get((extent.queue, extent.partition)) == row_group:
            return
        self._requested[extent.queue, extent.partition] = row_group
        with self._lock:
            if self._is_closed:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="penstock-prefetch", daemon=True)
                self._thread.start()
        self._requests.put(extent)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        if self._thread is not None:
            self._requests.put(_STOP)
            self._thread.join()

    def _run(self) -> None:
        while (extent := self._requests.get()) is not _STOP:
            # The consumer that needs it will get the same error.
            with suppress(Exception):
                following = self._store.find(extent.queue, extent.partition, extent.end_offset)
                if following is not None:
                    self._store.load(following)


_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only


def release_memory() -> None:
    """Return free memory to the operating system.

    After a seal tens of megabytes of batches are free, and the allocators keep them for later. A process that idles
    for hours should not.
    """
    pa.default_memory_pool().release_unused()
    if _trim is not None:
        _trim(0)


Frames = Iterable[tuple[int, memoryview]]


class Sealed(NamedTuple):
    """What a seal wrote."""

    files: list[SegmentFile]
    extents: list[Extent]


class Sealer:
    """Seals one stretch of the journal."""

    def __init__(
        self,
        disk: SegmentFiles,
        names: Names,
        keep: Keep,
        first_sequence: int,
        end_sequence: int,
        tasks: TaskRows | None = None,
        row_seals: RowSeals | None = None,
    ) -> None:
        self._disk = disk
        self._row_seals = row_seals
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
        return EventFileWriter(self._disk, self._disk.new_name(kind, self._sequences[0], 0), kind, self._row_seals)

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
        name = self._disk.new_name(MESSAGES, self._sequences[0], len(self._sealed.files))
        ends = row_ends(row_sizes(table))
        if self._row_seals is not None:
            flags |= np.where(self._row_seals.concerned(table), SEALED_FLAGS, 0)
        extents = extents_of(table, flags, name, ends)
        if self._row_seals is not None:
            table = self._row_seals.seal(MESSAGES, table)
        self._sealed.files.append(write_messages(self._disk, table, ends, extents, self._sequences))
        self._sealed.extents.extend(extents)
