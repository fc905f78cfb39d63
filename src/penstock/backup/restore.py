"""Making a data directory, or a store, from a moment of a backup set.

The marker is written last: a directory that a restore did not finish is refused by everyone. The marker has a new
incarnation. The backup's history and the one that begins here agree up to the moment and part there, so whoever keeps
offsets outside (streaming queries, archives, readers over the wire) recognises that these are not the messages that it
counted. Receipts of the other history name leases that are not known here. Named producers get epochs from the clock,
which are higher than any that was handed out before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from penstock.backup.access_bundle import unpack_access
from penstock.backup.destinations import Destination
from penstock.backup.moments import Moment, choose
from penstock.backup.sets import BackupSet
from penstock.errors import InvalidField, StorageError
from penstock.storage.directory import FORMATS, new_shard_id, write_marker

OnProgress = Callable[[int, int], object]


def restore(
    source: BackupSet,
    destination: Destination,
    *,
    at: str | datetime | None = None,
    passphrase: str = "",
    on_progress: OnProgress = lambda done, total: None,
) -> Moment:
    """Write a moment into an empty place: the newest one, or that of an id or a time."""
    moment = source.moment(choose(source.moments(), at))
    _check(source, moment, passphrase)
    with destination.held():
        _write_files(source, moment, destination, on_progress)
        access = source.access() if passphrase else None
        if access is not None:
            unpack_access(access, passphrase, destination.disk)
        shard_id = bytes.fromhex(moment.shard)
        write_marker(destination.disk, shard_id, moment.directory_format, new_shard_id().hex())
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
        raise InvalidField(
            "passphrase: the backup contains no keys and users", hint="it was taken without --with-access"
        )


def _write_files(source: BackupSet, moment: Moment, destination: Destination, on_progress: OnProgress) -> None:
    done, total = 0, moment.bytes

    def counted(pieces: Iterable[bytes]) -> Iterator[bytes]:
        nonlocal done
        for piece in pieces:
            yield piece
            done += len(piece)
            on_progress(done, total)

    for stored in moment.files:
        destination.put(stored.name, stored.bytes, counted(source.read(stored)))
    destination.sync()
