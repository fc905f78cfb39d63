"""A data directory to look at: whatever would change it is refused.

The lock is shared: several may look at once, and nobody can open the directory meanwhile. Not even the lock file is
written.
"""

from __future__ import annotations

from typing import NoReturn

from penstock.errors import DiskReadOnly
from penstock.storage.disk import Bytes, RealDisk, RealFile, storage_errors


class ReadOnlyDisk(RealDisk):
    """A `Disk` without its writing half."""

    def open(self, name: str, *, create_bytes: int | None = None) -> RealFile:
        self._refuse(name)

    def write_whole(self, name: str, data: Bytes) -> None:
        self._refuse(name)

    def rename(self, old: str, new: str) -> None:
        self._refuse(old)

    def remove(self, name: str) -> None:
        self._refuse(name)

    def make_directory(self, name: str) -> None:
        self._refuse(name)

    def sync_directory(self, name: str) -> None:
        self._refuse(name)

    def lock(self) -> None:
        with storage_errors(self._lock.path):
            self._lock.share()

    def _refuse(self, name: str) -> NoReturn:
        raise DiskReadOnly(f"{self.root / name} is only looked at, never changed", hint="this is a defect of Penstock")
