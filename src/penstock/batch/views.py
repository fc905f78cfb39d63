"""Columns of varying length as Arrow arrays over the same memory, and lists of objects to and from columns by Arrow.

Arrow makes objects from a column, and a column from objects, several times as fast as Python can, but is imported only
once there is something to gain. Of bytes, only what was checked or written by Penstock may come here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.batch.columns import Binary, Bytes, Int32s, Int64s, Text


def binary_array(column: Binary, validity: Bytes | None = None, kind: pa.DataType | None = None) -> pa.Array:
    """The column as an array of `kind`, binary by default."""
    blob = pa.py_buffer(column.buffer)
    blob = blob.slice(column.base) if column.base else blob
    bits = None if validity is None else pa.py_buffer(np.ascontiguousarray(validity))
    return pa.Array.from_buffers(kind or pa.binary(), len(column.offsets) - 1, [bits, aligned(column.offsets), blob])


def text_array(column: Binary, validity: Bytes | None = None) -> pa.Array:
    """The column as an array of strings."""
    return binary_array(column, validity, pa.string())


def offsets_array(offsets: Int32s) -> pa.Array:
    """Offsets as an array of int32."""
    return pa.Array.from_buffers(pa.int32(), len(offsets), [None, aligned(offsets)])


def aligned(offsets: Int32s) -> pa.Buffer:
    """Offsets as a buffer, copied if they are not aligned, as in a received frame they may be: Arrow refuses those."""
    return pa.py_buffer(np.require(offsets, requirements=["A", "C"]))


def objects(array: pa.Array) -> list[Any]:
    """The values as Python objects."""
    values: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
    return values


def picked(column: Binary, rows: Int64s) -> pa.Array:
    """Some rows, copied to an array of their own."""
    return binary_array(column).take(pa.array(rows))


def text_column(items: list[str | None]) -> Text | None:
    """A column of these strings; None when one is not valid text, or they are too long together for one array."""
    try:
        array = pa.array(items, pa.string())
    except UnicodeEncodeError:
        return None
    return Text.of(array) if isinstance(array, pa.Array) else None
