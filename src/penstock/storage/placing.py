"""Where rows go in a file: row groups, and the extents that lead back to them.

Both follow from the columns of the table alone, so sealing and compaction place rows the same way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock import limits
from penstock.storage.extent import Extent

Int64s = NDArray[np.int64]


def row_ends(sizes: Int64s) -> list[int]:
    """Where row groups end, given the bytes of each row: full of rows or full of bytes, whichever comes first."""
    total = np.cumsum(sizes)
    ends: list[int] = []
    row = taken = 0
    while row < len(sizes):
        fitting = int(np.searchsorted(total, taken + limits.segment_row_group_bytes, "right"))
        row = min(max(fitting, row + 1), row + limits.segment_row_group_rows, len(sizes))
        taken = int(total[row - 1])
        ends.append(row)
    return ends


def row_sizes(table: pa.Table) -> Int64s:
    """Bytes of the columns of varying length, by row."""
    sizes = _lengths(table["payload"])
    for name in ("key", "dedup_key", "trace_id"):
        if table[name].null_count < len(table):
            sizes += _lengths(table[name])
    if table["headers"].null_count < len(table):
        sizes += _headers_lengths(table["headers"])
    return sizes


def place(table: pa.Table, flags: NDArray[np.int64], name: str, ends: list[int]) -> list[Extent]:
    """The extents of a messages table that is written to `name` with row groups that end at `ends`.

    Rows are sorted; `flags` tells for each which batch columns it may have.
    """
    if not len(table):
        return []
    queue, partition, offset = (_numbers(table, column) for column in ("incarnation", "partition_id", "offset"))
    breaks = (np.diff(queue) != 0) | (np.diff(partition) != 0) | (np.diff(offset) != 1)
    firsts = np.union1d(np.flatnonzero(breaks) + 1, [0, *ends[:-1]])
    groups = np.searchsorted(ends, firsts, "right")
    pushed_at = _numbers(table, "pushed_at")
    expires_at = np.minimum.reduceat(_numbers(table, "expires_at", np.iinfo(np.int64).max), firsts)
    expires_at[expires_at == np.iinfo(np.int64).max] = 0
    columns = [
        queue[firsts],
        partition[firsts],
        offset[firsts],
        np.diff(firsts, append=len(table)),
        np.minimum.reduceat(pushed_at, firsts),
        np.maximum.reduceat(pushed_at, firsts),
        groups,
        firsts - np.array([0, *ends])[groups],
        np.bitwise_or.reduceat(flags, firsts),
        np.add.reduceat(_lengths(table["payload"]), firsts),
        np.maximum.reduceat(_numbers(table, "available_at"), firsts),
        expires_at,
    ]
    lists: list[Any] = [column.tolist() for column in columns]
    lists.insert(Extent.__struct_fields__.index("file"), [name] * len(firsts))
    return list(map(Extent, *lists))


def _numbers(table: pa.Table, name: str, null: int = 0) -> Int64s:
    column = table[name]
    if column.null_count == len(column):
        return np.full(len(column), null, np.int64)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if column.null_count:
        column = column.fill_null(null)
    numbers: Int64s = column.to_numpy()
    return numbers


def _lengths(column: pa.ChunkedArray) -> Int64s:
    lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy()
    return np.asarray(lengths, np.int64)


def _headers_lengths(column: pa.ChunkedArray) -> Int64s:
    lengths = []
    for array in column.chunks:
        pairs = array.offsets.to_numpy()
        bytes_before = [
            np.append(0, np.cumsum(_lengths(pa.chunked_array([side])))) for side in (array.keys, array.items)
        ]
        lengths.append(sum(np.diff(before[pairs]) for before in bytes_before))
    return np.concatenate(lengths)
