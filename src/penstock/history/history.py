"""The history of a data directory: look at it, plan what to read, read it.

    look     the manifest of the segments, the last checkpoint, and the journal after them: one consistent moment
    plan     which slices of which files have the requested rows, from what `look` knows
    read     slices as Arrow record batches, whole columns at a time, never a message at a time

The directory belongs to another process, which may write, seal, compact and remove in the meantime. Each look continues
where the last one ended. If files that it had not read were removed, it starts over from the checkpoint that replaced
them. Segments are verified with the checksums in the manifest, journal frames with their own. If a file that a slice
names was sealed, rewritten or removed, the rows are looked up in their new place.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from penstock import limits as bounds
from penstock.clock import Clock, SystemClock
from penstock.errors import Damaged, HistoryLost, StorageError
from penstock.history import plan
from penstock.history.change_rows import PushTimes, read_changes
from penstock.history.files import Files, LocalFiles
from penstock.history.message_rows import read_journal, read_segment
from penstock.history.moment import Moment, QueueIndex, Tail, TailView
from penstock.history.slices import NO_LIMITS, Limits, OffsetRange, Slice
from penstock.model import is_store_url
from penstock.seals import Seals
from penstock.storage import checkpoint as checkpoints
from penstock.storage import manifest as manifests
from penstock.storage.directory import read_identity, read_marker
from penstock.storage.manifest import Layer, Manifest, Part, SegmentFile
from penstock.storage.parquet import SegmentReader
from penstock.storage.schema import MESSAGES
from penstock.storage.sealed_frames import FrameSeals
from penstock.storage.sealed_rows import RowSeals

CONNECT_SECONDS: Final = 5.0
LOOK_TRIES: Final = 8
READ_TRIES: Final = 3
PIN_SECONDS: Final = bounds.segment_pin_seconds / 4  # between renewals


def open_history(
    url: str | Path, *, local: bool = True, clock: Clock | None = None, connect_seconds: float = CONNECT_SECONDS
) -> History:
    """Open the history at a URL: a data directory, a broker at `penstock://host:port`, or a store in PostgreSQL.

    If the directory of a broker is on this machine, its files are read directly, unless `local` is False. A broker that
    does not answer is tried for `connect_seconds`; if the connection is lost later, it is retried for longer.
    """
    return History(_files(str(url), local, connect_seconds), clock)


def is_directory(url: str) -> bool:
    """Whether a url names a directory and no broker."""
    return "://" not in url or url.startswith("file:")


def absolute_url(url: str) -> str:
    """The url of a directory as it is understood everywhere on this machine; any other as it is."""
    return url if "://" in url else str(Path(url).expanduser().absolute())


def _files(url: str, local: bool, connect_seconds: float) -> Files:
    if is_store_url(url):
        from penstock.history.store_files import StoreFiles

        return StoreFiles(url)
    if is_directory(url):
        return LocalFiles(url.removeprefix("file://"))
    from penstock.history.broker_files import BrokerFiles

    return BrokerFiles(url, local=local, connect_seconds=connect_seconds)


class History:
    """The history of one data directory, for use by one thread."""

    def __init__(self, files: Files, clock: Clock | None = None) -> None:
        self.files = files
        self.clock = clock or SystemClock()
        self.shard_id = read_marker(files)  # part of checksums and seals
        self.identity = read_identity(files)  # tells this history from every other
        self._keys = files.data_keys()
        self._seals = Seals(self._keys, self.shard_id)
        self._frame_seals = FrameSeals(self._seals)
        self._opened_for: Slice | None = None
        self.segment_files = files.segment_files()
        self.segments = SegmentReader(self.segment_files, checks_pages=False, row_seals=RowSeals(self._seals))
        self.opened: set[str] = set()  # files that were read from, for tests and statistics
        self.pin_name = f"reader-{secrets.token_hex(8)}"
        self.skips_lost = False  # go on when retention has removed rows of a slice, and list them in `lost`
        self.lost: list[OffsetRange] = []
        self.push_times: PushTimes | None = None
        self._recent: Moment | None = None
        self._tail: Tail | None = None
        self._queue_index = QueueIndex()
        self._manifest = Manifest()
        self._manifest_parts: dict[Part, Layer] = {}
        self._starts: list[int] = []

    def look(self, *, fresh: bool = False) -> Moment:
        """Return what is durable now. `fresh` starts over, if files that the last look knew were removed."""
        if fresh:
            self._tail = None
        trouble: Exception | None = None
        for _ in range(LOOK_TRIES):
            try:
                self._recent = self._look()
                return self._recent
            except (FileNotFoundError, Damaged) as error:
                # Most likely a file went between two of our reads; damage that stays is raised in the end.
                trouble, self._tail = error, None
            except BaseException:
                self._tail = None  # it may have frames that were not made durable
                raise
        if isinstance(trouble, Damaged):
            raise trouble
        raise StorageError(f"{self.files.root} changes too quickly to be read; try again", hint="try again")

    def recent(self) -> Moment:
        """The result of the last `look`."""
        return self._recent or self.look()

    def segment_file(self, name: str) -> SegmentFile:
        """Return what the manifest says about a file. Raises `FileNotFoundError` if it no longer names it."""
        file = self._manifest.files.get(name)
        if file is None:
            self._manifest = self._read_manifest()
            file = self._manifest.files.get(name)
        if file is None:
            raise FileNotFoundError(name)
        return file

    def plan(self, moment: Moment, ranges: Sequence[OffsetRange], limits: Limits = NO_LIMITS) -> list[Slice]:
        """Return slices with these messages: segments first, then the journal, in the order of their offsets."""
        return plan.plan(moment, ranges, limits)

    def plan_changes(
        self, moment: Moment, table: str, queues: Sequence[str], limits: Limits = NO_LIMITS
    ) -> list[Slice]:
        """Return slices that may have rows of these queues in the table `events` or `tasks`."""
        return plan.plan_changes(moment, table, queues, limits)

    def read(self, slices: Sequence[Slice], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Return the rows of some slices, only these columns, in this order. Their files are pinned meanwhile."""
        files = [part.file for part in slices if not part.is_tail]
        renewed = -1.0
        try:
            for part in slices:
                for batch in self._read(part, columns, READ_TRIES):
                    now = self.clock.monotonic() / 1e6
                    if files and (renewed < 0 or now - renewed > PIN_SECONDS):
                        self.files.pin(self.pin_name, self.clock.now(), files)
                        renewed = now
                    yield batch
        finally:
            if renewed >= 0:
                self.files.unpin(self.pin_name)

    def unsealed(self, part: Slice, frame: memoryview) -> memoryview:
        """A frame of the journal, with what is encrypted opened as far as the slice is about it."""
        self._open_for(part)
        return self._frame_seals.open(frame)

    def read_group(self, part: Slice, file: SegmentFile, row_group: int, columns: Sequence[str]) -> pa.Table:
        """Columns of a row group, with what is encrypted opened as far as the slice is about it."""
        self._open_for(part)
        return self.segments.read(file, row_group, columns)

    def _open_for(self, part: Slice) -> None:
        """Reading one slice may take reading another in between."""
        if self._opened_for is not part:
            self._opened_for = part
            self._keys.names, self._seals.only = list(part.queues.values()), set(part.queues)

    def close(self) -> None:
        self.files.close()

    def _look(self) -> Moment:
        durable = self.files.durable_sequence()
        if self._tail is None:
            self._begin()
        tail = self._tail
        assert tail is not None
        tail.follow(durable)
        if not tail.is_whole():
            raise FileNotFoundError
        if tail.starts != self._starts:
            # Files came or went: something may have been sealed.
            self._manifest = self._read_manifest()
            self._starts = tail.starts
            tail.forget(self._manifest.sealed_sequence)
        views = tuple(
            TailView(file.name, file.pushes.rows(), file.settles.rows(), file.notes.rows()) for file in tail.files
        )
        return Moment(tail.sequence, self._queue_index.snapshot(), self._manifest, views, self._queue_index.names())

    def _read_manifest(self) -> Manifest:
        manifest = manifests.read(self.files, self._manifest_parts) or Manifest()
        self.segment_files.listed = manifest.files
        return manifest

    def _begin(self) -> None:
        self._manifest = self._read_manifest()
        self._starts = []
        checkpoint = checkpoints.read(self.files)
        self._queue_index = QueueIndex(checkpoint)
        sealed = min(self._manifest.sealed_sequence, self._queue_index.sequence)
        self._tail = Tail(self.files, self.shard_id, self._queue_index, sealed)

    def _read(self, part: Slice, columns: Sequence[str], tries: int) -> Iterator[pa.RecordBatch]:
        rows_read = 0
        try:
            for table in self._tables(part, columns):
                rows_read += len(table)
                yield from table.to_batches()
        except FileNotFoundError:
            if rows_read or tries == 0:
                raise Damaged(f"{part.file} disappeared while it was read") from None
            for moved in self._plan_again(part):
                yield from self._read(moved, columns, tries - 1)

    def _tables(self, part: Slice, columns: Sequence[str]) -> Iterator[pa.Table]:
        self.opened.add(part.file)
        if part.table != MESSAGES:
            return read_changes(self, part, columns)
        return (read_journal if part.is_tail else read_segment)(self, part, columns)

    def _plan_again(self, part: Slice) -> list[Slice]:
        """Slices that hold the rows of a slice whose file is gone."""
        moment = self.look(fresh=True)
        if part.table != MESSAGES:
            return plan.changes_again(moment, part)
        ((incarnation, queue),) = part.queues.items()
        view = moment.queues.get(queue)
        if view is None or view.incarnation != incarnation:
            raise HistoryLost(f"queue {queue!r} was deleted while it was read")
        ranges = [OffsetRange(queue, name, first, end) for name, first, end in _offsets(part)]
        removed = plan.lost(moment, ranges)
        if removed and not self.skips_lost:
            raise HistoryLost(
                f"offsets {removed[0].first} to {removed[0].end - 1} of queue {queue!r}, "
                f"partition {removed[0].partition!r} were removed"
            )
        self.lost += removed
        return plan.plan(moment, ranges, part.limits)


def _offsets(part: Slice) -> list[tuple[str, int, int]]:
    """The offsets of a slice; those of a segment may have gaps, where rows of another slice are."""
    if part.is_tail:
        return list(part.partitions.values())
    return [(part.partitions[run.partition][0], run.first, run.first + run.count) for run in part.runs]
