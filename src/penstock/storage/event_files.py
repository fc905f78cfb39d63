"""Files of events and of changes of tasks.

`EventRows` turns settled entries of the journal into rows, one per run of consecutive offsets. `EventFileWriter` writes
tables as they are gathered: memory holds one row group of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock import limits
from penstock.delivery.entries import Settled, Span
from penstock.model import Outcome
from penstock.storage import parquet
from penstock.storage.disk import Disk
from penstock.storage.manifest import EventsOf, SegmentFile
from penstock.storage.schema import EVENT_ROWS_AT_ONCE, EVENT_TIMES, EVENTS, Names, table_of

_OUTCOMES: Final = {outcome.value: outcome.name.lower() for outcome in Outcome}

Row = tuple[Any, ...]


class EventRows:
    """Gathers settled entries; its tables are sorted by queue, then in the order of the journal."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._rows: dict[tuple[str, int], list[Row]] = {}  # by name and id of the queue
        self._tables: dict[tuple[str, int], list[pa.Table]] = {}  # earlier rows

    def add(self, settled: Settled) -> None:
        """Add an entry; those of queues that are gone are left out."""
        if settled.queue not in self._names.queues:
            return
        queue = self._names.queues[settled.queue][0]
        group = self._names.groups.get((settled.queue, settled.group))
        ending = (settled.consumer or None, settled.leased_at or None, settled.at, settled.error or None)
        outcome = _OUTCOMES[settled.outcome]
        rows = self._rows.setdefault((queue, settled.queue), [])
        for span in settled.spans:
            partition = self._names.partition(settled.queue, span.partition)
            rows += [
                (queue, settled.queue, group, partition, first, first + count - 1, count, outcome, attempt, *ending)
                for first, count, attempt in _runs(span)
            ]
        if len(rows) >= EVENT_ROWS_AT_ONCE:
            self._tables.setdefault((queue, settled.queue), []).append(table_of(EVENTS, rows))
            rows.clear()

    def tables(self) -> Iterator[pa.Table]:
        """All rows, once everything was added."""
        rows: list[Row] = []  # of several queues: most have few
        for key in sorted(self._rows):
            if key in self._tables:
                yield table_of(EVENTS, rows)
                rows = []
                yield from self._tables.pop(key)
            rows += self._rows.pop(key)
            if len(rows) >= EVENT_ROWS_AT_ONCE:
                yield table_of(EVENTS, rows)
                rows = []
        yield table_of(EVENTS, rows)


def summary(table: pa.Table, kind: str = EVENTS) -> list[EventsOf]:
    """The manifest's account of the rows of a table, by queue."""
    time = EVENT_TIMES[kind]
    summaries = table.group_by("incarnation").aggregate([(time, "max"), (time, "count")])
    summaries = summaries.sort_by("incarnation")
    latest = summaries[f"{time}_max"].cast(pa.int64())
    columns = (column.to_pylist() for column in (summaries["incarnation"], summaries[f"{time}_count"], latest))
    return list(map(EventsOf, *columns))


def _runs(span: Span) -> list[tuple[int, int, int]]:
    """(first offset, count, attempt) of each run of consecutive offsets with one attempt."""
    if not span.offsets and not span.attempts:
        return [(span.first, span.count, span.attempt)]
    offsets = span.offset_array()
    attempts = np.frombuffer(span.attempts, np.uint16) if span.attempts else np.full(len(offsets), span.attempt)
    breaks = (np.diff(offsets) != 1) | (np.diff(attempts) != 0)
    firsts = np.append(0, np.flatnonzero(breaks) + 1)
    counts = np.diff(firsts, append=len(offsets))
    return list(zip(offsets[firsts].tolist(), counts.tolist(), attempts[firsts].tolist(), strict=True))


ROW_GROUP_ROWS: Final = 4 * limits.segment_row_group_rows


class EventFileWriter:
    """Writes one file; none when there are no rows."""

    def __init__(self, disk: Disk, name: str, kind: str) -> None:
        self._disk = disk
        self._name = name
        self._kind = kind
        self._writer: parquet.SegmentWriter | None = None
        self._waiting: list[pa.Table] = []  # fewer rows than a row group has
        self._rows = 0
        self._about: dict[int, EventsOf] = {}

    def add(self, tables: Iterable[pa.Table]) -> None:
        """Add tables, in order."""
        for table in tables:
            self._waiting.append(table)
            if sum(map(len, self._waiting)) >= ROW_GROUP_ROWS:
                self._write_full()

    def finish(self, sequences: tuple[int, int]) -> list[SegmentFile]:
        """Write the rest and sync; returns the manifest's account of the file, if there is one."""
        if any(map(len, self._waiting)):
            self._write(pa.concat_tables(self._waiting))
        if self._writer is None:
            return []
        written = self._writer.finish(self._disk, self._name)
        about = [self._about[queue] for queue in sorted(self._about)]
        return [parquet.describe(self._name, self._kind, self._rows, written, sequences, events=about)]

    def _write_full(self) -> None:
        table = pa.concat_tables(self._waiting)
        end = len(table) - len(table) % ROW_GROUP_ROWS
        for row in range(0, end, ROW_GROUP_ROWS):
            self._write(table.slice(row, ROW_GROUP_ROWS))
        self._waiting = [table.slice(end)] if end < len(table) else []

    def _write(self, table: pa.Table) -> None:
        if self._writer is None:
            self._writer = parquet.SegmentWriter(self._kind, table)
        self._writer.add(table)
        self._rows += len(table)
        for events in summary(table, self._kind):
            known = self._about.get(events.queue, EventsOf(events.queue, 0, 0))
            latest = max(known.settled_last_at, events.settled_last_at)
            self._about[events.queue] = EventsOf(events.queue, known.rows + events.rows, latest)


def write_event_file(
    disk: Disk, name: str, kind: str, tables: Iterable[pa.Table], sequences: tuple[int, int]
) -> list[SegmentFile]:
    """Write all rows of some tables to a file, if there are any."""
    file = EventFileWriter(disk, name, kind)
    file.add(tables)
    return file.finish(sequences)
