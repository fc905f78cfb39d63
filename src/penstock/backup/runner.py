"""Backups of a session: one at a time, in a thread of its own, while everything else goes on.

Whoever may operate the broker may ask for one. The owner may name any destination; others one of those that the
setting `backups` lists, since the broker writes there as its own user.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from penstock import limits
from penstock.backup.access_bundle import check_passphrase, pack_access
from penstock.backup.sets import BackupSet
from penstock.backup.snapshot import Holding, Snapshot, clear_holding, snapshot_in_use
from penstock.backup.targets import open_target
from penstock.errors import BadRequest, Closed, InvalidField, PenstockError, StateError
from penstock.replies import BackupState
from penstock.storage import pins
from penstock.storage.disk import Disk

if TYPE_CHECKING:
    from penstock.shard.shard import Shard
    from penstock.shard.upkeep import Storekeeper

logger: Final = logging.getLogger("penstock.backup")

PIN: Final = "backup"
RENEW_US: Final = round(limits.segment_pin_seconds * 1_000_000 / 4)


class Backups:
    """Takes backups of one open shard. `keeper` None: everything is in memory."""

    def __init__(self, shard: Shard, keeper: Storekeeper | None, disk: Disk | None) -> None:
        self._shard = shard
        self._keeper = keeper
        self._disk = disk
        self.allowed: Sequence[str] = ()  # destinations, for those who do not own the broker
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._state = BackupState()
        self._pinned_at = 0
        if disk is not None:
            clear_holding(disk)

    def state(self) -> BackupState:
        """The backup that runs, or the last one."""
        return self._state

    def start(self, destination: str, keep: int | None, passphrase: str, owner: str = "") -> BackupState:
        """Begin a backup; `state` shows how it goes."""
        if self._keeper is None or self._disk is None:
            raise BadRequest("there is nothing to back up: everything is in memory", hint="give it a data directory")
        self._check(destination, owner)
        if keep is not None and keep < 1:
            raise InvalidField(f"keep: {keep} is not 1 or more", hint="the newest moment always stays")
        if passphrase:
            check_passphrase(passphrase)
        backup_set = BackupSet(open_target(destination))
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                raise StateError("a backup is already running", hint="wait until it is done")
            self._shard.require_open()
            self._state = BackupState(destination, "running")
            self._thread = threading.Thread(
                target=self._run, args=(backup_set, keep, passphrase), name="penstock-backup", daemon=True
            )
            self._thread.start()
        return self._state

    def stop(self) -> None:
        """Give up what runs; the set stays as it was."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _check(self, destination: str, owner: str) -> None:
        is_url = "://" in destination
        if not is_url and not destination.startswith("/"):
            raise InvalidField(
                f"destination: {destination!r} is neither an absolute path nor a URL",
                hint="the broker writes there, on its own machine",
            )
        if ".." in destination.split("/"):
            raise InvalidField("destination: it contains '..'", hint="write the full path")
        if owner and not any(_lies_in(destination, place) for place in self.allowed):
            raise InvalidField(
                f"destination: {destination!r} is not listed in the setting `backups`",
                hint="only the owner of the broker may use other destinations",
            )
        if not is_url and self._disk is not None and _lies_in(destination, str(self._disk.root.resolve())):
            raise InvalidField("destination: it is in the data directory", hint="choose a place outside")

    def _run(self, backup_set: BackupSet, keep: int | None, passphrase: str) -> None:
        try:
            self._take(backup_set, keep, passphrase)
        except Exception as error:
            is_known = isinstance(error, PenstockError)
            text = str(error) if is_known else f"{type(error).__name__}: {error}"
            code = error.code if isinstance(error, PenstockError) else "internal"
            logger.warning("a backup failed: %s", text, exc_info=None if is_known else error)
            self._change(status="failed", error=text, code=code)

    def _take(self, backup_set: BackupSet, keep: int | None, passphrase: str) -> None:
        assert self._keeper is not None
        assert self._disk is not None
        with backup_set.changing():
            holding = Holding(self._disk)
            try:
                snapshot = snapshot_in_use(self._shard, self._keeper, self._disk, holding, self._pin)
                self._pinned_at = self._shard.clock.monotonic()
                access = pack_access(self._disk, passphrase) if passphrase else None
                moment = backup_set.add(
                    snapshot, access=access, on_progress=self._progressed, check=lambda: self._go_on(snapshot)
                )
            finally:
                holding.release()
                with suppress(PenstockError, OSError):
                    pins.release(self._disk, PIN)
            backup_set.prune(keep)
        self._change(status="done", moment=moment.id, sequence=moment.sequence)

    def _pin(self, snapshot: Snapshot) -> None:
        assert self._disk is not None
        pins.hold(self._disk, PIN, self._shard.clock.now(), snapshot.segments)

    def _go_on(self, snapshot: Snapshot) -> None:
        """Between pieces: stop when the session closes, and renew the pin in time."""
        if self._stopping.is_set():
            raise Closed("this Penstock is closing; the backup was aborted")
        now = self._shard.clock.monotonic()
        if now - self._pinned_at > RENEW_US:
            self._pin(snapshot)
            self._pinned_at = now

    def _progressed(self, done: int, total: int) -> None:
        self._change(bytes_done=done, bytes_total=total)

    def _change(self, **changes: object) -> None:
        self._state = msgspec.structs.replace(self._state, **changes)


def _lies_in(destination: str, place: str) -> bool:
    place = place.rstrip("/")
    return destination.rstrip("/") == place or destination.startswith(f"{place}/")
