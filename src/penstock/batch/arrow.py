"""Batches as Arrow, and Arrow columns as batches, without copying payloads.

    priority int16 · delay duration[us] · deliver_at timestamp[us, UTC] · ttl duration[us] · max_attempts int32 ·
    content_type string · key string · dedup_key string · trace_id string · headers map<string, string> ·
    payload binary

A column that the batch does not have is left out; a value that is not set is null. Nothing is checked here: bytes
reach Arrow only after `parse(validate=True)`, a producer's table only after `tables.build_from_table`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock import limits
from penstock.batch import layout
from penstock.batch.batch import Batch
from penstock.batch.columns import Binary, Headers, Text
from penstock.batch.layout import OFFSET
from penstock.batch.views import binary_array, offsets_array, text_array
from penstock.model import CONTENT_TYPE_NAMES

if TYPE_CHECKING:
    from penstock.batch.fields import Partitions

TYPES: Final = {
    layout.PRIORITY: pa.int16(),
    layout.DELAY: pa.duration("us"),
    layout.DELIVER_AT: pa.timestamp("us", "UTC"),
    layout.TTL: pa.duration("us"),
    layout.MAX_ATTEMPTS: pa.int32(),
    layout.CONTENT_TYPE: pa.string(),
    layout.KEY: pa.string(),
    layout.DEDUP_KEY: pa.string(),
    layout.TRACE: pa.string(),
    layout.HEADERS: pa.map_(pa.string(), pa.string()),
    layout.PAYLOAD: pa.binary(),
}
NAMES: Final = {**layout.NAMES, layout.TRACE: "trace_id"}
FLAGS: Final = {**{name: flag for flag, name in NAMES.items()}, "trace": layout.TRACE}

CONTENT_TYPES: Final = pa.array(list(CONTENT_TYPE_NAMES.values()), pa.string())


class ArrowBatch(Batch):
    """A batch whose columns are Arrow arrays; its bytes are made only if someone asks for them."""

    __slots__ = ("_arrays",)

    def __init__(self, arrays: dict[int, pa.Array], partitions: Partitions | None = None) -> None:
        payload = arrays[layout.PAYLOAD]
        self._arrays = arrays
        self._data = None
        self._places = None
        self._cache = None
        self.count = len(payload)
        self.flags = sum(flag for flag in arrays if flag != layout.PAYLOAD)
        self.partitions = partitions
        self.compressed = False
        start, end = self.payload_column().span
        self.payload_bytes = end - start

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays.values())

    def _load(self, flag: int) -> Any:
        array = self._arrays[flag]
        if flag == layout.PAYLOAD:
            return Binary.of(array)
        if flag == layout.HEADERS:
            return Headers(_numbers(array.offsets, OFFSET, 0), Binary.of(array.keys), Binary.of(array.items))
        if flag in layout.TEXTS:
            return Text.of(array)
        if flag == layout.CONTENT_TYPE:
            array = pc.index_in(array, CONTENT_TYPES)
        default = limits.priority_default if flag == layout.PRIORITY else 0
        return _numbers(array, layout.FIXED[flag], default)


def from_arrow(table: pa.Table | pa.RecordBatch) -> Batch:
    """The columns that belong to a message, by their names; the rest is left alone."""
    arrays = {}
    for name, column in zip(table.schema.names, table.columns, strict=True):
        flag = FLAGS.get(name)
        if flag is not None and (flag == layout.PAYLOAD or column.null_count < len(column)):
            arrays[flag] = one_array(column)
    return ArrowBatch(arrays)


def to_arrow(batch: Batch) -> pa.RecordBatch:
    """The batch as one record batch that shares its memory."""
    fields = [flag for flag in NAMES if batch.flags & flag or flag == layout.PAYLOAD]
    arrays = [_array(batch, flag) for flag in fields]
    return pa.RecordBatch.from_arrays(arrays, names=[NAMES[flag] for flag in fields])


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column in one piece; copied only if it is in several."""
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def _numbers(array: pa.Array, dtype: np.dtype[Any], default: int) -> Any:
    if not pa.types.is_integer(array.type):
        array = array.view(pa.int64())  # durations and timestamps are µs underneath
    if array.null_count:
        array = array.fill_null(default)
    return array.to_numpy(zero_copy_only=False).astype(dtype, copy=False)


def _array(batch: Batch, flag: int) -> pa.Array:
    column: Any = batch.column(flag)
    if flag == layout.PAYLOAD:
        return binary_array(column)
    if flag in layout.TEXTS:
        return text_array(column.values, column.validity)
    if flag == layout.HEADERS:
        names, values = text_array(column.names), text_array(column.values)
        return pa.MapArray.from_arrays(offsets_array(column.rows), names, values)
    if flag == layout.CONTENT_TYPE:
        return CONTENT_TYPES.take(pa.array(column))
    return _from_numbers(flag, column)


def _from_numbers(flag: int, column: Any) -> pa.Array:
    mask = None if flag in (layout.PRIORITY, layout.DELAY) else column == 0
    if flag in (layout.PRIORITY, layout.MAX_ATTEMPTS):
        return pa.array(column.astype(np.int32 if flag == layout.MAX_ATTEMPTS else np.int16), mask=mask)
    return pa.array(np.require(column, requirements="A"), mask=mask).view(TYPES[flag])
