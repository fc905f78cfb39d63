"""The files that history is read from: a data directory on this machine or behind a broker. Only pins are written.

Only what is durable is read. A broker says how far that is; in a directory on this machine the reader makes durable
what it has read before it uses it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from penstock.errors import NotADataDirectory, PenstockError
from penstock.storage import pins
from penstock.storage.directory import MARKER
from penstock.storage.disk import ReadableDisk, RealDisk


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

    def close(self) -> None: ...


class LocalFiles:
    """A directory on this machine, whether a process has it open or not."""

    def __init__(self, root: Path | str) -> None:
        self._disk = RealDisk(root)  # only read from, but for pins
        self.root = self._disk.root
        if not self._disk.exists(MARKER):
            raise NotADataDirectory(
                f"{self.root} holds no data of Penstock",
                hint="give the directory that `penstock serve --data` or `penstock.open` uses, or a broker's url",
            )

    def read(self, name: str, position: int = 0, length: int | None = None) -> bytes:
        return self._disk.read(name, position, length)

    def exists(self, name: str) -> bool:
        return self._disk.exists(name)

    def size(self, name: str) -> int:
        return self._disk.size(name)

    def list(self, directory: str) -> list[str]:
        return self._disk.list(directory)

    def open_input(self, name: str) -> Any:
        return self._disk.map_input(name)

    def durable_sequence(self) -> int | None:
        return None

    def make_durable(self, name: str) -> None:
        self._disk.sync_file(name)

    def pin(self, name: str, now: int, files: Iterable[str] | None) -> None:
        try:
            pins.hold(self._disk, name, now, files)
        except (PenstockError, FileNotFoundError):
            return  # a read-only directory: a reader whose file is removed looks up the messages again

    def unpin(self, name: str) -> None:
        try:
            pins.release(self._disk, name)
        except PenstockError:
            return

    def close(self) -> None:
        """Nothing is held open."""
