"""The history of a data directory: looking at it, planning what to read, reading it.

    look     the manifest of the segments, the last checkpoint, and the journal after them: one consistent moment
    plan     which slices of which files hold what is wanted; nothing is read but what `look` knows
    read     slices as Arrow record batches, whole columns at a time, never a message at a time

The directory belongs to somebody else, who may be writing, sealing, compacting and removing meanwhile. Each look starts
from where the last one was; if files went that it had not read, it starts over from the checkpoint that replaced them.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.clock import Clock, SystemClock
from penstock.errors import Damaged, StorageError
from penstock.history import planning, reading, tasks
from penstock.history.catalogue import Catalogue
from penstock.history.files import Files
from penstock.history.moments import Moment, TailView
from penstock.history.push_times import PushTimes
from penstock.history.slices import NO_LIMITS, Limits, Slice, Wanted
from penstock.history.tail import Tail
from penstock.storage import checkpoint as checkpoints
from penstock.storage import manifest as manifests
from penstock.storage.directory import read_marker
from penstock.storage.manifest import Layer, Manifest, Part, SegmentFile
from penstock.storage.parquet import SegmentReader

TRIES = 8


class History:
    """One data directory, from outside. Belongs to one thread, and to one process."""

    def __init__(self, files: Files, clock: Clock | None = None) -> None:
        self.files = files
        self.clock = clock or SystemClock()
        self.shard_id = read_marker(files)
        self.segments = SegmentReader(files, checks_pages=False)
        self.opened: set[str] = set()  # files that were read from, for those who want to know
        self.pin_name = f"reader-{secrets.token_hex(8)}"
        self.skips_lost = False  # go on when retention has removed what a slice wanted, and list it in `lost`
        self.lost: list[Wanted] = []
        self.push_times: PushTimes | None = None
        self._recent: Moment | None = None
        self._tail: Tail | None = None
        self._catalogue = Catalogue()
        self._manifest = Manifest()
        self._manifest_parts: dict[Part, Layer] = {}
        self._starts: list[int] = []

    def look(self, *, fresh: bool = False) -> Moment:
        """What is durable now; `fresh` when files that the last look knew of are gone."""
        if fresh:
            self._tail = None
        trouble: Exception | None = None
        for _ in range(TRIES):
            try:
                self._recent = self._look()
                return self._recent
            except (FileNotFoundError, Damaged) as error:
                # Most likely a file went between two of our reads; damage that stays is told in the end.
                trouble, self._tail = error, None
        if isinstance(trouble, Damaged):
            raise trouble
        raise StorageError(f"{self.files.root} changes too quickly to be read", hint="try again")

    def recent(self) -> Moment:
        """The moment of the last look."""
        return self._recent or self.look()

    def segment_file(self, name: str) -> SegmentFile:
        """What the manifest says about a file; `FileNotFoundError` when it does not name it any more."""
        file = self._manifest.files.get(name)
        if file is None:
            self._manifest = self._read_manifest()
            file = self._manifest.files.get(name)
        if file is None:
            raise FileNotFoundError(name)
        return file

    def plan(self, moment: Moment, wanted: Sequence[Wanted], limits: Limits = NO_LIMITS) -> list[Slice]:
        """Where the wanted messages lie: segments first, then the journal, in the order of their offsets."""
        return planning.plan(moment, wanted, limits)

    def plan_events(self, moment: Moment, queues: Sequence[str], limits: Limits = NO_LIMITS) -> list[Slice]:
        """Where the lifecycle of messages of some queues lies."""
        return planning.plan_events(moment, queues, limits)

    def plan_tasks(self, moment: Moment, queues: Sequence[str], limits: Limits = NO_LIMITS) -> list[Slice]:
        """Where the lives of tasks of some queues lie."""
        return tasks.plan(moment, queues, limits)

    def read(self, slices: Sequence[Slice], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of some slices: only these columns, in this order."""
        return reading.read(self, slices, columns)

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
        return Moment(tail.sequence, self._catalogue.seen(), self._manifest, views, self._catalogue.names())

    def _read_manifest(self) -> Manifest:
        return manifests.read(self.files, self._manifest_parts) or Manifest()

    def _begin(self) -> None:
        self._manifest = self._read_manifest()
        self._starts = []
        checkpoint = checkpoints.read(self.files)
        self._catalogue = Catalogue(checkpoint)
        sealed = min(self._manifest.sealed_sequence, self._catalogue.sequence)
        self._tail = Tail(self.files, self.shard_id, self._catalogue, sealed)
