"""The files of a shard in PostgreSQL, read from outside.

A row that is visible is not yet safe: its commit may still wait for the standbys, and be lost with the primary. So a
reader selects, then makes a synchronous commit of its own, and only then believes what it has read; all of it over one
connection, because another one may lead to another server. A reader that cannot commit, on a standby or with a role
that may only read, stops at the highest `durable_sequence` in the frames: the owner knew that much to be durable.

Credentials come from the URL, or from where libpq looks for them in the process that reads: PGPASSFILE, PGPASSWORD.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from penstock.errors import PenstockError, StorageError, StoreRefused
from penstock.history.keys import DirectoryKeys, ReaderKeys
from penstock.postgres import schema
from penstock.postgres.disk import PostgresDisk
from penstock.postgres.link import Link
from penstock.postgres.links import Links
from penstock.postgres.outside import require_store
from penstock.postgres.target import parse_store_url
from penstock.storage import pins
from penstock.storage.frames import FRAME, PREFIX
from penstock.storage.segment_files import ReadableSegments

ROLE: Final = "penstock reader"

_READ_ONLY: Final = "SELECT current_setting('transaction_read_only') = 'on' OR pg_is_in_recovery()"
_MAY_PIN: Final = "SELECT has_table_privilege('penstock.files', 'INSERT')"
_NO_RIGHT: Final = "42501"


class CountedLinks(Links):
    """Connections of one reader, counted: what was read over one of them cannot be confirmed over another."""

    made = 0

    def new(self, *, statement_seconds: float | None = None) -> Link:
        link = super().new(statement_seconds=statement_seconds)
        self.made += 1
        return link


class StoreFiles:
    """`Files` of a store. Nothing is changed but pins."""

    def __init__(self, url: str) -> None:
        self._links = CountedLinks(parse_store_url(url), ROLE)
        try:
            self._links.ask(require_store)
            self._disk = PostgresDisk(self._links)
            self.root: Path = self._disk.root
            self._commits = self._may_commit()
            self._pins = self._commits and bool(self._asked(_MAY_PIN))
        except BaseException:
            self.close()
            raise
        self._read_over: set[int] = set()  # connections over which frames were read that are not confirmed

    def read(self, name: str, position: int = 0, length: int | None = None) -> bytes:
        data = self._disk.read(name, position, length)
        if name.startswith("journal/"):
            self._read_over.add(self._links.made)
        return data

    def exists(self, name: str) -> bool:
        return self._disk.exists(name)

    def size(self, name: str) -> int:
        return self._disk.size(name)

    def list(self, directory: str) -> list[str]:
        return self._disk.list(directory)

    def open_input(self, name: str) -> Any:
        return self._disk.open_input(name)

    def durable_sequence(self) -> int | None:
        """None where this reader can find out by a commit of its own."""
        self._read_over.clear()
        return None if self._commits else self._known_durable()

    def make_durable(self, name: str) -> None:
        self._disk.confirm()
        connections = self._read_over | {self._links.made}
        self._read_over.clear()
        if len(connections) > 1:
            raise FileNotFoundError(f"{name}: the connection was lost while it was read")

    def pin(self, name: str, now: int, files: Iterable[str] | None) -> None:
        if self._pins:
            with suppress(PenstockError):  # optional: without it a reader looks up again what it needs
                pins.hold(self._disk, name, now, files)

    def unpin(self, name: str) -> None:
        if self._pins:
            with suppress(PenstockError):
                pins.release(self._disk, name)

    def data_keys(self) -> ReaderKeys:
        return DirectoryKeys(self)

    def segment_files(self) -> ReadableSegments:
        return ReadableSegments(self)

    def close(self) -> None:
        self._links.close()

    def _asked(self, sql: str) -> Any:
        row = self._links.ask(lambda link: link.one(sql))
        if row is None:
            raise StorageError(f"{self._links.target.shown} did not answer")
        return row[0]

    def _may_commit(self) -> bool:
        if self._asked(_READ_ONLY):
            return False
        try:
            self._disk.confirm()
        except StoreRefused as error:
            if error.sqlstate != _NO_RIGHT:
                raise
            return False
        return True

    def _known_durable(self) -> int:
        """The highest sequence that a frame says was durable: that of the last row, since they only grow."""
        for first in reversed(self._disk.journal_files()):
            table = schema.journal_table(schema.SHARD, first)
            sql = f"SELECT data FROM {table} ORDER BY position DESC LIMIT 1"  # noqa: S608 - made of numbers
            row = self._links.ask(lambda link, sql=sql: link.one(sql))  # type: ignore[misc] # bound at once
            if row is not None:
                return max(_durable_in(row[0]))
        return 0


def _durable_in(row: bytes) -> list[int]:
    """What each frame of a row says was durable."""
    found, position = [0], 0
    while position + FRAME.size <= len(row):
        length, _, _, durable = FRAME.unpack_from(row, position)
        found.append(durable)
        position += PREFIX.size + length
    return found
