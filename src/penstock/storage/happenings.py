"""Files of events and of changes of tasks, written as these are gathered: memory holds one row group of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from penstock import limits
from penstock.storage import parquet
from penstock.storage.disk import Disk
from penstock.storage.events import summary
from penstock.storage.manifest import EventsOf, SegmentFile

ROW_GROUP_ROWS: Final = 4 * limits.segment_row_group_rows


class Happenings:
    """One file; there is none when nothing has happened."""

    def __init__(self, disk: Disk, name: str, kind: str) -> None:
        self._disk = disk
        self._name = name
        self._kind = kind
        self._writing: parquet.Writing | None = None
        self._waiting: list[pa.Table] = []  # fewer rows than a row group has
        self._rows = 0
        self._about: dict[int, EventsOf] = {}

    def add(self, tables: Iterable[pa.Table]) -> None:
        """Tables that come after those before."""
        for table in tables:
            self._waiting.append(table)
            if sum(map(len, self._waiting)) >= ROW_GROUP_ROWS:
                self._write_full()

    def finish(self, sequences: tuple[int, int]) -> list[SegmentFile]:
        """Write the rest and sync; what the manifest is to say of the file, if there is one."""
        if any(map(len, self._waiting)):
            self._write(pa.concat_tables(self._waiting))
        if self._writing is None:
            return []
        written = self._writing.finish(self._disk, self._name)
        about = [self._about[queue] for queue in sorted(self._about)]
        return [parquet.describe(self._name, self._kind, self._rows, written, sequences, events=about)]

    def _write_full(self) -> None:
        table = pa.concat_tables(self._waiting)
        end = len(table) - len(table) % ROW_GROUP_ROWS
        for row in range(0, end, ROW_GROUP_ROWS):
            self._write(table.slice(row, ROW_GROUP_ROWS))
        self._waiting = [table.slice(end)] if end < len(table) else []

    def _write(self, table: pa.Table) -> None:
        if self._writing is None:
            self._writing = parquet.Writing(self._kind, table)
        self._writing.add(table)
        self._rows += len(table)
        for found in summary(table, self._kind):
            known = self._about.get(found.queue, EventsOf(found.queue, 0, 0))
            latest = max(known.settled_last_at, found.settled_last_at)
            self._about[found.queue] = EventsOf(found.queue, known.rows + found.rows, latest)


def write_happenings(
    disk: Disk, name: str, kind: str, tables: Iterable[pa.Table], sequences: tuple[int, int]
) -> list[SegmentFile]:
    """A file of all rows of some tables, if there are any."""
    file = Happenings(disk, name, kind)
    file.add(tables)
    return file.finish(sequences)
