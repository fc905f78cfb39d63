"""Making the catalogue anew: from the sealed `tasks` table, then from the journal after it.

Which queues there are, the shard tells. A row group of the table that is damaged costs what only it told: the tasks of
others are there all the same.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Container
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from penstock.model import Outcome
from penstock.shard.shard import Shard
from penstock.storage.task_changes import (
    ANY,
    ATTEMPT,
    ENDED_BADLY,
    FINAL_FROM,
    FINISHED_AT,
    NUMBER,
    OUTCOME,
    POSITION,
    STARTED_AT,
    STATE,
    SUBMITTED_AT,
    UPDATE_LENGTH,
    Change,
    Code,
    Known,
    id_bytes,
    parents_of,
)
from penstock.task_index import many, schema
from penstock.task_index.follower import Follower, store_names
from penstock.task_index.store import Store, set_meta

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
_DEPENDS_ON: Final = schema.COLUMNS.index("depends_on")
PURGED: Final = "purged"
INTERRUPTED: Final = "interrupted"
_OUTCOMES: Final = {outcome.name.lower(): outcome.value for outcome in Outcome}


def rebuild(store: Store, shard: Shard) -> Follower:
    """Fill an empty database as far as the segments go. Returns the follower that goes on from there."""
    follower = Follower(store, remembers=shard.store is not None)
    known = follower.known
    with shard.lock:
        shard.check()
        queues = set(shard.core.queues)
        for id, queue in shard.core.queues.items():
            known.learn_queue(id, queue.name)
            known.learn_partitions(id, 0, [partition.name for partition in queue.partitions])
    position = 0
    if shard.store is not None:
        manifest = shard.store.manifest
        position = manifest.sealed_sequence
        for table in shard.store.read_tasks(manifest):
            _take(store, known, table, queues)
    with store.writing() as connection:
        store_names(connection, known)
        set_meta(connection, "position", position)
        set_meta(connection, "checksum", 0)
    follower.position = position
    return follower


def _take(store: Store, known: Known, table: pa.Table, queues: Container[int]) -> None:
    """The changes of one row group; a queue that is gone has taken the history of its tasks along."""
    columns = [table[name].cast(pa.int64()) if name in _TIMES else table[name] for name in Row._fields]
    with store.writing() as connection:
        merged = _Merged(connection, known)
        for row in map(Row, *(column.to_pylist() for column in columns)):
            if row.incarnation in queues:
                merged.add(row)
        merged.store()


class _Merged:
    """Rows, folded by task until they are stored."""

    def __init__(self, connection: sqlite3.Connection, known: Known) -> None:
        self._connection = connection
        self._known = known
        self._changes: dict[bytes, Change] = {}
        self._runs: list[list[Any]] = []
        self._purged: set[bytes] = set()

    def add(self, row: Row) -> None:
        self._learn_names(row)
        task_id = id_bytes(row.task_id)
        if row.state == PURGED:
            self._purged.add(task_id)
            return
        if task_id in self._purged:
            self.store()  # it was submitted once more
        change = _change(row, self._known)
        below = FINAL_FROM
        if _is_revived(row):
            self.store()
            self._connection.execute(schema.KEEP_LAST_RUN_BY_ID, (task_id,))
            change[STARTED_AT], below = 0, ANY
        before = self._changes.get(task_id)
        if row.args is not None:
            new = [*change, row.incarnation, row.partition_id, row.offset, *_lasting(row, self._known, task_id)]
            if before is not None and len(before) > UPDATE_LENGTH and before[POSITION] is None:
                new[NUMBER], new[SUBMITTED_AT] = before[NUMBER], before[SUBMITTED_AT]  # as the database would
            self._changes[task_id] = new
        elif before is None:
            self._changes[task_id] = [*change, row.incarnation, None, task_id, below]
        elif (before[STATE] or 0) >= FINAL_FROM:
            return  # a purge, say, names whole ranges: what was settled before stays as it is
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
        self._runs.append([*run, row.at, change[OUTCOME], row.error or "", task_id])
        if run[-1] is None:
            self.store()  # who ran it, and since when, only what is stored says

    def store(self) -> None:
        """Everything so far."""
        connection, changes = self._connection, self._changes
        new = {task_id: change for task_id, change in changes.items() if len(change) > UPDATE_LENGTH}
        updates = [change for change in changes.values() if len(change) == UPDATE_LENGTH]
        parents = [
            pair
            for task_id, change in new.items()
            if change[_DEPENDS_ON]
            for pair in parents_of(msgspec.json.decode(change[_DEPENDS_ON], type=list[str]), task_id)
        ]
        many.execute(connection, schema.INSERT, new.values())
        many.execute(connection, schema.UPDATE_BY_ID, updates)
        many.execute(connection, schema.INSERT_RUN_BY_ID, self._runs)
        many.execute(connection, schema.INSERT_PARENT, parents)
        connection.executemany(schema.FORGET.format(where="task_id = ?"), [(task_id,) for task_id in self._purged])
        self._changes, self._runs, self._purged = {}, [], set()


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
    """What a row says has changed; None for what it does not tell."""
    # A row that only tells progress says running too: of that, whoever holds it knows better.
    code = _CODES.get(row.state) if row.state != "running" or row.started_at else None
    is_new = row.args is not None
    # Recovery does not know who held what it closes: as in `Fold.take_settled`.
    is_told = bool(row.started_at) and (bool(row.worker) or row.started_at != row.at or row.state == "running")
    change: Change = [
        None if code is None else int(code),
        None if code is None else row.due_at or 0,
        row.attempt,
        known.word(row.worker or "") if is_told else None,
        row.started_at if is_told else None,
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
