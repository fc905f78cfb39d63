"""Some tasks as they are now, while the task index is far behind the journal.

A task that cannot have changed since its row was stored is answered from that row. The rows of others are put into an
empty database, and brought up to date by the frames of the journal after them that are about these tasks, with the code
that folds and stores for the index itself. Other frames cost a glance.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.batch import Batch, layout
from penstock.delivery.dedup import digest
from penstock.delivery.entries import (
    PUSH_HEAD,
    PUSH_PART,
    Leased,
    Record,
    Settled,
    Span,
    TasksPurged,
    decode_record,
    split,
)
from penstock.delivery.phases import FRESH
from penstock.delivery.tasks import GROUP, is_settled
from penstock.journal import Frame
from penstock.model_tasks import id_text
from penstock.storage.task_changes import (
    FINAL_FROM,
    LEASED,
    POSITION,
    PUSH,
    QUEUE,
    SETTLED,
    SWEEPING,
    TASK_ID,
    UPDATE_LENGTH,
    Code,
    Fold,
    Known,
)
from penstock.task_index import queries
from penstock.task_index.database import Database
from penstock.task_index.follower import Sink, known_of, take_frame

if TYPE_CHECKING:
    from penstock.shard.shard import Shard

Row = Sequence[Any]
PURGED: Final = TasksPurged.__struct_config__.tag


class Seen(NamedTuple):
    """What the index says of some tasks, at one position of the journal."""

    position: int
    rows: Sequence[Row]
    runs: Sequence[Row]
    known: Known


def read_seen(connection: sqlite3.Connection, ids: Iterable[bytes]) -> Seen:
    """What the index says of some tasks, as of one moment."""
    connection.execute("BEGIN")
    try:
        (position,) = connection.execute("SELECT value FROM meta WHERE name = 'position'").fetchone()
        rows = list(queries.rows_of(connection, ids, queries.STORED))
        runs = [
            run
            for row in rows
            for run in connection.execute(f"SELECT {', '.join(_RUN)} FROM runs WHERE number = ?", (row[0],))
        ]
        return Seen(position, rows, runs, known_of(connection))
    finally:
        connection.execute("COMMIT")


_RUN: Final = ("number", "attempt", "worker", "started_at", "ended_at", "outcome", "error")


def changed(shard: Shard, seen: Seen, ids: Collection[bytes]) -> list[bytes]:
    """Those of these tasks that the journal after `seen` may be about. The lock is held."""
    if shard.core.swept > seen.position:
        return list(ids)
    unchanged = {row[1] for row in seen.rows if _is_unchanged(shard, row)}
    return [task_id for task_id in ids if task_id not in unchanged]


def _is_unchanged(shard: Shard, row: Row) -> bool:
    task_id, queue_id, partition, position, state, attempt = row[1], *row[3:7], row[9]
    core = shard.core
    if position is None:
        is_held = task_id in core.tasks.held
        return is_held if state == Code.BLOCKED else not is_held and not _is_known(shard, row)
    queue = core.queues.get(queue_id)
    if queue is None:
        return False
    if state >= FINAL_FROM:
        return is_settled(core, (queue_id, partition, position)) and not _is_known(shard, row)
    is_fresh = queue.groups[GROUP].progress[partition].state_of(position) == FRESH
    return is_fresh and state == Code.WAITING and not attempt


def _is_known(shard: Shard, row: Row) -> bool:
    """Whether its queue knows a task of this id at another place: it was submitted again."""
    queue = shard.core.queues.get(row[3])
    if queue is None or queue.dedup is None:
        return row[1] in shard.core.tasks.held
    position = queue.dedup.find(digest(id_text(row[1])), shard.clock.now())
    return row[1] in shard.core.tasks.held or (
        position is not None and (position.partition, position.offset) != (*row[4:6],)
    )


class Scratch:
    """A database with some tasks in it; those of `ids` are brought up to date by the frames that are about them."""

    def __init__(self, seen: Seen, ids: Collection[bytes]) -> None:
        self.known = seen.known
        self.database = Database(None)
        chosen = set(ids)
        positions = [(row[3], row[4], row[5]) for row in seen.rows if row[1] in chosen and row[5] is not None]
        self._about = _About(chosen, positions)
        with self.database.writing() as connection:
            _insert(connection, "tasks", queries.COLUMNS, seen.rows)
            _insert(connection, "runs", _RUN, seen.runs)

    def follow(self, frames: Iterable[Frame]) -> None:
        """Store what is about its tasks."""
        fold = Fold(self.known)
        with self.database.writing() as connection:
            sink = Sink(connection, self.known, None)
            for sequence, _, frame in frames:
                if self._about.is_in(frame):
                    take_frame(fold, sequence, frame, sink)
                    self._about.learn(fold.changes.values())
                    fold.changes = {
                        position: change for position, change in fold.changes.items() if self._about.has(position)
                    }
            sink.store(fold)


def _insert(connection: sqlite3.Connection, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
    positions = ", ".join("?" * len(columns))
    connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({positions})", rows)


class _About:
    """Recognises frames that may be about some tasks."""

    def __init__(self, ids: Collection[bytes], positions: Iterable[tuple[int, int, int]]) -> None:
        self._ids = set(ids)
        self._words = [*ids, *(id_text(task_id).encode() for task_id in ids)]
        self._positions: set[tuple[int, int, int]] = set(positions)

    def learn(self, changes: Iterable[Sequence[Any]]) -> None:
        """Learn the places of tasks that were submitted in a frame."""
        for change in changes:
            if len(change) > UPDATE_LENGTH and change[TASK_ID] in self._ids:
                queue, partition, position = change[QUEUE : POSITION + 1]
                self._positions.add((queue, partition, position))

    def has(self, position: tuple[int, int, int]) -> bool:
        """Whether one of its tasks is there."""
        return position in self._positions

    def is_in(self, frame: memoryview) -> bool:
        data = bytes(frame)
        return any(word in data for word in self._words) or any(self._is_about(*entry) for entry in split(frame))

    def _is_about(self, kind: int, body: memoryview) -> bool:
        if kind == PUSH:
            return self._is_within(body)
        if kind in (LEASED, SETTLED):
            return self._touches(decode_record(body))
        return kind in SWEEPING or kind == PURGED

    def _is_within(self, body: memoryview) -> bool:
        """Whether a compressed batch, in which no id can be seen, names one of its tasks."""
        _, rows, _, _, _, _, parts = PUSH_HEAD.unpack_from(body)
        data = body[PUSH_HEAD.size + parts * PUSH_PART.size + 4 * rows + rows % 2 * 4 :]
        if not layout.flags_of(data[:8]) & layout.CONTENT_TYPE:
            return False
        batch = Batch(data)
        if not batch.compressed:
            return False
        payloads = b"".join(batch.payloads())
        return any(word in payloads for word in self._words)

    def _touches(self, record: Record) -> bool:
        assert isinstance(record, Leased | Settled)
        mine = [position for position in self._positions if position[0] == record.queue]
        return record.group == GROUP and any(_holds(span, position) for span in record.spans for position in mine)


def _holds(span: Span, position: tuple[int, int, int]) -> bool:
    _, partition, offset = position
    if span.partition != partition:
        return False
    return offset in span.offset_array() if span.offsets else span.first <= offset < span.first + span.count
