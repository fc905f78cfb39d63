"""What retention removes: how far the start of each partition may move, and which files are rewritten after it.

The rules of retention are pure: they look at extents and answer with offsets. Limits are those of the whole queue, and
what was pushed first goes first. Age and bytes work in whole extents, the count is exact. Three rules precede the
limits: the start never passes the floor, the lowest offset that a group still needs, unless the queue drops unread
messages; it never passes what is archived where the queue waits for that; and `retention_messages_min` messages stay
whatever their age.

Compaction decides nothing about messages: what the manifest lists is needed. A file of which over half the rows are no
longer listed is rewritten with those that are. Rows keep their offsets, and extents stay as they are but for their file
and row: one from before is found again by its first offset.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock import limits
from penstock.model import QueueOptions
from penstock.storage.extents import Extent
from penstock.storage.manifest import FOREVER, Manifest, SegmentFile, needed_events, queues_with_history
from penstock.storage.parquet import Int64s, SegmentReader, row_sizes, write_event_file, write_messages
from penstock.storage.schema import EVENT_TIMES
from penstock.storage.segment_files import SegmentFiles


def new_starts(
    options: QueueOptions,
    extents: Mapping[int, Iterable[Extent]],
    floors: Mapping[int, int],
    now: int,
    *,
    archived: Mapping[int, int] | None = None,
    tail_messages: int = 0,
    tail_bytes: int = 0,
) -> dict[int, int]:
    """The new start of each partition whose start may move; it may be the present one.

    `extents` are the sealed extents kept now, by partition and in order. The tail is what the queue holds beside them,
    in the journal: it counts towards the limits and never goes itself. A partition without a floor stays as it is, and
    so does one that is not `archived` at all in a queue that keeps its messages until they are. Unless a limit counts
    them, only extents that may go are looked at.
    """
    kept = _Kept(options, extents, now, tail_messages, tail_bytes)
    starts: dict[int, int] = {}
    held: set[int] = set()  # partitions where something stays, and so all that follows it
    for extent in _oldest_first(extents):
        if extent.partition in held:
            continue
        excess = kept.excess(extent)
        if not excess:
            break  # all others are newer, and there are no more of them than before
        end = extent.first_offset + excess
        if not options.retention_drops_unread:
            end = min(end, floors.get(extent.partition, 0))
        if options.retention_until_archived:
            end = min(end, (archived or {}).get(extent.partition, 0))
        count = end - extent.first_offset
        if count > 0:
            starts[extent.partition] = end
            kept.drop(extent, count)
        if count < extent.count:
            held.add(extent.partition)
    return starts


class _Kept:
    """What would be left of the queue, as extents are given up one by one."""

    def __init__(
        self,
        options: QueueOptions,
        extents: Mapping[int, Iterable[Extent]],
        now: int,
        tail_messages: int,
        tail_bytes: int,
    ) -> None:
        self._options = options
        self._messages, self._bytes = limits.instant_us_max, 0
        if counts_messages(options):
            kept = [(extent.stored_rows, extent.bytes) for run in extents.values() for extent in run]
            self._messages = tail_messages + sum(count for count, _ in kept)
            self._bytes = tail_bytes + sum(size for _, size in kept)
        seconds = options.retention_seconds
        self._oldest_at = None if seconds is None else now - round(seconds * 1_000_000)

    def excess(self, extent: Extent) -> int:
        """How many messages at the head of `extent` are over a limit."""
        over = 0
        if self._oldest_at is not None and extent.pushed_last_at <= self._oldest_at:
            over = extent.count
        if self._options.retention_bytes is not None and self._bytes > self._options.retention_bytes:
            over = extent.count
        if self._options.retention_messages is not None:
            over = max(over, self._messages - self._options.retention_messages)
        over = max(0, min(over, extent.count, self._messages - self._options.retention_messages_min))
        if not extent.rows:
            return over
        # Only its offsets tell which of its messages are the first: one with gaps goes whole or not at all.
        return extent.count if over >= extent.rows else 0

    def drop(self, extent: Extent, count: int) -> None:
        self._messages -= count if not extent.rows else extent.rows * count // extent.count
        self._bytes -= extent.bytes * count // extent.count


def counts_messages(options: QueueOptions) -> bool:
    """Whether it matters how many messages there are, or how large."""
    limits_of_size = options.retention_messages, options.retention_bytes
    return options.retention_messages_min > 0 or any(limit is not None for limit in limits_of_size)


def _oldest_first(extents: Mapping[int, Iterable[Extent]]) -> Iterator[Extent]:
    """All extents by the time of their last push, those of one partition in order of offset."""
    return (extent for _, _, extent in heapq.merge(*map(_timed, extents.values()), key=lambda timed: timed[:2]))


def _timed(run: Iterable[Extent]) -> Iterator[tuple[int, int, Extent]]:
    latest = 0
    for extent in run:
        # A clock set back between two runs of the process must not let a later extent overtake.
        latest = max(latest, extent.pushed_last_at)
        yield latest, extent.partition, extent


Live = Callable[[Extent], bool]


def worth_rewriting(manifest: Manifest, live: Live, since: int = FOREVER) -> list[str]:
    """Files of which over half the rows are no longer needed."""
    rows = dict.fromkeys(manifest.files, 0)
    for extent in manifest.extents:
        if live(extent):
            rows[extent.file] += extent.stored_rows
    oldest = queues_with_history(manifest)
    for file in manifest.files.values():
        if file.table in EVENT_TIMES:
            queues = set(needed_events(file, oldest, since))
            rows[file.name] = sum(events.rows for events in file.events if events.queue in queues)
    return [name for name, kept in rows.items() if 2 * kept < manifest.files[name].rows]


def rewrite(
    disk: SegmentFiles,
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
    disk: SegmentFiles, reader: SegmentReader, file: SegmentFile, kept: Sequence[Extent]
) -> tuple[SegmentFile, list[Extent]]:
    tables: list[pa.Table] = []
    for row_group, run in groupby(kept, lambda extent: extent.row_group):
        table = reader.stored(file, row_group)
        tables += [table.slice(extent.row, extent.stored_rows) for extent in run]
    table = pa.concat_tables(tables).combine_chunks()
    ends, extents = _pack(kept, row_sizes(table), disk.next_name(file.table, file.first_sequence))
    return write_messages(disk, table, ends, extents, (file.first_sequence, file.end_sequence)), extents


def _pack(kept: Sequence[Extent], sizes: Int64s, name: str) -> tuple[list[int], list[Extent]]:
    """Row groups for whole extents; returns where they end, and the extents in the new file."""
    moved: list[Extent] = []
    ends: list[int] = []
    row = first_row = size = 0
    for extent in kept:
        rows = extent.stored_rows
        length = int(sizes[row : row + rows].sum())
        full = row + rows - first_row > limits.segment_row_group_rows
        if row > first_row and (full or size + length > limits.segment_row_group_bytes):
            ends.append(row)
            first_row, size = row, 0
        moved.append(msgspec.structs.replace(extent, file=name, row_group=len(ends), row=row - first_row))
        row += rows
        size += length
    return [*ends, row], moved


def _rewrite_events(
    disk: SegmentFiles, reader: SegmentReader, file: SegmentFile, queues: Sequence[int]
) -> list[SegmentFile]:
    kept = pa.array(queues, pa.int64())
    tables = (reader.stored(file, row_group) for row_group in range(len(file.row_groups)))
    needed = (table.filter(pc.is_in(table["incarnation"], kept)) for table in tables)
    name = disk.next_name(file.table, file.first_sequence)
    return write_event_file(disk, name, file.table, needed, (file.first_sequence, file.end_sequence))
