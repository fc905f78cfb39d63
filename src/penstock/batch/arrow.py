"""Batches as Arrow, and Arrow columns as batches, without copying payloads.

    priority int16 · delay duration[us] · deliver_at timestamp[us, UTC] · ttl duration[us] · max_attempts int32 ·
    content_type string · key string · dedup_key string · trace_id string · headers map<string, string> ·
    payload binary

A column that the batch does not have is left out; a value that is not set is null. `from_arrow` and `to_arrow` check
nothing: bytes reach them only after `parse(validate=True)`.

`build_from_table` makes a batch of a producer's table: the one place where Arrow data from outside comes in. Columns
are found by name and brought to the types above; what does not fit is refused by column and row. A name that is not
known is an error, so a misspelt option is never silently dropped; the columns that Penstock itself adds when messages
are read are ignored, so that a table that was read can be pushed again.

Arrow makes objects from a column, and a column from objects, several times as fast as Python can; `layout` and `fields`
import this module only for columns that are long enough to gain from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock import limits
from penstock.batch import Batch, fields, layout
from penstock.batch.fields import (
    FIXED_MAX,
    TEXT_BYTES_MAX,
    check_batch_bytes,
    check_count,
    check_lengths,
    check_range,
    refuse,
)
from penstock.batch.layout import OFFSET, Binary, Bytes, Headers, Int32s, Int64s, Text
from penstock.errors import InputError, InvalidField
from penstock.model import CONTENT_TYPE_NAMES, ContentType
from penstock.refusals import number_range, suggestion

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
    """A batch whose columns are Arrow arrays; its bytes are made only when they are needed."""

    __slots__ = ("_arrays",)

    def __init__(self, arrays: dict[int, pa.Array], partitions: Partitions | None = None) -> None:
        payload = arrays[layout.PAYLOAD]
        self._arrays = arrays
        self._data = None
        self._positions = None
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


READ_COLUMNS: Final = frozenset(
    ("queue", "incarnation", "partition_id", "offset", "pushed_at", "available_at", "expires_at", "producer")
)
_FIXED_MAX: Final = {**FIXED_MAX, layout.PRIORITY: limits.priority_max, layout.MAX_ATTEMPTS: limits.attempts_max}
_DURATIONS: Final = (layout.DELAY, layout.TTL)
_NULL_FOR_NONE: Final = (layout.TTL, layout.MAX_ATTEMPTS)  # where 0 would mean "none", say so
_PARTITION: Final = "partition"


def build_from_table(source: Any, *, compress: bool = False) -> Batch:
    """The batch of a table, a record batch, a single column of payloads, or anything that Arrow can read."""
    table = _table(source)
    check_count(table.num_rows)
    _check_names(table.schema.names)
    arrays = {}
    for name, column in zip(table.schema.names, table.columns, strict=True):
        if name in FLAGS and (name == "payload" or column.null_count < len(column)):
            arrays[FLAGS[name]] = _fitted(FLAGS[name], name, column)
    if _is_text(table.schema.field("payload").type):
        text = pa.repeat(pa.scalar(CONTENT_TYPE_NAMES[ContentType.TEXT]), table.num_rows)
        arrays.setdefault(layout.CONTENT_TYPE, text)
    batch = ArrowBatch(arrays)
    _check_lengths(batch)
    return Batch(batch.encode(compress=compress), _partitions(table))


def _table(source: Any) -> pa.Table:
    if isinstance(source, pa.Array | pa.ChunkedArray):
        return pa.table({"payload": source})
    return source if isinstance(source, pa.Table) else pa.table(source)


def _check_names(names: list[str]) -> None:
    known = (*FLAGS, _PARTITION)
    for name in names:
        if name not in READ_COLUMNS and name not in known:
            raise InvalidField(f"{name}: not a column of a message", hint=suggestion(name, known))
    if "payload" not in names:
        raise InvalidField(
            "payload: the table has no such column", hint="the column of payloads must be named 'payload'"
        )
    fields = [FLAGS.get(name, name) for name in names]
    for name, field in zip(names, fields, strict=True):
        if fields.count(field) > 1:
            raise InvalidField(f"{name}: the table has this column twice")


def _fitted(flag: int, name: str, column: pa.ChunkedArray) -> pa.Array:
    """A column, in one piece, of the type that `arrow` gives it, and sound."""
    _check_size(column)
    array = one_array(column)
    try:
        array.validate(full=True)
        fitted = _fit(flag, name, array)
        fitted.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidField(f"{name}: a column of {array.type} does not fit: {error}") from None
    return fitted


def _fit(flag: int, name: str, array: pa.Array) -> pa.Array:
    if flag == layout.PAYLOAD:
        _refuse_nulls(array, name)
        return array.cast(pa.binary())
    if flag == layout.HEADERS:
        return _fit_headers(array, name)
    if flag == layout.CONTENT_TYPE:
        return _fit_content_types(array, name)
    if flag in layout.TEXTS:
        return _fit_text(array, name)
    return _fit_numbers(flag, name, array)


def _fit_numbers(flag: int, name: str, array: pa.Array) -> pa.Array:
    if flag == layout.DELIVER_AT and not (pa.types.is_timestamp(array.type) and array.type.tz):
        raise InvalidField(f"{name}: {array.type} is not a time with a zone", hint="use timestamp[us, UTC]")
    if flag in _DURATIONS:
        array = _durations(name, array)
    elif flag != layout.DELIVER_AT and not pa.types.is_integer(array.type):
        raise InvalidField(f"{name}: a column of {array.type} does not fit", hint="use integers")
    target = TYPES[flag] if pa.types.is_temporal(TYPES[flag]) else pa.int64()
    array = array.cast(target, safe=not pa.types.is_temporal(target))
    least = 1 if flag in _NULL_FOR_NONE else 0
    numbers = array.view(pa.int64()).fill_null(least).to_numpy(zero_copy_only=False)
    check_range(numbers, name, _FIXED_MAX[flag], least)
    return array.cast(TYPES[flag])


def _durations(name: str, array: pa.Array) -> pa.Array:
    """Durations as they are; plain numbers are seconds, as everywhere in Python."""
    if pa.types.is_duration(array.type):
        return array
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
        raise InvalidField(f"{name}: a column of {array.type} does not fit", hint="use durations, or seconds")
    _check_finite(array, name)
    micros = pc.round(pc.multiply(array.cast(pa.float64()), 1e6))
    return micros.cast(pa.int64()).view(pa.duration("us"))


def _check_finite(array: pa.Array, name: str) -> None:
    numbers = array.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    bad = ~((numbers >= 0) & (numbers <= limits.delay_seconds_max))
    if bad.any():
        row = int(np.argmax(bad))
        seconds = number_range(0, limits.delay_seconds_max)
        refuse(row, f"{name}: {numbers[row]} is not a number of seconds from {seconds}")


def _fit_content_types(array: pa.Array, name: str) -> pa.Array:
    array = _fit_text(array, name)
    unknown = np.asarray(pc.and_(pc.is_valid(array), pc.invert(pc.is_in(array, CONTENT_TYPES))))
    if unknown.any():
        row = int(np.argmax(unknown))
        refuse(row, f"{name}: {array[row].as_py()!r} is not one of {', '.join(CONTENT_TYPES.to_pylist())}")
    # A tombstone that was read is JSON: where it goes it is marked again.
    tombstone, json = (CONTENT_TYPE_NAMES[kind] for kind in (ContentType.TOMBSTONE, ContentType.JSON))
    return pc.if_else(pc.equal(array, tombstone), json, array)


def _fit_text(array: pa.Array, name: str) -> pa.Array:
    if not _is_text(array.type):
        raise InvalidField(f"{name}: a column of {array.type} does not fit", hint="use strings")
    return array.cast(pa.string())


def _fit_headers(array: pa.Array, name: str) -> pa.Array:
    array = array.cast(TYPES[layout.HEADERS])
    if array.null_count:
        array = array.take(pa.array(np.arange(len(array))))  # a null may have pairs behind it; this leaves them out
    nulls = np.asarray(array.items.is_null())
    if nulls.any():
        row = int(np.searchsorted(np.asarray(array.offsets), np.argmax(nulls), "right")) - 1
        refuse(row, f"{name}: a value is null")
    return array


def _refuse_nulls(array: pa.Array, name: str) -> None:
    if array.null_count:
        refuse(int(np.argmax(np.asarray(array.is_null()))), f"{name}: null")


def _check_size(column: pa.ChunkedArray) -> None:
    """No column is far larger than a batch may be, counted as it will be once decoded."""
    length = column.nbytes
    for chunk in column.chunks:
        if pa.types.is_dictionary(chunk.type):
            lengths = pc.binary_length(chunk.dictionary).take(chunk.indices)
            length += pc.sum(lengths).as_py() or 0
    if length > 4 * limits.batch_bytes_max:
        check_batch_bytes(length)


def _check_lengths(batch: Batch) -> None:
    for flag, limit in TEXT_BYTES_MAX.items():
        text = batch.text(flag)
        if text is not None:
            check_lengths(text.values.lengths(), layout.NAMES[flag], limit)
    headers = batch.headers_column()
    if headers is not None:
        check_lengths(headers.lengths(), "headers", limits.headers_bytes_max)


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _partitions(table: pa.Table) -> fields.Partitions | None:
    if _PARTITION not in table.schema.names:
        return None
    encoded = one_array(table.column(_PARTITION)).dictionary_encode()
    try:
        names = fields.partitions(encoded.dictionary.to_pylist())
    except InputError:
        return fields.partitions(encoded.to_pylist())  # refuses it too, and names the row
    if names is None:
        return None
    positions = encoded.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)
    partitions: fields.Partitions = np.array([*names, None], object)[positions].tolist()
    return partitions


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
