"""Segment files against the manifest, and the manifest rebuilt from the files. Reads everything, changes nothing.

`verify` checks that every file holds exactly what the manifest says. `rebuild_manifest` is for a manifest that is lost.
Messages know their queue, partition and offset, so extents follow from the rows. Two things are not in the files. How
far the journal is sealed: up to where the journal begins. And which files count: a file made from frames that the
journal still has does not, and of two files with the same messages, one that compaction wrote and one that it should
replace, the later one does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from crc32c import crc32c
from numpy.typing import NDArray

from penstock import limits
from penstock.batch import layout
from penstock.errors import Damaged
from penstock.limits import priority_default
from penstock.model import CONTENT_TYPE_NAMES, ContentType
from penstock.storage import parquet
from penstock.storage.disk import Disk, ReadableDisk
from penstock.storage.extents import Extent
from penstock.storage.manifest import Manifest, SegmentFile, extents_in
from penstock.storage.parquet import SegmentReader, extents_of
from penstock.storage.schema import EVENT_TIMES, MESSAGES, SCHEMAS
from penstock.storage.sealed_rows import DATA_KEY, EXTRA, SEALED_FLAGS
from penstock.storage.segment_files import FILE_NAME, SegmentFiles, segment_files

Progress = Callable[[int, int], None]  # bytes checked so far, bytes in all

_STEP_BYTES = 8 * limits.MIB


class Problem(msgspec.Struct, frozen=True):
    """Something wrong with a file, and the messages that it concerns."""

    file: str
    message: str
    extents: list[Extent]


def verify(disk: ReadableDisk, manifest: Manifest, on_progress: Progress | None = None) -> list[Problem]:
    """Every checksum of every file, and the offsets in every row against the extents."""
    problems: list[Problem] = []
    total = sum(file.bytes for file in manifest.files.values())
    checked = 0
    extents_of = extents_in(manifest, manifest.files)
    for file in manifest.files.values():
        extents = extents_of[file.name]
        problems += [Problem(file.name, message, extents) for message in _check(disk, file, extents)]
        checked += file.bytes
        if on_progress is not None:
            on_progress(checked, total)
    return problems


def _check(disk: ReadableDisk, file: SegmentFile, extents: Sequence[Extent]) -> Iterator[str]:
    if not disk.exists(file.name):
        yield "the file is missing"
        return
    size = disk.size(file.name)
    if size != file.bytes:
        yield f"the file has {size:,} bytes, not {file.bytes:,}"
        return
    if _crc32c(disk, file) != file.crc32c:
        yield "the file does not match its checksum"
        return
    try:
        yield from _check_rows(SegmentReader(disk), file, extents)
    except Damaged as error:
        yield error.message


def _crc32c(disk: ReadableDisk, file: SegmentFile) -> int:
    crc = 0
    for position in range(0, file.bytes, _STEP_BYTES):
        crc = crc32c(disk.read(file.name, position, _STEP_BYTES), crc)
    return crc


def _check_rows(reader: SegmentReader, file: SegmentFile, extents: Sequence[Extent]) -> Iterator[str]:
    """Read every page, so that its checksum is checked too."""
    rows = 0
    for row_group in range(len(file.row_groups)):
        table = reader.stored(file, row_group)
        rows += len(table)
        if file.table != MESSAGES:
            continue
        columns = [table[name].to_numpy() for name in ("incarnation", "partition_id", "offset")]
        for extent in extents:
            if extent.row_group == row_group and not _matches(columns, extent):
                yield f"row group {row_group} does not hold partition {extent.partition} at {extent.first_offset}"
    if rows != file.rows:
        yield f"the file holds {rows:,} rows, not {file.rows:,}"


def _matches(columns: Sequence[NDArray[np.integer]], extent: Extent) -> bool:
    queue, partition, offset = (column[extent.row : extent.row + extent.stored_rows] for column in columns)
    return (
        len(offset) == extent.stored_rows
        and bool((queue == extent.queue).all())
        and bool((partition == extent.partition).all())
        and int(offset[0]) == extent.first_offset
        and int(offset[-1]) == extent.end_offset - 1
        and bool((np.diff(offset) >= 1).all() if extent.rows else (np.diff(offset) == 1).all())
    )


_NULLABLE: Final = {
    "available_at": layout.DELIVER_AT,
    "expires_at": layout.TTL,
    "key": layout.KEY,
    "headers": layout.HEADERS,
    "dedup_key": layout.DEDUP_KEY,
    "trace_id": layout.TRACE,
    "max_attempts": layout.MAX_ATTEMPTS,
}


class RebuiltManifest(NamedTuple):
    """A manifest, and the files that it does not name: unreadable, or not needed."""

    manifest: Manifest
    unlisted: list[str]
    unreadable: dict[str, str]


class _ManifestBuilder:
    """Collects the files of a manifest."""

    def __init__(self, disk: ReadableDisk, sealed_sequence: int) -> None:
        self.disk = disk
        self.sealed_sequence = sealed_sequence
        self.files: dict[str, SegmentFile] = {}
        self.extents: list[Extent] = []
        self.queues: dict[int, str] = {}
        self.unlisted: list[str] = []
        self.unreadable: dict[str, str] = {}
        self._taken: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def add(self, kind: str, name: str, sequences: tuple[int, int]) -> None:
        data = self.disk.read(name)
        try:
            source = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
            table = source.read(use_threads=False)
            extra = [field.name for field in EXTRA[kind] if field.name in table.schema.names]
            table = table.select([*SCHEMAS[kind].names, *extra])
        except (pa.ArrowException, OSError, KeyError) as error:
            self.unreadable[name] = str(error)
            self.unlisted.append(name)
            return
        ends = _row_group_ends(source.metadata)
        rows = np.cumsum([source.metadata.row_group(index).num_rows for index in range(len(ends))]).tolist()
        if kind in EVENT_TIMES:
            summary = parquet.summary(table, kind)
            written = (ends, memoryview(data))
            self.files[name] = parquet.describe(name, kind, len(table), written, sequences, events=summary)
        else:
            self._add_messages(name, table, rows, (ends, memoryview(data)), sequences)
        self._learn_names(table)

    def _add_messages(
        self,
        name: str,
        table: pa.Table,
        rows: list[int],
        written: tuple[list[int], memoryview],
        sequences: tuple[int, int],
    ) -> None:
        extents = [extent for extent in extents_of(table, _row_flags(table), name, rows) if self._is_new(extent)]
        if not extents:
            self.unlisted.append(name)
            return
        for extent in extents:
            self._taken.setdefault((extent.queue, extent.partition), []).append(
                (extent.first_offset, extent.end_offset)
            )
        self.extents += extents
        self.files[name] = parquet.describe(name, MESSAGES, len(table), written, sequences, extents=extents)

    def _is_new(self, extent: Extent) -> bool:
        taken = self._taken.get((extent.queue, extent.partition), ())
        return all(end <= extent.first_offset or first >= extent.end_offset for first, end in taken)

    def _learn_names(self, table: pa.Table) -> None:
        pairs = table.group_by(["incarnation", "queue"]).aggregate([])
        self.queues.update(zip(pairs["incarnation"].to_pylist(), pairs["queue"].to_pylist(), strict=True))


def rebuild_manifest(disk: Disk, sealed_sequence: int) -> RebuiltManifest:
    """Read every file; `sealed_sequence` is where the journal takes over."""
    at = segment_files(disk)
    builder = _ManifestBuilder(at, sealed_sequence)
    files = sorted(
        (int(match[1]), (-int(match[3] or 0), -int(match[2])), directory.rpartition("/")[2], f"{directory}/{match[0]}")
        for directory, match in _segment_files(at)
    )
    starts = sorted({first for first, *_ in files if first <= sealed_sequence})
    ends = dict(pairwise([*starts, sealed_sequence + 1]))
    for first, _, kind, name in files:
        if first <= sealed_sequence:
            builder.add(kind, name, (first, ends[first]))
        else:
            builder.unlisted.append(name)
    manifest = Manifest(sealed_sequence, builder.queues, builder.files, sorted(builder.extents))
    return RebuiltManifest(manifest, builder.unlisted, builder.unreadable)


def _segment_files(disk: SegmentFiles) -> list[tuple[str, re.Match[str]]]:
    """Each directory with its files. Of a location all files of the shard are listed."""
    names = [(directory, name) for directory in disk.directories() for name in _list(disk, directory)]
    return [(directory, match) for directory, name in names if (match := FILE_NAME.fullmatch(name))]


def _list(disk: SegmentFiles, directory: str) -> list[str]:
    try:
        return disk.list(directory)
    except FileNotFoundError:
        return []


def _row_group_ends(metadata: pq.FileMetaData) -> list[int]:
    """Where each row group ends in the file: where its last column does."""
    ends = []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        columns = [group.column(number) for number in range(group.num_columns)]
        ends.append(max(_start(column) + column.total_compressed_size for column in columns))
    return ends


def _start(column: pq.ColumnChunkMetaData) -> int:
    offset: int = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
    return offset


def _row_flags(table: pa.Table) -> NDArray[np.int64]:
    """For each row the batch columns that it has."""
    flags = np.zeros(len(table), np.int64)
    for name, flag in _NULLABLE.items():
        if table[name].null_count < len(table):
            flags |= np.where(pc.is_valid(table[name]).to_numpy(), flag, 0)
    if DATA_KEY in table.schema.names:
        flags |= np.where(pc.is_valid(table[DATA_KEY]).to_numpy(), SEALED_FLAGS, 0)
    flags |= np.where(table["priority"].to_numpy() != priority_default, layout.PRIORITY, 0)
    plain = pc.equal(table["content_type"], CONTENT_TYPE_NAMES[ContentType.BYTES]).to_numpy()
    return flags | np.where(plain, 0, layout.CONTENT_TYPE)
