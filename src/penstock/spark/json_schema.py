"""What is in JSON payloads: as the user says, or as a sample of them shows.

A field that is a whole number here and a fraction there is DOUBLE; one that changes more than that is STRING, which
takes anything. Fields that only some payloads have are there, null in the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from penstock.errors import InvalidField
from penstock.history import History, Slice
from penstock.model import suggestion
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
_decode: Final = msgspec.json.Decoder().decode


def payload_type(options: SourceOptions) -> str:
    """The type of the column `payload`, as DDL."""
    if options.payload_schema is not None:
        return given(options.payload_schema)
    from penstock.spark.batch_reader import planned

    with planned(options) as (history, slices):
        return inferred(_samples(history, slices))


def given(payload_schema: str) -> str:
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
                raise InvalidField(f"payloadSchema: {part!r} is no type", hint=suggestion(word, TYPES))
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
    raise InvalidField(f"payloadSchema: {text!r} is not understood", hint=hint)


def inferred(samples: Iterable[bytes]) -> str:
    """The type of payloads, as DDL, from some of them; those that are no JSON objects do not count."""
    found: Any = None
    for sample in samples:
        try:
            value = _decode(sample)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(value, dict):
            found = _merged(found, _kind_of(value))
    if not isinstance(found, dict) or not found:
        hint = "say what is in it: option('payloadSchema', 'id BIGINT, name STRING'), or read it as text"
        raise InvalidField("payload: no JSON object is among the messages that were looked at", hint=hint)
    return _spelt(found)


def _samples(history: History, slices: Sequence[Slice]) -> Iterator[bytes]:
    """The first messages of some slices, from all over what will be read."""
    for each in slices[:: -(-len(slices) // SAMPLE_SLICES) or 1]:
        batch = next(history.read([each], ["payload"]), None)
        if batch is not None:
            yield from batch.column(0).slice(0, SAMPLE_ROWS).to_pylist()


# Types found in samples: a word, ["…"] for a list, {name: …} for an object, None when only null was seen.


def _kind_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _kind_of(each) for name, each in value.items() if name}
    if isinstance(value, list):
        found = None
        for each in value:
            found = _merged(found, _kind_of(each))
        return [found]
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
        fields = ", ".join(f"`{name.replace('`', '``')}`: {_spelt(each)}" for name, each in kind.items())
        return f"STRUCT<{fields}>" if kind else "STRING"
    if isinstance(kind, list):
        return f"ARRAY<{_spelt(kind[0])}>"
    return kind or "STRING"
