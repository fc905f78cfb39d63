"""Reading the messages of an extent, wherever compaction has put them, with or without gaps.

Whoever asks has an extent, and counts on its rows: offset o is the row `extent.row_of(o)`. The messages may lie in
another file now, and some of those in between may be removed. Then the rows are put where they are expected, and those
that are gone are empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.storage import parquet
from penstock.storage.cache import ByteCache
from penstock.storage.event_lookup import matching_rows
from penstock.storage.extents import Extent
from penstock.storage.manifest import SegmentFile
from penstock.storage.parquet import Column, Int64s, SegmentReader


class Moved(Exception):
    """A file went away between finding an extent and reading it."""


def is_alike(extent: Extent, present: Sequence[Extent]) -> bool:
    """Whether the same rows of another file hold the same offsets."""
    if len(present) != 1:
        return False
    part = present[0]
    return part is extent or (
        (part.first_offset, part.count, part.row, part.rows)
        == (extent.first_offset, extent.count, extent.row, extent.rows)
    )


class ExtentReader:
    """Reads extents. `file_of` raises `Moved` for one whose file is gone; `present` holds what is left of the other."""

    def __init__(
        self,
        reader: SegmentReader,
        file_of: Callable[[Extent], SegmentFile],
        columns: ByteCache[tuple[str, int, str], Column],
    ) -> None:
        self._reader = reader
        self._file_of = file_of
        self._columns = columns

    def messages(self, extent: Extent, present: Sequence[Extent]) -> pa.Table:
        """The messages of `extent` at their rows; without gaps, all of the row group."""
        tables: list[pa.Table] = []
        rows: list[Int64s] = []
        for part in present:
            file = self._file_of(part)
            table = parquet.read_table(self._reader, file, part.row_group)
            if not part.rows and is_alike(extent, present):
                return table
            inside, offsets = self._offsets(part, file, extent)
            tables.append(table.slice(part.row, part.stored_rows).filter(pa.array(inside)))
            rows.append(offsets - extent.first_offset + extent.row)
        # One file may have a column that another lacks.
        table = pa.concat_tables(tables, promote_options="default")
        return parquet.spread_table(table, np.concatenate(rows), extent.row + extent.count)

    def column(self, extent: Extent, present: Sequence[Extent], name: str) -> Column:
        """One column for the offsets of `extent`."""
        values: list[Column] = []
        rows: list[Int64s] = []
        for part in present:
            file = self._file_of(part)
            column = self._row_group_column(file, part.row_group, name)[part.row : part.row + part.stored_rows]
            if not part.rows and (part.first_offset, part.count) == (extent.first_offset, extent.count):
                return column
            inside, offsets = self._offsets(part, file, extent)
            values.append(column[inside])
            rows.append(offsets - extent.first_offset)
        return parquet.spread_column(np.concatenate(values), np.concatenate(rows), extent.count, name)

    def offsets_with(self, extent: Extent, present: Sequence[Extent], column: str, text: str) -> list[int]:
        """Offsets of `extent` whose `column` is this text."""
        found: list[int] = []
        for part in present:
            file = self._file_of(part)
            if self._reader.may_hold(file, part.row_group, column, text):
                values = self._reader.read(file, part.row_group, [column])[column].slice(part.row, part.stored_rows)
                inside, offsets = self._offsets(part, file, extent)
                found += offsets[matching_rows(values.filter(pa.array(inside)), text)].tolist()
        return found

    def _offsets(self, part: Extent, file: SegmentFile, extent: Extent) -> tuple[NDArray[np.bool_], Int64s]:
        """Which of the stored rows of `part` are about `extent`, and their offsets."""
        if part.rows:
            stored = self._reader.read(file, part.row_group, ["offset"])["offset"]
            offsets = stored.slice(part.row, part.rows).to_numpy()
        else:
            offsets = np.arange(part.first_offset, part.end_offset)
        inside = (offsets >= extent.first_offset) & (offsets < extent.end_offset)
        return inside, offsets[inside]

    def _row_group_column(self, file: SegmentFile, row_group: int, name: str) -> Column:
        def make() -> tuple[Column, int]:
            column = parquet.read_column(self._reader, file, row_group, name)
            return column, column.nbytes

        return self._columns.get((file.name, row_group, name), make)
