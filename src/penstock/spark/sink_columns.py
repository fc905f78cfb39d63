"""The columns of a frame that is written to a queue: checked once on the driver, made into batches by the tasks.

Columns are found by name; an unknown one is refused before anything is written, with the type that was found and the
one that is expected. The columns that the source adds when messages are read are ignored, so that what was read can be
written to another queue. Nothing here creates an object per message but for payloads that become JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from penstock import limits
from penstock.batch import Batch
from penstock.batch.arrow import READ_COLUMNS
from penstock.errors import InvalidField
from penstock.model import CONTENT_TYPE_NAMES, ContentType, suggestion

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

PAYLOAD: Final = "payload"
CONTENT_TYPE: Final = "content_type"

_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
_SECONDS: Final = (*_INTEGERS, "float", "double", "decimal", "interval")
_NESTED: Final = ("struct", "map", "array", "variant")
_ROWS_MAX: Final = 250_000  # of one batch, however small they are
_json: Final = msgspec.json.Encoder(decimal_format="number")


class Column(NamedTuple):
    """The types a column may have: the first words of Spark's names, and a description."""

    kinds: tuple[str, ...]
    expected: str


COLUMNS: Final = {
    PAYLOAD: Column(("binary", "string", *_NESTED[:3]), "binary or string; struct, map and array become JSON"),
    "key": Column(("string",), "string"),
    "headers": Column(("map<string,string>",), "map<string,string>"),
    "priority": Column(_INTEGERS, "an integer from 0 to 255"),
    "delay": Column(_SECONDS, "a number of seconds"),
    "deliver_at": Column(("timestamp",), "timestamp"),
    "ttl": Column(_SECONDS, "a number of seconds"),
    "max_attempts": Column(_INTEGERS, "an integer"),
    "partition": Column(("string", *_INTEGERS), "string or an integer"),
    "dedup_key": Column(("string",), "string"),
    "trace_id": Column(("string",), "string"),
    CONTENT_TYPE: Column(("string",), "string"),
}


def check_columns(schema: StructType) -> tuple[str, ...]:
    """The columns that belong to messages, by name; `InvalidField` names one that does not fit."""
    names = schema.fieldNames()
    for field in schema.fields:
        if field.name in COLUMNS:
            _check_type(field.name, field.dataType)
        elif field.name not in READ_COLUMNS:
            raise InvalidField(
                f"{field.name}: a column of {field.dataType.simpleString()} that no message has",
                hint=_hint(field.name, names),
            )
    if PAYLOAD not in names:
        raise InvalidField(f"{PAYLOAD}: there is no such column among {', '.join(names) or 'none'}", hint=_TO_JSON)
    for name in names:
        if names.count(name) > 1:
            raise InvalidField(f"{name}: there are {names.count(name)} columns of this name")
    return tuple(name for name in names if name in COLUMNS)


_TO_JSON: Final = "df.selectExpr('to_json(struct(*)) AS payload') makes one of all columns"


def _check_type(name: str, kind: DataType) -> None:
    type_name, column = kind.simpleString(), COLUMNS[name]
    if type_name.split("(")[0].split(" ")[0].split("<")[0] not in column.kinds and type_name not in column.kinds:
        raise InvalidField(f"{name}: a column of {type_name} does not fit", hint=f"expected: {column.expected}")


def _hint(name: str, names: list[str]) -> str:
    """What to do about an unknown column: a misspelt one, or a frame that was not made for a queue."""
    meant = suggestion(name, tuple(COLUMNS))
    if meant.startswith("did you mean"):
        return meant
    return f"known: {', '.join(COLUMNS)}; drop it, or put it into the payload" if PAYLOAD in names else _TO_JSON


def batches_of(arrived: Iterable[pa.RecordBatch], columns: tuple[str, ...]) -> Iterator[Batch]:
    """Batches of about `limits.staged_batch_bytes` from Spark's own, which are smaller."""
    gathered: list[pa.RecordBatch] = []
    size = rows = 0
    for batch in arrived:
        for part in _split(_fitted(batch, columns)):
            if gathered and (size + part.nbytes > limits.staged_batch_bytes or rows + len(part) > _ROWS_MAX):
                yield Batch.build(pa.Table.from_batches(gathered))
                gathered, size, rows = [], 0, 0
            gathered.append(part)
            size += part.nbytes
            rows += len(part)
    if gathered:
        yield Batch.build(pa.Table.from_batches(gathered))


def _split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The record batch, halved until its parts are small enough, or single messages."""
    if len(batch) > 1 and (batch.nbytes > limits.staged_batch_bytes or len(batch) > _ROWS_MAX):
        middle = len(batch) // 2
        yield from _split(batch.slice(0, middle))
        yield from _split(batch.slice(middle))
    elif len(batch):
        yield batch


def _fitted(arrived: pa.RecordBatch, columns: tuple[str, ...]) -> pa.RecordBatch:
    """The columns of messages, as `Batch.build` takes them."""
    by_name: dict[str, Any] = {name: arrived.column(name) for name in columns}
    for name in ("delay", "ttl"):
        if name in by_name and pa.types.is_decimal(by_name[name].type):
            by_name[name] = by_name[name].cast(pa.float64())
    payload = by_name[PAYLOAD]
    if pa.types.is_nested(payload.type):
        by_name[PAYLOAD] = _as_json(payload)
        by_name.setdefault(CONTENT_TYPE, pa.repeat(CONTENT_TYPE_NAMES[ContentType.JSON], len(payload)))
    return pa.RecordBatch.from_arrays(list(by_name.values()), names=list(by_name))


def _as_json(column: pa.Array) -> pa.Array:
    """JSON texts, as bytes; a null stays one, to be refused like any other."""
    values = column.to_pylist(maps_as_pydicts="lossy")
    return pa.array([None if value is None else _json.encode(value) for value in values], pa.binary())
