"""A `Disk` whose files are rows: manifests, parts of checkpoints, segments, staged batches, pins, the marker.

Every change is a transaction of its own, durable when it returns, and fenced by the term of the owner: a process that
has been deposed changes nothing. Readers may write pins only.

Files under `journal/` are the tables of the journal, which is how `FileReader`, history and the doctor read them. They
are written by `PostgresJournal` alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from penstock.errors import DiskReadOnly, StoreRefused
from penstock.postgres.link import Link
from penstock.postgres.links import CHANGE_SECONDS, RENEW, Fenced, Links
from penstock.postgres.schema import SHARD, journal_name, journal_table
from penstock.storage import pins
from penstock.storage.disk import Bytes
from penstock.storage.frames import HEADER_BYTES

CHUNK: Final = 1 << 20
PLENTY: Final = 1 << 60  # free bytes, as far as a client of PostgreSQL can know
JOURNAL: Final = "journal"
NO_TABLE: Final = "42P01"

_LOG: Final = re.compile(r"journal/(\d{20})\.log")

# S608: only numbers, and names of tables made of numbers, are put into statements here.
_READ: Final = f"""
    SELECT f.bytes, substring(d.data
        FROM (greatest($3::bigint - d.chunk::bigint * {CHUNK}, 0) + 1)::integer
        FOR greatest(least($4::bigint - d.chunk::bigint * {CHUNK}, {CHUNK})
            - greatest($3::bigint - d.chunk::bigint * {CHUNK}, 0), 0)::integer)
    FROM penstock.files f LEFT JOIN penstock.file_data d
        ON d.file = f.file AND d.chunk >= $3::bigint / {CHUNK} AND d.chunk::bigint * {CHUNK} < $4::bigint
    WHERE f.shard = $1 AND f.name = $2 ORDER BY d.chunk"""  # noqa: S608
_READ_JOURNAL: Final = """
    SELECT substring(data FROM (greatest($1::bigint - position, 0) + 1)::integer
        FOR least($2::bigint - greatest($1::bigint, position), octet_length(data))::integer)
    FROM {table} WHERE position < $2::bigint
        AND position >= (SELECT coalesce(max(position), 0) FROM {table} WHERE position <= $1::bigint)
        AND position + octet_length(data) > $1::bigint ORDER BY position"""
_UPSERT: Final = """
    INSERT INTO penstock.files (shard, name, file, bytes, term)
    VALUES ($1, $2, nextval('penstock.file_ids'), $3, $4)
    ON CONFLICT (shard, name) DO UPDATE SET file = excluded.file, bytes = excluded.bytes, term = excluded.term
    RETURNING file"""
# Any role may run it. It writes a record to PostgreSQL's log, so its commit waits for the standbys.
CONFIRM: Final = "SELECT pg_logical_emit_message(true, 'penstock', '')::text"
_PLACE: Final = """
    SELECT system_identifier::text || '/' || (SELECT oid::text FROM pg_database WHERE datname = current_database())
    FROM pg_control_system()"""
_FOREVER: Final = 1 << 50


class StorePath(PurePosixPath):
    """The location of a store in messages: used like a path, printed as a URL."""

    def __str__(self) -> str:
        return super().__str__().replace(":/", "://", 1)

    def resolve(self) -> StorePath:
        """Itself: there are no links to follow."""
        return self


class PostgresDisk:
    """The files of one shard. Without `fenced` it only reads, and pins."""

    def __init__(self, links: Links, fenced: Fenced | None = None, shard: int = SHARD) -> None:
        self._links = links
        self._fenced = fenced
        self._shard = shard
        self.root: Path = StorePath(links.target.shown)  # type: ignore[assignment] # for messages, it is like one
        self.term = 0 if fenced is None else fenced.term

    # reading

    def read(self, name: str, position: int = 0, length: int | None = None) -> bytes:
        end = _FOREVER if length is None else position + length
        first = _first_sequence(name)
        if first is not None:
            return self._read_journal(first, position, end)
        rows = self._links.ask(lambda link: link.rows(_READ, self._shard, name, position, end))
        if not rows:
            raise FileNotFoundError(f"{self.root / name}")
        return b"".join(data for _, data in rows if data is not None)

    def _read_journal(self, first: int, position: int, end: int) -> bytes:
        header = self._header(first)[position:end] if position < HEADER_BYTES else b""
        sql = _READ_JOURNAL.format(table=journal_table(self._shard, first))
        try:
            rows = self._links.ask(lambda link: link.rows(sql, max(position, HEADER_BYTES), end))
        except StoreRefused as error:
            if error.sqlstate == NO_TABLE:
                raise FileNotFoundError(f"{self.root}: {journal_name(first)}") from None
            raise
        return b"".join([header, *(data for (data,) in rows)])

    def _header(self, first: int) -> bytes:
        sql = "SELECT header FROM penstock.journal_files WHERE shard = $1 AND first_sequence = $2 AND NOT dropped"
        row = self._links.ask(lambda link: link.one(sql, self._shard, first))
        if row is None:
            raise FileNotFoundError(f"{self.root}: {journal_name(first)}")
        return bytes(row[0])

    def exists(self, name: str) -> bool:
        first = _first_sequence(name)
        if first is not None:
            return first in self.journal_files()
        if name == JOURNAL:
            return bool(self.journal_files())
        sql = "SELECT 1 FROM penstock.files WHERE shard = $1 AND (name = $2 OR (name > $3 AND name < $4)) LIMIT 1"
        return self._links.ask(lambda link: link.one(sql, self._shard, name, f"{name}/", f"{name}0")) is not None

    def size(self, name: str) -> int:
        first = _first_sequence(name)
        if first is not None:
            return self._journal_size(first)
        sql = "SELECT bytes FROM penstock.files WHERE shard = $1 AND name = $2"
        row = self._links.ask(lambda link: link.one(sql, self._shard, name))
        if row is None:
            raise FileNotFoundError(f"{self.root / name}")
        return int(row[0])

    def _journal_size(self, first: int) -> int:
        self._header(first)
        table = journal_table(self._shard, first)
        sql = f"SELECT position + octet_length(data) FROM {table} ORDER BY position DESC LIMIT 1"  # noqa: S608
        row = self._links.ask(lambda link: link.one(sql))
        return HEADER_BYTES if row is None else int(row[0])

    def list(self, directory: str) -> list[str]:
        if directory == JOURNAL:
            return [journal_name(first) for first in self.journal_files()]
        sql = "SELECT name FROM penstock.files WHERE shard = $1 AND name > $2 AND name < $3"
        start, end = (f"{directory}/", f"{directory}0") if directory else ("", "\x7f")
        rows = self._links.ask(lambda link: link.rows(sql, self._shard, start, end))
        return sorted({name[len(start) :].partition("/")[0] for (name,) in rows})

    def journal_files(self) -> Sequence[int]:
        """The first sequence of each journal file."""
        sql = "SELECT first_sequence FROM penstock.journal_files WHERE shard = $1 AND NOT dropped ORDER BY 1"
        return [first for (first,) in self._links.ask(lambda link: link.rows(sql, self._shard))]

    def map(self, name: str) -> memoryview:
        return memoryview(self.read(name))

    def open_input(self, name: str) -> Any:
        import pyarrow as pa

        return pa.PythonFile(_Input(self, name, self.size(name)), mode="r")

    def free_bytes(self) -> int:
        return PLENTY

    def total_bytes(self) -> int:
        return PLENTY

    def confirm(self) -> None:
        """Make a synchronous commit: what was read before it is durable once this returns."""
        self._links.ask(lambda link: link.rows(CONFIRM))

    # changing

    def write_whole(self, name: str, data: Bytes) -> None:
        self._change(name, lambda link: self._put(link, name, data))

    def _put(self, link: Link, name: str, data: Bytes) -> None:
        self._drop(link, name)
        row = link.one(_UPSERT, self._shard, name, len(data), self.term)
        assert row is not None
        view = memoryview(data)
        for chunk in range(0, len(data), CHUNK):
            link.execute(
                "INSERT INTO penstock.file_data (file, chunk, data) VALUES ($1, $2, $3)",
                *(row[0], chunk // CHUNK, bytes(view[chunk : chunk + CHUNK])),
            )

    def _drop(self, link: Link, name: str) -> None:
        link.execute(
            "DELETE FROM penstock.file_data d USING penstock.files f"
            " WHERE f.shard = $1 AND f.name = $2 AND d.file = f.file",
            *(self._shard, name),
        )

    def remove(self, name: str) -> None:
        def remove(link: Link) -> int:
            self._drop(link, name)
            return link.execute("DELETE FROM penstock.files WHERE shard = $1 AND name = $2", self._shard, name)

        if not self._change(name, remove):
            raise FileNotFoundError(f"{self.root / name}")

    def rename(self, old: str, new: str) -> None:
        def rename(link: Link) -> int:
            if link.one("SELECT 1 FROM penstock.files WHERE shard = $1 AND name = $2", self._shard, old) is None:
                return 0
            self._drop(link, new)
            link.execute("DELETE FROM penstock.files WHERE shard = $1 AND name = $2", self._shard, new)
            sql = "UPDATE penstock.files SET name = $3, term = $4 WHERE shard = $1 AND name = $2"
            return link.execute(sql, self._shard, old, new, self.term)

        if not self._change(new, rename):
            raise FileNotFoundError(f"{self.root / old}")

    def open(self, name: str, *, create_bytes: int | None = None) -> PostgresFile:
        if create_bytes is None:
            return PostgresFile(self, name, self.size(name), is_new=False)
        try:
            return PostgresFile(self, name, max(self.size(name), create_bytes), is_new=False)
        except FileNotFoundError:
            return PostgresFile(self, name, create_bytes, is_new=True)

    def patch(self, name: str, writes: Sequence[tuple[int, bytes]], size: int) -> None:
        """Write some bytes of a file, which is created if it is missing, and set its size."""

        def patch(link: Link) -> None:
            rows = link.rows(_READ, self._shard, name, 0, _FOREVER)
            stored = b"".join(part for _, part in rows if part is not None)
            self._put(link, name, patched(stored, writes, size))

        self._change(name, patch)

    def _change(self, name: str, action: Any) -> Any:
        if self._fenced is not None:
            return self._fenced.change(action)
        if not name.startswith(f"{pins.DIRECTORY}/"):
            raise DiskReadOnly(
                f"{self.root / name} is read-only here", hint="this is a bug in Penstock; please report it"
            )
        return self._links.patiently(lambda: self._unfenced(action), CHANGE_SECONDS)

    def _unfenced(self, action: Any) -> Any:
        with self._links.borrowed() as link:
            link.begin()
            result = action(link)
            link.commit()
            return result

    def make_directory(self, name: str) -> None:
        """Files need no directories here."""

    def sync_directory(self, name: str) -> None:
        """Every change was durable when it returned."""

    def place(self) -> str:
        """The server and its database: standbys and promoted ones are the same, a restored dump is not."""
        row = self._links.ask(lambda link: link.one(_PLACE))
        assert row is not None
        return f"database {row[0]}"

    def lock(self) -> None:
        """Nothing to do: the term is the lock."""

    def renew(self) -> None:
        """A synchronous commit in this term; `Deposed` when it is over."""
        fenced = self._fenced
        assert fenced is not None
        if not self._links.ask(lambda link: link.execute(RENEW, fenced.shard, fenced.term)):
            raise fenced.deposed()

    def close(self) -> None:
        """The store closes the connections."""


class PostgresFile:
    """An open file: writes are stored when it is synced or closed."""

    def __init__(self, disk: PostgresDisk, name: str, size: int, *, is_new: bool) -> None:
        self.name = name
        self._disk = disk
        self._size = size
        self._writes: list[tuple[int, bytes]] = []
        self._is_changed = self._is_new = is_new

    def write_at(self, data: Bytes, position: int) -> None:
        self._writes.append((position, bytes(data)))
        self._size = max(self._size, position + len(data))
        self._is_changed = True

    def read_at(self, position: int, length: int) -> bytes:
        self.sync()
        return self._disk.read(self.name, position, length)

    def sync(self) -> None:
        if not self._is_changed:
            return
        if self._is_new:
            self._disk.write_whole(self.name, patched(b"", self._writes, self._size))
        else:
            self._disk.patch(self.name, self._writes, self._size)
        self._writes, self._is_changed, self._is_new = [], False, False

    def truncate(self, size: int) -> None:
        self._is_changed = self._is_changed or size != self._size
        self._writes = [(position, data[: size - position]) for position, data in self._writes if position < size]
        self._size = size

    def size(self) -> int:
        return self._size

    def close(self) -> None:
        self.sync()


class _Input:
    """A file as an input of pyarrow."""

    def __init__(self, disk: PostgresDisk, name: str, size: int) -> None:
        self._disk = disk
        self._name = name
        self._size = size
        self._position = 0
        self.closed = False

    def read(self, length: int = -1) -> bytes:
        end = self._size if length < 0 else min(self._size, self._position + length)
        data = self._disk.read(self._name, self._position, end - self._position) if end > self._position else b""
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def size(self) -> int:
        return self._size

    def close(self) -> None:
        self.closed = True

    def __iter__(self) -> Iterator[bytes]:
        return iter((self.read(),))


def patched(stored: bytes, writes: Sequence[tuple[int, bytes]], size: int) -> bytearray:
    """The bytes of a file after some were written and its size was set."""
    data = bytearray(stored[:size])
    data.extend(bytes(size - len(data)))
    for position, written in writes:
        data[position : position + len(written)] = written
    return data


def _first_sequence(name: str) -> int | None:
    """The first sequence of a journal file, by its name; None when it is another file."""
    match = _LOG.fullmatch(name)
    return None if match is None else int(match[1])
