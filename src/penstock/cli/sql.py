"""`penstock sql`: questions in SQL over all queues, live and past.

Spark takes some seconds to start. Whoever has several questions asks them in one go: without a query, statements are
read from standard input, and a terminal is prompted for them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli import output, sparking, sql_output
from penstock.cli.exits import CommandError, explained
from penstock.cli.options import AsJson, ContextOption, Since, Until, Url
from penstock.cli.spark_errors import told
from penstock.cli.sparking import Bar, Conf, Master, parsed_conf, readable
from penstock.cli.sql_output import Format

PROMPT: Final = "sql> "
PROMPT_MORE: Final = "  -> "
LEAVE: Final = ("exit", "quit")


def sql(
    query: Annotated[
        str | None, typer.Argument(metavar="[QUERY]", help="A statement; without one they are read, each up to a ';'.")
    ] = None,
    format: Annotated[  # noqa: A002 - the flag's name
        Format, typer.Option("--format", "-f", metavar="WHAT", help="table, json, csv or parquet.", show_default=False)
    ] = "table",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write to this file; parquet needs one.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, metavar="ROWS", help="How many rows at most; a table has 100.")
    ] = None,
    since: Since = None,
    until: Until = None,
    master: Master = "local[*]",
    conf: Conf = None,
    url: Url = None,
    context: ContextOption = None,
    as_json: AsJson = False,
) -> None:
    """Ask in SQL: views `messages`, `events`, `tasks`, and one for each queue.

    `penstock sql "select queue, count(*) from messages group by queue"`
    """
    kind: Format = "json" if as_json else format
    if out is None and kind == "parquet":
        raise CommandError("--format parquet needs a file", hint="say --out result.parquet")
    where, settings = readable(url, context), parsed_conf(conf)
    if query is not None:
        from penstock.spark.views import check_reading

        check_reading(query)
    with Bar(is_shown=not as_json) as bar, sparking.started("sql", master=master, settings=settings, bar=bar) as spark:

        def answer(text: str) -> None:
            from penstock.spark.views import query as asked

            bar.step("reading")
            found = asked(spark, where, text, since=since, until=until)
            sql_output.write(found, kind, out, limit, hidden=bar.hidden)

        if query is not None:
            answer(query)
        elif output.has_terminal():
            with bar.hidden():
                converse(answer)
        else:
            for text in statements(sys.stdin):
                answer(text)


def converse(answer: Callable[[str], None]) -> None:
    """Ask for statements and answer them; what is wrong with one is told, and the next is asked for."""
    with suppress(ImportError):
        import readline  # noqa: F401 - gives the prompt its history

    for text in statements(_typed()):
        if text.lower() in LEAVE:
            return
        try:
            answer(text)
        except Exception as error:  # noqa: BLE001 - a prompt outlives a wrong question
            _, code, message, hint = explained(told(error), "penstock sql")
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
