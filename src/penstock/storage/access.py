"""Who may use a data directory: one process at a time, its owner, and a group if configured; nobody else.

Payloads lie in it as they were sent, so what is created is 0700 and 0600 whatever the umask says. A directory that is
wider is narrowed by the process that opens it for writing, with everything in it; the directory itself comes last, so
that its mode says next time whether all was done. Keys and principals, in `access/`, are for the owner alone, whatever
the mode of the rest; that is made so at every opening.

The lock is `flock` on a file, so the system drops it when the process ends, however it ends. The file says who holds
it: pid, host and since when. A forked child closes its copy at once: else it would hold the directory after its
parent's death.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, Final

from penstock.errors import DirectoryInUse, StorageError
from penstock.forks import close_in_forks
from penstock.model import ACCESS_DIRECTORY

OWNER: Final = 0o700
_GROUP: Final = 0o070
_OTHERS: Final = 0o007
_FILE: Final = 0o666

logger: Final = logging.getLogger("penstock.storage")


def mode_of(root: Path) -> int:
    """The mode of new files below a directory that another process locks."""
    try:
        has = stat.S_IMODE(os.stat(root).st_mode)
    except OSError:
        return OWNER
    return OWNER if has & _OTHERS else OWNER | (has & _GROUP)


def open_file(path: Path, flags: int, mode: int) -> int:
    """Open a file; a new one gets the permissions of its directory's mode."""
    fd = os.open(path, flags, mode & _FILE)
    if flags & os.O_CREAT and mode & _GROUP:  # which the umask took away
        with suppress(PermissionError):  # another's, which was there
            os.fchmod(fd, mode & _FILE)
    return fd


def make_directory(path: Path, mode: int) -> None:
    """Create one directory, unless it exists."""
    with suppress(FileExistsError):
        os.mkdir(path, mode)
        if mode & _GROUP:
            os.chmod(path, mode)


def apply_mode(root: Path, requested: int | None) -> int:
    """Give a directory and everything in it the requested mode, and return it.

    None: the mode it has if others have no access already, and for the owner alone otherwise.
    """
    status = os.stat(root)
    mode = mode_of(root) if requested is None else requested
    _narrow_private(root / ACCESS_DIRECTORY)
    if status.st_mode & 0o777 == mode:
        return mode
    if status.st_uid != os.geteuid():
        _warn(root, status.st_mode, mode, "belongs to another user")
        return mode
    try:
        for path, is_directory in _below(root):
            wanted = OWNER if is_private(Path(path).relative_to(root)) else mode
            with suppress(FileNotFoundError):  # a pin of a reader, which went just now
                os.chmod(path, wanted if is_directory else wanted & _FILE)
        os.chmod(root, status.st_mode & 0o7000 | mode)
    except OSError as error:
        _warn(root, status.st_mode, mode, f"cannot be changed: {error.strerror}")
    return mode


def is_private(name: PurePath) -> bool:
    """Whether what has this name in a data directory is for the owner alone."""
    return name.parts[:1] == (ACCESS_DIRECTORY,)


def _narrow_private(directory: Path) -> None:
    if not directory.is_dir():
        return
    for path, is_directory in [(os.fspath(directory), True), *_below(directory)]:
        has = os.lstat(path).st_mode & 0o777
        if not has & 0o077:
            continue
        logger.warning("%s: other users could read it (mode %04o); it is now readable only by its owner", path, has)
        try:
            os.chmod(path, OWNER if is_directory else OWNER & _FILE)
        except OSError as error:
            raise StorageError(
                f"{path}: other users can read it (mode {has:04o}), and its mode cannot be changed: {error.strerror}",
                hint=f"as its owner: chmod go= {path}",
            ) from None


def _below(directory: Path) -> Iterator[tuple[str, bool]]:
    """Paths below that belong to this user, with whether each is a directory. No link is followed."""
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISLNK(status.st_mode) or status.st_uid != os.geteuid():
                continue
            is_directory = stat.S_ISDIR(status.st_mode)
            yield entry.path, is_directory
            if is_directory:
                yield from _below(Path(entry.path))


def _warn(root: Path, has: int, mode: int, why: str) -> None:
    if has & 0o077 & ~mode:
        text = "%s: other users may read it (mode %04o instead of %04o), and it %s"
        logger.warning(text, root, has & 0o777, mode, why)


class DirectoryLock:
    """The lock file of one data directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def acquire(self, mode: int = OWNER) -> None:
        """Take the lock for this process alone, and sign the file; `DirectoryInUse` names who has it."""
        fd = open_file(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        self._lock(fd, fcntl.LOCK_EX)
        try:
            _write_owner(fd)
        except BaseException:
            self.release()
            raise

    def share(self) -> None:
        """Take the lock together with others who only read. Writes nothing."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # nobody has ever opened it
        self._lock(fd, fcntl.LOCK_SH)

    def _lock(self, fd: int, kind: int) -> None:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BaseException as error:
            owner = _read_owner(fd) if isinstance(error, BlockingIOError) else None
            os.close(fd)
            if owner is None:
                raise
            hint = "close the other handle first, or share it: it is safe for threads" if _is_own(owner) else None
            raise DirectoryInUse(f"{self.path.parent} is held by {_describe(owner)}", hint=hint) from None
        self._fd = fd
        close_in_forks(self)

    def release(self) -> None:
        """Release the lock; nothing happens when it is not held."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    close = release


def _write_owner(fd: int) -> None:
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": int(time.time())}
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps(owner).encode() + b"\n", 0)


def _read_owner(fd: int) -> dict[str, Any]:
    try:
        owner = json.loads(os.pread(fd, 4096, 0))
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _is_own(owner: dict[str, Any]) -> bool:
    return bool(owner.get("pid") == os.getpid() and owner.get("host") == socket.gethostname())


def _describe(owner: dict[str, Any]) -> str:
    pid = owner.get("pid")
    if not isinstance(pid, int):
        return "another process"
    if _is_own(owner):
        return f"process {pid}, which is this one"
    if owner.get("host") != socket.gethostname():
        return f"process {pid} on {owner.get('host')}"
    if not _is_alive(pid):
        return "a process that examines it (doctor or verify)"  # it holds the lock and does not sign the file
    command = _command_of(pid)
    return f"process {pid} ({command})" if command else f"process {pid}"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace").strip()
