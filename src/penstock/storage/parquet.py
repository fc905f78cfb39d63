"""Segment files: Parquet written in one piece, and read back only through its checksums.

Every byte of a file is covered when it is read, not only when it is verified: the footer by its CRC32C when the file is
first opened, a row group by its own each time, the pages by the checksums that Parquet keeps. A flipped bit is an
error that names the file; it is never a wrong message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from penstock import limits
from penstock.errors import Damaged
from penstock.storage.cache import ByteCache
from penstock.storage.disk import Disk, ReadableDisk
from penstock.storage.manifest import EventsOf, RowGroup, SegmentFile
from penstock.storage.schema import FORMAT, MESSAGES, SCHEMAS, WRITING

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


def file_name(table: str, first_sequence: int, number: int) -> str:
    """Names sort in the order of the journal."""
    return f"segments/{table}/{first_sequence:020d}-{number}.parquet"


def write(disk: Disk, name: str, kind: str, table: pa.Table, row_ends: Iterable[int]) -> tuple[list[int], memoryview]:
    """Write a file with row groups that end at `row_ends`, synced; its bytes, and where its row groups end in them."""
    writing = Writing(kind, table)
    row = 0
    for row_end in row_ends:
        writing.add(table.slice(row, row_end - row))
        row = row_end
    return writing.finish(disk, name)


class Writing:
    """A file in the making, row group by row group: only its compressed bytes are in memory."""

    def __init__(self, kind: str, sample: pa.Table) -> None:
        self._sink = pa.BufferOutputStream()
        self._writer = _writer(self._sink, kind, sample)
        self._ends: list[int] = []

    def add(self, table: pa.Table) -> None:
        """One row group."""
        self._writer.write_table(table, row_group_size=len(table))
        self._ends.append(self._sink.tell())

    def finish(self, disk: Disk, name: str) -> tuple[list[int], memoryview]:
        """Write it to the disk, synced; its bytes, and where its row groups end in them."""
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
    flags: Sequence[int] | None = None,
    events: Sequence[EventsOf] = (),
) -> SegmentFile:
    """The manifest's account of a file that was just written."""
    ends, data = written
    bounds = pairwise([0, *ends])
    groups = [
        RowGroup(end, crc32c(data[start:end]), group_flags)
        for (start, end), group_flags in zip(bounds, flags or [0] * len(ends), strict=True)
    ]
    footer = data[ends[-1] :]
    return SegmentFile(name, kind, rows, len(data), crc32c(data), *sequences, groups, crc32c(footer), list(events))


def _writer(sink: Any, kind: str, table: pa.Table) -> pq.ParquetWriter:
    compression = _COMPRESS_ALL if kind != MESSAGES or _shrinks(table["payload"]) else _COMPRESS_BESIDE_PAYLOAD
    writer = pq.ParquetWriter(
        sink,
        table.schema,
        write_page_checksum=True,
        # Columns are handed over as dictionaries where that saves time, and must still read back as plain text.
        store_schema=False,
        **compression,
        **WRITING[kind],
    )
    writer.add_key_value_metadata({"penstock.format": str(FORMAT), "penstock.table": kind})
    return writer


def _shrinks(payloads: pa.ChunkedArray) -> bool:
    """Whether zstd would pay, judged by a sample: payloads that are compressed or encrypted already only cost time."""
    rows = np.linspace(0, len(payloads) - 1, SAMPLE_ROWS).astype(np.int64)
    # One by one: `take` would first copy all of them into one array.
    sample = b"".join(payloads[row].as_py()[:SAMPLE_BYTES] for row in rows.tolist())
    compressed = pa.compress(sample, codec="zstd", asbytes=True)
    return len(compressed) <= len(sample) * (1 - limits.compression_saving_min)


class SegmentReader:
    """Reads row groups of files that a manifest names. Safe to use from several threads."""

    def __init__(self, disk: ReadableDisk, *, checks_pages: bool = True) -> None:
        self._disk = disk
        self._checks_pages = checks_pages  # needless where what is decoded is the very memory that was checked
        self._footers: ByteCache[str, pq.FileMetaData] = ByteCache(limits.segment_footers_bytes)

    def read(self, file: SegmentFile, row_group: int, columns: Sequence[str]) -> pa.Table:
        """Some columns of one row group."""
        footer = self.footer(file)
        start, end = file.row_group_bounds(row_group)
        with self._disk.open_input(file.name) as source:
            source.seek(start)
            if crc32c(source.read_buffer(end - start)) != file.row_groups[row_group].crc32c:
                raise Damaged(f"{file.name}: row group {row_group} does not match its checksum")
            try:
                reader = pq.ParquetFile(source, metadata=footer, page_checksum_verification=self._checks_pages)
                return reader.read_row_group(row_group, columns=list(columns), use_threads=False)
            except (pa.ArrowException, OSError) as error:
                raise Damaged(f"{file.name}: row group {row_group} cannot be read: {error}") from error

    def footer(self, file: SegmentFile) -> pq.FileMetaData:
        """What a file says about itself, statistics of its row groups included."""
        return self._footers.get(file.name, lambda: self._footer(file))

    def forget(self, unwanted: Callable[[str], bool]) -> None:
        """Drop what is remembered of some files."""
        self._footers.drop(unwanted)

    def _footer(self, file: SegmentFile) -> tuple[pq.FileMetaData, int]:
        footer = self._disk.read(file.name, file.footer_position)
        if len(footer) != file.bytes - file.footer_position or crc32c(footer) != file.footer_crc32c:
            raise Damaged(f"{file.name}: the footer does not match its checksum")
        # Parquet finds its footer from the end of the file, so the end alone will do.
        return pq.read_metadata(pa.BufferReader(footer)), len(footer)
