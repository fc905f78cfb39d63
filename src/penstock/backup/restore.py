"""Making a data directory from a moment of a backup set.

The marker is written last: a directory that a restore did not finish is refused by everyone. The marker has a new
incarnation. The backup's history and the one that begins here agree up to the moment and part there, so whoever keeps
offsets outside (streaming queries, archives, readers over the wire) recognises that these are not the messages that it
counted. Receipts of the other history name leases that are not known here. Named producers get epochs from the clock,
which are higher than any that was handed out before.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime

from penstock.backup.access_bundle import unpack_access
from penstock.backup.moments import Moment, choose
from penstock.backup.sets import BackupSet
from penstock.errors import InvalidField, StorageError
from penstock.storage.directory import DIRECTORIES, FORMATS, new_shard_id, write_marker
from penstock.storage.disk import Disk

OnProgress = Callable[[int, int], object]


def restore(
    source: BackupSet,
    disk: Disk,
    *,
    at: str | datetime | None = None,
    passphrase: str = "",
    on_progress: OnProgress = lambda done, total: None,
) -> Moment:
    """Write a moment into an empty directory: the newest one, or that of an id or a time."""
    moment = source.moment(choose(source.moments(), at))
    _check(source, moment, passphrase)
    disk.make_directory("")
    if names := [name for name in disk.list("") if name != "lock"]:
        raise InvalidField(f"data: {disk.root} is not empty: it holds {names[0]!r}", hint="restore to a new directory")
    disk.lock()
    try:
        _write_files(source, moment, disk, on_progress)
        access = source.access() if passphrase else None
        if access is not None:
            unpack_access(access, passphrase, disk)
        write_marker(disk, bytes.fromhex(moment.shard), moment.directory_format, new_shard_id().hex())
    finally:
        disk.close()
    return moment


def _check(source: BackupSet, moment: Moment, passphrase: str) -> None:
    """Refuse what cannot be done before anything is written."""
    if moment.directory_format not in FORMATS:
        raise StorageError(
            f"the moment {moment.id} was taken by Penstock {moment.version}, which is newer",
            hint="restore it with that version",
        )
    for file in moment.files:
        parts = file.name.split("/")
        if file.name.startswith("/") or any(part in ("", ".", "..") for part in parts):
            raise StorageError(f"the moment {moment.id} names a file {file.name!r} outside a data directory")
    if passphrase and source.access() is None:
        raise InvalidField("passphrase: the set has no keys and users", hint="it was taken without --with-access")


def _write_files(source: BackupSet, moment: Moment, disk: Disk, on_progress: OnProgress) -> None:
    for name in DIRECTORIES:
        disk.make_directory(name)
    done, total = 0, moment.bytes
    directories = set(DIRECTORIES)
    for stored in moment.files:
        directory = os.path.dirname(stored.name)
        if directory not in directories:
            disk.make_directory(directory)
            directories.add(directory)
        file = disk.open(stored.name, create_bytes=stored.bytes)
        try:
            position = 0
            for piece in source.read(stored):
                file.write_at(piece, position)
                position += len(piece)
                on_progress(done + position, total)
            file.sync()
        finally:
            file.close()
        done += stored.bytes
    for directory in directories:
        disk.sync_directory(directory)
