"""The tables as Spark sees them: columns, types, and what options and a user's own schema make of them.

Columns are chosen by name, in any order: by the option `columns`, or by `.schema(…)`, which may also say that a payload
is text or a struct (then it is read as JSON) and that headers are a list. A type that a column does not have is
refused; nothing is cast silently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from penstock.errors import InvalidField
from penstock.history.change_rows import EVENTS_SCHEMA
from penstock.history.sql import HIDDEN, MESSAGE_COLUMNS
from penstock.refusals import suggestion
from penstock.spark.options import Headers, Payload, SourceOptions, option_names, source_options
from penstock.storage.schema import EVENTS, MESSAGES, SCHEMAS, TASKS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_REMEMBERED: Final = "penstock: "
CORRUPT: Final = "_corrupt"  # the text of a payload that is not the JSON it should be

# Arrow's types and Spark's, as `simpleString` spells them.
_SPARK_TYPES: Final = {
    "string": "string",
    "binary": "binary",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "double": "double",
    "timestamp[us, tz=UTC]": "timestamp",
    "map<string, string>": "map<string,string>",
}


def _columns(schema: pa.Schema, names: Sequence[str] | None = None) -> dict[str, str]:
    shown = names or [name for name in schema.names if name not in HIDDEN]
    return {name: _SPARK_TYPES[str(schema.field(name).type)] for name in shown}


COLUMNS: Final = {
    MESSAGES: _columns(SCHEMAS[MESSAGES], MESSAGE_COLUMNS),
    EVENTS: _columns(EVENTS_SCHEMA),
    TASKS: _columns(SCHEMAS[TASKS]),
}
# Columns that every row has. Said in the schema, Spark need not check each row for each of them.
_NEVER_NULL: Final = {MESSAGES: frozenset(field.name for field in SCHEMAS[MESSAGES] if not field.nullable)}
HEADERS_TYPES: Final[dict[Headers, str]] = {
    "map": "map<string,string>",
    "list": "array<struct<key:string,value:string>>",
}
_PAYLOAD_TYPES: Final[dict[Payload, str]] = {"binary": "binary", "string": "string"}


class Layout(msgspec.Struct, frozen=True):
    """The output of a reader: columns in order, and the form of payloads and headers."""

    table: str
    names: tuple[str, ...]
    payload: Payload = "binary"
    headers: Headers = "map"


def ddl(options: SourceOptions, comment: str = "") -> str:
    """The schema of a read without a schema of the user's, as DDL; `comment` is that of the first column."""
    types = _types(options)
    never_null = _NEVER_NULL.get(options.table, frozenset())
    if options.payload == "json":
        from penstock.spark.json_payload import payload_type

        types["payload"] = payload_type(options)
        never_null -= {"payload"}  # null is what does not fit
    columns = [f"`{name}` {types[name]}{' NOT NULL' * (name in never_null)}" for name in _chosen(options, types)]
    return ", ".join([columns[0] + comment, *columns[1:]])


def described(texts: Mapping[str, str]) -> str:
    """The schema of a read, as DDL.

    For `CREATE TABLE … USING penstock` it is stored in Spark's catalogue, and is all that a query of the table hands to
    the source: so the options are in it too, as the comment of the first column.
    """
    options = source_options(texts)
    if "provider" not in texts:
        return ddl(options)
    known = {name.lower() for name in option_names()["source"]}
    own = {name: text for name, text in texts.items() if name.lower() in known} | {"url": options.url}
    quoted = (_REMEMBERED + msgspec.json.encode(own).decode()).replace("\\", "\\\\").replace("'", "\\'")
    return ddl(options, f" COMMENT '{quoted}'")


def remembered(schema: StructType) -> dict[str, str]:
    """The options that `described` has put into a schema; none for any other."""
    for field in schema.fields[:1]:
        comment = str(field.metadata.get("comment", ""))
        if comment.startswith(_REMEMBERED):
            return msgspec.json.decode(comment.removeprefix(_REMEMBERED), type=dict[str, str])
    return {}


def layout(options: SourceOptions, schema: StructType) -> Layout:
    """The layout for a schema; `InvalidField` names the column that does not fit."""
    types = _types(options)
    columns: dict[str, str] = {}
    for field in schema.fields:
        if field.name not in types and field.name != CORRUPT:
            raise InvalidField(
                f"schema: the table {options.table} has no column {field.name!r}",
                hint=suggestion(field.name, tuple(types)),
            )
        columns[field.name] = field.dataType.simpleString()
    shape = _shape(options, columns)
    _check(options, types, columns, shape)
    return shape


def _types(options: SourceOptions) -> dict[str, str]:
    """Every column that a read may have. The type of a JSON payload is not known here."""
    types = dict(COLUMNS[options.table])
    if options.table != "messages":
        return types
    types["headers"] = HEADERS_TYPES.get(options.headers, types["headers"])
    types["payload"] = _PAYLOAD_TYPES.get(options.payload, types["payload"])
    if options.payload == "json":
        types[CORRUPT] = "string"
    for name in ("headers", "payload"):
        if getattr(options, name) == "none":
            del types[name]
    return types


def _chosen(options: SourceOptions, types: dict[str, str]) -> tuple[str, ...]:
    if options.columns is None:
        return tuple(types)
    for name in options.columns:
        if name not in types:
            hint = suggestion(name, tuple(types))
            raise InvalidField(f"columns: the table {options.table} has no column {name!r}", hint=hint)
    # Asked for twice, a column is still one.
    return tuple(dict.fromkeys(options.columns))


def _shape(options: SourceOptions, columns: dict[str, str]) -> Layout:
    """A user's schema may say what an option could have said."""
    payload, headers = options.payload, options.headers
    kind = columns.get("payload", "")
    if kind.startswith("struct<"):
        payload = "json"
    elif kind in ("binary", "string"):
        payload = "binary" if kind == "binary" else "string"
    if columns.get("headers") == HEADERS_TYPES["list"]:
        headers = "list"
    return Layout(options.table, tuple(columns), payload, headers)


def _check(options: SourceOptions, types: dict[str, str], columns: dict[str, str], shape: Layout) -> None:
    expected = {**types, CORRUPT: "string"}
    if "headers" in columns:
        expected["headers"] = HEADERS_TYPES.get(shape.headers, expected["headers"])
    if "payload" in columns:
        expected["payload"] = columns["payload"] if shape.payload == "json" else _PAYLOAD_TYPES[shape.payload]
    for name, kind in columns.items():
        if kind != expected[name]:
            raise InvalidField(
                f"schema: the column {name!r} is {expected[name]}, not {kind}", hint="cast it after reading"
            )
    if CORRUPT in columns and shape.payload != "json":
        raise InvalidField(f"schema: {CORRUPT!r} needs JSON payloads", hint="add option('payload', 'json')")
