"""What a run leaves behind for the next one: JSON files that are replaced as a whole, and a lock.

A file is written beside its place, synced, and renamed: whoever reads it finds the old state or the new one. The lock
is one of the operating system, so a run that was killed holds none.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from penstock.errors import DirectoryInUse, InvalidField
from penstock.storage.disk import RealDisk

T = TypeVar("T")

LOCK: Final = ".lock"


def read_state(path: Path, kind: type[T]) -> T | None:
    """The state in a file, as a value of this type; None when nothing has been written yet."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        hint = "move it away to start over, or give another directory with --out"
        raise InvalidField(f"{path} holds no state that this pipeline could go on from: {error}", hint=hint) from None


def write_state(path: Path, value: Any) -> None:
    """Replace the state in a file; after a crash it is the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(value, enc_hook=plain), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_directory(path.parent)


def plain(value: Any) -> Any:
    """What JSON has no word for: NumPy's numbers as numbers, everything else as text."""
    return value.item() if hasattr(value, "item") else str(value)


def sync_directory(path: Path) -> None:
    """Make renames in a directory durable."""
    RealDisk(path).sync_directory("")


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Only one run at a time may work in a directory."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / LOCK).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "wait for it, or give another directory with --out"
            raise DirectoryInUse(f"another run is at work in {out}", hint=hint) from None
        yield
