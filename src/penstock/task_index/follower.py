"""Keeps the task index where the journal is, or rebuilds it.

A follower reads frames, folds them, and stores what changed with the position reached, as one transaction, so that
after a crash it continues where it was. With the position it stores the checksum of that frame: a journal that lost its
end and has other frames there by now is detected, and the index rebuilt. Work is done in slices, each a transaction, so
that nobody waits long.

Tasks are forgotten because the journal says so: somebody purged them, or they have been final for long enough. Frames
that are about a forgotten task may not be sealed yet. The sealer asks which task it was, so that is remembered until
they are.

A rebuild starts from the sealed `tasks` table; the journal after it is followed as always. The shard says which queues
there are. A damaged row group of the table costs what only it held: other tasks are not affected.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from penstock.delivery import entries
from penstock.delivery.entries import HEAD, Span, decode_record
from penstock.journal import Frame
from penstock.model import Outcome
from penstock.storage.task_changes import (
    ANY,
    ATTEMPT,
    BELOW,
    ENDED_BADLY,
    FINAL_FROM,
    FINISHED_AT,
    HANDLED,
    NUMBER,
    OUTCOME,
    POSITION,
    PUSH,
    QUEUE,
    ROW_BITS,
    STARTED_AT,
    STATE,
    SUBMITTED_AT,
    SWEEPING,
    TAKE,
    TASK_ID,
    UPDATE_LENGTH,
    Change,
    Code,
    Fold,
    Known,
    id_bytes,
    parents_of,
)
from penstock.task_index import database
from penstock.task_index.database import Database, set_meta
from penstock.task_index.sealed_values import IndexSeals

if TYPE_CHECKING:
    from penstock.shard.shard import Shard

SLICE_CHANGES: Final = 4_000
SLICE_BYTES: Final = 4 << 20

Touched = set[bytes]  # ids of tasks


class Follower:
    """Reads the journal into a database. For one thread at a time."""

    def __init__(self, database: Database, *, remembers: bool = False, seals: IndexSeals | None = None) -> None:
        self.database = database
        self.seals = seals  # for values of encrypted queues
        self.remembers = remembers  # keeps which tasks were forgotten, for the sealer
        self.position: int = database.meta("position", 0)
        self.checksum: int = database.meta("checksum", 0)
        self.watches = False  # whether to note in `touched` which tasks changed
        self.touched: Touched = set()
        self.known = load_known(database)

    def follow(self, frames: Iterator[Frame], between: Callable[[], None] = lambda: None) -> None:
        """Store everything in `frames`, slice by slice; `between` is called after each."""
        while self._slice(frames):
            between()

    def _slice(self, frames: Iterator[Frame]) -> bool:
        """Store one slice in a transaction; whether there may be more."""
        fold = Fold(self.known)
        position, checksum, size = self.position, self.checksum, 0
        is_over = True
        try:
            with self.database.writing() as connection:
                touched = self.touched if self.watches else None
                sink = Sink(connection, self.known, touched, remembers=self.remembers, seals=self.seals)
                for sequence, crc, frame in frames:
                    take_frame(fold, sequence, frame, sink)
                    position, checksum = sequence, crc
                    size += len(frame)
                    if len(fold) >= SLICE_CHANGES or size >= SLICE_BYTES:
                        is_over = False
                        break
                sink.store(fold)
                set_meta(connection, "position", position)
                set_meta(connection, "checksum", checksum)
        except BaseException:
            self.known = load_known(self.database)  # what was not committed is not known
            raise
        self.position, self.checksum = position, checksum
        return not is_over


def take_frame(fold: Fold, sequence: int, frame: memoryview, sink: Sink) -> None:
    """Fold one frame. Entries that are about no task cost a look at their kind."""
    fold.begin_frame(sequence)
    number = sequence << ROW_BITS
    position, end = 0, len(frame)
    while position < end:
        kind, length = HEAD.unpack_from(frame, position)
        position += HEAD.size
        body = frame[position : position + length]
        position += length + -length % 8
        if kind == PUSH:
            number = fold.take_push(number, body)
        elif kind in HANDLED:
            record = decode_record(body)
            if isinstance(record, entries.TaskHeld):
                number = fold.take_held(number, record)
            else:
                _TAKE[type(record)](fold, record)
        elif kind in SWEEPING:
            sink.sweep(fold, decode_record(body))
    if fold.is_pressing or fold.purged or fold.purged_ids:
        sink.store(fold)


_TAKE: Final[dict[type, Callable[[Fold, Any], None]]] = {
    **TAKE,
    entries.TasksPurged: Fold.take_purged,
    entries.Leased: Fold.take_leased,
    entries.QueueSet: lambda fold, entry: fold.known.learn_queue(entry.queue, entry.name),
    entries.PartitionsAdded: lambda fold, entry: fold.known.learn_partitions(entry.queue, entry.first, entry.names),
}


_STATEMENTS: Final = (
    database.INSERT, database.INSERT, database.UPDATE_BY_ID, database.UPDATE_BY_PLACE, database.INSERT_RUN,
)  # fmt: skip


class Sink:
    """Stores what was folded, within a transaction."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        known: Known,
        touched: Touched | None,
        *,
        remembers: bool = False,
        seals: IndexSeals | None = None,
    ) -> None:
        self._connection = connection
        self._seals = seals
        self._known = known
        self._touched = touched
        self._remembers = remembers

    def store(self, fold: Fold) -> None:
        """Store everything folded so far; the fold is empty afterwards."""
        store_names(self._connection, self._known)
        connection = self._connection
        new = [change for change in fold.changes.values() if len(change) > UPDATE_LENGTH]
        updates = [change for change in fold.changes.values() if len(change) == UPDATE_LENGTH]
        rows: list[Collection[Any]] = [fold.held.values(), new, fold.by_id.values(), updates, fold.runs]
        if self._seals is not None:
            tasks, update, runs = self._seals.tasks, self._seals.updates, self._seals.runs
            rows = [seal(some) for seal, some in zip((tasks, tasks, update, update, runs), rows, strict=True)]
        for statement, some in zip(_STATEMENTS, rows, strict=True):
            database.execute_rows(connection, statement, some)
        database.execute_rows(connection, database.INSERT_PARENT, fold.parents)
        if self._touched is not None:
            self._touched.update(change[TASK_ID] for change in [*new, *fold.held.values()])
            self._touched.update(fold.by_id)
            for cursor in database.query_rows(
                connection, database.IDS_BY_PLACE, [change[QUEUE:BELOW] for change in updates]
            ):
                ids = bytes.fromhex(cursor.fetchone()[0] or "")
                self._touched.update(ids[start : start + 16] for start in range(0, len(ids), 16))
        until = fold.sequence if self._remembers else None
        forget_positions(connection, fold.purged, until)
        forget_ids(connection, fold.purged_ids, until)
        fold.clear()

    def sweep(self, fold: Fold, record: entries.Record) -> None:
        """Apply an entry that may change any task stored before."""
        if record.queue not in self._known.task_queues:
            return
        self.store(fold)
        if isinstance(record, entries.QueueDeleted):
            self._touch(database.END_QUEUE, fold.at, record.queue)
        elif isinstance(record, entries.GroupSet) and record.group == 0:
            for partition, start in record.starts:
                self._touch(database.SEEK_BACK, record.queue, partition, start)
                self._touch(database.SEEK_PAST, record.at, record.queue, partition, start)
        elif isinstance(record, entries.Revived) and record.group == 0:
            positions = [
                (record.queue, span.partition, offset)
                for span in record.spans
                for offset in span.offset_array().tolist()
            ]
            self._connection.executemany(database.KEEP_LAST_RUN, positions)
            fold.take_revived(record)

    def _touch(self, statement: str, *values: int) -> None:
        """Run a statement that returns ids of tasks, and note them."""
        ids = self._connection.execute(statement, values).fetchall()
        if self._touched is not None:
            self._touched.update(id for (id,) in ids)


def store_names(connection: sqlite3.Connection, known: Known) -> None:
    """Store new names, within a transaction."""
    store = connection.executemany  # they are few
    if known.new_words:
        store("INSERT OR REPLACE INTO words (word, id) VALUES (?, ?)", known.new_words.items())
        known.new_words = {}
    if known.new_queues:
        store(
            "INSERT INTO queues (id, name) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET name = excluded.name",
            known.new_queues.items(),
        )
        known.new_queues = {}
    if known.new_task_queues:
        rows = [(queue, known.queues.get(queue, f"#{queue}")) for queue in known.new_task_queues]
        store(
            "INSERT INTO queues (id, name, has_tasks) VALUES (?, ?, 1) ON CONFLICT (id) DO UPDATE SET has_tasks = 1",
            rows,
        )
        known.new_task_queues = set()
    if known.new_partitions:
        named = [(queue, id, name) for (queue, id), name in known.new_partitions.items()]
        store("INSERT OR REPLACE INTO partitions VALUES (?, ?, ?)", named)
        known.new_partitions = {}


def load_known(database: Database) -> Known:
    """The names that are stored."""
    with database.reading() as connection:
        return known_of(connection)


def known_of(connection: sqlite3.Connection) -> Known:
    """The names that a database holds."""
    queues = connection.execute("SELECT id, name, has_tasks FROM queues").fetchall()
    words = dict(connection.execute("SELECT word, id FROM words").fetchall())
    partitions = connection.execute("SELECT queue, id, name FROM partitions").fetchall()
    return Known(
        {id: name for id, name, _ in queues},
        {id for id, _, has_tasks in queues if has_tasks},
        words,
        {(queue, id): name for queue, id, name in partitions},
    )


def forget_positions(connection: sqlite3.Connection, positions: Iterable[tuple[int, Span]], until: int | None) -> None:
    """Forget the tasks at some places. `until` is the frame that says so; None when nothing will be sealed."""
    for queue, span in positions:
        if span.offsets:
            offsets = msgspec.json.encode(span.offset_array().tolist()).decode()
            _forget(connection, database.OF_OFFSETS, (queue, span.partition, offsets), until)
        else:
            last = span.first + span.count
            _forget(connection, database.OF_RANGE, (queue, span.partition, span.first, last), until)


def forget_ids(connection: sqlite3.Connection, ids: Iterable[bytes], until: int | None) -> None:
    """Forget some tasks that never had a message."""
    for task_id in ids:
        _forget(connection, database.OF_ID, (task_id,), until)


def _forget(connection: sqlite3.Connection, where: str, values: tuple[Any, ...], until: int | None) -> None:
    if until is not None:
        connection.execute(database.REMEMBER.format(where=where), (until, *values))
    connection.execute(database.FORGET.format(where=where), values)


# Rebuilding from the sealed table.

_CODES: Final = {
    "scheduled": Code.WAITING,
    "pending": Code.WAITING,
    "failed": Code.FAILED,
    "blocked": Code.BLOCKED,
    "running": Code.RUNNING,
    "completed": Code.COMPLETED,
    "dead": Code.DEAD,
    "cancelled": Code.CANCELLED,
}
_TIMES: Final = ("at", "started_at", "due_at")
_NEW: Final = (int(Code.WAITING), 0, 0, 0, 0, 0, 0, "", None, None)
_DEPENDS_ON: Final = database.COLUMNS.index("depends_on")
PURGED: Final = "purged"
INTERRUPTED: Final = "interrupted"
_OUTCOMES: Final = {outcome.name.lower(): outcome.value for outcome in Outcome}


def rebuild(database: Database, shard: Shard, seals: IndexSeals | None = None) -> Follower:
    """Fill an empty database as far as the segments go. Returns the follower that continues from there."""
    follower = Follower(database, remembers=shard.store is not None, seals=seals)
    known = follower.known
    with shard.locked():
        queues = set(shard.core.queues)
        for id, queue in shard.core.queues.items():
            known.learn_queue(id, queue.name)
            known.learn_partitions(id, 0, [partition.name for partition in queue.partitions])
    position = 0
    if shard.store is not None:
        manifest = shard.store.manifest
        position = manifest.sealed_sequence
        for table in shard.store.read_tasks(manifest):
            _take_table(follower, table, queues)
    with database.writing() as connection:
        store_names(connection, known)
        set_meta(connection, "position", position)
        set_meta(connection, "checksum", 0)
    follower.position = position
    return follower


def _take_table(follower: Follower, table: pa.Table, queues: Container[int]) -> None:
    """Store the changes of one row group; the history of queues that are gone is left out."""
    columns = [table[name].cast(pa.int64()) if name in _TIMES else table[name] for name in Row._fields]
    with follower.database.writing() as connection:
        fold = _TableFold(connection, follower.known, follower.seals)
        for row in map(Row, *(column.to_pylist() for column in columns)):
            if row.incarnation in queues:
                fold.add(row)
        fold.store()


class _TableFold:
    """Rows of the sealed table, folded by task until they are stored."""

    def __init__(self, connection: sqlite3.Connection, known: Known, seals: IndexSeals | None) -> None:
        self._connection = connection
        self._seals = seals
        self._known = known
        self._changes: dict[bytes, Change] = {}
        self._runs: list[list[Any]] = []
        self._purged: dict[bytes, int] = {}  # the queue of each

    def add(self, row: Row) -> None:
        self._learn_names(row)
        task_id = id_bytes(row.task_id)
        if row.state == PURGED:
            self._purged[task_id] = row.incarnation
            return
        if task_id in self._purged:
            self.store()  # it was submitted once more
        change = _change(row, self._known)
        below = FINAL_FROM
        if _is_revived(row):
            self.store()
            self._connection.execute(database.KEEP_LAST_RUN_BY_ID, (task_id,))
            change[STARTED_AT], below = 0, ANY
        before = self._changes.get(task_id)
        if before is not None and before[QUEUE] != row.incarnation:
            return  # an id belongs to the queue that used it first
        if row.args is not None:
            new = [*change, row.incarnation, row.partition_id, row.offset, *_lasting(row, self._known, task_id)]
            if before is not None and len(before) > UPDATE_LENGTH and before[POSITION] is None:
                new[NUMBER], new[SUBMITTED_AT] = before[NUMBER], before[SUBMITTED_AT]  # as the database would
            self._changes[task_id] = new
        elif before is None:
            self._changes[task_id] = [*change, row.incarnation, None, task_id, below]
        elif (before[STATE] or 0) >= FINAL_FROM:
            return  # a purge, say, names whole ranges: a final state stays as it is
        else:
            before[: len(change)] = [old if new is None else new for old, new in zip(before, change, strict=False)]
        if change[STATE] in (Code.WAITING, Code.FAILED) and (row.started_at or row.outcome == INTERRUPTED):
            self._end_run(row, task_id, change)

    def _learn_names(self, row: Row) -> None:
        known = self._known
        known.has_tasks(row.incarnation)
        known.learn_queue(row.incarnation, row.queue)
        if row.partition is not None:
            known.learn_partitions(row.incarnation, row.partition_id, [row.partition])

    def _end_run(self, row: Row, task_id: bytes, change: Change) -> None:
        run = self._changes[task_id][ATTEMPT:FINISHED_AT]
        error = row.error or ""
        if self._seals is not None:
            error = self._seals.value(row.incarnation, error)
        self._runs.append([*run, row.at, change[OUTCOME], error, task_id, row.incarnation])
        if run[-1] is None:
            self.store()  # only the stored row says who ran it, and since when

    def store(self) -> None:
        """Store everything so far."""
        connection, changes = self._connection, self._changes
        new = {task_id: change for task_id, change in changes.items() if len(change) > UPDATE_LENGTH}
        updates: list[Sequence[Any]] = [change for change in changes.values() if len(change) == UPDATE_LENGTH]
        parents = [
            pair
            for task_id, change in new.items()
            if change[_DEPENDS_ON]
            for pair in parents_of(msgspec.json.decode(change[_DEPENDS_ON], type=list[str]), task_id)
        ]
        inserts: Collection[Any] = new.values()
        if self._seals is not None:
            inserts, updates = self._seals.tasks(inserts), self._seals.updates(updates)
        database.execute_rows(connection, database.INSERT, inserts)
        database.execute_rows(connection, database.UPDATE_BY_ID, updates)
        database.execute_rows(connection, database.INSERT_RUN_BY_ID, self._runs)
        database.execute_rows(connection, database.INSERT_PARENT, parents)
        connection.executemany(database.FORGET.format(where="task_id = ? AND queue = ?"), self._purged.items())
        self._changes, self._runs, self._purged = {}, [], {}


def _is_revived(row: Row) -> bool:
    """Whether a final task got all its attempts back."""
    return row.attempt == 0 and row.args is None


class Row(NamedTuple):
    """A row of the sealed table."""

    task_id: str
    task_type: str
    queue: str
    incarnation: int
    partition: str | None
    partition_id: int
    offset: int
    state: str
    at: int
    outcome: str | None
    attempt: int | None
    worker: str | None
    started_at: int | None
    due_at: int | None
    args: str | None
    kwargs: str
    result: str | None
    progress: str | None
    error: str | None
    priority: int
    max_attempts: int | None
    timeout_seconds: float | None
    depends_on: str | None
    workflow: str | None
    schedule: str | None
    key: str | None
    trace_id: str | None
    number: int


def _change(row: Row, known: Known) -> Change:
    """What a row says has changed; None for what it does not say."""
    # A row that only reports progress says running too, which the stored row knows better.
    code = _CODES.get(row.state) if row.state != "running" or row.started_at else None
    is_new = row.args is not None
    # Recovery does not know who held what it closes, as in `Fold.take_settled`.
    has_run = bool(row.started_at) and (bool(row.worker) or row.started_at != row.at or row.state == "running")
    change: Change = [
        None if code is None else int(code),
        None if code is None else row.due_at or 0,
        row.attempt,
        known.word(row.worker or "") if has_run else None,
        row.started_at if has_run else None,
        None if code is None else row.at if code >= FINAL_FROM else 0,
        _OUTCOMES.get(row.outcome or "", None if code is None else 0),
        "" if row.error is None and code in ENDED_BADLY else row.error,
        row.result,
        row.progress,
    ]
    if is_new:
        return [default if value is None else value for value, default in zip(change, _NEW, strict=True)]
    return change


def _lasting(row: Row, known: Known, task_id: bytes) -> list[Any]:
    return [
        row.number,
        task_id,
        known.word(row.task_type),
        row.priority,
        row.max_attempts or 0,
        row.args,
        row.kwargs,
        row.at,
        row.timeout_seconds,
        row.depends_on or "",
        row.workflow or "",
        row.schedule or "",
        row.key,
        row.trace_id,
    ]
