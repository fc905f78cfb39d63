"""The SQLite database behind the task index: its tables, its statements, and the one place that opens it.

It is a view: it holds nothing that the journal and the segments do not, nothing in it is worth a sync of its own, and a
file that cannot be read is thrown away (`DatabaseBroken`) and rebuilt. One connection writes; any number of others read
meanwhile, each what was committed when it began. In memory there is one connection for everybody, and they take turns.

`tasks` has one row per task. Its number is the position of its submission in the journal, so that numbers grow with
time and are the same after a rebuild. Instants are µs, and 0 stands for none. `runs` has the attempts that failed; the
last one is in the row of the task. Texts that repeat (types of tasks, workers) are stored once, in `words`.

While SQLite works on a statement, other threads run: each statement gives the interpreter away and has to wait for its
turn to get it back. Beside a busy event loop that wait is long, so rows go in a few large statements, not one by one.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain, islice
from typing import Any, Final

from penstock.errors import DiskFull
from penstock.storage.disk import Disk
from penstock.storage.task_changes import FINAL_FROM, Code
from penstock.task_index import argument_filter

VERSION: Final = 2


# The columns that change, in the order of `task_changes.Change`; then those that do not.
CHANGING: Final = (
    "state", "due_at", "attempt", "worker", "started_at", "finished_at", "outcome", "error", "result", "progress",
)  # fmt: skip
PLACE: Final = ("queue", "partition", "position")
LASTING: Final = (
    "number", "task_id", "type", "priority", "max_attempts", "args", "kwargs", "submitted_at", "timeout_seconds",
    "depends_on", "workflow", "schedule", "message_key", "trace",
)  # fmt: skip
COLUMNS: Final = (*CHANGING, *PLACE, *LASTING)

TABLES: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE words (id INTEGER PRIMARY KEY, word TEXT NOT NULL UNIQUE);
CREATE TABLE queues (id INTEGER PRIMARY KEY, name TEXT NOT NULL, has_tasks INTEGER NOT NULL DEFAULT 0);
CREATE TABLE partitions (queue INTEGER, id INTEGER, name TEXT NOT NULL, PRIMARY KEY (queue, id)) WITHOUT ROWID;
CREATE TABLE tasks (
    number INTEGER PRIMARY KEY,
    task_id BLOB NOT NULL,
    type INTEGER NOT NULL,
    queue INTEGER NOT NULL,
    partition INTEGER,              -- null while it is blocked, as the position
    position INTEGER,               -- the offset of its message
    state INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,  -- 0: what the queue says
    attempt INTEGER NOT NULL,
    worker INTEGER NOT NULL,
    submitted_at INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    finished_at INTEGER NOT NULL,
    outcome INTEGER NOT NULL,
    args TEXT NOT NULL,
    kwargs TEXT NOT NULL,
    result TEXT,
    progress TEXT,
    error TEXT NOT NULL,
    timeout_seconds REAL,
    depends_on TEXT NOT NULL,       -- JSON, or empty
    workflow TEXT NOT NULL,
    schedule TEXT NOT NULL,
    message_key TEXT,
    trace TEXT
);
CREATE TABLE runs (
    number INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    worker INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at INTEGER NOT NULL,
    outcome INTEGER NOT NULL,
    error TEXT NOT NULL
);
CREATE TABLE parents (parent BLOB NOT NULL, child BLOB NOT NULL, PRIMARY KEY (parent, child)) WITHOUT ROWID;
-- Which tasks those were that are forgotten, while frames that are about them wait to be sealed.
CREATE TABLE forgotten (
    queue INTEGER NOT NULL,
    partition INTEGER NOT NULL,     -- -1 when it never had a message; its number stands for the position then
    position INTEGER NOT NULL,
    until INTEGER NOT NULL,         -- the sequence of the last frame that it was known in
    number INTEGER NOT NULL,
    task_id BLOB NOT NULL,
    type INTEGER NOT NULL,
    PRIMARY KEY (queue, partition, position, until)
) WITHOUT ROWID;
CREATE TRIGGER tasks_gone AFTER DELETE ON tasks BEGIN
    DELETE FROM runs WHERE number = OLD.number;
    DELETE FROM parents WHERE child = OLD.task_id;
END;
"""

INDEXES: Final = """
CREATE UNIQUE INDEX tasks_by_id ON tasks (task_id);
CREATE UNIQUE INDEX tasks_by_place ON tasks (queue, partition, position);
CREATE INDEX tasks_by_time ON tasks (submitted_at);
CREATE INDEX tasks_by_state ON tasks (state, submitted_at);
CREATE INDEX tasks_by_type ON tasks (type, state, submitted_at);
CREATE INDEX tasks_by_queue ON tasks (queue, state, submitted_at);
CREATE INDEX tasks_by_worker ON tasks (worker, submitted_at) WHERE worker <> 0;
CREATE INDEX tasks_by_workflow ON tasks (workflow, submitted_at) WHERE workflow <> '';
CREATE INDEX tasks_by_schedule ON tasks (schedule, submitted_at) WHERE schedule <> '';
CREATE INDEX forgotten_by_id ON forgotten (task_id) WHERE partition < 0;
CREATE INDEX parents_by_child ON parents (child);
CREATE INDEX runs_by_number ON runs (number, started_at);
"""

# Added without a new version, since a file without it is as good: it is created when the file is opened.
LATER_INDEXES: Final = "CREATE INDEX IF NOT EXISTS tasks_of_workflows ON tasks (submitted_at) WHERE workflow <> '';"

# In these `{rows}` stands for any number of rows: see `query_rows`. SQLite calls the columns of rows column1 and so on.
_SET: Final = ", ".join(f"{name} = COALESCE(new.column{index}, {name})" for index, name in enumerate(CHANGING, 1))
_UPDATE: Final = f"UPDATE tasks SET {_SET} FROM (VALUES {{rows}}) AS new WHERE tasks.state < new.column14"

UPDATE_BY_PLACE: Final = f"""{_UPDATE}
AND tasks.queue = new.column11 AND tasks.partition = new.column12 AND tasks.position = new.column13
"""
# An id belongs to the queue that used it first: who pushes to another queue cannot put a task in place of one there. A
# queue that was deleted and created again is the same one by its name.
_IN_ITS_QUEUE: Final = """(tasks.queue = {queue} OR COALESCE((
    SELECT own.name = other.name FROM queues AS own, queues AS other
    WHERE own.id = tasks.queue AND other.id = {queue}
), 0))"""
UPDATE_BY_ID: Final = f"{_UPDATE} AND tasks.task_id = new.column13 AND {_IN_ITS_QUEUE.format(queue='new.column11')}"
# A task that was blocked is the same one when its message comes, and when it is held again after it was cancelled. One
# that had a message before gives way: its id was used again after the queue had forgotten it.
INSERT: Final = f"""
INSERT INTO tasks ({", ".join(COLUMNS)}) VALUES {{rows}}
ON CONFLICT (task_id) DO UPDATE SET
    submitted_at = CASE WHEN position IS NULL THEN submitted_at ELSE excluded.submitted_at END,
    {", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name not in {"number", "task_id", "submitted_at"})}
WHERE {_IN_ITS_QUEUE.format(queue="excluded.queue")}
"""
# Worker and start are null where only the row of the task has them.
_INSERT_RUN: Final = """
INSERT INTO runs (number, attempt, worker, started_at, ended_at, outcome, error)
SELECT number, column1, COALESCE(column2, worker), COALESCE(column3, NULLIF(started_at, 0), column4), column4, column5,
column6 FROM (VALUES {rows}) JOIN tasks
"""
INSERT_RUN: Final = f"{_INSERT_RUN} ON queue = column7 AND partition = column8 AND position = column9"
INSERT_RUN_BY_ID: Final = f"{_INSERT_RUN} ON task_id = column7 AND queue = column8"
INSERT_PARENT: Final = "INSERT OR IGNORE INTO parents VALUES {rows}"
# The last run of a task that is revived joins the earlier ones.
_KEEP_LAST_RUN: Final = f"""
INSERT INTO runs (number, attempt, worker, started_at, ended_at, outcome, error)
SELECT number, attempt, worker, started_at, finished_at, outcome, error FROM tasks
WHERE state >= {FINAL_FROM} AND started_at > 0
AND NOT EXISTS (
    SELECT 1 FROM runs WHERE runs.number = tasks.number AND runs.started_at = tasks.started_at
    AND runs.attempt = tasks.attempt AND runs.worker = tasks.worker
)
"""
KEEP_LAST_RUN: Final = f"{_KEEP_LAST_RUN} AND queue = ? AND partition = ? AND position = ?"
KEEP_LAST_RUN_BY_ID: Final = f"{_KEEP_LAST_RUN} AND task_id = ?"
# One text, since each row of a result would be one more turn.
IDS_BY_PLACE: Final = """
SELECT group_concat(hex(task_id), '') FROM (VALUES {rows}) JOIN tasks
ON queue = column1 AND partition = column2 AND position = column3
"""
END_QUEUE: Final = f"""
UPDATE tasks SET state = {Code.CANCELLED:d}, finished_at = ?, due_at = 0, error = 'its queue was deleted'
WHERE queue = ? AND state < {FINAL_FROM} RETURNING task_id
"""
SEEK_BACK: Final = f"""
UPDATE tasks SET state = {Code.WAITING:d}, due_at = 0, attempt = 0, finished_at = 0, outcome = 0, result = NULL
WHERE queue = ? AND partition = ? AND position >= ? AND state <> {Code.WAITING:d}
RETURNING task_id
"""
SEEK_PAST: Final = f"""
UPDATE tasks SET state = {Code.CANCELLED:d}, finished_at = ?, due_at = 0, error = 'its group was moved past it'
WHERE queue = ? AND partition = ? AND position < ? AND state < {FINAL_FROM}
RETURNING task_id
"""
# Only final tasks without an unfinished child are forgotten.
HAS_OPEN_CHILD: Final = f"""EXISTS (
    SELECT 1 FROM parents JOIN tasks AS child ON child.task_id = parents.child
    WHERE parents.parent = tasks.task_id AND child.state < {FINAL_FROM}
)"""
EXPIRED: Final = f"""
WHERE submitted_at < ?1 AND finished_at > 0 AND finished_at < ?1
AND state >= {FINAL_FROM} AND NOT {HAS_OPEN_CHILD} ORDER BY submitted_at LIMIT ?2
"""
# {where} says which ones.
REMEMBER: Final = """
INSERT OR REPLACE INTO forgotten (queue, partition, position, until, number, task_id, type)
SELECT queue, IFNULL(partition, -1), IFNULL(position, number), ?, number, task_id, type FROM tasks WHERE {where}
"""
FORGET: Final = "DELETE FROM tasks WHERE {where}"
OF_RANGE: Final = "queue = ? AND partition = ? AND position >= ? AND position < ?"
OF_OFFSETS: Final = "queue = ? AND partition = ? AND position IN (SELECT value FROM json_each(?))"
OF_ID: Final = "task_id = ? AND position IS NULL"
SEALED: Final = "DELETE FROM forgotten WHERE until <= ?"


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
    """The database cannot be used as it is. It never leaves this package: it is rebuilt, or a `StorageError` raised."""


@contextmanager
def sqlite_errors() -> Iterator[None]:
    """Translate errors of SQLite to `DatabaseBroken`; a full disk to `DiskFull`."""
    try:
        yield
    except sqlite3.Error as error:
        if "full" in str(error):
            raise DiskFull(f"{NAME}: {error}") from error
        raise DatabaseBroken(str(error)) from error


OpenSealed = Callable[[int, bytes], str | None]


class Database:
    """An open database. `disk` None keeps it in memory. `open_sealed` opens values of encrypted queues."""

    def __init__(self, disk: Disk | None, open_sealed: OpenSealed = lambda queue, value: None) -> None:
        self._open_sealed = open_sealed
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
            argument_filter.install(connection)
            connection.create_function(argument_filter.OPENED, 2, self._open_sealed, deterministic=True)
            connection.executescript(f"{_PRAGMAS} PRAGMA cache_size = -{cache_kib};")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _prepare(self) -> bool:
        """Create the tables; whether they were missing. `DatabaseBroken` for those of another version."""
        try:
            (version,) = self._writer.execute("PRAGMA user_version").fetchone()
            if version == 0:
                self._writer.executescript(f"BEGIN; {TABLES} {INDEXES} PRAGMA user_version = {VERSION}; COMMIT;")
            if version in (0, VERSION):
                self._writer.executescript(LATER_INDEXES)
        except BaseException:
            self._writer.close()
            raise
        if version not in (0, VERSION):
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
        """A connection for queries; several statements see one state only within a transaction of their own."""
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
        """Close the file; it may be called twice."""
        with self._lock, self._lending:
            self._closed = True
            for connection in [self._writer, *self._idle]:
                with suppress(sqlite3.Error):
                    connection.close()
            self._idle.clear()


def set_meta(connection: sqlite3.Connection, name: str, value: Any) -> None:
    """Store such a value, within a transaction."""
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))


def remove(disk: Disk) -> None:
    """Remove the files."""
    for name in (NAME, *(NAME + suffix for suffix in _BESIDE)):
        with suppress(FileNotFoundError):
            disk.remove(name)


SIZES: Final = (256, 16, 1)  # few, so that statements stay prepared; SQLite allows 32,766 variables in one


@cache
def _statement(template: str, width: int, count: int) -> str:
    row = f"({', '.join('?' * width)})"
    return template.replace("{rows}", ", ".join([row] * count))


def query_rows(
    connection: sqlite3.Connection, template: str, rows: Collection[Sequence[Any]]
) -> Iterator[sqlite3.Cursor]:
    """Execute a statement whose `{rows}` are lists of values, for all rows, in their order."""
    left, remaining = len(rows), iter(rows)
    for size in SIZES:
        while left >= size:
            part = list(islice(remaining, size))
            width = len(part[0])
            yield connection.execute(_statement(template, width, size), tuple(chain.from_iterable(part)))
            left -= size


def execute_rows(connection: sqlite3.Connection, template: str, rows: Collection[Sequence[Any]]) -> None:
    """Execute such a statement that returns nothing."""
    for _ in query_rows(connection, template, rows):
        pass
