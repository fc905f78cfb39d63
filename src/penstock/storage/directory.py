"""What makes a directory a data directory.

    lock                            held by the one process that has it open
    PENSTOCK                        {"format": 2, "shard": "<32 hex digits>"}
    journal/00000000000000000001.log …, journal/reserve
    checkpoints/manifest.json, checkpoints/<part>-<sequence>.part
    segments/…
    catalogue/tasks.sqlite          what became of each task: a view, made anew when it is missing
    staging/…                       batches of sinks on their way; made by whoever stages first
    damaged/<time>/…                what a repair replaced; never read

The marker is written last of what is needed to tell an empty directory from ours, and whole. A directory that holds
anything else is refused untouched. One of an older format is opened, and has the newer one from then on: the code that
wrote it does not know the entries that its journal may hold now, and says so when it reads the marker.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Final

from penstock.errors import Damaged, NotADataDirectory, StorageError
from penstock.storage.disk import TEMPORARY_SUFFIX, Disk, ReadableDisk

MARKER: Final = "PENSTOCK"
FORMAT: Final = 2  # 2: the journal may hold entries of the kinds 22 to 24
FORMATS: Final = (1, FORMAT)  # those that can be opened
SHARD_ID_BYTES: Final = 16
DIRECTORIES: Final = ("journal", "checkpoints", "segments")

_OWN_BEFORE_MARKER: Final = {"lock", MARKER + TEMPORARY_SUFFIX}


def new_shard_id() -> bytes:
    """An id that no other shard has, so that a file can be told from another shard's."""
    return os.urandom(SHARD_ID_BYTES)


def open_directory(disk: Disk, shard_id: Callable[[], bytes] = new_shard_id) -> bytes:
    """Make or check the data directory, lock it, and return its shard id."""
    disk.make_directory("")
    _refuse_foreign(disk)
    disk.lock()
    try:
        if not disk.exists(MARKER):
            write_marker(disk, shard_id())
        identity = read_marker(disk)
        if format_of(disk) != FORMAT:
            write_marker(disk, identity)
        for name in DIRECTORIES:
            disk.make_directory(name)
    except BaseException:
        disk.close()
        raise
    return identity


def read_marker(disk: ReadableDisk) -> bytes:
    """The shard id that the marker names."""
    return _decode(disk.read(MARKER), f"{disk.root / MARKER}")[1]


def format_of(disk: ReadableDisk) -> int:
    """The format that the marker names."""
    return _decode(disk.read(MARKER), f"{disk.root / MARKER}")[0]


def write_marker(disk: Disk, shard_id: bytes) -> None:
    """Make the marker, or make it anew."""
    disk.write_whole(MARKER, _encode(shard_id))


def _refuse_foreign(disk: Disk) -> None:
    names = set(disk.list(""))
    if MARKER not in names and (foreign := sorted(names - _OWN_BEFORE_MARKER)):
        raise NotADataDirectory(f"{disk.root} holds {foreign[0]!r} and no {MARKER} marker")


def _encode(shard_id: bytes) -> bytes:
    return json.dumps({"format": FORMAT, "shard": shard_id.hex()}).encode() + b"\n"


def _decode(data: bytes, path: str) -> tuple[int, bytes]:
    try:
        marker = json.loads(data)
        version, shard_id = marker["format"], bytes.fromhex(marker["shard"])
    except (ValueError, KeyError, TypeError):
        raise Damaged(f"{path} cannot be read") from None
    if not isinstance(version, int) or version < min(FORMATS):
        raise Damaged(f"{path}: {version!r} is not a format")
    if version not in FORMATS:
        raise StorageError(
            f"{path}: format {version} is not known to this version", hint="open it with a newer Penstock"
        )
    if len(shard_id) != SHARD_ID_BYTES:
        raise Damaged(f"{path}: the shard id has {len(shard_id)} bytes instead of {SHARD_ID_BYTES}")
    return version, shard_id
