"""Segment files: Parquet written in one pass, and read back only through its checksums.

Every byte of a file is covered when it is read, not only when it is verified: the footer by its CRC32C when the file is
first opened, a row group by its own each time, the pages by the checksums that Parquet keeps. A flipped bit is an
error that names the file; it is never a wrong message.

Row groups and the extents that lead back to them follow from the columns of a table alone, so sealing and compaction
place rows in the same way.

`EventRows` turns settled entries of the journal into rows, one per run of consecutive offsets. `EventFileWriter` writes
tables of events and of changes of tasks as they are gathered: memory holds one row group of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from crc32c import crc32c
from numpy.typing import NDArray

from penstock import limits
from penstock.batch import Batch, layout
from penstock.batch.arrow import CONTENT_TYPES
from penstock.delivery.entries import Settled, Span, is_encrypted
from penstock.errors import Damaged, InvalidField
from penstock.model import Outcome
from penstock.refusals import suggestion
from penstock.storage.cache import ByteCache
from penstock.storage.disk import Disk, ReadableDisk
from penstock.storage.extents import Extent
from penstock.storage.manifest import EventsOf, RowGroup, SegmentFile
from penstock.storage.schema import (
    EVENT_ROWS_AT_ONCE,
    EVENT_TIMES,
    EVENTS,
    FORMAT,
    MESSAGES,
    SCHEMAS,
    WRITING,
    Names,
    table_of,
)
from penstock.storage.sealed_rows import CONTENT, DATA_KEY, RowSeals, needed

COMPRESSION_LEVEL: Final = 1
SAMPLE_ROWS: Final = 64
SAMPLE_BYTES: Final = 1024

_HEADERS: Final = ("headers.key_value.key", "headers.key_value.value")
_BESIDE_PAYLOAD: Final = [*(name for name in SCHEMAS[MESSAGES].names if name != "payload"), *_HEADERS]
_COMPRESS_ALL: Final[dict[str, Any]] = {"compression": "zstd", "compression_level": COMPRESSION_LEVEL}
_COMPRESS_BESIDE_PAYLOAD: Final[dict[str, Any]] = {
    "compression": {**dict.fromkeys(_BESIDE_PAYLOAD, "zstd"), "payload": "none"},
    "compression_level": dict.fromkeys(_BESIDE_PAYLOAD, COMPRESSION_LEVEL),
}


class SegmentWriter:
    """Writes a file row group by row group: only its compressed bytes are in memory."""

    def __init__(self, kind: str, sample: pa.Table) -> None:
        self._sink = pa.BufferOutputStream()
        self._writer = _writer(self._sink, kind, sample)
        self._ends: list[int] = []

    def add(self, table: pa.Table) -> None:
        """Add one row group."""
        self._writer.write_table(table, row_group_size=len(table))
        self._ends.append(self._sink.tell())

    def finish(self, disk: Disk, name: str) -> tuple[list[int], memoryview]:
        """Write the file to the disk, synced; returns where its row groups end, and its bytes."""
        self._writer.close()
        data = memoryview(self._sink.getvalue()).cast("B")
        disk.write_whole(name, data)
        return self._ends, data


def describe(
    name: str,
    kind: str,
    rows: int,
    written: tuple[list[int], memoryview],
    sequences: tuple[int, int],
    *,
    extents: Sequence[Extent] = (),
    events: Sequence[EventsOf] = (),
) -> SegmentFile:
    """The manifest's account of a file that was just written."""
    ends, data = written
    flags = [0] * len(ends)
    for extent in extents:
        flags[extent.row_group] |= extent.flags
    bounds = pairwise([0, *ends])
    groups = [RowGroup(end, crc32c(data[start:end]), flags[index]) for index, (start, end) in enumerate(bounds)]
    footer = data[ends[-1] :]
    return SegmentFile(name, kind, rows, len(data), crc32c(data), *sequences, groups, crc32c(footer), list(events))


def _writer(sink: Any, kind: str, table: pa.Table) -> pq.ParquetWriter:
    compression = _COMPRESS_ALL if kind != MESSAGES or _shrinks(table["payload"]) else _COMPRESS_BESIDE_PAYLOAD
    if CONTENT in table.schema.names:  # ciphertext does not shrink
        names = [*table.schema.names, *_HEADERS]
        compression = {"compression": {**dict.fromkeys(names, "zstd"), CONTENT: "none"}}
    writer = pq.ParquetWriter(
        sink,
        table.schema,
        write_page_checksum=True,
        # Some columns are dictionaries in memory, where that saves time, and must still read back as plain text.
        store_schema=False,
        **compression,
        **WRITING[kind],
    )
    writer.add_key_value_metadata({"penstock.format": str(FORMAT), "penstock.table": kind})
    return writer


def _shrinks(payloads: pa.ChunkedArray) -> bool:
    """Whether zstd saves space, judged by a sample: payloads that are compressed or encrypted only cost time."""
    rows = np.linspace(0, len(payloads) - 1, SAMPLE_ROWS).astype(np.int64)
    # One by one: `take` would first copy all of them into one array.
    sample = b"".join(payloads[row].as_py()[:SAMPLE_BYTES] for row in rows.tolist())
    compressed = pa.compress(sample, codec="zstd", asbytes=True)
    return len(compressed) <= len(sample) * (1 - limits.compression_saving_min)


class SegmentReader:
    """Reads row groups of files that a manifest names. Safe to use from several threads."""

    def __init__(self, disk: ReadableDisk, *, checks_pages: bool = True, row_seals: RowSeals | None = None) -> None:
        self._disk = disk
        self.row_seals = row_seals  # None: rows of encrypted queues cannot be read
        self._checks_pages = checks_pages  # needless where the memory that is decoded was checked as a whole
        self._footers: ByteCache[str, pq.FileMetaData] = ByteCache(limits.segment_footers_bytes)

    def read(self, file: SegmentFile, row_group: int, columns: Sequence[str]) -> pa.Table:
        """Read some columns of one row group; rows of encrypted queues are opened."""
        if DATA_KEY not in self.footer(file).schema.names:
            return self.stored(file, row_group, columns)
        table = self.stored(file, row_group, needed(file.table, columns))
        if DATA_KEY not in table.schema.names:
            return table
        if self.row_seals is not None:
            return self.row_seals.open(file.table, table, columns)
        if table[DATA_KEY].null_count < len(table):
            raise is_encrypted()
        return table.select(list(columns))

    def stored(self, file: SegmentFile, row_group: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Read some columns of one row group, or all of them, as they are stored."""
        footer = self.footer(file)
        start, end = file.row_group_bounds(row_group)
        with self._disk.open_input(file.name) as source:
            source.seek(start)
            if crc32c(source.read_buffer(end - start)) != file.row_groups[row_group].crc32c:
                raise Damaged(f"{file.name}: row group {row_group} does not match its checksum")
            try:
                reader = pq.ParquetFile(source, metadata=footer, page_checksum_verification=self._checks_pages)
                names = None if columns is None else list(columns)
                return reader.read_row_group(row_group, columns=names, use_threads=False)
            except (pa.ArrowException, OSError) as error:
                raise Damaged(f"{file.name}: row group {row_group} cannot be read: {error}") from error

    def footer(self, file: SegmentFile) -> pq.FileMetaData:
        """The Parquet metadata of a file, with the statistics of its row groups."""
        return self._footers.get(file.name, lambda: self._footer(file))

    def may_hold(self, file: SegmentFile, row_group: int, column: str, text: str) -> bool:
        """Whether the statistics of a row group leave room for a row whose column is this text."""
        footer = self.footer(file)
        names = [footer.schema.column(index).path for index in range(len(footer.schema))]
        if DATA_KEY in names:
            return True  # a row of an encrypted queue has a hash in its place
        statistics = footer.row_group(row_group).column(names.index(column)).statistics
        if statistics is None or not statistics.has_min_max:
            return True
        return bool(statistics.min <= text <= statistics.max)

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        """Drop the footers of files that are gone."""
        self._footers.drop(is_gone)

    def _footer(self, file: SegmentFile) -> tuple[pq.FileMetaData, int]:
        footer = self._disk.read(file.name, file.footer_position)
        if len(footer) != file.bytes - file.footer_position or crc32c(footer) != file.footer_crc32c:
            raise Damaged(f"{file.name}: the footer does not match its checksum")
        # Parquet finds its footer from the end of the file, so the end alone will do.
        return pq.read_metadata(pa.BufferReader(footer)), len(footer)


Int64s = NDArray[np.int64]


# For each row but the last, of a queue, a partition and an offset, whether all between it and the next is removed.
MaySpan = Callable[[Int64s, Int64s, Int64s], NDArray[np.bool_]]


def row_ends(sizes: Int64s) -> list[int]:
    """Where row groups end, given the bytes of each row: full of rows or full of bytes, whichever comes first."""
    total = np.cumsum(sizes)
    ends: list[int] = []
    row = taken = 0
    while row < len(sizes):
        fitting = int(np.searchsorted(total, taken + limits.segment_row_group_bytes, "right"))
        row = min(max(fitting, row + 1), row + limits.segment_row_group_rows, len(sizes))
        taken = int(total[row - 1])
        ends.append(row)
    return ends


def row_sizes(table: pa.Table) -> Int64s:
    """Bytes of the columns of varying length, by row."""
    sizes = _lengths(table["payload"])
    for name in ("key", "dedup_key", "trace_id", CONTENT):
        if name in table.schema.names and table[name].null_count < len(table):
            sizes += _lengths(table[name])
    if table["headers"].null_count < len(table):
        sizes += _headers_lengths(table["headers"])
    return sizes


def extents_of(
    table: pa.Table, flags: NDArray[np.int64], name: str, ends: list[int], may_span: MaySpan | None = None
) -> list[Extent]:
    """The extents of a messages table that is written to `name` with row groups that end at `ends`.

    Rows are sorted; `flags` has the batch columns that each row may have. An extent has no gaps but those that
    `may_span` allows, and then spans no more offsets than a row group may have rows.
    """
    if not len(table):
        return []
    queue, partition, offset = (_numbers(table, column) for column in ("incarnation", "partition_id", "offset"))
    is_other = (np.diff(queue) != 0) | (np.diff(partition) != 0)
    breaks = is_other | (np.diff(offset) != 1)
    if may_span is not None:
        is_far = np.diff(offset // limits.segment_row_group_rows) != 0
        breaks &= is_other | is_far | ~may_span(queue, partition, offset)
    firsts = np.union1d(np.flatnonzero(breaks) + 1, [0, *ends[:-1]])
    stored = np.diff(firsts, append=len(table))
    counts = offset[firsts + stored - 1] + 1 - offset[firsts]
    groups = np.searchsorted(ends, firsts, "right")
    pushed_at = _numbers(table, "pushed_at")
    expires_at = np.minimum.reduceat(_numbers(table, "expires_at", np.iinfo(np.int64).max), firsts)
    expires_at[expires_at == np.iinfo(np.int64).max] = 0
    columns = [
        queue[firsts],
        partition[firsts],
        offset[firsts],
        counts,
        np.minimum.reduceat(pushed_at, firsts),
        np.maximum.reduceat(pushed_at, firsts),
        groups,
        firsts - np.array([0, *ends])[groups],
        np.bitwise_or.reduceat(flags, firsts),
        np.add.reduceat(row_sizes(table), firsts),
        np.maximum.reduceat(_numbers(table, "available_at"), firsts),
        expires_at,
        np.where(stored < counts, stored, 0),
    ]
    lists: list[Any] = [column.tolist() for column in columns]
    lists.insert(Extent.__struct_fields__.index("file"), [name] * len(firsts))
    return list(map(Extent, *lists))


def _numbers(table: pa.Table, name: str, null: int = 0) -> Int64s:
    column = table[name]
    if column.null_count == len(column):
        return np.full(len(column), null, np.int64)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if column.null_count:
        column = column.fill_null(null)
    numbers: Int64s = column.to_numpy()
    return numbers


def _lengths(column: pa.ChunkedArray) -> Int64s:
    lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy()
    return np.asarray(lengths, np.int64)


def _headers_lengths(column: pa.ChunkedArray) -> Int64s:
    lengths = []
    for array in column.chunks:
        pairs = array.offsets.to_numpy()
        bytes_before = [
            np.append(0, np.cumsum(_lengths(pa.chunked_array([side])))) for side in (array.keys, array.items)
        ]
        lengths.append(sum(np.diff(before[pairs]) for before in bytes_before))
    return np.concatenate(lengths)


def write_messages(
    disk: Disk, table: pa.Table, ends: list[int], extents: Sequence[Extent], sequences: tuple[int, int]
) -> SegmentFile:
    """Write a sorted messages table to the file where `extents` say that it is."""
    writer = SegmentWriter(MESSAGES, table)
    for start, end in pairwise([0, *ends]):
        writer.add(table.slice(start, end - start))
    name = extents[0].file
    return describe(name, MESSAGES, len(table), writer.finish(disk, name), sequences, extents=extents)


Column = NDArray[Any]

# The table's columns that a batch has too, and the bit that says whether one need be read.
_SHARED: Final = {
    "priority": layout.PRIORITY,
    "max_attempts": layout.MAX_ATTEMPTS,
    "content_type": layout.CONTENT_TYPE,
    "key": layout.KEY,
    "dedup_key": layout.DEDUP_KEY,
    "trace_id": layout.TRACE,
    "headers": layout.HEADERS,
}
_DTYPES: Final[dict[str, Any]] = {
    "pushed_at": np.int64,
    "available_at": np.int64,
    "expires_at": np.int64,
    "priority": np.uint8,
    "max_attempts": np.uint16,
    "key_hash": np.uint32,
    "content_type": np.uint8,
}


def read_table(reader: SegmentReader, file: SegmentFile, row_group: int) -> pa.Table:
    """All messages of a row group in the columns of a batch; a delay has become the time at which it ends."""
    flags = file.row_groups[row_group].flags
    names = ["payload", *(name for name, flag in _SHARED.items() if flags & flag)]
    if flags & (layout.DELAY | layout.DELIVER_AT):
        names.append("available_at")
    if flags & layout.TTL:
        names += ["pushed_at", "expires_at"]
    table = reader.read(file, row_group, names)
    columns = {name: table[name] for name in names}
    if "available_at" in columns:
        columns["deliver_at"] = columns.pop("available_at")
    if "expires_at" in columns:
        columns["ttl"] = pc.subtract(columns.pop("expires_at"), columns.pop("pushed_at"))
    return pa.table(columns)


def spread_table(table: pa.Table, rows: Int64s, count: int) -> pa.Table:
    """A table of `count` rows in which the messages of `table` are at `rows`; the others are empty."""
    sources = np.full(count, -1, np.int64)
    sources[rows] = np.arange(len(table))
    spread = table.combine_chunks().take(pa.array(sources, mask=sources < 0))
    payloads = spread["payload"].fill_null(b"")
    return spread.set_column(spread.schema.get_field_index("payload"), "payload", payloads).combine_chunks()


def spread_column(values: Column, rows: Int64s, count: int, name: str) -> Column:
    """A column of `count` values in which those of `values` are at `rows`; a gap has the time of the push before it."""
    spread = np.full(count, limits.priority_default if name == "priority" else 0, values.dtype)
    spread[rows] = values
    if name == "pushed_at":
        before = np.zeros(count, np.int64)
        before[rows] = rows
        spread = spread[np.maximum.accumulate(before)]
    return spread


def read_column(reader: SegmentReader, file: SegmentFile, row_group: int, name: str) -> Column:
    """One column of a row group; 0 stands for null."""
    if name not in _DTYPES:
        raise InvalidField(f"column: {name!r} cannot be read alone", hint=suggestion(name, tuple(_DTYPES)))
    if name == "key_hash":
        values = _key_hashes(reader.read(file, row_group, ["key"])["key"])
    elif name == "content_type":
        kinds = pc.index_in(reader.read(file, row_group, [name])[name], CONTENT_TYPES)
        values = _integers(kinds).astype(np.uint8)
    else:
        values = _integers(reader.read(file, row_group, [name])[name]).astype(_DTYPES[name], copy=False)
    values.flags.writeable = False  # it is shared by all callers
    return values


def _integers(column: pa.ChunkedArray) -> Column:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    values: Column = column.fill_null(0).to_numpy()
    return values


def _key_hashes(keys: pa.ChunkedArray) -> Column:
    # The batch has the rule for hashes, and needs payloads.
    payloads = pa.repeat(pa.scalar(b"", pa.binary()), len(keys))
    hashes = Batch.from_arrow(pa.table({"key": keys, "payload": payloads})).key_hashes()
    return np.zeros(len(keys), np.uint32) if hashes is None else hashes


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
                for first, count, attempt in runs_of(span)
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


def runs_of(span: Span) -> list[tuple[int, int, int]]:
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

    def __init__(self, disk: Disk, name: str, kind: str, row_seals: RowSeals | None = None) -> None:
        self._disk = disk
        self._row_seals = row_seals
        self._name = name
        self._kind = kind
        self._writer: SegmentWriter | None = None
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
        return [describe(self._name, self._kind, self._rows, written, sequences, events=about)]

    def _write_full(self) -> None:
        table = pa.concat_tables(self._waiting)
        end = len(table) - len(table) % ROW_GROUP_ROWS
        for row in range(0, end, ROW_GROUP_ROWS):
            self._write(table.slice(row, ROW_GROUP_ROWS))
        self._waiting = [table.slice(end)] if end < len(table) else []

    def _write(self, table: pa.Table) -> None:
        stored = table if self._row_seals is None else self._row_seals.seal(self._kind, table)
        if self._writer is None:
            self._writer = SegmentWriter(self._kind, stored)
        self._writer.add(stored)
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
