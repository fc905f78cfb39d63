"""The SQLite database behind the catalogue: the one place that opens it.

It is a view: nothing in it is worth a sync of its own, and a file that cannot be read is thrown away (`DatabaseBroken`)
and made anew. One connection writes; any number of others read meanwhile, each what was committed when it began. In
memory there is one connection for everybody, and they take turns.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from penstock.errors import DiskFull
from penstock.storage.disk import Disk
from penstock.task_index import arguments, schema

DIRECTORY: Final = "catalogue"
NAME: Final = f"{DIRECTORY}/tasks.sqlite"

WRITER_CACHE_KIB: Final = 32 * 1024
READER_CACHE_KIB: Final = 4 * 1024
_BESIDE: Final = ("-wal", "-shm", "-journal")
_PRAGMAS: Final = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA temp_store = MEMORY;
PRAGMA wal_autocheckpoint = 4000;
"""


class DatabaseBroken(Exception):
    """The database cannot be used as it is. It never leaves this package: it is made anew, or a `StorageError`."""


@contextmanager
def sqlite_errors() -> Iterator[None]:
    """What SQLite says, as `DatabaseBroken`; a full disk as what it is."""
    try:
        yield
    except sqlite3.Error as error:
        if "full" in str(error):
            raise DiskFull(f"{NAME}: {error}") from error
        raise DatabaseBroken(str(error)) from error


class Store:
    """An open database. `disk` None keeps it in memory."""

    def __init__(self, disk: Disk | None) -> None:
        self._path = ":memory:" if disk is None else str(disk.root / NAME)
        self.is_shared = disk is None
        if disk is not None:
            disk.make_directory(DIRECTORY)
            disk.open(NAME, create_bytes=0).close()  # with its mode, which SQLite gives to the files beside it too
        self._lock = threading.RLock()
        self._lending = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._closed = False
        with sqlite_errors():
            self._writer = self._connect(WRITER_CACHE_KIB)
            self.is_new = self._prepare()

    def _connect(self, cache_kib: int) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None, cached_statements=64)
        try:
            arguments.install(connection)
            connection.executescript(f"{_PRAGMAS} PRAGMA cache_size = -{cache_kib};")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _prepare(self) -> bool:
        """Make the tables; whether they were not there. `DatabaseBroken` for those of another version."""
        try:
            (version,) = self._writer.execute("PRAGMA user_version").fetchone()
            if version == 0:
                self._writer.executescript(
                    f"BEGIN; {schema.TABLES} {schema.INDEXES} PRAGMA user_version = {schema.VERSION}; COMMIT;"
                )
        except BaseException:
            self._writer.close()
            raise
        if version not in (0, schema.VERSION):
            self._writer.close()
            raise DatabaseBroken(f"{NAME} is of version {version}")
        return bool(version == 0)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it, or nothing."""
        with self._lock, sqlite_errors():
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._writer.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection to ask; several statements see one moment only within a transaction of their own."""
        if self.is_shared:
            with self._lock, sqlite_errors():
                yield self._writer
            return
        with sqlite_errors():
            connection = self._borrow()
            try:
                yield connection
            finally:
                self._give_back(connection)

    def _borrow(self) -> sqlite3.Connection:
        with self._lending:
            if self._closed:  # the file may be gone, and connecting would make another
                raise DatabaseBroken("it is closed")
            return self._idle.pop() if self._idle else self._connect(READER_CACHE_KIB)

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._lending:
            if self._closed:
                connection.close()
            else:
                self._idle.append(connection)

    def meta(self, name: str, default: Any = None) -> Any:
        """A value that is kept beside the tables."""
        with self.reading() as connection:
            row = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return default if row is None else row[0]

    def close(self) -> None:
        """Let go of the file; it may be called twice."""
        with self._lock, self._lending:
            self._closed = True
            for connection in [self._writer, *self._idle]:
                with suppress(sqlite3.Error):
                    connection.close()
            self._idle.clear()


def set_meta(connection: sqlite3.Connection, name: str, value: Any) -> None:
    """Within a transaction."""
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))


def remove(disk: Disk) -> None:
    """Throw the files away."""
    for name in (NAME, *(NAME + suffix for suffix in _BESIDE)):
        with suppress(FileNotFoundError):
            disk.remove(name)


def exists(disk: Disk) -> bool:
    """Whether there is a catalogue to go on with."""
    return disk.exists(NAME)
