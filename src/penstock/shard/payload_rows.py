"""From leased or read offsets to rows in batches.

Planning runs while the shard is held and touches no file; loading row groups of sealed segments runs afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch
from penstock.delivery.group import Take
from penstock.delivery.log import Extent, Partition
from penstock.errors import MessageNotFound
from penstock.replies import Piece
from penstock.storage.extents import Extent as SealedExtent

Int64s = NDArray[np.int64]


class SegmentReader(Protocol):
    """What is needed of the segment store."""

    def load(self, extent: SealedExtent) -> Batch: ...

    def pushed_at(self, extent: SealedExtent) -> Int64s: ...


def pieces_of(partition: Partition, offsets: Sequence[int], attempts: int | Sequence[int] = 0) -> list[Piece]:
    """Where these offsets, ascending, lie. A piece in a segment has no batch yet: `load` brings it."""
    pieces: list[Piece] = []
    done, count = 0, len(offsets)
    position = partition.extent_index(offsets[0]) if count else 0
    while done < count:
        extent = partition.extents[position]
        if not extent.first <= offsets[done] < extent.end:
            position = partition.extent_index(offsets[done])
            extent = partition.extents[position]
            assert extent.first <= offsets[done] < extent.end, "an offset that is in no extent"
        if done == 0 and offsets[-1] < extent.end:
            until, part, tries = count, offsets, attempts
        else:
            until = _until(offsets, done, extent.end)
            part = offsets[done:until]
            tries = attempts if isinstance(attempts, int) else attempts[done:until]
        source = extent.batch or extent.sealed
        pieces.append(Piece(source, _rows(extent, part), partition.name, part, tries, extent.pushed_at))
        done = until
        position += 1
    return pieces


def pieces_of_takes(takes: Sequence[Take]) -> list[Piece]:
    """The pieces of a lease, in order. Neighbours of one message each that came in one batch make one piece."""
    if len(takes) == 1:
        return pieces_of(takes[0].progress.partition, takes[0].offsets, takes[0].attempts)
    pieces: list[Piece] = []
    run: _Run | None = None
    for take in takes:
        partition, offset = take.progress.partition, take.offsets[0]
        extent = partition.extents[0] if len(partition.extents) == 1 else partition.extent_at(offset)
        if len(take.offsets) > 1 or extent.sealed is not None:
            run = None
            pieces += pieces_of(partition, take.offsets, take.attempts)
            continue
        if run is None or run.source is not extent.source:
            run = _Run(extent.source)
            pieces.append(Piece(extent.batch, run.rows, run.names, run.offsets, run.attempts, extent.pushed_at))
        run.rows.append(offset - extent.first if extent.rows is None else extent.rows[offset - extent.first])
        run.names.append(partition.name)
        run.offsets.append(offset)
        run.attempts.append(take.attempts if isinstance(take.attempts, int) else take.attempts[0])
    return pieces


class _Run(msgspec.Struct):
    """Columns of a piece that grows."""

    source: Any
    rows: list[int] = []
    names: list[str] = []
    offsets: list[int] = []
    attempts: list[int] = []


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
    if isinstance(offsets, range):
        rows = slice(offsets.start + shift, offsets.stop + shift)
        return rows if extent.rows is None else extent.rows[rows]
    positions = np.array(offsets, np.int64) + shift
    return positions if extent.rows is None else extent.rows[positions]


def load(pieces: Sequence[Piece], store: SegmentReader, *, only_kept: bool = False) -> list[Piece]:
    """Fetch what lies in segments; with `only_kept` without what was removed since the pieces were planned."""
    found: list[Piece] = []
    for piece in pieces:
        try:
            found.append(_fetched(piece, piece.batch, store) if type(piece.batch) is SealedExtent else piece)
        except MessageNotFound:
            if not only_kept:
                raise
    return found


def sealed_extents(pieces: Sequence[Piece]) -> list[SealedExtent]:
    """The extents that have to be fetched."""
    return [piece.batch for piece in pieces if type(piece.batch) is SealedExtent]


def fetch_times(pieces: Sequence[Piece]) -> None:
    """Read when sealed messages were pushed: once they are removed, nobody can."""
    for piece in pieces:
        if isinstance(piece.pushed_at, SealedTimes):
            piece.pushed_at.fetch()


def _fetched(piece: Piece, sealed: SealedExtent, store: SegmentReader) -> Piece:
    return msgspec.structs.replace(piece, batch=store.load(sealed), pushed_at=SealedTimes(store, sealed))


@dataclass(slots=True, eq=False)
class SealedTimes:
    """When the messages of a sealed extent were pushed: the column is read when someone asks."""

    _store: SegmentReader
    _sealed: SealedExtent
    _times: Int64s | None = None  # once they were read

    def fetch(self) -> Int64s:
        if self._times is None:
            self._times = self._store.pushed_at(self._sealed)
        return self._times

    def of(self, offset: int) -> int:
        return int(self.fetch()[offset - self._sealed.first_offset])

    def of_all(self, offsets: Sequence[int]) -> Int64s:
        times = self.fetch()
        first = self._sealed.first_offset
        if isinstance(offsets, range):
            return times[offsets.start - first : offsets.stop - first]
        return times[np.asarray(offsets, np.int64) - first]
