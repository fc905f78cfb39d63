"""Row groups as the delivery core wants them: whole as a batch, or a single column as an array."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.batch import Batch, layout
from penstock.batch.arrow import CONTENT_TYPES
from penstock.errors import InvalidField
from penstock.model import suggestion
from penstock.storage.manifest import SegmentFile
from penstock.storage.parquet import SegmentReader

Column = NDArray[Any]

# The table's columns that a batch has too, and the bit that says whether one need be read.
_SHARED: Final = {
    "priority": layout.PRIORITY,
    "max_attempts": layout.MAX_ATTEMPTS,
    "content_type": layout.CONTENT_TYPE,
    "key": layout.KEY,
    "dedup_key": layout.DEDUP_KEY,
    "trace_id": layout.TRACE,
    "headers": layout.HEADERS,
}
_DTYPES: Final[dict[str, Any]] = {
    "pushed_at": np.int64,
    "available_at": np.int64,
    "expires_at": np.int64,
    "priority": np.uint8,
    "max_attempts": np.uint16,
    "key_hash": np.uint32,
    "content_type": np.uint8,
}


def read_table(reader: SegmentReader, file: SegmentFile, row_group: int) -> pa.Table:
    """All messages of a row group in the columns of a batch; a delay has become the time at which it ends."""
    flags = file.row_groups[row_group].flags
    names = ["payload", *(name for name, flag in _SHARED.items() if flags & flag)]
    if flags & (layout.DELAY | layout.DELIVER_AT):
        names.append("available_at")
    if flags & layout.TTL:
        names += ["pushed_at", "expires_at"]
    table = reader.read(file, row_group, names)
    columns = {name: table[name] for name in names}
    if "available_at" in columns:
        columns["deliver_at"] = columns.pop("available_at")
    if "expires_at" in columns:
        columns["ttl"] = pc.subtract(columns.pop("expires_at"), columns.pop("pushed_at"))
    return pa.table(columns)


def moved_table(table: pa.Table, row: int, count: int, to_row: int) -> pa.Table:
    """The same messages with those from `row` on at `to_row`; what comes before them is filled up with nothing."""
    kept = table.slice(row, count)
    filling = {field.name: pa.nulls(to_row, field.type) for field in kept.schema}
    filling["payload"] = pa.repeat(pa.scalar(b"", pa.binary()), to_row)
    return pa.concat_tables([pa.table(filling).cast(kept.schema), kept]).combine_chunks()


def read_column(reader: SegmentReader, file: SegmentFile, row_group: int, name: str) -> Column:
    """One column of a row group; 0 stands for null."""
    if name not in _DTYPES:
        raise InvalidField(f"column: {name!r} cannot be read alone", hint=suggestion(name, tuple(_DTYPES)))
    if name == "key_hash":
        values = _key_hashes(reader.read(file, row_group, ["key"])["key"])
    elif name == "content_type":
        kinds = pc.index_in(reader.read(file, row_group, [name])[name], CONTENT_TYPES)
        values = _integers(kinds).astype(np.uint8)
    else:
        values = _integers(reader.read(file, row_group, [name])[name]).astype(_DTYPES[name], copy=False)
    values.flags.writeable = False  # it is shared by all who ask
    return values


def _integers(column: pa.ChunkedArray) -> Column:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    values: Column = column.fill_null(0).to_numpy()
    return values


def _key_hashes(keys: pa.ChunkedArray) -> Column:
    # The batch owns the rule for hashes, and a batch has payloads.
    payloads = pa.repeat(pa.scalar(b"", pa.binary()), len(keys))
    hashes = Batch.from_arrow(pa.table({"key": keys, "payload": payloads})).key_hashes()
    return np.zeros(len(keys), np.uint32) if hashes is None else hashes
