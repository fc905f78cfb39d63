"""Faults of backups, and the tests that catch them."""

from __future__ import annotations

from typing import Final

from tests.mutants.fault import Fault

_BACKUP: Final = "tests/backup/test_backup.py"
_INCARNATION: Final = "tests/backup/test_incarnation.py"

BACKUP_FAULTS: Final = (
    Fault(
        "backup-moment-first",
        "the files that no moment needs are removed before the moment that names them is there",
        "backup/sets.py",
        "        self._target.sync()  # before the files: what a moment names must be there\n",
        "        ids = ids[:1]\n",
        (_BACKUP,),
    ),
    Fault(
        "backup-unpinned",
        "retention removes segments while a backup copies them",
        "backup/snapshot.py",
        "        pin(snapshot)\n",
        "",
        (_BACKUP,),
    ),
    Fault(
        "backup-not-held",
        "journal files and checkpoint parts are read from the directory after they may have gone",
        "backup/snapshot.py",
        "        return Source(name, self.disk, at, self.disk.size(at))\n",
        "        return Source(name, self._source, name, self.disk.size(at))\n",
        (_BACKUP,),
    ),
    Fault(
        "backup-unchecked",
        "a file that is damaged is taken into a backup",
        "backup/sets.py",
        "        if (size, crc) != self._expected:\n",
        "        if False:\n",
        (_BACKUP,),
    ),
    Fault(
        "backup-old-access",
        "a set keeps the first keys that it was given, and with them keys that were erased",
        "backup/sets.py",
        "        if access is not None:\n",
        "        if access is not None and not self._target.exists(ACCESS):\n",
        (_BACKUP,),
    ),
    Fault(
        "restore-marker-first",
        "a directory that was not restored to the end is opened",
        "backup/restore.py",
        "        _write_files(source, moment, destination, on_progress)\n",
        "        write_marker(destination.disk, bytes.fromhex(moment.shard), 5, new_shard_id().hex())\n"
        "        _write_files(source, moment, destination, on_progress)\n",
        (_BACKUP,),
    ),
    Fault(
        "restore-same-incarnation",
        "a restored directory passes for the one that was backed up",
        "backup/restore.py",
        "moment.directory_format, new_shard_id().hex())\n    return",
        "moment.directory_format)\n    return",
        (_INCARNATION,),
    ),
    Fault(
        "producer-epoch-by-one",
        "a named producer gets the epoch that the other history has handed out",
        "delivery/producers.py",
        "    return ProducerSet(id, max(1 if known is None else known.epoch + 1, now // 1_000_000), now)\n",
        "    return ProducerSet(id, known.epoch + 1 if known is not None else max(1, now // 1_000_000), now)\n",
        (_BACKUP,),
    ),
)
