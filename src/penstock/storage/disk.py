"""The one door to the file system.

Everything that Penstock reads or writes goes through a `Disk`, so that tests can replace it: forget what was not
synced, tear a write, run out of space, fail. Names are relative to the data directory and use "/".

A name or a size is durable only after `sync_directory`, bytes only after `File.sync`. Errors come out as
`DiskFull`, `DiskReadOnly`, `NotADataDirectory` or `StorageError`; only a missing file stays `FileNotFoundError`.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from penstock import limits
from penstock.errors import DiskFull, DiskReadOnly, NotADataDirectory, PenstockError, StorageError
from penstock.forks import close_in_forks
from penstock.storage import access
from penstock.storage.access import DirectoryLock

if TYPE_CHECKING:  # loading Arrow takes a tenth of a second, and a command line's help needs a disk but no Arrow
    import pyarrow as pa


TEMPORARY_SUFFIX: Final = ".tmp"
PIECE_BYTES: Final = 2 << 20

Bytes = bytes | bytearray | memoryview

# Another file system, one without hard links, or a file of another user.
_NO_LINKS: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES})


class File(Protocol):
    """An open file, written and read by position."""

    name: str

    def write_at(self, data: Bytes, position: int) -> None:
        """Write all of `data`, however many calls that takes."""

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""

    def sync(self) -> None:
        """Return when everything written so far survives a power cut."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def size(self) -> int:
        """Bytes in the file, preallocated ones included."""

    def close(self) -> None:
        """Close the file; it may be called twice."""


class ReadableDisk(Protocol):
    """A data directory to read from."""

    root: Path

    def read(self, name: str, position: int = 0, length: int | None = None) -> bytes:
        """Bytes of a file, by default all of them."""

    def exists(self, name: str) -> bool:
        """Whether there is a file or directory of this name."""

    def size(self, name: str) -> int:
        """Bytes in the file."""

    def list(self, directory: str) -> list[str]:
        """Names in a directory, sorted, without the directory's own."""

    def open_input(self, name: str) -> pa.NativeFile:
        """The file for pyarrow's readers."""


class Disk(ReadableDisk, Protocol):
    """A data directory."""

    def open(self, name: str, *, create_bytes: int | None = None) -> File:
        """Open for reading and writing. With `create_bytes` create the file if it is missing and preallocate it."""

    def write_whole(self, name: str, data: Bytes) -> None:
        """Create or replace a file: after a crash it is there whole, or as it was before."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file; durable after `sync_directory`."""

    def remove(self, name: str) -> None:
        """Remove a file; durable after `sync_directory`."""

    def make_directory(self, name: str) -> None:
        """Create a directory, durably; no error when it exists. "" is the data directory itself."""

    def sync_directory(self, name: str) -> None:
        """Make names created, renamed and removed in a directory durable."""

    def map(self, name: str) -> memoryview:
        """All of a file that will never change: mapped where that is possible, so that it takes no memory."""

    def free_bytes(self) -> int:
        """Bytes that this user may still write."""

    def total_bytes(self) -> int:
        """Bytes of the whole file system."""

    def place(self) -> str:
        """What a copy of these files does not have; it stays while they are moved. Empty where that is not known."""

    def lock(self) -> None:
        """Lock the directory for this process; `DirectoryInUse` names the process that has it."""

    def close(self) -> None:
        """Release the directory."""


def write_fully(write: Callable[[memoryview, int], int], data: Bytes, position: int) -> None:
    """Call `write(bytes, position)`, which may write only a part of them, until all of `data` is written."""
    written = write(memoryview(data), position)
    while written < len(data):
        count = write(memoryview(data)[written:], position + written)
        if count == 0:
            raise OSError(errno.EIO, "the device accepts no more bytes")
        written += count


def _write_in_pieces(file: File, data: Bytes) -> None:
    """Write a file, a large one piece by piece, each synced: whoever syncs a few bytes meanwhile waits for one."""
    for start in range(0, max(1, len(data)), PIECE_BYTES):
        piece = memoryview(data)[start : start + PIECE_BYTES] if len(data) > PIECE_BYTES else data
        file.write_at(piece, start)
        if start + PIECE_BYTES < len(data):
            file.sync()


def replace_whole(disk: Disk, name: str, data: Bytes) -> None:
    """`Disk.write_whole` in terms of the rest, for every disk."""
    temporary = name + TEMPORARY_SUFFIX
    file = disk.open(temporary, create_bytes=0)
    try:
        file.truncate(0)
        _write_in_pieces(file, data)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, name)
    # The directory too: after a crash the bytes may be there and the name not.
    disk.sync_directory(os.path.dirname(name))


def storage_error(error: OSError, path: Path | str) -> PenstockError:
    """The error that users see for one of the operating system about `path`."""
    message = f"{path}: {error.strerror or error}"
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return DiskFull(message)
    if error.errno in {errno.EROFS, errno.EACCES, errno.EPERM}:
        return DiskReadOnly(message)
    if error.errno in {errno.ENOTDIR, errno.EEXIST}:
        return NotADataDirectory(f"{path} is not a directory")
    return StorageError(message, hint="check the system log: the device may be failing")


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Translate errors of the operating system inside the block."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise storage_error(error, path) from error


def data_sync(full: int | None = getattr(fcntl, "F_FULLFSYNC", None)) -> Callable[[int], None]:
    """The call that makes the disk store a file; the `fsync` of macOS leaves it in the cache of the drive."""
    if full is None:
        return os.fdatasync if hasattr(os, "fdatasync") else os.fsync

    def sync(descriptor: int) -> None:
        try:
            fcntl.fcntl(descriptor, full)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
            os.fsync(descriptor)

    return sync


_NOT_SUPPORTED: Final = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)
_sync_data: Final[Callable[[int], None]] = data_sync()
# macOS cannot preallocate: there it only sets the size.
_allocate: Final[Callable[[int, int, int], None] | None] = getattr(os, "posix_fallocate", None)


class RealFile:
    """A file of the operating system."""

    __slots__ = ("__weakref__", "_fd", "_path", "name")

    def __init__(self, path: Path, name: str, *, create_bytes: int | None = None, mode: int = access.OWNER) -> None:
        self._path = path
        self.name = name
        flags = os.O_RDWR | os.O_CLOEXEC | (0 if create_bytes is None else os.O_CREAT)
        self._fd = access.open_file(path, flags, mode)
        close_in_forks(self)
        if create_bytes is not None:
            self._preallocate(create_bytes)

    def write_at(self, data: Bytes, position: int) -> None:
        try:
            if os.pwrite(self._fd, data, position) != len(data):
                # Rare. What was written is written again, to the same position.
                write_fully(self._write, data, position)
        except OSError as error:
            raise storage_error(error, self._path) from error

    def read_at(self, position: int, length: int) -> bytes:
        with storage_errors(self._path):
            parts = []
            while length and (part := os.pread(self._fd, length, position)):
                parts.append(part)
                position += len(part)
                length -= len(part)
        return b"".join(parts)

    def sync(self) -> None:
        try:
            _sync_data(self._fd)
        except OSError as error:
            raise storage_error(error, self._path) from error

    def truncate(self, size: int) -> None:
        with storage_errors(self._path):
            os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _write(self, data: memoryview, position: int) -> int:
        return os.pwrite(self._fd, data, position)

    def _preallocate(self, size: int) -> None:
        try:
            if os.fstat(self._fd).st_size < size:
                if _allocate is None:
                    os.ftruncate(self._fd, size)
                else:
                    _allocate(self._fd, 0, size)
        except OSError:
            self.close()
            raise


class RealDisk:
    """A directory of the operating system. `lock` gives it `mode`; None: see `apply_mode`."""

    def __init__(self, root: Path | str, *, mode: int | None = None) -> None:
        self.root = Path(root)
        self._requested_mode = mode
        self._known_mode = mode
        self._lock = DirectoryLock(self.root / "lock")

    def open(self, name: str, *, create_bytes: int | None = None) -> RealFile:
        path = self.root / name
        with storage_errors(path):
            if create_bytes is None:
                return RealFile(path, name)
            return RealFile(path, name, create_bytes=create_bytes, mode=self._mode(path))

    def read(self, name: str, position: int = 0, length: int | None = None) -> bytes:
        path = self.root / name
        with storage_errors(path), path.open("rb") as file:
            file.seek(position)
            return file.read(-1 if length is None else length)

    def exists(self, name: str) -> bool:
        return (self.root / name).exists()

    def size(self, name: str) -> int:
        return (self.root / name).stat().st_size

    def list(self, directory: str) -> list[str]:
        path = self.root / directory
        with storage_errors(path):
            return sorted(os.listdir(path))

    def write_whole(self, name: str, data: Bytes) -> None:
        replace_whole(self, name, data)

    def rename(self, old: str, new: str) -> None:
        with storage_errors(self.root / new):
            os.replace(self.root / old, self.root / new)

    def remove(self, name: str) -> None:
        with storage_errors(self.root / name):
            os.unlink(self.root / name)

    def make_directory(self, name: str) -> None:
        path = self.root / name
        with storage_errors(path):
            missing = [parent for parent in (path, *path.parents) if not parent.exists()]
            for new in reversed(missing):
                is_ours = new == self.root or self.root in new.parents
                access.make_directory(new, self._mode(new) if is_ours else 0o777)
            path.mkdir(exist_ok=True)  # refused when it is a file
            for new in missing:
                _sync_directory(new.parent)

    def sync_directory(self, name: str) -> None:
        with storage_errors(self.root / name):
            _sync_directory(self.root / name)

    def free_bytes(self) -> int:
        usage = os.statvfs(self.root)
        return usage.f_bavail * usage.f_frsize

    def total_bytes(self) -> int:
        usage = os.statvfs(self.root)
        return usage.f_blocks * usage.f_frsize

    def open_input(self, name: str) -> Any:
        import pyarrow as pa

        path = self.root / name
        with storage_errors(path):
            return pa.OSFile(os.fspath(path), "rb")

    def map_input(self, name: str) -> Any:
        """A file that will not change, for pyarrow's readers: mapped, so that nothing of it is copied."""
        import pyarrow as pa

        path = self.root / name
        with storage_errors(path):
            return pa.memory_map(os.fspath(path), "r")

    def map(self, name: str) -> memoryview:
        with self.map_input(name) as file:  # what was read stays mapped when the file is closed
            return memoryview(file.read_buffer()).cast("B")

    def sync_file(self, name: str) -> None:
        """Make everything written to a file durable, whoever wrote it."""
        path = self.root / name
        with storage_errors(path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _sync_data(fd)
            finally:
                os.close(fd)

    def link(self, source: Path, name: str) -> bool:
        """Make `name` another name of a file that will not change; False where the file system cannot."""
        path = self.root / name
        try:
            os.link(source, path)
        except FileExistsError:
            os.unlink(path)
            os.link(source, path)
        except OSError as error:
            if error.errno in _NO_LINKS:
                return False
            if error.errno == errno.ENOENT:
                raise FileNotFoundError(os.fspath(source)) from None
            raise storage_error(error, path) from error
        return True

    def place(self) -> str:
        # The file system gives a copied file another number, and keeps it when the directory is renamed or mounted
        # elsewhere. The lock file is made once and never replaced.
        with storage_errors(self._lock.path):
            return f"inode {self._lock.path.stat().st_ino}" if self._lock.path.exists() else ""

    def lock(self) -> None:
        with storage_errors(self._lock.path):
            self._lock.acquire(self._mode(self._lock.path))
            self._known_mode = access.apply_mode(self.root, self._requested_mode)

    def close(self) -> None:
        self._lock.release()

    def _mode(self, path: Path) -> int:
        if access.is_private(path.relative_to(self.root)):
            return access.OWNER
        if self._known_mode is None:
            self._known_mode = access.mode_of(self.root)
        return self._known_mode


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class ReadOnlyDisk(RealDisk):
    """A data directory to look at: whatever would change it is refused, and not even the lock file is written.

    The lock is shared: several processes may look at once, and none can open the directory meanwhile.
    """

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise DiskReadOnly(
            f"{self.root / args[0]} is read-only here", hint="this is a bug in Penstock; please report it"
        )

    open = write_whole = rename = remove = make_directory = sync_directory = _refuse

    def lock(self) -> None:
        with storage_errors(self._lock.path):
            self._lock.share()


def free_bytes_min(disk: Disk) -> int:
    """Free bytes under which pushes are refused: max(100 MB, min(5 %, 5 GiB))."""
    share = int(disk.total_bytes() * limits.disk_free_share)
    return max(limits.disk_free_bytes_floor, min(share, limits.disk_free_bytes_cap))
