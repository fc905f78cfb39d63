"""Who may read a data directory: its owner, and a group if asked for; nobody else.

Payloads lie in it as they were sent, so what is made is 0700 and 0600 whatever the umask says. A directory that is
wider is narrowed by whoever opens it for writing, with all that is in it; the directory itself comes last, so that one
look at it tells next time whether all was done.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

OWNER: Final = 0o700
_GROUP: Final = 0o070
_OTHERS: Final = 0o007
_FILE: Final = 0o666

_log = logging.getLogger(__name__)


def mode_of(root: Path) -> int:
    """The mode for what is made below a directory that somebody else keeps."""
    try:
        has = stat.S_IMODE(os.stat(root).st_mode)
    except OSError:
        return OWNER
    return OWNER if has & _OTHERS else OWNER | (has & _GROUP)


def open_file(path: Path, flags: int, mode: int) -> int:
    """Open a file; a new one may be read and written by whom the mode of its directory says."""
    fd = os.open(path, flags, mode & _FILE)
    if flags & os.O_CREAT and mode & _GROUP:  # which the umask took away
        with suppress(PermissionError):  # another's, which was there
            os.fchmod(fd, mode & _FILE)
    return fd


def make_directory(path: Path, mode: int) -> None:
    """Make one directory, unless it is there."""
    with suppress(FileExistsError):
        os.mkdir(path, mode)
        if mode & _GROUP:
            os.chmod(path, mode)


def apply_mode(root: Path, wanted: int | None) -> int:
    """Give a directory and all that is in it the mode that is wanted, and return it.

    None: as it is when others may not look into it already, and for the owner alone otherwise.
    """
    found = os.stat(root)
    mode = mode_of(root) if wanted is None else wanted
    if found.st_mode & 0o777 == mode:
        return mode
    if found.st_uid != os.geteuid():
        _warn(root, found.st_mode, mode, "belongs to another user")
        return mode
    try:
        for path, is_directory in _below(root):
            with suppress(FileNotFoundError):  # a pin of a reader, which went just now
                os.chmod(path, mode if is_directory else mode & _FILE)
        os.chmod(root, found.st_mode & 0o7000 | mode)
    except OSError as error:
        _warn(root, found.st_mode, mode, f"cannot be changed: {error.strerror}")
    return mode


def _below(directory: Path) -> Iterator[tuple[str, bool]]:
    """What lies below and is ours, with whether it is a directory. No link is followed."""
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid():
                continue
            is_directory = stat.S_ISDIR(found.st_mode)
            yield entry.path, is_directory
            if is_directory:
                yield from _below(Path(entry.path))


def _warn(root: Path, has: int, mode: int, why: str) -> None:
    if has & 0o077 & ~mode:
        _log.warning("%s: other users may read it (mode %04o instead of %04o), and it %s", root, has & 0o777, mode, why)
