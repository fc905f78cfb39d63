"""The manifest that counts now, and the files that it lets go.

A swap that failed midway may or may not have happened. Then files of both manifests must stay, so nothing is changed
any more until the directory is opened again. Files that no manifest names are swept: what a crash left behind, what
retention or compaction gave up. A pinned one stays until a later sweep.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Final

import msgspec
from crc32c import crc32c

from penstock.clock import Clock
from penstock.errors import Damaged, OutcomeUnknown, StorageError
from penstock.storage import compaction, pins
from penstock.storage import manifest as manifests
from penstock.storage.disk import TEMPORARY_SUFFIX, Disk
from penstock.storage.manifest import Manifest
from penstock.storage.schema import HAPPENINGS, SCHEMAS

DIRECTORIES: Final = tuple(f"segments/{table}" for table in SCHEMAS)

_FILE: Final = re.compile(r"\d{20}-\d+\.parquet")
_log = logging.getLogger(__name__)


class CurrentManifest:
    """Holds the manifest in force. Callers see to it that one of them at a time swaps or sweeps."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        self._failed: BaseException | None = None
        # Changes of tasks from this instant on are kept, whatever becomes of the messages.
        self.tasks_since: Callable[[], int] = lambda: 0
        for directory in (*DIRECTORIES, pins.DIRECTORY):
            disk.make_directory(directory)
        self.manifest = self._open()

    def check(self) -> None:
        """Refuse to change anything after a swap whose outcome is unknown."""
        if self._failed is not None:
            raise OutcomeUnknown("a swap of the segments' manifest failed midway") from self._failed

    def swap(self, new: Manifest) -> None:
        """Put `new` in force."""
        self.check()
        before = self._stored_crc32c()
        try:
            self._disk.write_whole(manifests.NAME, manifests.encode(new))
            self.manifest = new  # in here: interrupted just before it, nobody would know that it is in force
        except BaseException as error:
            if self._stored_crc32c() != before:
                self._failed = error
                self.check()
            raise

    def trim(self, new: Manifest) -> None:
        """Put `new` in force, without the files and names that nothing in it needs, if that is any different."""
        oldest = compaction.queues_with_history(new)
        used = {extent.file for extent in new.extents}
        files = {
            name: file
            for name, file in new.files.items()
            if name in used or (file.table in HAPPENINGS and compaction.needed_events(file, oldest, self.tasks_since()))
        }
        about = set(oldest) | {events.queue for file in files.values() for events in file.events}
        queues = {queue: name for queue, name in new.queues.items() if queue in about}
        trimmed = msgspec.structs.replace(new, files=files, queues=queues)
        if trimmed != self.manifest:
            self.swap(trimmed)

    def sweep(self) -> tuple[int, int]:
        """Remove files that no manifest names and no pin holds: how many, and how many bytes."""
        self.check()
        unnamed = [name for name in self._on_disk() if name not in self.manifest.files]
        held = pins.held(self._disk, self._clock.now()) if unnamed else pins.Held()
        files = size = 0
        for name in unnamed:
            if name in held:
                continue
            try:
                length = self._disk.size(name)
                self._disk.remove(name)
            except (OSError, StorageError) as error:
                _log.warning("%s is not needed and could not be removed: %s", name, error)
                continue
            files += 1
            size += length
        return files, size

    def _on_disk(self) -> list[str]:
        """Segment files, and what was being written when a process died."""
        return [
            f"{directory}/{name}"
            for directory in DIRECTORIES
            for name in self._disk.list(directory)
            if _FILE.fullmatch(name.removesuffix(TEMPORARY_SUFFIX))
        ]

    def _open(self) -> Manifest:
        found = manifests.read(self._disk)
        if found is not None:
            # It may have been renamed into place by a process that died before it could make that durable.
            self._disk.sync_directory(manifests.NAME.rpartition("/")[0])
            return found
        # The empty manifest is written before the first file, so files without one mean that it was lost.
        if any(name.endswith(".parquet") for name in self._on_disk()):
            raise Damaged(f"{manifests.NAME} is missing, and there are segment files that it should name")
        empty = Manifest()
        self._disk.write_whole(manifests.NAME, manifests.encode(empty))
        return empty

    def _stored_crc32c(self) -> int | None:
        try:
            return crc32c(self._disk.read(manifests.NAME))
        except (OSError, StorageError):
            return None
