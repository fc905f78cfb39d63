"""Extents: where runs of offsets lie in the sealed segments, the sparse index for seeking by offset and by time.

There can be many, so they are small, frozen and untracked by the garbage collector, and nothing here opens a file.
They compare and sort in the order of their fields: by queue, partition, offset. Extents of one partition never overlap.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from operator import attrgetter
from typing import Final

import msgspec


class Extent(msgspec.Struct, frozen=True, order=True, gc=False):
    """A run of offsets of one partition inside one row group of one messages file. Times are µs UTC.

    Compaction removes messages from the middle of a run. Then it spans more offsets than it has rows: it has gaps, and
    its rows are found by their offsets. The first and the last offset have their rows.
    """

    queue: int
    partition: int
    first_offset: int
    count: int
    pushed_first_at: int
    pushed_last_at: int
    file: str  # name under the data directory
    row_group: int
    row: int  # of first_offset inside the row group
    flags: int  # batch columns that some row may have; the others need not be read
    bytes: int  # of payloads, keys, headers and the like
    due_last: int  # greatest available_at, 0 when no row has one
    expires_first: int  # least expires_at, 0 when no row has one
    rows: int = 0  # stored, when that is fewer than `count`; 0: one for each offset

    @property
    def end_offset(self) -> int:
        return self.first_offset + self.count

    @property
    def stored_rows(self) -> int:
        """How many messages it holds."""
        return self.rows or self.count

    def row_of(self, offset: int) -> int:
        """The row of `offset` in what `SegmentStore.load` brings; without gaps it is that in the row group."""
        return self.row + offset - self.first_offset


_PARTITION: Final = attrgetter("queue", "partition")
_FIRST: Final = attrgetter("first_offset")
_END: Final = attrgetter("end_offset")


class Extents:
    """All extents that count, by queue and partition.

    One thread at a time changes it, others may read meanwhile: a run grows at its end and is otherwise replaced, so
    that a reader sees a run as it was. Changes cost what they change, however many extents there are.
    """

    def __init__(self, extents: Iterable[Extent] = ()) -> None:
        self._runs: dict[int, dict[int, list[Extent]]] = {}  # queue → partition → in order of offset
        self.add(extents)

    def __iter__(self) -> Iterator[Extent]:
        """All extents, sorted."""
        for _, partitions in sorted(self._runs.items()):
            for _, run in sorted(partitions.items()):
                yield from list(run)

    def __len__(self) -> int:
        return sum(len(run) for partitions in list(self._runs.values()) for run in list(partitions.values()))

    def queues(self) -> set[int]:
        """Queues that have extents."""
        return set(self._runs)

    def of_queue(self, queue: int) -> Iterator[Extent]:
        """The extents of a queue, its partitions in no order."""
        return chain.from_iterable(list(self._runs.get(queue, {}).values()))

    def of_partition(self, queue: int, partition: int) -> list[Extent]:
        """The extents of one partition, in order. Not to be altered."""
        return self._runs.get(queue, {}).get(partition, [])

    def find(self, queue: int, partition: int, offset: int) -> Extent | None:
        """The extent that holds `offset`, or else the next one after it."""
        run = self.of_partition(queue, partition)
        index = bisect_right(run, offset, key=_END)
        return run[index] if index < len(run) else None

    def has(self, extent: Extent) -> bool:
        """Whether this very extent counts."""
        return self.find(extent.queue, extent.partition, extent.first_offset) == extent

    def below(self, queue: int, partition: int, start: int) -> list[Extent]:
        """The extents of a partition that lie wholly below an offset."""
        run = self.of_partition(queue, partition)
        return run[: bisect_right(run, start, key=_END)]

    def add(self, extents: Iterable[Extent]) -> None:
        """Add extents, sorted; one that begins where another did replaces it."""
        for (queue, partition), group in groupby(extents, _PARTITION):
            run = self._runs.setdefault(queue, {}).setdefault(partition, [])
            for extent in group:
                if not run or extent.first_offset > run[-1].first_offset:
                    run.append(extent)
                    continue
                index = bisect_left(run, extent.first_offset, key=_FIRST)
                if run[index].first_offset == extent.first_offset:
                    run[index] = extent
                else:
                    run = self._runs[queue][partition] = [*run[:index], extent, *run[index:]]

    def remove(self, extents: Iterable[Extent]) -> None:
        """Remove these very extents, sorted; one that has moved to another file stays."""
        for (queue, partition), group in groupby(extents, _PARTITION):
            gone, run = set(group), self.of_partition(queue, partition)
            first = next((index for index, extent in enumerate(run) if extent not in gone), len(run))
            kept = run[first:] if first == len(gone) else [extent for extent in run if extent not in gone]
            self._replace(queue, partition, kept)

    def _replace(self, queue: int, partition: int, run: list[Extent]) -> None:
        partitions = self._runs.get(queue, {})
        if run:
            partitions[partition] = run
        else:
            partitions.pop(partition, None)
        if not partitions:
            self._runs.pop(queue, None)
