"""A disk that lies, in documented ways, all of them drawn from one seed.

- At `crash()` bytes that were not synced may be lost, sector by sector (512 bytes), in any order; names created,
  renamed or removed since `sync_directory` may be lost too, in any order, but none that builds on a lost one.
- `crash_at` makes the n-th operation from now the last: it happens, unsynced, and `PowerCut` is raised; from then on
  everything raises it.
- `fail_at` makes the n-th operation from now fail with an errno, or write short. A failed sync forgets what it should
  have written, as Linux does: a later sync will succeed and prove nothing.
- `capacity_bytes` bounds the sum of all files, preallocated bytes included.

An operation is one that could change the disk: create, write, sync, truncate, rename, remove, sync of a directory.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa

from penstock.errors import DirectoryInUse
from penstock.storage.disk import Bytes, replace_whole, storage_errors, write_fully
from tests.support.inode import Inode, extending, sectors, truncating

SHORT: Final = -1  # for `fail_at`: a write stops halfway, without an error; other operations go well

_Change = dict[str, "Inode | None"]


class PowerCut(BaseException):
    """The machine is off. Not an `Exception`, so that no handler takes it for a failed write."""


class ForgetfulDisk:
    """A `Disk` in memory."""

    def __init__(self, seed: int = 0, *, capacity_bytes: int = 1 << 40) -> None:
        self.root = Path(f"/forgetful-{seed}")
        self.seed = seed
        self.capacity_bytes = capacity_bytes
        self.operations = 0
        self.fired = False  # whether the armed crash or failure has happened
        self._rng = random.Random(seed)
        self._crash_at = 0
        self._fail_at = 0
        self._fail_with = 0
        self._is_off = False
        self._is_locked = False
        self._directories: set[str] = set()
        self._files: dict[str, Inode] = {}
        self._names_that_survive: dict[str, Inode] = {}
        self._unsynced_names: dict[str, list[_Change]] = {}

    # What tests do to it.

    def crash_at(self, operation: int) -> None:
        """Cut the power in the n-th operation from now, n counting from 1."""
        self._crash_at, self.fired = self.operations + operation, False

    def fail_at(self, operation: int, error: int) -> None:
        """Make the n-th operation from now fail with an errno, or `SHORT`."""
        self._fail_at, self._fail_with, self.fired = self.operations + operation, error, False

    def crash(self) -> ForgetfulDisk:
        """Cut the power; what survived is on the disk returned."""
        self._is_off = True
        disk = ForgetfulDisk(self._rng.getrandbits(32), capacity_bytes=self.capacity_bytes)
        disk._directories = set(self._directories)
        names = dict(self._names_that_survive)
        for changes in self._unsynced_names.values():
            for change in _some(changes, self._rng):
                _apply(names, change)
        images: dict[int, bytes] = {}
        for name, inode in sorted(names.items()):
            image = images.setdefault(id(inode), inode.after_crash(self._rng))
            disk._files[name] = disk._names_that_survive[name] = Inode(image)
        return disk

    def kill(self) -> ForgetfulDisk:
        """End the process but not the machine: everything written is still there, synced or not."""
        self._is_locked = self._is_off = False
        self._crash_at = self._fail_at = 0
        return self

    def flip(self, name: str, bit: int) -> None:
        """Damage a file: turn over one bit of what is stored."""
        for data in (self._files[name].live, self._files[name].survives):
            data[bit // 8] ^= 1 << bit % 8

    def replace(self, name: str, data: bytes) -> None:
        """Put other bytes into a file, durably, behind everyone's back."""
        self._files[name] = self._names_that_survive[name] = Inode(data)

    # Disk.

    def open(self, name: str, *, create_bytes: int | None = None) -> ForgetfulFile:
        with storage_errors(self.root / name):
            if create_bytes is not None:
                self._create(name, create_bytes)
            return ForgetfulFile(self, name, self._inode(name))

    def read(self, name: str, position: int = 0, length: int | None = None) -> bytes:
        self._refuse_if_off()
        end = None if length is None else position + length
        return bytes(self._inode(name).live[position:end])

    def map(self, name: str) -> memoryview:
        return memoryview(self.read(name))

    def exists(self, name: str) -> bool:
        self._refuse_if_off()
        return name in self._files or name in self._directories

    def size(self, name: str) -> int:
        return len(self._inode(name).live)

    def list(self, directory: str) -> list[str]:
        self._refuse_if_off()
        prefix = f"{directory}/" if directory else ""
        names = [name.removeprefix(prefix) for name in {*self._files, *self._directories} if name.startswith(prefix)]
        return sorted(name for name in names if name and "/" not in name)

    def write_whole(self, name: str, data: Bytes) -> None:
        replace_whole(self, name, data)

    def rename(self, old: str, new: str) -> None:
        with storage_errors(self.root / new):
            inode = self._inode(old)
            assert os.path.dirname(old) == os.path.dirname(new)
            self._do(lambda: self._change_names({old: None, new: inode}))

    def remove(self, name: str) -> None:
        with storage_errors(self.root / name):
            self._inode(name)
            self._do(lambda: self._change_names({name: None}))

    def make_directory(self, name: str) -> None:
        self._refuse_if_off()
        self._directories.add(name)

    def sync_directory(self, name: str) -> None:
        with storage_errors(self.root / name):
            changes = self._unsynced_names.get(name, [])
            # A failed sync leaves the changes to chance; a crash happens before anything is durable.
            self._do(lambda: None)
            for change in changes:
                _apply(self._names_that_survive, change)
            changes.clear()

    def free_bytes(self) -> int:
        return max(0, self.capacity_bytes - sum(len(inode.live) for inode in self._files.values()))

    def place(self) -> str:
        return ""  # as with a copy of a whole file system

    def total_bytes(self) -> int:
        return self.capacity_bytes

    def open_input(self, name: str) -> pa.NativeFile:
        return pa.BufferReader(self.read(name))

    def lock(self) -> None:
        self._refuse_if_off()
        if self._is_locked:
            raise DirectoryInUse(f"{self.root} is held by this test")
        self._is_locked = True

    def close(self) -> None:
        self._is_locked = False

    # Behind it.

    def _inode(self, name: str) -> Inode:
        self._refuse_if_off()
        if name not in self._files:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        return self._files[name]

    def _create(self, name: str, size: int) -> None:
        self._refuse_if_off()
        if name not in self._files:
            self._do(lambda: self._change_names({name: Inode()}))
        inode = self._files[name]
        missing = size - len(inode.live)
        if missing > 0:
            if missing > self.free_bytes():
                raise OSError(errno.ENOSPC, "no space left on device")
            self._do(lambda: inode.change(extending(size)))

    def _change_names(self, change: _Change) -> None:
        _apply(self._files, change)
        self._unsynced_names.setdefault(os.path.dirname(next(iter(change))), []).append(change)

    def _do(self, action: Callable[[], None]) -> None:
        """Count an operation and do it, unless it is the one that fails; the one that crashes is done."""
        self._refuse_if_off()
        self.operations += 1
        if self.operations == self._fail_at:
            self.fired = True
            if self._fail_with != SHORT:
                raise OSError(self._fail_with, os.strerror(self._fail_with))
        action()
        if self.operations == self._crash_at:
            self.fired = self._is_off = True
            raise PowerCut

    def _writes_short(self) -> bool:
        return self.operations + 1 == self._fail_at and self._fail_with == SHORT

    def _refuse_if_off(self) -> None:
        if self._is_off:
            raise PowerCut


class ForgetfulFile:
    """A `File` of a `ForgetfulDisk`."""

    def __init__(self, disk: ForgetfulDisk, name: str, inode: Inode) -> None:
        self.name = name
        self._disk = disk
        self._inode = inode

    def write_at(self, data: Bytes, position: int) -> None:
        with storage_errors(self._disk.root / self.name):
            write_fully(self._write, data, position)

    def read_at(self, position: int, length: int) -> bytes:
        return bytes(self._inode.live[position : position + length])

    def sync(self) -> None:
        inode = self._inode
        with storage_errors(self._disk.root / self.name):
            try:
                self._disk._do(lambda: None)
            except OSError:
                inode.unsynced.clear()
                raise
            inode.sync()

    def truncate(self, size: int) -> None:
        with storage_errors(self._disk.root / self.name):
            self._disk._do(lambda: self._inode.change(truncating(size)))

    def size(self) -> int:
        return len(self._inode.live)

    def close(self) -> None:
        return

    def _write(self, data: memoryview, position: int) -> int:
        grows = position + len(data) - len(self._inode.live)
        if grows > self._disk.free_bytes():
            raise OSError(errno.ENOSPC, "no space left on device")
        if self._disk._writes_short():
            data = data[: len(data) // 2]
        self._disk._do(lambda: self._inode.change(*sectors(bytes(data), position)))
        return len(data)


def _some(changes: list[_Change], rng: random.Random) -> list[_Change]:
    """Those changes of a directory that survive: any, but none that touches a name touched by a lost one."""
    share = rng.choice((0.0, 0.5, 0.9, 1.0))
    kept: list[_Change] = []
    lost: set[str] = set()
    for change in changes:
        if rng.random() < share and lost.isdisjoint(change):
            kept.append(change)
        else:
            lost.update(change)
    return kept


def _apply(names: dict[str, Inode], change: _Change) -> None:
    for name, inode in change.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode
