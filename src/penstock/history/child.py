"""A process that answers SQL over the history of one broker: `python -m penstock.history.child`.

Requests and replies are frames on standard input and output: `length u32 | JSON`, little-endian. The first request
names the location; it is not in the arguments of the process, where every user of the machine could read a password.
A reply is the result, or `{"error": {"code", "message", "hint"}}`. The process ends with its input.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, BinaryIO, Final

import msgspec
import pyarrow as pa

from penstock.errors import BadQuery, PenstockError
from penstock.history import open_history
from penstock.history.sql import SqlEngine

LENGTH: Final = struct.Struct("<I")
RESULT_BYTES_MAX: Final = 4 << 20


class QueryRequest(msgspec.Struct):
    """One statement. `queues` are those that the caller may read; None: all of them."""

    location: str
    query: str
    rows_max: int
    queues: list[str] | None = None
    since: datetime | None = None
    until: datetime | None = None


class QueryColumn(msgspec.Struct):
    """A column of a result."""

    name: str
    type: str


class QueryResult(msgspec.Struct):
    """Rows as lists of values, in the order of the columns. `is_cut`: there were more rows than are shown."""

    columns: list[QueryColumn]
    rows: list[list[Any]]
    is_cut: bool = False


def main() -> None:
    """Answer requests until the input ends."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    decoder = msgspec.json.Decoder(QueryRequest)
    first = _frame(source)
    if first is None:
        return
    request = decoder.decode(first)
    with closing(open_history(request.location)) as history:
        while True:
            engine = SqlEngine(history, allows=_allowed(request.queues))
            _send(sink, _answer(engine, request))
            frame = _frame(source)
            if frame is None:
                return
            request = decoder.decode(frame)


def _allowed(queues: Sequence[str] | None) -> Any:
    return (lambda queue: True) if queues is None else frozenset(queues).__contains__


def _answer(engine: SqlEngine, request: QueryRequest) -> bytes:
    try:
        rows_max = request.rows_max + 1
        table = engine.query(request.query, since=request.since, until=request.until, rows_max=rows_max)
        return _encoded(table, request.rows_max)
    except PenstockError as error:
        return msgspec.json.encode({"error": {"code": error.code, "message": error.message, "hint": error.hint}})


def _encoded(table: pa.Table, rows_max: int) -> bytes:
    columns = [QueryColumn(field.name, str(field.type)) for field in table.schema]
    values = [[plain(value) for value in column.to_pylist()] for column in table.slice(0, rows_max).columns]
    rows = [list(row) for row in zip(*values, strict=True)]
    encoded = msgspec.json.encode(QueryResult(columns, rows, table.num_rows > rows_max))
    if len(encoded) > RESULT_BYTES_MAX:
        hint = "select fewer columns, or fewer rows with limit"
        raise BadQuery(f"the result has {len(encoded):,} bytes, over the limit of {RESULT_BYTES_MAX:,}", hint=hint)
    return encoded


def plain(value: Any) -> Any:
    """A value as JSON has it: bytes as text, or as hex where they are none; instants in UTC."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return f"0x{value.hex()}"
    if isinstance(value, datetime):
        return value.isoformat() if value.tzinfo is None else value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, date | Decimal):
        return str(value)
    if isinstance(value, list) and value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
        return {str(key): plain(item) for key, item in value}  # a map arrives as pairs
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _frame(source: BinaryIO) -> bytes | None:
    head = source.read(LENGTH.size)
    return source.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None


def _send(sink: BinaryIO, content: bytes) -> None:
    sink.write(LENGTH.pack(len(content)) + content)
    sink.flush()


if __name__ == "__main__":
    main()
