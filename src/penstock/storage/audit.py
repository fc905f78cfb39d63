"""Does every segment file hold exactly what the manifest says? Reads everything, changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from penstock import limits
from penstock.errors import Damaged
from penstock.storage.disk import Disk
from penstock.storage.extents import Extent
from penstock.storage.manifest import Manifest, SegmentFile, extents_in
from penstock.storage.parquet import SegmentReader
from penstock.storage.schema import MESSAGES, SCHEMAS

Progress = Callable[[int, int], None]  # bytes checked so far, bytes in all

_STEP_BYTES = 8 * limits.MIB


class Problem(msgspec.Struct, frozen=True):
    """Something wrong with a file, and the messages that it concerns."""

    file: str
    message: str
    extents: list[Extent]


def verify(disk: Disk, manifest: Manifest, on_progress: Progress | None = None) -> list[Problem]:
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


def _check(disk: Disk, file: SegmentFile, extents: Sequence[Extent]) -> Iterator[str]:
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


def _crc32c(disk: Disk, file: SegmentFile) -> int:
    crc = 0
    for position in range(0, file.bytes, _STEP_BYTES):
        crc = crc32c(disk.read(file.name, position, _STEP_BYTES), crc)
    return crc


def _check_rows(reader: SegmentReader, file: SegmentFile, extents: Sequence[Extent]) -> Iterator[str]:
    """Every page is read, so that the checksum of each is looked at too."""
    rows = 0
    for row_group in range(len(file.row_groups)):
        table = reader.read(file, row_group, SCHEMAS[file.table].names)
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
    queue, partition, offset = (column[extent.row : extent.row + extent.count] for column in columns)
    return (
        len(offset) == extent.count
        and bool((queue == extent.queue).all())
        and bool((partition == extent.partition).all())
        and bool((offset == np.arange(extent.first_offset, extent.end_offset)).all())
    )
