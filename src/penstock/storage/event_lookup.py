"""What the sealed events say about one message.

Files are chosen by the manifest, row groups by their statistics: a message is looked for where its queue and its offset
may be, and nowhere else. Row groups that were read are kept, within a budget of bytes, in a form that takes a few bytes
for each row. It reads files and takes no lock of the shard: call it in a thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock import limits
from penstock.storage.cache import ByteCache
from penstock.storage.manifest import SegmentFile
from penstock.storage.parquet import SegmentReader
from penstock.storage.schema import EVENTS

COLUMNS: Final = (
    "incarnation", "partition", "first_offset", "last_offset",
    "group", "outcome", "attempt", "consumer", "leased_at", "settled_at", "error",
)  # fmt: skip
PLAIN: Final = ("incarnation", "first_offset", "last_offset")
DETAILS: Final = COLUMNS[4:]
_BOUND_BYTES: Final = 64
_FIRST: Final = np.iinfo(np.int64).min
_LAST: Final = np.iinfo(np.int64).max

Int64s = NDArray[np.int64]


class SealedEvent(NamedTuple):
    """A settled run that a message was in. Instants are µs; `leased_at` is 0 when nobody held it."""

    group: str
    outcome: str
    attempt: int
    consumer: str
    leased_at: int
    settled_at: int
    error: str


class Bounds(NamedTuple):
    """What the statistics of a file say, for each of its row groups."""

    queue_min: Int64s
    queue_max: Int64s
    first_min: Int64s
    last_max: Int64s

    def row_groups(self, queue: int, offset: int) -> list[int]:
        """Row groups that may hold a message of a queue."""
        may_have = (self.queue_min <= queue) & (self.queue_max >= queue)
        may_have &= (self.first_min <= offset) & (self.last_max >= offset)
        rows: list[int] = np.flatnonzero(may_have).tolist()
        return rows


class EventRowGroup:
    """The rows of one row group."""

    def __init__(self, table: pa.Table) -> None:
        self._queues, self._firsts, self._lasts = (table[name].to_numpy() for name in PLAIN)
        partitions = table["partition"].combine_chunks().dictionary_encode()
        self._codes = partitions.indices.to_numpy()
        self._names: list[str] = partitions.dictionary.to_pylist()
        self._details = pa.table({name: _compact(table[name]) for name in DETAILS})
        self.nbytes = int(self._details.nbytes + 3 * self._queues.nbytes + self._codes.nbytes)

    def of_message(self, queue: int, partition: str, offset: int) -> list[SealedEvent]:
        """The events of one message, in the order of the journal."""
        if partition not in self._names:
            return []
        found = (self._queues == queue) & (self._firsts <= offset) & (self._lasts >= offset)
        found &= self._codes == self._names.index(partition)
        rows = np.flatnonzero(found)
        return list(map(_event, self._details.take(rows).to_pylist())) if len(rows) else []


def _compact(column: pa.ChunkedArray) -> Any:
    """Text as numbers into the list of its values; instants as integers."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    if pa.types.is_string(column.type):
        return column.combine_chunks().dictionary_encode()
    return column


def _event(row: dict[str, Any]) -> SealedEvent:
    return SealedEvent(
        row["group"] or "",
        row["outcome"],
        row["attempt"],
        row["consumer"] or "",
        row["leased_at"] or 0,
        row["settled_at"],
        row["error"] or "",
    )


class EventLookup:
    """Finds the events of a message in segment files. Safe to use from several threads."""

    def __init__(self, reader: SegmentReader) -> None:
        self._reader = reader
        self._bounds: ByteCache[str, Bounds] = ByteCache(limits.event_bounds_bytes)
        self._row_groups: ByteCache[tuple[str, int], EventRowGroup] = ByteCache(limits.event_cache_bytes)

    def of_message(
        self, files: Iterable[SegmentFile], queue: int, partition: str, offset: int, since: int = 0
    ) -> Iterator[SealedEvent]:
        """Its events in these files, oldest first. A message has none from before `since`, when it was pushed."""
        about = [file for file in files if file.table == EVENTS and _may_be_about(file, queue, since)]
        for file in sorted(about, key=lambda file: file.first_sequence):
            bounds = self._bounds.get(file.name, lambda file=file: self._read_bounds(file))  # type: ignore[misc]
            for row_group in bounds.row_groups(queue, offset):
                rows = self._row_groups.get(
                    (file.name, row_group),
                    lambda file=file, row_group=row_group: self._read_rows(file, row_group),  # type: ignore[misc]
                )
                yield from rows.of_message(queue, partition, offset)

    def forget(self, names: Collection[str]) -> None:
        """Keep nothing of other files than these."""
        self._bounds.drop(lambda name: name not in names)
        self._row_groups.drop(lambda key: key[0] not in names)

    def _read_bounds(self, file: SegmentFile) -> tuple[Bounds, int]:
        footer = self._reader.footer(file)
        columns = {footer.schema.column(index).path: index for index in range(len(footer.schema))}
        rows = [
            (
                *_min_max(footer.row_group(group).column(columns["incarnation"]).statistics),
                _min_max(footer.row_group(group).column(columns["first_offset"]).statistics)[0],
                _min_max(footer.row_group(group).column(columns["last_offset"]).statistics)[1],
            )
            for group in range(footer.num_row_groups)
        ]
        values = np.array(rows, np.int64).reshape(-1, 4)
        return Bounds(*values.T), _BOUND_BYTES * (1 + len(rows))

    def _read_rows(self, file: SegmentFile, row_group: int) -> tuple[EventRowGroup, int]:
        rows = EventRowGroup(self._reader.read(file, row_group, COLUMNS))
        return rows, rows.nbytes


def _may_be_about(file: SegmentFile, queue: int, since: int) -> bool:
    return any(about.queue == queue and about.settled_last_at >= since for about in file.events)


def _min_max(statistics: Any) -> tuple[int, int]:
    return (_FIRST, _LAST) if statistics is None or not statistics.has_min_max else (statistics.min, statistics.max)


def matching_rows(column: pa.ChunkedArray, text: str) -> list[int]:
    """Which rows of a column are this text."""
    rows: list[int] = pc.indices_nonzero(pc.fill_null(pc.equal(column, text), False)).to_pylist()
    return rows
