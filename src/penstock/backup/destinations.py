"""Where a moment is restored to: a data directory, or an empty store in PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from penstock import limits
from penstock.errors import InvalidField
from penstock.storage.directory import DIRECTORIES
from penstock.storage.disk import Disk
from penstock.storage.frames import HEADER_BYTES, PREFIX
from penstock.storage.journal_files import DIRECTORY as JOURNAL

if TYPE_CHECKING:
    from penstock.postgres.link import Link
    from penstock.postgres.store import PostgresStore

ROW_BYTES_MAX: Final = 4 * limits.MIB  # of the journal in a store; a frame that is larger has a row of its own


class Destination(Protocol):
    """An empty place that becomes a data directory when its marker is written."""

    @property
    def disk(self) -> Disk:
        """For what is written whole: the marker and access."""

    def held(self) -> AbstractContextManager[None]:
        """Nobody else uses it inside the block; refused when it is not empty."""

    def put(self, name: str, size: int, pieces: Iterable[bytes]) -> None:
        """Write a file; durable after `sync`."""

    def sync(self) -> None:
        """Return when all files survive a power cut."""


class DirectoryDestination:
    """A directory of this machine."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._directories: set[str] = set()

    @contextmanager
    def held(self) -> Iterator[None]:
        self.disk.make_directory("")
        if names := [name for name in self.disk.list("") if name != "lock"]:
            raise InvalidField(
                f"data: {self.disk.root} is not empty: it holds {names[0]!r}", hint="restore to a new directory"
            )
        self.disk.lock()
        try:
            for name in DIRECTORIES:
                self._make(name)
            yield
        finally:
            self.disk.close()

    def put(self, name: str, size: int, pieces: Iterable[bytes]) -> None:
        self._make(os.path.dirname(name))
        file = self.disk.open(name, create_bytes=size)
        try:
            position = 0
            for piece in pieces:
                file.write_at(piece, position)
                position += len(piece)
            file.sync()
        finally:
            file.close()

    def sync(self) -> None:
        for directory in self._directories:
            self.disk.sync_directory(directory)

    def _make(self, directory: str) -> None:
        if directory not in self._directories:
            self.disk.make_directory(directory)
            self._directories.add(directory)


class StoreDestination:
    """A store in PostgreSQL. The shard is taken over meanwhile, so that no node begins on half of it."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    @property
    def disk(self) -> Disk:
        return self._store.disk

    @contextmanager
    def held(self) -> Iterator[None]:
        from penstock.postgres.disk import PostgresDisk
        from penstock.postgres.links import Fenced
        from penstock.postgres.schema import SHARD

        store = self._store
        store.prepare()
        try:
            with store.links.borrowed() as link:
                row = link.one("SELECT term, owner FROM penstock.shards WHERE shard = $1", SHARD)
                assert row is not None
                store.require_free(row[1])
                self._require_empty(link)
                store.take(link, row[0], row[1])
            store.fenced = Fenced(store.links, SHARD, store.term)
            store.disk = PostgresDisk(store.links, store.fenced)
            yield
        finally:
            store.close()

    def _require_empty(self, link: Link) -> None:
        for table in ("files", "journal_files"):
            if link.one(f"SELECT 1 FROM penstock.{table} LIMIT 1") is not None:  # noqa: S608 - one of ours
                raise InvalidField(
                    f"store: {self._store.target.shown} is not empty", hint="restore to a database of its own"
                )

    def put(self, name: str, size: int, pieces: Iterable[bytes]) -> None:
        data = b"".join(pieces)
        directory, _, last = name.rpartition("/")
        if directory == JOURNAL:
            self._put_journal(int(last.removesuffix(".log")), data)
        else:
            self.disk.write_whole(name, data)

    def _put_journal(self, first_sequence: int, data: bytes) -> None:
        """A file of the journal as a table with its frames."""
        from penstock.postgres.schema import create_journal_table, journal_table

        fenced = self._store.fenced
        table = journal_table(fenced.shard, first_sequence)

        def create(link: Link) -> None:
            for statement in create_journal_table(fenced.shard, first_sequence):
                link.execute(statement)
            sql = "INSERT INTO penstock.journal_files (shard, first_sequence, header) VALUES ($1, $2, $3)"
            link.execute(f"{sql} ON CONFLICT DO NOTHING", fenced.shard, first_sequence, data[:HEADER_BYTES])
            for position, end, sequence, end_sequence in rows_of(data, first_sequence):
                link.execute(
                    f"INSERT INTO {table} (position, sequence, end_sequence, term, data)"  # noqa: S608 - ours
                    " VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
                    *(position, sequence, end_sequence, fenced.term, data[position:end]),
                )

        fenced.change(create)

    def sync(self) -> None:
        """Nothing to do: each was committed."""


def rows_of(data: bytes, sequence: int) -> Iterator[tuple[int, int, int, int]]:
    """Whole frames of a journal file in runs: position, end, first sequence, and the one after the last."""
    start = position = HEADER_BYTES
    first = sequence
    while position < len(data):
        end = position + PREFIX.size + PREFIX.unpack_from(data, position)[0]
        if end - start > ROW_BYTES_MAX and position > start:
            yield start, position, first, sequence
            start, first = position, sequence
        position = end
        sequence += 1
    if position > start:
        yield start, position, first, sequence
