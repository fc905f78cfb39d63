"""One process per data directory.

The lock is `flock` on a file, so the system drops it when the process ends, however it ends. The file says who holds
it: pid, host and since when. A forked child closes its copy at once: else it would hold the directory after its
parent's death.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from penstock.errors import DirectoryInUse
from penstock.forks import close_in_forks
from penstock.storage import modes


class DirectoryLock:
    """The lock file of one data directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def acquire(self, mode: int = modes.OWNER) -> None:
        """Take the lock or say who has it."""
        fd = modes.open_file(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_owner(fd)
        except BlockingIOError:
            owner = _read_owner(fd)
            os.close(fd)
            raise DirectoryInUse(f"{self.path.parent} is held by {_describe(owner)}") from None
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        close_in_forks(self)

    def share(self) -> None:
        """Hold the directory as it is while looking at it, together with others who look. Writes nothing."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # nobody has ever opened it
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _read_owner(fd)
            os.close(fd)
            raise DirectoryInUse(f"{self.path.parent} is held by {_describe(owner)}") from None
        self._fd = fd
        close_in_forks(self)

    def release(self) -> None:
        """Let go; nothing happens when the lock is not held."""
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


def _describe(owner: dict[str, Any]) -> str:
    pid = owner.get("pid")
    if not isinstance(pid, int):
        return "another process"
    if pid == os.getpid():
        return f"process {pid}, this very one"
    if owner.get("host") != socket.gethostname():
        return f"process {pid} on {owner.get('host')}"
    if not _is_alive(pid):
        return "a process that looks at it (doctor or verify)"  # it holds the lock and does not sign
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
