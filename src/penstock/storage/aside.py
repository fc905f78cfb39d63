"""Where a repair keeps what it replaces: `damaged/<time>/` in the data directory, under the names that files had.

Copies are durable before anything happens to the originals. Nothing in there is ever read or removed by Penstock.
"""

from __future__ import annotations

import os

from penstock.model import to_datetime
from penstock.storage.disk import Disk

DIRECTORY = "damaged"


class Aside:
    """The folder of one repair. It is made with the first file that is kept."""

    def __init__(self, disk: Disk, now: int) -> None:
        self._disk = disk
        stamp = to_datetime(now).strftime("%Y%m%dT%H%M%SZ")
        taken = set(disk.list(DIRECTORY)) if disk.exists(DIRECTORY) else set()
        names = [stamp, *(f"{stamp}-{number}" for number in range(2, len(taken) + 3))]
        self.folder = f"{DIRECTORY}/{next(name for name in names if name not in taken)}"
        self.files: list[str] = []

    def keep(self, name: str) -> None:
        """Copy a file, if it is there; the original stays."""
        if self._disk.exists(name):
            self.write(name, self._disk.read(name))
            self.files.append(name)

    def move(self, name: str) -> None:
        """Copy a file and remove the original."""
        self.keep(name)
        self._disk.remove(name)
        self._disk.sync_directory(os.path.dirname(name))

    def write(self, name: str, data: bytes) -> None:
        """Put a file of the repair's own beside them."""
        path = f"{self.folder}/{name}"
        levels = path.split("/")[:-1]
        for depth in range(1, len(levels) + 1):
            self._disk.make_directory("/".join(levels[:depth]))
        self._disk.write_whole(path, data)
