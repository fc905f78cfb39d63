"""A slice: what happened in one second, minute, hour or day, for every queue and the broker.

The bytes of a slice, deflated:

    [at, names, ids, columns, broker, cells]         MessagePack
    at       when the slice begins, in seconds since 1970
    names    {id: name} of queues that the file has not named before
    ids      of the rows, ascending, each as the difference from the one before
    columns  one array per column of `tiers.COLUMNS`; `delivered` and `acked` as differences from the column before,
             `lag` from the sum of ready, leased and delayed, `oldest_age_ms` rounded
    broker   one number per column of `tiers.BROKER_COLUMNS`
    cells    latencies: ids of rows as differences, cells of each row, buckets as differences, observations rounded

An array is [letter of its type, bytes]: the smallest integer that holds its values. A rounded number has
`ROUNDED_BITS` leading bits: exponent · 2^bits + mantissa. Latencies are in buckets of two of `meter.GRID`. So a
percentile from a slice is at most 12 % off, and a year of a thousand busy queues fits into 50 MB
(`tests/rollups/test_size.py`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import sqrt
from operator import itemgetter
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.model_metrics import BROKER_COUNTERS, COUNTERS
from penstock.rollups.tiers import COLUMNS
from penstock.telemetry.meter import GRID

Int64s = NDArray[np.int64]
GRID_BUCKETS: Final = 2  # of `meter.GRID` in one bucket of a slice
_BOUNDS: Final = (GRID[0], *GRID[1::GRID_BUCKETS], GRID[-1])
# What observations of each bucket count as, in seconds.
MIDDLES: Final = tuple(sqrt(low * high) for low, high in pairwise(_BOUNDS))
BUCKETS: Final = len(MIDDLES)
ROUNDED_BITS: Final = 3
COUNTED: Final = len(COUNTERS)
BROKER_COUNTED: Final = len(BROKER_COUNTERS)
_SIZES: Final = ("b", "h", "i", "q")
_DIFFERENCES: Final = (COLUMNS.index("delivered"), COLUMNS.index("acked"))
_WAITING: Final = [COLUMNS.index(name) for name in ("ready", "leased", "delayed")]
_LAG, _AGE = COLUMNS.index("lag"), COLUMNS.index("oldest_age_ms")
_COMPRESSION: Final = 6


class Slice(msgspec.Struct, eq=False):
    """`values` has a row per id, a column per name in `tiers.COLUMNS`; `cells` has row id, bucket and observations."""

    at: int  # seconds since 1970
    ids: Int64s
    values: Int64s
    broker: Int64s
    cells: Int64s

    def row(self, id: int) -> Int64s | None:
        """The columns of a queue, or of `tiers.BROKER`; None when there is no such row."""
        place = int(np.searchsorted(self.ids, id))
        return self.values[place] if place < len(self.ids) and self.ids[place] == id else None

    def latencies(self, ids: Sequence[int] | None) -> Int64s:
        """Observations per bucket of some rows together; of all queues when None."""
        rows = self.cells[:, 0]
        chosen = self.cells[rows > 0 if ids is None else np.isin(rows, ids)]
        return np.bincount(chosen[:, 1], chosen[:, 2], BUCKETS).astype(np.int64)


def new_slice(
    at: int, rows: Sequence[Sequence[int]], broker: Sequence[int], cells: Sequence[tuple[int, int, int]]
) -> Slice:
    """A slice of rows that begin with their id."""
    table = np.array(sorted(rows, key=itemgetter(0)), np.int64).reshape(len(rows), len(COLUMNS) + 1)
    return Slice(
        at, table[:, 0], table[:, 1:], np.array(broker, np.int64), np.array(cells, np.int64).reshape(len(cells), 3)
    )


def merged(at: int, slices: Iterable[Slice]) -> Slice | None:
    """All of them as one that begins at `at`: counters added up, gauges at their highest; None when there are none."""
    parts = list(slices)
    if len(parts) < 2:
        return msgspec.structs.replace(parts[0], at=at) if parts else None
    ids, places = np.unique(np.concatenate([part.ids for part in parts]), return_inverse=True)
    rows = np.concatenate([part.values for part in parts])
    values = np.zeros((len(ids), len(COLUMNS)), np.int64)
    np.add.at(values[:, :COUNTED], places, rows[:, :COUNTED])
    np.maximum.at(values[:, COUNTED:], places, rows[:, COUNTED:])
    broker = np.array([part.broker for part in parts])
    together = np.concatenate([broker[:, :BROKER_COUNTED].sum(axis=0), broker[:, BROKER_COUNTED:].max(axis=0)])
    return Slice(at, ids, values, together, _added(np.concatenate([part.cells for part in parts])))


def _added(cells: Int64s) -> Int64s:
    """One cell per row and bucket."""
    if not len(cells):
        return cells
    keys, places = np.unique(cells[:, :2], axis=0, return_inverse=True)
    counts = np.bincount(places.reshape(-1), cells[:, 2]).astype(np.int64)
    return np.column_stack([keys, counts])


# bytes


def encode(part: Slice, names: dict[int, str]) -> bytes:
    """The bytes of a slice, and the names that its file does not have yet."""
    columns = part.values.T.copy()
    columns[_LAG] -= columns[_WAITING].sum(axis=0)
    for place in reversed(_DIFFERENCES):
        columns[place] -= columns[place - 1]
    columns[_AGE] = _rounded(columns[_AGE])
    body = [
        part.at,
        names,
        _packed(np.diff(part.ids, prepend=0)),
        list(map(_packed, columns)),
        part.broker.tolist(),
        _encode_cells(_added(part.cells)),
    ]
    return zlib.compress(msgspec.msgpack.encode(body), _COMPRESSION)


def _encode_cells(cells: Int64s) -> list[tuple[str, bytes]]:
    rows, counts = np.unique(cells[:, 0], return_counts=True)
    columns = (np.diff(rows, prepend=0), counts, np.diff(cells[:, 1], prepend=0), _rounded(cells[:, 2]))
    return list(map(_packed, columns))


def decode(data: bytes) -> tuple[Slice, dict[int, str]]:
    """A slice and the names beside it."""
    at, names, ids, columns, broker, cells = msgspec.msgpack.decode(zlib.decompress(data), strict=False)
    values = np.array(list(map(_unpacked, columns)))
    for place in _DIFFERENCES:
        values[place] += values[place - 1]
    values[_LAG] += values[_WAITING].sum(axis=0)
    values[_AGE] = _unrounded(values[_AGE])
    part = Slice(at, np.cumsum(_unpacked(ids)), values.T, np.array(broker, np.int64), _decode_cells(cells))
    return part, names


def _decode_cells(cells: Any) -> Int64s:
    rows, counts, buckets, observations = map(_unpacked, cells)
    return np.column_stack([np.repeat(np.cumsum(rows), counts), np.cumsum(buckets), _unrounded(observations)])


def _rounded(values: Int64s) -> Int64s:
    """The leading bits of numbers that are not negative, and how far they are shifted."""
    exponents = np.maximum(0, np.frexp(values.astype(np.float64))[1] - ROUNDED_BITS).astype(np.int64)
    codes: Int64s = (exponents << ROUNDED_BITS) + (values >> exponents)
    return codes


def _unrounded(codes: Int64s) -> Int64s:
    """The middle of what was rounded to the same."""
    exponents, mantissas = codes >> ROUNDED_BITS, codes & ((1 << ROUNDED_BITS) - 1)
    middles: Int64s = (mantissas << exponents) + ((1 << exponents) >> 1)
    return middles


def _packed(values: Int64s) -> tuple[str, bytes]:
    high = max(abs(int(values.min())), abs(int(values.max()))) if len(values) else 0
    letter = next(size for size in _SIZES if high <= np.iinfo(size).max)
    return letter, values.astype("<" + letter).tobytes()


def _unpacked(packed: tuple[str, bytes]) -> Int64s:
    letter, data = packed
    return np.frombuffer(data, "<" + letter).astype(np.int64)
