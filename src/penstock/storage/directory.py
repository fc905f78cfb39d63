"""What makes a directory a data directory.

    lock                            held by the one process that has it open
    PENSTOCK                        {"format": 2, "shard": "<32 hex digits>"}, restored: {…, "incarnation": "<32>"}
    journal/00000000000000000001.log …, journal/reserve
    checkpoints/manifest.json, checkpoints/<part>-<sequence>.part
    segments/…                      segments/locations.json names other places where files of segments are
    cache/…                         blocks of segments that are elsewhere; may be removed when no process has it open
    catalogue/tasks.sqlite          the state of each task: a view, rebuilt when it is missing
    staging/…                       batches that sinks have staged; created with the first of them
    backup/…                        hard links that keep files for a backup that is running
    damaged/<time>/…                what a repair replaced; never read

The marker is written last of what is needed to tell an empty directory from ours, and whole. A directory that holds
anything else is refused untouched. One of an older format is opened, and has the newer one from then on: the code that
wrote it does not know the entries that its journal may hold now, and says so when it reads the marker.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from penstock.errors import Damaged, NotADataDirectory, StorageError
from penstock.storage.disk import TEMPORARY_SUFFIX, Disk, ReadableDisk

MARKER: Final = "PENSTOCK"
FORMAT: Final = 2  # 2: the journal may hold entries of the kinds 22 to 24
FORMAT_ENCRYPTED: Final = 3  # 3: and of kind 25, from the first encrypted queue on
FORMAT_LOCATED: Final = 4  # 4: and segments may be at other locations, from the first one on
FORMAT_RESTORED: Final = 5  # 5: and it was restored from a backup, so that its history has an identity of its own
FORMAT_COMPACTED: Final = 6  # 6: and of kind 30, and segments with gaps, from the first compacted queue on
FORMAT_PAUSED: Final = 7  # 7: and of kind 26, from the first pause of pushes, of a group, a namespace or the broker on
FORMAT_OPERATIONS: Final = 8  # 8: and operations on dead letters and messages, with rates and canaries
FORMATS: Final = (  # those that can be opened
    *(1, FORMAT, FORMAT_ENCRYPTED, FORMAT_LOCATED, FORMAT_RESTORED, FORMAT_COMPACTED, FORMAT_PAUSED, FORMAT_OPERATIONS),
)
SHARD_ID_BYTES: Final = 16
DIRECTORIES: Final = ("journal", "checkpoints", "segments")

_OWN_BEFORE_MARKER: Final = {"lock", MARKER + TEMPORARY_SUFFIX}


class Marker(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the marker says. `shard` is part of checksums and seals, so it stays when a backup is restored."""

    format: int
    shard: str
    incarnation: str = ""  # of a directory that was restored

    @property
    def identity(self) -> str:
        """What tells this history from every other: offsets of another one may be other messages."""
        return self.incarnation or self.shard


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
        marker = read_whole_marker(disk)
        identity = bytes.fromhex(marker.shard)
        if marker.format < FORMAT:
            write_marker(disk, identity)
        for name in DIRECTORIES:
            disk.make_directory(name)
    except BaseException:
        disk.close()
        raise
    return identity


def read_marker(disk: ReadableDisk) -> bytes:
    """The shard id that the marker names."""
    return bytes.fromhex(read_whole_marker(disk).shard)


def read_identity(disk: ReadableDisk) -> str:
    """What tells this history from every other, 32 hex digits; see `Marker.identity`."""
    return read_whole_marker(disk).identity


def write_marker(disk: Disk, shard_id: bytes, version: int = FORMAT, incarnation: str = "") -> None:
    """Write the marker, or replace it. An incarnation that it has stays."""
    if not incarnation and disk.exists(MARKER):
        with suppress(Damaged):
            incarnation = read_whole_marker(disk).incarnation
    marker = Marker(max(version, FORMAT_RESTORED) if incarnation else version, shard_id.hex(), incarnation)
    disk.write_whole(MARKER, json.dumps(msgspec.to_builtins(marker)).encode() + b"\n")


def raise_format(disk: Disk, shard_id: bytes, version: int) -> None:
    """Give the directory at least this format: older code refuses it from now on."""
    if read_whole_marker(disk).format < version:
        write_marker(disk, shard_id, version)


def needed_format(*, is_encrypted: bool, is_located: bool, is_compacted: bool) -> int:
    """The format of a directory that holds these."""
    if is_compacted:
        return FORMAT_COMPACTED
    return FORMAT_LOCATED if is_located else FORMAT_ENCRYPTED if is_encrypted else FORMAT


def _refuse_foreign(disk: Disk) -> None:
    names = set(disk.list(""))
    if MARKER not in names and (foreign := sorted(names - _OWN_BEFORE_MARKER)):
        raise NotADataDirectory(f"{disk.root} holds {foreign[0]!r} and no {MARKER} marker")


def read_whole_marker(disk: ReadableDisk) -> Marker:
    """All that the marker says."""
    path = disk.root / MARKER
    try:
        marker = msgspec.json.decode(disk.read(MARKER), type=Marker)
        shard_id, _ = bytes.fromhex(marker.shard), bytes.fromhex(marker.incarnation)
    except (msgspec.MsgspecError, ValueError):
        raise Damaged(f"{path} cannot be read") from None
    if marker.format < min(FORMATS):
        raise Damaged(f"{path}: {marker.format!r} is not a format")
    if marker.format not in FORMATS:
        raise StorageError(
            f"{path}: this version does not know format {marker.format}", hint="open it with a newer Penstock"
        )
    if len(shard_id) != SHARD_ID_BYTES:
        raise Damaged(f"{path}: the shard id has {len(shard_id)} bytes instead of {SHARD_ID_BYTES}")
    return marker
