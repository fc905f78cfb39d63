"""Printing: text for people, JSON for programs, progress for the impatient."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table

WIDTH_PLAIN = 120
NARROW = 40  # characters in all headings together, over which columns move closer

Tell = Callable[[int, int], None]  # bytes done, bytes in all


def console() -> Console:
    """Made when it is used, so that it writes to the present standard output."""
    found = Console(highlight=False)
    # Into a file or a pipe nothing needs to fit a screen.
    return found if found.is_terminal else Console(highlight=False, width=WIDTH_PLAIN)


def write(text: RenderableType) -> None:
    """Something for people; markup counts."""
    console().print(text, soft_wrap=isinstance(text, str))


def write_json(value: Any) -> None:
    """One JSON document."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def write_error(code: str, message: str, hint: str, *, as_json: bool) -> None:
    """One line, and the hint."""
    if as_json:
        write_json({"error": {"code": code, "message": message, "hint": hint}})
        return
    errors = Console(stderr=True, highlight=False)
    errors.print(f"[bold red]error:[/] {escape(' '.join(message.split()))}", soft_wrap=True)
    if hint:
        errors.print(f"[dim]hint:[/]  {escape(hint)}", soft_wrap=True)


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]], *, text_columns: int = 1) -> Table:
    """Numbers to the right, with separators; the first columns are text. Fits a narrow screen if it can."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    if sum(map(len, headings)) > NARROW:
        made.padding = (0, 1, 0, 0)
    for index, heading in enumerate(headings):
        made.add_column(heading, justify="left" if index < text_columns else "right", min_width=len(heading))
    for row in rows:
        made.add_row(*(f"{cell:,}" if isinstance(cell, int) else escape(str(cell)) for cell in row))
    return made


@contextmanager
def progress(what: str, *, is_shown: bool) -> Iterator[Tell]:
    """A bar on standard error while the block runs, on a terminal only."""
    errors = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), DownloadColumn())
    with Progress(*columns, console=errors, transient=True, disable=not (is_shown and errors.is_terminal)) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
