"""Which files are worth rewriting, and what is left of them.

Nothing is decided here about messages: what the manifest lists is needed. A file of which over half the rows are no
longer listed is rewritten with those that are. Rows keep their offsets, and extents stay as they are but for their
file and row: one from before is found again by its first offset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock import limits
from penstock.storage.disk import Disk
from penstock.storage.event_files import write_event_file
from penstock.storage.extents import Extent
from penstock.storage.manifest import FOREVER, Manifest, SegmentFile, needed_events, queues_with_history
from penstock.storage.parquet import Int64s, SegmentReader, file_name, row_sizes, write_messages
from penstock.storage.schema import EVENT_TIMES, MESSAGES, SCHEMAS

Live = Callable[[Extent], bool]


def worth_rewriting(manifest: Manifest, live: Live, since: int = FOREVER) -> list[str]:
    """Files of which over half the rows are no longer needed."""
    rows = dict.fromkeys(manifest.files, 0)
    for extent in manifest.extents:
        if live(extent):
            rows[extent.file] += extent.count
    oldest = queues_with_history(manifest)
    for file in manifest.files.values():
        if file.table in EVENT_TIMES:
            queues = set(needed_events(file, oldest, since))
            rows[file.name] = sum(events.rows for events in file.events if events.queue in queues)
    return [name for name, kept in rows.items() if 2 * kept < manifest.files[name].rows]


def rewrite(
    disk: Disk,
    reader: SegmentReader,
    oldest: dict[int, int],
    file: SegmentFile,
    kept: Sequence[Extent],
    since: int = FOREVER,
) -> tuple[list[SegmentFile], list[Extent]]:
    """Write what is left of `file` to a new one, if anything is; returns the file, and the extents of `kept` in it.

    `oldest` is what `queues_with_history` says.
    """
    if file.table in EVENT_TIMES:
        queues = needed_events(file, oldest, since)
        return (_rewrite_events(disk, reader, file, queues) if queues else []), []
    if not kept:
        return [], []
    written, extents = _rewrite_messages(disk, reader, file, kept)
    return [written], extents


def _rewrite_messages(
    disk: Disk, reader: SegmentReader, file: SegmentFile, kept: Sequence[Extent]
) -> tuple[SegmentFile, list[Extent]]:
    tables: list[pa.Table] = []
    for row_group, run in groupby(kept, lambda extent: extent.row_group):
        table = reader.read(file, row_group, SCHEMAS[MESSAGES].names)
        tables += [table.slice(extent.row, extent.count) for extent in run]
    table = pa.concat_tables(tables).combine_chunks()
    ends, extents = _pack(kept, row_sizes(table), _next_name(disk, file))
    return write_messages(disk, table, ends, extents, (file.first_sequence, file.end_sequence)), extents


def _pack(kept: Sequence[Extent], sizes: Int64s, name: str) -> tuple[list[int], list[Extent]]:
    """Row groups for whole extents; returns where they end, and the extents in the new file."""
    moved: list[Extent] = []
    ends: list[int] = []
    row = first_row = size = 0
    for extent in kept:
        length = int(sizes[row : row + extent.count].sum())
        full = row + extent.count - first_row > limits.segment_row_group_rows
        if row > first_row and (full or size + length > limits.segment_row_group_bytes):
            ends.append(row)
            first_row, size = row, 0
        moved.append(msgspec.structs.replace(extent, file=name, row_group=len(ends), row=row - first_row))
        row += extent.count
        size += length
    return [*ends, row], moved


def _rewrite_events(disk: Disk, reader: SegmentReader, file: SegmentFile, queues: Sequence[int]) -> list[SegmentFile]:
    kept, columns = pa.array(queues, pa.int64()), SCHEMAS[file.table].names
    tables = (reader.read(file, row_group, columns) for row_group in range(len(file.row_groups)))
    needed = (table.filter(pc.is_in(table["incarnation"], kept)) for table in tables)
    return write_event_file(disk, _next_name(disk, file), file.table, needed, (file.first_sequence, file.end_sequence))


def _next_name(disk: Disk, file: SegmentFile) -> str:
    """A name that no file of these sequences has, pinned ones included."""
    directory, _, base = file.name.rpartition("/")
    prefix = base.partition("-")[0]
    numbers = [int(name[21:].partition(".")[0]) for name in disk.list(directory) if name.startswith(prefix)]
    return file_name(file.table, file.first_sequence, max(numbers) + 1)
