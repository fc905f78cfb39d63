"""The stored files, for readers outside the process that cannot reach the disk themselves.

Read and never written, but for pins. A name is `PENSTOCK`, or lies below one of the three directories that hold what
was stored; each of its parts starts with a letter or a digit, so that no name leads anywhere else. What is returned of
the journal is durable.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock import limits
from penstock.errors import InvalidField, StorageError, TooLarge
from penstock.replies import HistoryInfo
from penstock.storage import pins
from penstock.storage.directory import DIRECTORIES, MARKER, read_whole_marker
from penstock.storage.disk import Disk

if TYPE_CHECKING:
    from penstock.shard.shard import Shard

_BELOW: Final = rf"(?:{'|'.join(DIRECTORIES)})(?:/[A-Za-z0-9][A-Za-z0-9._-]*)"
_FILE: Final = re.compile(rf"{MARKER}|{_BELOW}+")
_DIRECTORY: Final = re.compile(rf"{_BELOW}*")
_HINT: Final = f"only {MARKER} and what lies below {', '.join(DIRECTORIES)} can be read"
_POSITION_MAX: Final = 1 << 40


class StoredFiles:
    """Lists, reads and pins stored files. `disk` None: everything is in memory, and there are no files."""

    def __init__(self, shard: Shard, disk: Disk | None) -> None:
        self._shard = shard
        self._disk_or_none = disk if shard.store is None else shard.store.disk  # with files that are elsewhere

    def history(self) -> HistoryInfo:
        """Whose files these are, and up to where the journal can be read; that far it is made durable first."""
        self._shard.require_open()
        journal = self._shard.journal
        self._shard.confirm(journal.sequence)
        root = self._disk.root.resolve()
        marker = read_whole_marker(self._disk)
        return HistoryInfo(marker.shard, str(root), socket.gethostname(), journal.durable_sequence, marker.incarnation)

    def list(self, directory: str) -> list[tuple[str, int]]:
        """Names in a directory with their sizes, sorted; nothing for a directory that is not there."""
        self._check(directory, _DIRECTORY, "directory")
        files = []
        try:
            for name in self._disk.list(directory):
                size = self._size(f"{directory}/{name}")
                if size is not None:
                    files.append((name, size))
        except FileNotFoundError:
            return []
        return files

    def fetch(self, name: str, position: int, length: int) -> bytes | None:
        """Bytes of a file, fewer when it ends before; None when there is no such file."""
        self._check(name, _FILE, "name")
        if not 0 <= position <= _POSITION_MAX:
            raise InvalidField(f"position: {position} is outside 0 to {_POSITION_MAX}")
        if not 0 <= length <= limits.fetch_bytes_max:
            raise InvalidField(
                f"length: {length} is outside 0 to {limits.fetch_bytes_max}", hint="ask for a large file in pieces"
            )
        try:
            return self._disk.read(name, position, length)
        except FileNotFoundError:
            return None
        except StorageError as error:
            if isinstance(error.__cause__, IsADirectoryError):
                raise InvalidField(f"name: {name!r} is a directory") from None
            raise

    def pin(self, name: str, files: Sequence[str] | None) -> None:
        """Keep segment files from going, for `limits.segment_pin_seconds`; all of them when `files` is None."""
        if files is not None and len(files) > limits.pinned_files_max:
            raise InvalidField(f"files: {len(files)} is too many", hint="pin everything with null")
        for file in files or ():
            self._check(file, _FILE, "files")
        self._disk.make_directory(pins.DIRECTORY)
        if not pins.is_held(self._disk, name) and pins.count(self._disk) >= limits.pins_max:
            raise TooLarge(f"pins: there are already {limits.pins_max:,}", hint="unpin files that are no longer read")
        pins.hold(self._disk, name, self._shard.clock.now(), files)

    def unpin(self, name: str) -> None:
        """Let the files go; no error when there is no such pin."""
        pins.release(self._disk, name)

    @property
    def _disk(self) -> Disk:
        if self._disk_or_none is None:
            raise StorageError(
                "there are no files: everything is in memory", hint="start the broker with a data directory"
            )
        return self._disk_or_none

    def _size(self, name: str) -> int | None:
        try:
            return self._disk.size(name)
        except FileNotFoundError:
            return None  # it went just now

    def _check(self, name: str, allowed: re.Pattern[str], field: str) -> None:
        if allowed.fullmatch(name) is None:
            raise InvalidField(f"{field}: {name!r} is not a stored file", hint=_HINT)
