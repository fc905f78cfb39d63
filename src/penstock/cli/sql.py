"""`penstock sql`: queries in SQL over all queues, live and past, answered as a table, JSON, CSV or Parquet.

DuckDB answers in this process; `--engine spark`, `--master` or `--conf` choose Spark, which takes some seconds to
start. Without a query, statements are read from standard input, and a terminal is prompted for them.

Payloads are bytes: they are shown as text where they are UTF-8. Otherwise JSON has them in base64 under
`<column>_base64`, CSV as `0x…`, and a table as hex. NULL is `NULL` in a table, null in JSON, and nothing in CSV.
Instants are RFC 3339 in UTC.
"""

from __future__ import annotations

import base64
import csv
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol, TextIO

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.cli import human, output, spark_session
from penstock.cli.exits import CommandError, explained
from penstock.cli.options import AsJson, Since, Until
from penstock.cli.spark_session import Bar, Conf, Master, parsed_conf, readable_error
from penstock.cli.target import Broker
from penstock.units import plural

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


Format = Literal["table", "json", "csv", "parquet"]
Engine = Literal["duckdb", "spark"]
LOCAL: Final = "local[*]"
Hidden = Callable[[], AbstractContextManager[None]]
Ask = Callable[[str], "Answer"]
Opened = Callable[[Bar], AbstractContextManager[Ask]]

ROWS_SHOWN: Final = 100
WIDTH_PAYLOAD: Final = 80
NULL: Final = "NULL"


class Answer(Protocol):
    """What a query answers."""

    def table(self, rows_max: int | None) -> pa.Table:
        """The rows, or the first of them."""

    def parquet(self, out: Path, rows_max: int | None) -> int:
        """Write the rows to one file; how many there were."""


class SparkAnswer:
    """A DataFrame."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame

    def table(self, rows_max: int | None) -> pa.Table:
        return self._limited(rows_max).toArrow()

    def parquet(self, out: Path, rows_max: int | None) -> int:
        return write_parquet(self._limited(rows_max), out)

    def _limited(self, rows_max: int | None) -> DataFrame:
        return self._frame if rows_max is None else self._frame.limit(rows_max)


class TableAnswer:
    """A statement that DuckDB runs when its rows are wanted."""

    def __init__(self, run: Callable[[int | None], pa.Table]) -> None:
        self.table = run

    def parquet(self, out: Path, rows_max: int | None) -> int:
        import pyarrow.parquet as pq

        found = self.table(rows_max)
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = out.with_name(f".{out.name}.part")
        pq.write_table(found, beside, compression="zstd")
        beside.replace(out)
        return int(found.num_rows)


def write(answer: Answer, kind: Format, out: Path | None, limit: int | None, *, hidden: Hidden = nullcontext) -> None:
    """Write what a query answers. `hidden` keeps a progress bar away while something is printed."""
    if kind == "parquet":
        assert out is not None
        count = answer.parquet(out, limit)
    elif kind == "table":
        shown = limit or ROWS_SHOWN
        rows = answer.table(shown + (limit is None))
        with hidden(), _sheet(out) as file:
            count = write_table(rows, shown, file)
    else:
        rows = answer.table(limit)
        with hidden(), _sheet(out) as file:
            count = (write_json if kind == "json" else write_csv)(rows, output.for_eyes(file))
    if out is not None:
        with hidden():
            output.done(f"{plural(count, 'row')} in {out}", {"rows": count, "file": str(out)}, as_json=False)


def write_table(table: pa.Table, limit: int, file: TextIO) -> int:
    """A table for people, up to a limit; on a terminal that is too narrow for it, a line for each field."""
    rows = [tuple(map(_shown, row)) for row in rows_of(table.slice(0, limit))]
    widths = [max(map(len, column)) for column in zip(table.column_names, *rows, strict=True)]
    natural = sum(widths) + 2 * len(widths)
    paper = output.console() if file is sys.stdout else output.SafeConsole(file=file)
    if not paper.is_terminal:
        # Into a file or a pipe nothing needs to fit a screen.
        paper.width = max(natural, output.WIDTH_PLAIN)
    if natural > paper.width:
        _write_records(table.column_names, rows, paper)
    elif table.num_columns:
        output.write(_grid(table.schema, rows), paper)
    more = "; there are more: use --limit or another --format" if table.num_rows > limit else ""
    output.write(f"[dim]{plural(len(rows), 'row')}{more}[/]", paper)
    return len(rows)


def _grid(schema: pa.Schema, rows: Sequence[Sequence[str]]) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for field in schema:
        made.add_column(escape(field.name), justify="right" if _is_number(field.type) else "left", no_wrap=True)
    for row in rows:
        made.add_row(*map(_styled, row))
    return made


def _write_records(names: Sequence[str], rows: Sequence[Sequence[str]], paper: Console) -> None:
    width = max(map(len, names)) + 2
    for number, row in enumerate(rows, 1):
        output.write(f"[dim]── {number}[/]", paper)
        for name, text in zip(names, row, strict=True):
            output.write(f"[bold]{escape(name):<{width}}[/]{_styled(text)}", paper)


def _styled(text: str) -> str:
    return f"[dim]{NULL}[/]" if text == NULL else escape(text)


def write_json(table: pa.Table, file: TextIO) -> int:
    """An object for each row, on a line of its own."""
    names = unique(table.column_names)
    for row in rows_of(table):
        fields = dict(_json_field(name, value) for name, value in zip(names, row, strict=True))
        file.write(msgspec.json.encode(fields, enc_hook=str).decode() + "\n")
    return int(table.num_rows)


def write_csv(table: pa.Table, file: TextIO) -> int:
    """A line of names, and one for each row."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table.column_names)
    writer.writerows(tuple(map(_csv_cell, row)) for row in rows_of(table))
    return int(table.num_rows)


def write_parquet(frame: DataFrame, out: Path) -> int:
    """One file. Spark writes parts of it side by side, in order; they are put together row group by row group."""
    import pyarrow.parquet as pq

    parts = out.with_name(f".{out.name}.parts")
    shutil.rmtree(parts, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        frame.write.parquet(str(parts.absolute()))
        files = [pq.ParquetFile(path) for path in sorted(parts.glob("part-*.parquet"))]
        beside = parts / "whole"
        with pq.ParquetWriter(beside, files[0].schema_arrow, compression="zstd") as writer:
            for file in files:
                for batch in file.iter_batches():
                    writer.write_batch(batch)
        beside.replace(out)
        return sum(file.metadata.num_rows for file in files)
    finally:
        shutil.rmtree(parts, ignore_errors=True)


def rows_of(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Rows, whatever the columns are called."""
    for batch in table.to_batches():
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def unique(names: Sequence[str]) -> list[str]:
    """Names that can be keys: the second `count` is `count_2`."""
    again: dict[str, int] = {}
    renamed = []
    for name in names:
        again[name] = again.get(name, 0) + 1
        renamed.append(name if again[name] == 1 else f"{name}_{again[name]}")
    return renamed


@contextmanager
def _sheet(out: Path | None) -> Iterator[TextIO]:
    if out is None:
        yield sys.stdout
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8", newline="") as file:
        yield file


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _shown(value: Any) -> str:
    if value is None:
        return NULL
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4f}".rstrip("0").rstrip(".") if not value or abs(value) >= 0.001 else f"{value:.3g}"
    text = _csv_cell(value)
    return human.excerpt(value if isinstance(value, bytes) else str(text).encode(), WIDTH_PAYLOAD)


def _csv_cell(value: Any) -> Any:
    if isinstance(value, bytes):
        text = _text(value)
        return f"0x{value.hex()}" if text is None else text
    if isinstance(value, datetime):
        return _instant(value)
    return _compact(value) if isinstance(value, list | dict | tuple) else value


def _json_field(name: str, value: Any) -> tuple[str, Any]:
    if isinstance(value, bytes):
        text = _text(value)
        return (f"{name}_base64", base64.b64encode(value).decode()) if text is None else (name, text)
    return name, _plain(value)


def _plain(value: Any) -> Any:
    """Values inside lists, maps and structs. A map arrives as pairs."""
    if isinstance(value, bytes):
        text = _text(value)
        return base64.b64encode(value).decode() if text is None else text
    if isinstance(value, datetime):
        return _instant(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list) and value and all(isinstance(item, tuple) for item in value):
        return {str(key): _plain(inner) for key, inner in value}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return value


def _compact(value: Any) -> str:
    return msgspec.json.encode(_plain(value), enc_hook=str).decode()


def _instant(value: datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat()
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


PROMPT: Final = "sql> "
PROMPT_MORE: Final = "  -> "
LEAVE: Final = ("exit", "quit")


def sql(
    broker: Broker,
    query: Annotated[
        str | None,
        typer.Argument(metavar="[QUERY]", help="An SQL statement. [default: read statements from standard input]"),
    ] = None,
    format: Annotated[  # noqa: A002 - the flag's name
        Format, typer.Option("--format", "-f", metavar="WHAT", help="table, json, csv or parquet.", show_default=False)
    ] = "table",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write to this file; required for parquet.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=1, metavar="ROWS", help="At most this many rows. [default: 100 for table]"),
    ] = None,
    since: Since = None,
    until: Until = None,
    engine: Annotated[
        Engine | None,
        typer.Option("--engine", metavar="WHAT", help="duckdb or spark. [default: duckdb]"),
    ] = None,
    master: Master = LOCAL,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Query history in SQL: views `messages`, `events`, `tasks`, and one per queue.

    `penstock sql "select queue, count(*) from messages group by queue"`
    """
    kind: Format = "json" if as_json else format
    if out is None and kind == "parquet":
        raise CommandError("--format parquet needs a file", hint="add --out result.parquet")
    where, settings = broker.readable_address(), parsed_conf(conf)
    is_local = master == LOCAL and not settings
    if engine == "duckdb" and not is_local:
        raise CommandError("--master and --conf are for Spark", hint="add --engine spark")
    if engine != "spark" and is_local:
        opened = _duckdb(where, since, until)
    else:
        from penstock.spark.tables import check_reading

        check_reading(query or "")
        opened = _spark(where, since, until, master, settings)
    with Bar(is_shown=not as_json) as bar, opened(bar) as asks:
        answer_all(query, asks, bar, kind, out, limit)


def _duckdb(where: str, since: datetime | None, until: datetime | None) -> Opened:
    from penstock.history import open_history
    from penstock.history.sql import SqlEngine

    @contextmanager
    def opened(bar: Bar) -> Iterator[Ask]:
        with closing(open_history(where)) as history:
            engine = SqlEngine(history)

            def asks(text: str) -> Answer:
                bar.step("reading")
                return TableAnswer(lambda rows_max: engine.query(text, since=since, until=until, rows_max=rows_max))

            yield asks

    return opened


def _spark(where: str, since: datetime | None, until: datetime | None, master: str, settings: dict[str, str]) -> Opened:
    from penstock.spark.tables import query

    @contextmanager
    def opened(bar: Bar) -> Iterator[Ask]:
        with spark_session.started("sql", master=master, settings=settings, bar=bar) as spark:

            def asks(text: str) -> Answer:
                bar.step("reading")
                return SparkAnswer(query(spark, where, text, since=since, until=until))

            yield asks

    return opened


def answer_all(query: str | None, asks: Ask, bar: Bar, kind: Format, out: Path | None, limit: int | None) -> None:
    """Answer the query, or those that are typed or piped in."""

    def answer(text: str) -> None:
        write(asks(text), kind, out, limit, hidden=bar.hidden)

    if query is not None:
        answer(query)
    elif output.has_terminal():
        with bar.hidden():
            converse(answer)
    else:
        count = 0
        for count, text in enumerate(statements(sys.stdin), 1):  # noqa: B007 - the count is used below
            answer(text)
        if not count:
            hint = "penstock sql 'SELECT * FROM messages LIMIT 10', or statements on standard input"
            raise CommandError("no query is given", hint=hint)


def converse(answer: Callable[[str], None]) -> None:
    """Ask for statements and answer them; what is wrong with one is shown, and the next is asked for."""
    with suppress(ImportError):
        import readline  # noqa: F401 - gives the prompt its history

    for text in statements(_typed()):
        if text.lower() in LEAVE:
            return
        try:
            answer(text)
        except Exception as error:  # noqa: BLE001 - a prompt outlives a wrong question
            _, code, message, hint = explained(readable_error(error), "penstock sql")
            output.write_error(code, message, hint, as_json=False)


def statements(lines: Iterable[str]) -> Iterator[str]:
    """Statements in some lines; each ends with a line that ends with a semicolon."""
    gathered: list[str] = []
    for line in lines:
        gathered.append(line.rstrip())
        is_over = line.rstrip().endswith(";") or "".join(gathered).strip().lower() in LEAVE
        if is_over:
            yield from _whole(gathered)
            gathered = []
    yield from _whole(gathered)


def _whole(lines: list[str]) -> list[str]:
    text = "\n".join(lines).strip().rstrip(";").strip()
    return [text] if text else []


def _typed() -> Iterator[str]:
    prompt = PROMPT
    with suppress(EOFError):
        while True:
            line = input(prompt)
            prompt = PROMPT if line.rstrip().endswith(";") or not line.strip() else PROMPT_MORE
            yield line
