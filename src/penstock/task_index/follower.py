"""Keeps the catalogue where the journal is: reads frames, folds them, stores what changed with the position reached.

The position and what was read up to it are one transaction, so that after a crash the follower goes on where it was.
With the position it stores the checksum of that frame: a journal that lost its end and has other frames there by now is
found out, and the catalogue made anew. Work is done in slices, each a transaction, so that nobody waits long.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from penstock.delivery import entries
from penstock.delivery.entries import HEAD, decode_record
from penstock.journal import Frame
from penstock.storage.task_changes import (
    BELOW,
    HANDLED,
    PUSH,
    QUEUE,
    ROW_BITS,
    SWEEPING,
    TAKE,
    TASK_ID,
    UPDATE_LENGTH,
    Fold,
    Known,
)
from penstock.task_index import forgetting, many, schema
from penstock.task_index.store import Store, set_meta

SLICE_CHANGES: Final = 4_000
SLICE_BYTES: Final = 4 << 20

Touched = set[bytes]  # ids of tasks


class Follower:
    """For one thread at a time."""

    def __init__(self, store: Store, *, remembers: bool = False) -> None:
        self.store = store
        self.remembers = remembers  # which tasks were forgotten, for whoever seals what is about them
        self.position: int = store.meta("position", 0)
        self.checksum: int = store.meta("checksum", 0)
        self.watches = False  # whether somebody wants to know which tasks changed
        self.touched: Touched = set()
        self.known = load_known(store)

    def follow(self, frames: Iterator[Frame], between: Callable[[], None] = lambda: None) -> None:
        """Take in everything that `frames` gives, slice by slice; `between` is called after each."""
        while self._slice(frames):
            between()

    def _slice(self, frames: Iterator[Frame]) -> bool:
        """One transaction; whether there may be more."""
        fold = Fold(self.known)
        position, checksum, size = self.position, self.checksum, 0
        is_over = True
        try:
            with self.store.writing() as connection:
                sink = Sink(connection, self.known, self.touched if self.watches else None, remembers=self.remembers)
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
            self.known = load_known(self.store)  # what was not committed is not known
            raise
        self.position, self.checksum = position, checksum
        return not is_over


def take_frame(fold: Fold, sequence: int, frame: memoryview, sink: Sink) -> None:
    """One frame. Entries that are about no task cost a look at their kind."""
    fold.begin_frame(sequence)
    number = sequence << ROW_BITS
    place, end = 0, len(frame)
    while place < end:
        kind, length = HEAD.unpack_from(frame, place)
        place += HEAD.size
        body = frame[place : place + length]
        place += length + -length % 8
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


class Sink:
    """Stores what was folded, within a transaction."""

    def __init__(
        self, connection: sqlite3.Connection, known: Known, touched: Touched | None, *, remembers: bool = False
    ) -> None:
        self._connection = connection
        self._known = known
        self._touched = touched
        self._remembers = remembers

    def store(self, fold: Fold) -> None:
        """Everything folded so far; the fold is empty afterwards."""
        store_names(self._connection, self._known)
        connection = self._connection
        new = [change for change in fold.changes.values() if len(change) > UPDATE_LENGTH]
        updates = [change for change in fold.changes.values() if len(change) == UPDATE_LENGTH]
        many.execute(connection, schema.INSERT, fold.held.values())
        many.execute(connection, schema.INSERT, new)
        many.execute(connection, schema.UPDATE_BY_ID, fold.by_id.values())
        many.execute(connection, schema.UPDATE_BY_PLACE, updates)
        many.execute(connection, schema.INSERT_RUN, fold.runs)
        many.execute(connection, schema.INSERT_PARENT, fold.parents)
        if self._touched is not None:
            self._touched.update(change[TASK_ID] for change in [*new, *fold.held.values()])
            self._touched.update(fold.by_id)
            for answer in many.run(connection, schema.IDS_BY_PLACE, [change[QUEUE:BELOW] for change in updates]):
                ids = bytes.fromhex(answer.fetchone()[0] or "")
                self._touched.update(ids[start : start + 16] for start in range(0, len(ids), 16))
        until = fold.sequence if self._remembers else None
        forgetting.forget_places(connection, fold.purged, until)
        forgetting.forget_ids(connection, fold.purged_ids, until)
        fold.clear()

    def sweep(self, fold: Fold, record: entries.Record) -> None:
        """What reaches tasks from before."""
        if record.queue not in self._known.task_queues:
            return
        self.store(fold)
        if isinstance(record, entries.QueueDeleted):
            self._touch(schema.END_QUEUE, [(fold.at, record.queue)])
        elif isinstance(record, entries.GroupSet) and record.group == 0:
            for partition, start in record.starts:
                self._touch(schema.SEEK_BACK, [(record.queue, partition, start)])
                self._touch(schema.SEEK_PAST, [(record.at, record.queue, partition, start)])
        elif isinstance(record, entries.Revived) and record.group == 0:
            places = [
                (record.queue, span.partition, offset)
                for span in record.spans
                for offset in span.offset_array().tolist()
            ]
            self._connection.executemany(schema.KEEP_LAST_RUN, places)
            fold.take_revived(record)

    def _touch(self, statement: str, arguments: Iterable[Any]) -> None:
        """Run a statement that answers with ids, and note them."""
        for each in arguments:
            found = self._connection.execute(statement, each).fetchall()
            if self._touched is not None:
                self._touched.update(id for (id,) in found)


def store_names(connection: sqlite3.Connection, known: Known) -> None:
    """Names that are new, within a transaction."""
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


def load_known(store: Store) -> Known:
    """The names that are stored."""
    with store.reading() as connection:
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
