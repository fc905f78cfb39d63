"""The manifest that counts now, and the files that it lets go.

A swap that failed midway may or may not have happened. Then files of both manifests must stay, so nothing is changed
any more until the directory is opened again. Files that no manifest names are swept: what a crash left behind, what
retention or compaction gave up. A pinned one stays until a later sweep.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from crc32c import crc32c

from penstock.clock import Clock
from penstock.errors import Damaged, OutcomeUnknown, StorageError
from penstock.storage import compaction, pins
from penstock.storage import manifest as manifests
from penstock.storage.disk import TEMPORARY_SUFFIX, Disk
from penstock.storage.extent import Extent
from penstock.storage.extents import Extents
from penstock.storage.manifest import Gone, Layer, Manifest, Part, Root, SegmentFile
from penstock.storage.schema import HAPPENINGS, SCHEMAS, TASKS

DIRECTORY: Final = "segments"
DIRECTORIES: Final = tuple(f"{DIRECTORY}/{table}" for table in SCHEMAS)
TOP_MAX: Final = 4_096  # files, extents and what is gone, from which on the top layer becomes a part

NO_STARTS: Final[Mapping[tuple[int, int], int]] = MappingProxyType({})

_FILE: Final = re.compile(r"\d{20}-\d+\.parquet")
_log = logging.getLogger(__name__)


class CurrentManifest:
    """Holds the manifest in force. Callers see to it that one of them at a time changes or sweeps."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        self._failed: BaseException | None = None
        # Changes of tasks from this instant on are kept, whatever becomes of the messages.
        self.tasks_since: Callable[[], int] = lambda: 0
        for directory in (*DIRECTORIES, pins.DIRECTORY):
            disk.make_directory(directory)
        self._root = self._open()
        found = manifests.read(disk) or Manifest()
        self._part_next = 1 + max([_number(part.file) for part in self._root.parts], default=0)
        self.queues, self.files, self.extents = found.queues, found.files, Extents(found.extents)
        self.task_queues = {about.queue for file in found.files.values() for about in _tasks_in(file)}  # had tasks once

    @property
    def sealed_sequence(self) -> int:
        return self._root.sealed_sequence

    @property
    def manifest(self) -> Manifest:
        """All of it, as a value."""
        return Manifest(self.sealed_sequence, dict(self.queues), dict(self.files), list(self.extents))

    def check(self) -> None:
        """Refuse to change anything after a swap whose outcome is unknown."""
        if self._failed is not None:
            raise OutcomeUnknown("a swap of the segments' manifest failed midway") from self._failed

    def change(self, change: Layer, removed: Sequence[Extent] = (), sealed_sequence: int | None = None) -> None:
        """Put a layer over all others. `removed` are the extents that are gone with it, sorted."""
        self.check()
        sequence = self.sealed_sequence if sealed_sequence is None else sealed_sequence
        top = manifests.over(self._root.top, change, is_lowest=not self._root.parts)
        if len(top) > TOP_MAX:
            top, parts = Layer(), self._settled(top)
        else:
            parts = self._root.parts
        before, old = self._stored_crc32c(), self._root
        try:
            self._disk.write_whole(manifests.NAME, manifests.encode_root(Root(sequence, top, parts)))
            # In here: interrupted just before it or in the middle, nobody would know what is in force.
            self._root = Root(sequence, top, parts)
            self._apply(change, removed)
        except BaseException as error:
            if self._stored_crc32c() != before:
                self._failed = error
                self.check()
            raise
        for part in old.parts:
            if part not in parts:
                self._remove(part.file)

    def _apply(self, change: Layer, removed: Sequence[Extent]) -> None:
        """In this order: whoever reads meanwhile finds messages in the file where they were, or where they are now."""
        self.queues |= change.queues
        self.files |= change.files
        self.task_queues |= {about.queue for file in change.files.values() for about in _tasks_in(file)}
        self.extents.add(change.extents)
        self.extents.remove(removed)
        for queue in change.gone.queues:
            self.queues.pop(queue, None)
        for name in change.gone.files:
            self.files.pop(name, None)

    def _settled(self, layer: Layer) -> list[Part]:
        """The parts when a layer has become the highest of them, and one with those that are not much larger."""
        parts = list(self._root.parts)
        while parts and parts[-1].length < 2 * len(layer):
            below = manifests.read_part(self._disk, parts.pop())
            layer = manifests.over(below, layer, is_lowest=not parts)
        name, data = f"{DIRECTORY}/manifest-{self._part_next:020d}.arrow", manifests.encode_part(layer)
        self._part_next += 1
        self._disk.write_whole(name, data)
        return [*parts, Part(name, len(layer), crc32c(data))]

    def trim(self, starts: Mapping[tuple[int, int], int] = NO_STARTS, gone: Collection[int] = ()) -> int:
        """Let go of extents wholly below a start and of queues that are gone; how many messages those were.

        With them go files and names that nothing needs any more.
        """
        removed = [extent for queue in gone for extent in self.extents.of_queue(queue)]
        moved = [(*place, start) for place, start in sorted(starts.items()) if place[0] not in gone]
        removed += [extent for place in moved for extent in self.extents.below(*place)]
        oldest, used = dict[int, int](), set[str]()
        for extent in self.extents:
            if extent.queue in gone or extent.end_offset <= starts.get((extent.queue, extent.partition), 0):
                continue
            oldest[extent.queue] = min(oldest.get(extent.queue, extent.pushed_first_at), extent.pushed_first_at)
            used.add(extent.file)
        since = self.tasks_since()
        kept = {
            name: file
            for name, file in self.files.items()
            if name in used or (file.table in HAPPENINGS and compaction.needed_events(file, oldest, since))
        }
        about = set(oldest) | {events.queue for file in kept.values() for events in file.events}
        files, queues = self.files.keys() - kept.keys(), self.queues.keys() - about
        if removed or files or queues:
            self.change(Layer(gone=Gone(sorted(files), sorted(queues), moved)), sorted(removed))
        return sum(extent.count for extent in removed)

    def sweep(self) -> tuple[int, int]:
        """Remove files that no manifest names and no pin holds: how many, and how many bytes."""
        self.check()
        unnamed = [name for name in self._on_disk() if name not in self.files]
        held = pins.held(self._disk, self._clock.now()) if unnamed else pins.Held()
        sizes = [self._remove(name) for name in unnamed if name not in held]
        removed = [size for size in sizes if size is not None]
        return len(removed), sum(removed)

    def _remove(self, name: str) -> int | None:
        """How many bytes it had; None when it could not be removed."""
        try:
            length = self._disk.size(name)
            self._disk.remove(name)
        except (OSError, StorageError) as error:
            _log.warning("%s is not needed and could not be removed: %s", name, error)
            return None
        return length

    def _on_disk(self) -> list[str]:
        """Segment files, and what was being written when a process died."""
        return [
            f"{directory}/{name}"
            for directory in DIRECTORIES
            for name in self._disk.list(directory)
            if _FILE.fullmatch(name.removesuffix(TEMPORARY_SUFFIX))
        ]

    def _open(self) -> Root:
        found = manifests.read_root(self._disk)
        if found is not None:
            # It may have been renamed into place by a process that died before it could make that durable.
            self._disk.sync_directory(DIRECTORY)
            for name in set(manifests.part_files(self._disk)) - {part.file for part in found.parts}:
                self._remove(name)
            return found
        # The empty manifest is written before the first file, so files without one mean that it was lost.
        if any(name.endswith(".parquet") for name in self._on_disk()):
            raise Damaged(f"{manifests.NAME} is missing, and there are segment files that it should name")
        self._disk.write_whole(manifests.NAME, manifests.encode_root(Root()))
        return Root()

    def _stored_crc32c(self) -> int | None:
        try:
            return crc32c(self._disk.read(manifests.NAME))
        except (OSError, StorageError):
            return None


def _number(name: str) -> int:
    """The number of a part."""
    found = manifests.PART_NAME.search(name)
    return int(found[1]) if found else 0


def _tasks_in(file: SegmentFile) -> Sequence[manifests.EventsOf]:
    return file.events if file.table == TASKS else ()
