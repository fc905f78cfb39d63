"""What makes a directory a data directory.

    lock                            held by the one process that has it open
    PENSTOCK                        {"format": 2, "shard": "<32 hex digits>"}
    journal/00000000000000000001.log …, journal/reserve
    checkpoints/manifest.json, checkpoints/<part>-<sequence>.part
    segments/…                      segments/locations.json names other places where files of segments are
    cache/…                         blocks of segments that are elsewhere; may be removed when no process has it open
    catalogue/tasks.sqlite          the state of each task: a view, rebuilt when it is missing
    staging/…                       batches that sinks have staged; created with the first of them
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
FORMAT_ENCRYPTED: Final = 3  # 3: and of kind 25, from the first encrypted queue on
FORMAT_LOCATED: Final = 4  # 4: and segments may be at other locations, from the first one on
FORMATS: Final = (1, FORMAT, FORMAT_ENCRYPTED, FORMAT_LOCATED)  # those that can be opened
SHARD_ID_BYTES: Final = 16
DIRECTORIES: Final = ("journal", "checkpoints", "segments")

_OWN_BEFORE_MARKER: Final = {"lock", MARKER + TEMPORARY_SUFFIX}


def new_shard_id() -> bytes:
    """A random id, which distinguishes the files of shards."""
    return os.urandom(SHARD_ID_BYTES)


def open_directory(disk: Disk, shard_id: Callable[[], bytes] = new_shard_id) -> bytes:
    """Create or check the data directory, lock it, and return its shard id."""
    disk.make_directory("")
    _refuse_foreign(disk)
    disk.lock()
    try:
        if not disk.exists(MARKER):
            write_marker(disk, shard_id())
        version, identity = _read(disk)
        if version < FORMAT:
            write_marker(disk, identity)
        for name in DIRECTORIES:
            disk.make_directory(name)
    except BaseException:
        disk.close()
        raise
    return identity


def read_marker(disk: ReadableDisk) -> bytes:
    """The shard id that the marker names."""
    return _read(disk)[1]


def write_marker(disk: Disk, shard_id: bytes, version: int = FORMAT) -> None:
    """Write the marker, or replace it."""
    marker = {"format": version, "shard": shard_id.hex()}
    disk.write_whole(MARKER, json.dumps(marker).encode() + b"\n")


def raise_format(disk: Disk, shard_id: bytes, version: int) -> None:
    """Give the directory at least this format: older code refuses it from now on."""
    if _read(disk)[0] < version:
        write_marker(disk, shard_id, version)


def needed_format(*, is_encrypted: bool, is_located: bool) -> int:
    """The format of a directory that holds these."""
    return FORMAT_LOCATED if is_located else FORMAT_ENCRYPTED if is_encrypted else FORMAT


def _refuse_foreign(disk: Disk) -> None:
    names = set(disk.list(""))
    if MARKER not in names and (foreign := sorted(names - _OWN_BEFORE_MARKER)):
        raise NotADataDirectory(f"{disk.root} holds {foreign[0]!r} and no {MARKER} marker")


def _read(disk: ReadableDisk) -> tuple[int, bytes]:
    """Format and shard id."""
    path = disk.root / MARKER
    try:
        marker = json.loads(disk.read(MARKER))
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
