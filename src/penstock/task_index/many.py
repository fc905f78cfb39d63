"""Statements for many rows at a time.

While SQLite works on a statement, other threads run: each statement gives the interpreter away and has to wait for its
turn to get it back. Beside a busy event loop that wait is long, so rows go in a few large statements, not one by one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from itertools import chain, islice
from typing import Any, Final

SIZES: Final = (256, 16, 1)  # few, so that the statements stay prepared
VARIABLES_MAX: Final = 32_766  # SQLite's own limit


@cache
def _statement(template: str, width: int, count: int) -> str:
    row = f"({', '.join('?' * width)})"
    return template.replace("{rows}", ", ".join([row] * count))


def run(connection: sqlite3.Connection, template: str, rows: Collection[Sequence[Any]]) -> Iterator[sqlite3.Cursor]:
    """Execute a statement whose `{rows}` are lists of values, for all rows, in their order."""
    left, each = len(rows), iter(rows)
    for size in SIZES:
        while left >= size:
            part = list(islice(each, size))
            width = len(part[0])
            yield connection.execute(_statement(template, width, size), tuple(chain.from_iterable(part)))
            left -= size


def execute(connection: sqlite3.Connection, template: str, rows: Collection[Sequence[Any]]) -> None:
    """The same, for what answers nothing."""
    for _ in run(connection, template, rows):
        pass
