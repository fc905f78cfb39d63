"""From leased or read offsets to rows in batches.

Planning runs while the shard is held and touches no file; loading row groups of sealed segments runs afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch
from penstock.delivery.log import Extent, Partition
from penstock.replies import Piece
from penstock.storage.extent import Extent as SealedExtent

Int64s = NDArray[np.int64]


class SegmentReader(Protocol):
    """What is needed of the segment store."""

    def load(self, extent: SealedExtent) -> Batch: ...

    def pushed_at(self, extent: SealedExtent) -> Int64s: ...


class Plan(msgspec.Struct, frozen=True):
    """Some offsets of one extent. `batch` is None when it lies in a segment."""

    partition: str
    batch: Batch | None
    sealed: SealedExtent | None
    rows: slice | Int64s
    offsets: Sequence[int]
    attempts: int | Sequence[int]
    pushed_at: int


def plan(partition: Partition, offsets: Sequence[int], attempts: int | Sequence[int] = 0) -> list[Plan]:
    """Where these offsets, ascending, lie."""
    plans: list[Plan] = []
    done = 0
    while done < len(offsets):
        extent = partition.extent_at(offsets[done])
        until = _until(offsets, done, extent.end)
        part = offsets[done:until]
        tries = attempts if isinstance(attempts, int) else attempts[done:until]
        rows = _rows(extent, part)
        plans.append(Plan(partition.name, extent.batch, extent.sealed, rows, part, tries, extent.pushed_at))
        done = until
    return plans


def _until(offsets: Sequence[int], start: int, end_offset: int) -> int:
    """The index of the first offset at or after `end_offset`."""
    if isinstance(offsets, range):
        return min(len(offsets), start + end_offset - offsets[start])
    until = start + 1
    while until < len(offsets) and offsets[until] < end_offset:
        until += 1
    return until


def _rows(extent: Extent, offsets: Sequence[int]) -> slice | Int64s:
    shift = -extent.first if extent.sealed is None else extent.sealed.row - extent.sealed.first_offset
    if isinstance(offsets, range) and extent.rows is None:
        return slice(offsets.start + shift, offsets.stop + shift)
    places = np.array(offsets, np.int64) + shift
    return places if extent.rows is None else extent.rows[places]


def load(plans: Sequence[Plan], store: SegmentReader | None) -> list[Piece]:
    """Fetch what lies in segments."""
    return [_piece(each, store) for each in plans]


def _piece(each: Plan, store: SegmentReader | None) -> Piece:
    if each.batch is not None:
        return Piece(each.batch, each.rows, each.partition, each.offsets, each.attempts, each.pushed_at)
    assert each.sealed is not None
    assert store is not None
    batch = store.load(each.sealed)
    times = store.pushed_at(each.sealed)
    places = np.array(each.offsets, np.int64) - each.sealed.first_offset
    return Piece(batch, each.rows, each.partition, each.offsets, each.attempts, times[places])
