"""The files that history is read from: a data directory on this machine or behind a broker, or a store. Only pins are
written.

Only what is durable is read. A broker says how far that is; in a directory on this machine the reader makes durable
what it has read before it uses it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from penstock.errors import NotADataDirectory, PenstockError
from penstock.history.keys import DirectoryKeys, ReaderKeys
from penstock.storage import pins
from penstock.storage.block_cache import BlockReader
from penstock.storage.directory import MARKER
from penstock.storage.disk import ReadableDisk, ReadOnlyDisk, RealDisk
from penstock.storage.segment_files import ReadableSegments


class Files(ReadableDisk, Protocol):
    """The files, what is durable, and pins."""

    def durable_sequence(self) -> int | None:
        """The last journal frame that is durable; None when unknown: then the reader calls `make_durable`."""

    def make_durable(self, name: str) -> None:
        """Return when what was read of a file survives a power cut."""

    def pin(self, name: str, now: int, files: Iterable[str] | None) -> None:
        """Keep segment files from being removed for a while; where that is not allowed, nothing happens."""

    def unpin(self, name: str) -> None:
        """Release them."""

    def data_keys(self) -> ReaderKeys:
        """The data keys for what is encrypted."""

    def segment_files(self) -> ReadableSegments:
        """The same files, with those of segments wherever they are kept."""

    def close(self) -> None: ...


class LocalFiles(ReadOnlyDisk):
    """A directory on this machine, whether a process has it open or not."""

    def __init__(self, root: Path | str) -> None:
        super().__init__(root)
        if not self.exists(MARKER):
            raise NotADataDirectory(
                f"{self.root} contains no Penstock data",
                hint="use the directory of `penstock serve --data` or `penstock.open`, or a broker's url",
            )
        self._pins = RealDisk(self.root)

    def open_input(self, name: str) -> Any:
        return self.map_input(name)

    def durable_sequence(self) -> int | None:
        return None

    def make_durable(self, name: str) -> None:
        self.sync_file(name)

    def pin(self, name: str, now: int, files: Iterable[str] | None) -> None:
        # In a directory that may only be read, a reader whose file is removed looks up the messages again.
        with suppress(PenstockError, FileNotFoundError):
            pins.hold(self._pins, name, now, files)

    def unpin(self, name: str) -> None:
        with suppress(PenstockError):
            pins.release(self._pins, name)

    def data_keys(self) -> ReaderKeys:
        return DirectoryKeys(self)

    def segment_files(self) -> ReadableSegments:
        return ReadableSegments(self, cache=BlockReader(self))
