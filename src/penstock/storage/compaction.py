"""Compaction of a queue that keeps the latest message of each key: what is superseded, and files without it.

`Planner` reads the keys of what is sealed, the newest messages first. It says which messages have a later one of the
same key in the same partition, and which tombstones are old enough to go. Keys are compared as they are, never by a
hash: two keys that look alike must not cost a message. Those of an encrypted queue are stored as keyed hashes and
compared so; where the hash has changed, both messages stay. Memory holds one copy of each key, and a portion of the
messages.

`rewrite` writes what is left of some files to one: rows keep their offsets, and extents get gaps. All files of a queue
are replaced by one swap of the manifest: a tombstone is never removed before what it deletes, whoever reads meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock import limits
from penstock.batch import layout
from penstock.delivery.ranges import NO_RANGES, Ranges
from penstock.model import CONTENT_TYPE_NAMES, ContentType
from penstock.storage.cache import ByteCache
from penstock.storage.extents import Extent
from penstock.storage.manifest import SegmentFile
from penstock.storage.parquet import Int64s, SegmentReader, extents_of, row_ends, row_sizes, write_messages
from penstock.storage.schema import MESSAGES
from penstock.storage.segment_files import SegmentFiles

Mask = NDArray[np.bool_]
FileOf = Callable[[Extent], SegmentFile]
TOMBSTONE: Final = CONTENT_TYPE_NAMES[ContentType.TOMBSTONE]
ROWS_AT_ONCE_MIN: Final = 2**16  # few, so that no single step of NumPy holds up other threads
FILE_BYTES: Final = 32 * limits.MIB  # of what is left of some files, from which on it is a file


class PartitionPlan(NamedTuple):
    """What may be removed from one partition, as far as its groups allow it."""

    superseded: Ranges
    tombstones: Int64s  # old enough to go with what they delete; ascending


class Plan(NamedTuple):
    """What may be removed from a queue."""

    partitions: dict[int, PartitionPlan]
    stored: int  # sealed messages
    removable: int


class _Rows(NamedTuple):
    """The messages of one extent."""

    keys: pa.ChunkedArray
    offsets: Int64s
    tombstones: Mask | None  # old enough to go


class Planner:
    """Reads the keys of one queue. Tombstones that were pushed up to `tombstones_until` may go."""

    def __init__(self, reader: SegmentReader, file_of: FileOf, tombstones_until: int) -> None:
        self._reader = reader
        self._file_of = file_of
        self._tombstones_until = tombstones_until
        # Partitions that follow each other share row groups.
        self._tables: ByteCache[tuple[str, int], pa.Table] = ByteCache(limits.segment_cache_bytes)

    def plan(self, extents: Sequence[Extent], ends: Mapping[int, int]) -> Plan:
        """What may be removed below the offset that `ends` has for each partition. `extents` are sorted.

        The last sealed message of a partition stays, whatever it is.
        """
        partitions: dict[int, PartitionPlan] = {}
        for number, group in groupby(extents, lambda extent: extent.partition):
            run = list(group)
            partitions[number] = self._partition(run, min(ends.get(number, 0), run[-1].end_offset - 1))
        removable = sum(len(part.tombstones) + part.superseded.total() for part in partitions.values())
        return Plan(partitions, sum(extent.stored_rows for extent in extents), removable)

    def _partition(self, extents: Sequence[Extent], end: int) -> PartitionPlan:
        latest = LatestKeys()
        ranges, tombstones = [NO_RANGES], [np.empty(0, np.int64)]
        for portion in self._portions(extents, latest):
            keys = pa.chunked_array([chunk for rows in portion for chunk in rows.keys.chunks], pa.string())
            offsets = np.concatenate([rows.offsets for rows in portion])
            superseded = latest.superseded(keys)
            old = np.concatenate([_or_none(rows.tombstones, rows.offsets) for rows in portion])
            may_go = offsets < end
            ranges.append(Ranges.of_offsets(offsets[superseded & may_go]))
            tombstones.append(offsets[old & ~superseded & may_go])
        # The newest portion came first.
        firsts, ends = (np.concatenate([getattr(part, name) for part in ranges[::-1]]) for name in ("firsts", "ends"))
        return PartitionPlan(Ranges(firsts, ends), np.concatenate(tombstones[::-1]))

    def _portions(self, extents: Sequence[Extent], latest: LatestKeys) -> Iterator[list[_Rows]]:
        """Messages in portions, the newest portion first, each in order of offset.

        With many keys a portion is larger: each of them is looked up among all.
        """
        portion: list[_Rows] = []
        count = 0
        for extent in reversed(extents):
            portion.append(self._rows(extent))
            count += extent.stored_rows
            if count >= min(max(ROWS_AT_ONCE_MIN, len(latest)), limits.compaction_rows_at_once):
                yield portion[::-1]
                portion, count = [], 0
        if portion:
            yield portion[::-1]

    def _rows(self, extent: Extent) -> _Rows:
        table = self._table(extent).slice(extent.row, extent.stored_rows)
        old: Mask | None = None
        if "content_type" in table.schema.names:
            old = pc.equal(table["content_type"], TOMBSTONE).to_numpy()
            old &= table["pushed_at"].cast(pa.int64()).to_numpy() <= self._tombstones_until
        return _Rows(table["key"], table["offset"].to_numpy(), old)

    def _table(self, extent: Extent) -> pa.Table:
        def make() -> tuple[pa.Table, int]:
            file, row_group = self._file_of(extent), extent.row_group
            has_kinds = bool(file.row_groups[row_group].flags & layout.CONTENT_TYPE)
            is_marked = has_kinds and _may_have_tombstones(self._reader, file, row_group)
            names = ["key", "offset", *(("content_type", "pushed_at") if is_marked else ())]
            table = self._reader.stored(file, row_group, names)
            return table, table.nbytes

        return self._tables.get((extent.file, extent.row_group), make)


def _or_none(mask: Mask | None, offsets: Int64s) -> Mask:
    return np.zeros(len(offsets), np.bool_) if mask is None else mask


def _may_have_tombstones(reader: SegmentReader, file: SegmentFile, row_group: int) -> bool:
    """By the statistics of the row group."""
    group = reader.footer(file).row_group(row_group)
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == "content_type":
            known = column.statistics
            return known is None or not known.has_min_max or known.min <= TOMBSTONE <= known.max
    return True


class LatestKeys:
    """The keys of the messages of a partition, which come portion by portion from the newest to the oldest."""

    def __init__(self) -> None:
        self._keys: pa.Array = pa.array([], pa.string())

    def __len__(self) -> int:
        return len(self._keys)

    def superseded(self, keys: pa.ChunkedArray) -> Mask:
        """For each message, in order of offset, whether a later one has its key; those without a key have none."""
        before = len(self._keys)
        numbers = self._numbers(keys)
        rows = np.arange(len(numbers))
        last = np.full(len(self._keys) + 1, -1)
        last[numbers] = rows  # of equal numbers the last one counts
        superseded: Mask = (numbers >= 0) & ((last[numbers] != rows) | (numbers < before))
        return superseded

    def _numbers(self, keys: pa.ChunkedArray) -> Int64s:
        """The number of each key, -1 for none; new keys get the next ones."""
        encoded = keys.combine_chunks().dictionary_encode()
        known = pc.index_in(encoded.dictionary, self._keys)
        is_new = known.is_null()
        numbers = known.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        news = is_new.to_numpy(zero_copy_only=False)
        numbers[news] = len(self._keys) + np.arange(int(news.sum()))
        self._keys = pa.concat_arrays([self._keys, encoded.dictionary.filter(is_new)])
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        of_rows: Int64s = np.append(numbers, -1)[codes]
        return of_rows


# Rewriting.

Removed = Callable[[int, int], Ranges]  # of a queue and a partition


def droppable(extent: Extent, removed: Removed) -> int:
    """How many of the messages that an extent holds are removed."""
    return (
        extent.stored_rows
        - extent.count
        + removed(extent.queue, extent.partition).count(extent.first_offset, extent.end_offset)
    )


def rewrite_all(
    disk: SegmentFiles,
    reader: SegmentReader,
    files: Mapping[str, SegmentFile],
    extents: Mapping[str, list[Extent]],
    removed: Removed,
) -> list[Rewritten]:
    """Rewrite those files that hold something that is removed. `extents` are those of the files in question."""
    names = [name for name, run in extents.items() if any(droppable(extent, removed) for extent in run)]
    left = sorted((files[name] for name in names), key=lambda file: file.first_sequence)
    done: list[Rewritten] = []
    while left:
        done.append(rewrite(disk, reader, left, extents, removed))
        left = left[len(done[-1].replaced) :]
    return done


class Rewritten(NamedTuple):
    """Files that may be replaced by one, or by none when nothing is left."""

    replaced: list[SegmentFile]
    file: SegmentFile | None
    extents: list[Extent]
    dropped: int


def rewrite(
    disk: SegmentFiles,
    reader: SegmentReader,
    files: Sequence[SegmentFile],
    extents: Mapping[str, list[Extent]],
    removed: Removed,
) -> Rewritten:
    """Write what is left of some of `files`, from the first on; how many, their size decides. `extents` are theirs."""
    tables: list[pa.Table] = []
    flags: list[Int64s] = []
    replaced: list[SegmentFile] = []
    size = dropped = 0
    for file in files:
        for row_group, group in groupby(extents[file.name], lambda extent: extent.row_group):
            parts = list(group)
            gone = sum(droppable(extent, removed) for extent in parts)
            dropped += gone
            if gone == sum(extent.stored_rows for extent in parts):
                continue
            table = reader.stored(file, row_group)
            rows, row_flags = _kept_rows(table["offset"].to_numpy(), parts, removed)
            tables.append(table.take(pa.array(rows)))
            flags.append(row_flags)
            size += tables[-1].nbytes
        replaced.append(file)
        if size >= FILE_BYTES:
            break
    if not tables:
        return Rewritten(replaced, None, [], dropped)
    table, row_flags = _sorted(pa.concat_tables(tables, promote_options="default"), np.concatenate(flags))
    name, ends = disk.next_name(MESSAGES, replaced[0].first_sequence), row_ends(row_sizes(table))
    new = extents_of(table, row_flags, name, ends, partial(_may_span, removed))
    sequences = replaced[0].first_sequence, max(file.end_sequence for file in replaced)
    return Rewritten(replaced, write_messages(disk, table, ends, new, sequences), new, dropped)


def _may_span(removed: Removed, queues: Int64s, partitions: Int64s, offsets: Int64s) -> Mask:
    """An extent spans short gaps, and only such as nothing lies in: another file may hold what is between two rows."""
    gaps = np.diff(offsets) - 1
    may = (gaps > 0) & (gaps <= limits.segment_gap_offsets_max)
    # Rows are sorted: those of a partition follow each other. No step may hold up other threads for long.
    changes = np.flatnonzero((np.diff(queues) != 0) | (np.diff(partitions) != 0)) + 1
    for first, end in pairwise([0, *changes.tolist(), len(offsets)]):
        here = np.flatnonzero(may[first : end - 1]) + first
        for some in np.array_split(here, max(1, len(here) // ROWS_AT_ONCE_MIN)):
            ranges = removed(int(queues[first]), int(partitions[first]))
            gone = ranges.counts_below(offsets[some + 1]) - ranges.counts_below(offsets[some] + 1)
            may[some] = gone == gaps[some]
    return may


def _kept_rows(offsets: Int64s, parts: Sequence[Extent], removed: Removed) -> tuple[Int64s, Int64s]:
    """The rows of a row group that stay, and for each the batch columns that it may have."""
    rows: list[Int64s] = []
    flags: list[Int64s] = []
    for extent in parts:
        gone = removed(extent.queue, extent.partition)
        inside = offsets[extent.row : extent.row + extent.stored_rows]
        kept = np.flatnonzero(~gone.mask(extent.first_offset, extent.end_offset)[inside - extent.first_offset])
        rows.append(kept + extent.row)
        flags.append(np.full(len(kept), extent.flags, np.int64))
    return np.concatenate(rows), np.concatenate(flags)


def _sorted(table: pa.Table, flags: Int64s) -> tuple[pa.Table, Int64s]:
    """By queue, partition and offset: rows of several files follow each other by file."""
    order = np.lexsort(
        [
            table[name].to_numpy()
            for name in (
                "offset",
                "partition_id",
                "incarnation",
            )
        ]
    )
    if (np.diff(order) == 1).all():
        return table.combine_chunks(), flags
    return table.take(pa.array(order)).combine_chunks(), flags[order]
