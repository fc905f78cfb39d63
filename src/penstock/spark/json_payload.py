"""Payloads as JSON: their schema, structs where the text fits it, and the text itself in `_corrupt` where it does not.

The schema is the user's, or inferred from a sample. A field that is a whole number in one payload and a fraction in
another is DOUBLE; one that changes more than that is STRING. Fields that only some payloads have are null in the
others.

A whole batch is parsed at once. Only when that fails are parts of it parsed row by row, and each payload is judged
alone, independent of its neighbours. A field of type string takes any value: what is not text is kept as JSON text, as
Spark's own reader does. Fields that the schema does not name are ignored; fields that a payload lacks are null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.errors import InvalidField
from penstock.history import History, Slice
from penstock.refusals import suggestion
from penstock.spark.options import SourceOptions

SAMPLE_SLICES: Final = 8
SAMPLE_ROWS: Final = 250  # of each of these slices

NESTING: Final = ("ARRAY", "STRUCT", "MAP")
TYPES: Final = (
    "BOOLEAN", "TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG", "FLOAT", "REAL", "DOUBLE",
    "DECIMAL", "DEC", "NUMERIC", "STRING", "CHAR", "VARCHAR", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ",
    "BINARY", "VARIANT", *NESTING,
)  # fmt: skip
_TOKEN: Final = re.compile(r"`(?:[^`]|``)*`|'[^']*'|\w+|[^\w\s]")
_NAME: Final = re.compile(r"`.+`|\w+")
_BIGINT_MAX: Final = 2**63
_decode_sample: Final = msgspec.json.Decoder().decode


def payload_type(options: SourceOptions) -> str:
    """The type of the column `payload`, as DDL."""
    if options.payload_schema is not None:
        return declared(options.payload_schema)
    from penstock.spark.batch_reader import planned

    with planned(options) as (history, slices):
        return inferred(_samples(history, slices))


def declared(payload_schema: str) -> str:
    """A payload's type as the user spelt it: the fields, or all of `STRUCT<…>`."""
    is_struct = payload_schema.upper().startswith("STRUCT<")
    check_ddl(f"payload {payload_schema}" if is_struct else payload_schema)
    return payload_schema if is_struct else f"STRUCT<{payload_schema}>"


def check_ddl(text: str) -> None:
    """Refuse what is no list of fields with types. Spark would refuse it too, without a word about where it is from."""
    inside, state, depth = ["STRUCT"], "name", 0
    for part in _TOKEN.findall(text):
        word = part.upper()
        depth += (part == "(") - (part == ")")
        if state == "name" and _NAME.fullmatch(part):
            state = "type"
        elif state == "type" and part != ":":
            if word not in TYPES:
                raise InvalidField(f"payloadSchema: {part!r} is not a type", hint=suggestion(word, TYPES))
            state = "open" if word in NESTING else "end"
            inside += [word] if word in NESTING else []
        elif (state == "open" and part == "<") or (state == "end" and part == "," and not depth):
            state = "name" if inside[-1] == "STRUCT" else "type"
        elif state == "end" and part == ">" and len(inside) > 1:
            inside.pop()
        elif state in ("name", "open") or part in "<>":
            break
    else:
        if state == "end" and len(inside) == 1 and not depth:
            return
    hint = "write fields and their types: 'id BIGINT, items ARRAY<STRUCT<sku: STRING>>'"
    raise InvalidField(f"payloadSchema: {text!r} is not a schema", hint=hint)


def inferred(samples: Iterable[bytes]) -> str:
    """The type of payloads, as DDL, from some of them; those that are no JSON objects do not count."""
    merged: Any = None
    for sample in samples:
        try:
            value = _decode_sample(sample)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(value, dict):
            merged = _merged(merged, _kind_of(value))
    if not isinstance(merged, dict) or not merged:
        hint = "declare it: option('payloadSchema', 'id BIGINT, name STRING'), or read it as text"
        raise InvalidField("payload: no JSON object among the sampled messages", hint=hint)
    return _spelt(merged)


def _samples(history: History, slices: Sequence[Slice]) -> Iterator[bytes]:
    """The first messages of some slices, from all over what will be read."""
    for part in slices[:: -(-len(slices) // SAMPLE_SLICES) or 1]:
        batch = next(history.read([part], ["payload"]), None)
        if batch is not None:
            yield from batch.column(0).slice(0, SAMPLE_ROWS).to_pylist()


# Types found in samples: a word, ["…"] for a list, {name: …} for an object, None when only null was seen.


def _kind_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _kind_of(item) for name, item in value.items() if name}
    if isinstance(value, list):
        merged = None
        for item in value:
            merged = _merged(merged, _kind_of(item))
        return [merged]
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if -_BIGINT_MAX <= value < _BIGINT_MAX else "DOUBLE"
    return {float: "DOUBLE", str: "STRING"}.get(type(value))


def _merged(one: Any, other: Any) -> Any:
    if one is None or other is None or one == other:
        return other if one is None else one
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: _merged(one.get(name), other.get(name)) for name in [*one, *(n for n in other if n not in one)]}
    if isinstance(one, list) and isinstance(other, list):
        return [_merged(one[0], other[0])]
    return "DOUBLE" if {str(one), str(other)} == {"BIGINT", "DOUBLE"} else "STRING"


def _spelt(kind: Any) -> str:
    if isinstance(kind, dict):
        fields = ", ".join(f"`{name.replace('`', '``')}`: {_spelt(field)}" for name, field in kind.items())
        return f"STRUCT<{fields}>" if kind else "STRING"
    if isinstance(kind, list):
        return f"ARRAY<{_spelt(kind[0])}>"
    return kind or "STRING"


LOOSENED_ROWS: Final = 1024  # that are looked at one by one when something among them does not fit

_BLANKS: Final = " \t\r\n"
_LINE_END: Final = pa.scalar("\n")
_NOTHING: Final = pa.scalar("")
# A payload that is taken apart and put together again must not lose a digit.
_decode: Final = msgspec.json.Decoder(float_hook=Decimal).decode
_encode: Final = msgspec.json.Encoder(decimal_format="number").encode
_LOOSE_NUMBERS: Final = (b"NaN", b"Inf")  # JSON has none of these, and Arrow takes them


class Parser:
    """Payloads to structs of one type."""

    def __init__(self, kind: pa.StructType) -> None:
        self._kind = kind
        read_kind = _as_read(kind, "payload")
        self._loosen = _loosener(read_kind)
        self._parsing = pj.ParseOptions(explicit_schema=pa.schema(list(read_kind)), unexpected_field_behavior="ignore")

    def parse(self, payloads: pa.Array) -> tuple[pa.Array, pa.Array]:
        """The structs, null where a payload does not fit; and the text of those that do not, else null."""
        parsed = self._found(payloads, is_loosened=False) if self._kind.num_fields else self._objects(payloads)
        is_bad = pc.is_null(parsed)
        if not pc.any(is_bad).as_py():
            return parsed, pa.nulls(len(payloads), pa.string())
        return parsed, texts(pc.if_else(is_bad, payloads, pa.scalar(None, pa.binary())))

    def _objects(self, payloads: pa.Array) -> pa.Array:
        """For a schema without fields: which payloads are JSON objects at all."""
        rows: list[Any] = [None if self._loosened(row) is None else {} for row in payloads.to_pylist()]
        return pa.array(rows, self._kind)

    def _found(self, payloads: pa.Array, *, is_loosened: bool) -> pa.Array:
        """Rows that do not fit are found by halving: few among many cost little."""
        parsed = self._whole(payloads)
        if parsed is not None:
            return parsed
        if not is_loosened and len(payloads) <= LOOSENED_ROWS:
            return self._found_loosened(payloads)
        if len(payloads) == 1:
            return pa.nulls(1, self._kind)
        middle = len(payloads) // 2
        halves = (payloads.slice(0, middle), payloads.slice(middle))
        return pa.concat_arrays([self._found(half, is_loosened=is_loosened) for half in halves])

    def _whole(self, payloads: pa.Array) -> pa.Array | None:
        """All of them, or None when a single one does not fit."""
        if not len(payloads):
            return pa.nulls(0, self._kind)
        # Each payload is on a line of its own and is parsed as it is: whatever is put around it could be closed
        # from inside. One that begins with { and ends with } is closed on its line: what follows an inner } is never
        # the { of the next line, and a string cannot hold a line's end. So each line is one row at least, and as many
        # rows as lines means that each payload is exactly one object.
        try:
            lines = pc.ascii_trim(payloads.cast(pa.string()), _BLANKS)
            if not pc.all(pc.and_(pc.starts_with(lines, "{"), pc.ends_with(lines, "}"))).as_py():
                return None
            text = pc.binary_join_element_wise(lines, _LINE_END, _NOTHING).buffers()[2]
            read = pj.read_json(
                pa.BufferReader(text),
                read_options=pj.ReadOptions(use_threads=False, block_size=text.size),
                parse_options=self._parsing,
            )
            if read.num_rows != len(payloads):
                return None
            columns = [read[field.name].combine_chunks().cast(field.type) for field in self._kind]
            return pa.StructArray.from_arrays(columns, fields=list(self._kind))
        except pa.ArrowInvalid:
            return None

    def _found_loosened(self, payloads: pa.Array) -> pa.Array:
        rows = [self._loosened(row) for row in payloads.to_pylist()]
        indexes = [index for index, row in enumerate(rows) if row is not None]
        good = self._found(pa.array([rows[index] for index in indexes], pa.binary()), is_loosened=True)
        rank_of = {index: rank for rank, index in enumerate(indexes)}
        return good.take(pa.array([rank_of.get(index) for index in range(len(rows))], pa.int64()))

    def _loosened(self, row: bytes) -> bytes | None:
        """A payload whose fields of type string are strings; None when it is no JSON object, or cannot fit."""
        try:
            value = _decode(row)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return row if any(token in row for token in _LOOSE_NUMBERS) else None
        try:
            return _encode(self._loosen(value)) if isinstance(value, dict) else None
        except _Unfit:
            return None


def texts(payloads: pa.Array) -> pa.Array:
    """Bytes as text; what is not UTF-8 is marked as in any text, with U+FFFD."""
    try:
        return payloads.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [None if payload is None else payload.decode("utf-8", "replace") for payload in payloads.to_pylist()]
        return pa.array(decoded, pa.string())


# What Arrow reads, and how it is converted.


def _as_read(kind: pa.DataType, name: str) -> pa.DataType:
    """The type that a parser of JSON is asked for: dates are texts, and cast afterwards."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _as_read(field.type, f"{name}.{field.name}")) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_as_read(kind.value_type, f"{name}[]"))
    if pa.types.is_date32(kind):
        return pa.string()
    if pa.types.is_primitive(kind) or pa.types.is_string(kind) or pa.types.is_decimal(kind):
        return kind
    hint = "read that field as STRING and convert it in Spark: from_json, unbase64"
    raise InvalidField(f"{name}: JSON is not read as {kind}", hint=hint)


class _Unfit(Exception):
    """A value that no parser would take for this type."""


_NUMBER: Final = (int, Decimal)


def _loosener(kind: pa.DataType) -> Callable[[Any], Any]:
    """A function that turns values into text where a type wants text, and leaves out what a type does not name.

    It raises `_Unfit` for what Arrow would refuse in any case. What it lets pass may still be refused.
    """
    if pa.types.is_string(kind):
        return lambda value: value if isinstance(value, str) else None if value is None else _encode(value).decode()
    if pa.types.is_struct(kind):
        return _struct_loosener([(field.name, _loosener(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return _list_loosener(_loosener(kind.value_type))
    if pa.types.is_boolean(kind):
        return _checker(lambda value: isinstance(value, bool))
    if pa.types.is_integer(kind):
        least, greatest = -(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1
        return _checker(lambda value: type(value) is int and least <= value <= greatest)
    if pa.types.is_floating(kind):
        return _checker(lambda value: isinstance(value, _NUMBER) and not isinstance(value, bool))
    return _checker(lambda value: not isinstance(value, bool | list | dict))


def _checker(is_fit: Callable[[Any], bool]) -> Callable[[Any], Any]:
    def loosen(value: Any) -> Any:
        if value is not None and not is_fit(value):
            raise _Unfit
        return value

    return loosen


def _struct_loosener(fields: Sequence[tuple[str, Callable[[Any], Any]]]) -> Callable[[Any], Any]:
    def loosen(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise _Unfit
        return {name: loosen_field(value[name]) for name, loosen_field in fields if name in value}

    return loosen


def _list_loosener(loosen_each: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def loosen(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, list):
            raise _Unfit
        return [loosen_each(item) for item in value]

    return loosen
