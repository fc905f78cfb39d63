"""Backups of a data directory, taken while it is in use, and restoring one.

A backup set is a directory, or a place in object storage, that holds several moments of one shard. A moment is a
checkpoint, the journal frames up to a durable sequence and the sealed segments, as they were at one instant. A file
that several moments need is stored once.

    PENSTOCK-BACKUP                     {"format": 1, "shard": "<32 hex digits>"}
    moments/<id>.json                   one moment: its files with sizes and checksums
    files/<incarnation>/<name>…         the files of the data directory, each under a name with its size and checksum
    access.sealed                       keys and users, encrypted with a passphrase; only the newest

A moment's document is written last: a backup that was interrupted left nothing but files that no moment names, and the
next one removes them.
"""

from penstock.backup.destinations import DirectoryDestination, StoreDestination
from penstock.backup.moments import Moment, StoredFile
from penstock.backup.restore import restore
from penstock.backup.sets import BackupSet
from penstock.backup.snapshot import Snapshot, snapshot_of
from penstock.backup.targets import open_target

__all__ = [
    "BackupSet",
    "DirectoryDestination",
    "Moment",
    "Snapshot",
    "StoreDestination",
    "StoredFile",
    "open_target",
    "restore",
    "snapshot_of",
]
