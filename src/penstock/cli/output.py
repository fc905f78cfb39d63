"""Printing: text for people, JSON for programs, progress for the impatient.

Colours go to terminals only, and never when NO_COLOR is set. What is written to a pipe is not cut to any width.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, TextIO, TypeVar

import msgspec
import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn
from rich.segment import Segment
from rich.table import Table

from penstock.cli import human
from penstock.cli.exits import CommandError, exit_code
from penstock.errors import PenstockError, printable

T = TypeVar("T")

WIDTH_PLAIN = 120
NARROW = 40  # characters in all headings together, over which columns move closer

OnProgress = Callable[[int, int | None], None]  # done, and in all if that is known


# Letters that JSON does not escape by itself, and a terminal may obey.
_UNSHOWN: Final = re.compile("[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class SafeConsole(Console):
    """A console that leaves it to the command line what to do when nobody reads on.

    Texts may be anybody's: what a terminal would obey is shown as escapes.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            is_safe = segment.control or segment.text.isprintable()
            yield segment if is_safe else Segment(printable(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """Made when it is used, so that it writes to the present standard output."""
    paper = SafeConsole(highlight=False)
    # Into a file or a pipe nothing needs to fit a screen.
    return (
        paper
        if paper.is_terminal
        else SafeConsole(highlight=False, width=int(os.environ.get("COLUMNS") or WIDTH_PLAIN))
    )


def write(text: RenderableType, paper: Console | None = None) -> None:
    """Something for people; markup counts."""
    (paper or console()).print(text, soft_wrap=isinstance(text, str))


def write_json(value: Any) -> None:
    """One JSON document."""
    sys.stdout.write(_escaped(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()) + "\n")


def write_json_line(value: Any) -> None:
    """One JSON value of a stream, on a line of its own, at once."""
    sys.stdout.write(_escaped(msgspec.json.encode(value).decode()) + "\n")
    sys.stdout.flush()


def write_bytes(payload: bytes, end: bytes = b"\n") -> None:
    """A payload as it is, and a newline; on a terminal, what can be shown of it."""
    if sys.stdout.isatty():
        write_plain(payload.decode(errors="backslashreplace"))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(payload + end)
    sys.stdout.buffer.flush()


def write_plain(text: str) -> None:
    """Text that means nothing but itself, at once."""
    for_eyes(sys.stdout).write(text + "\n")
    sys.stdout.flush()


def for_eyes(file: TextIO) -> TextIO:
    """The file itself, or what escapes all that a terminal would obey if it is one."""
    return _Shown(file) if file.isatty() else file


class _Shown(io.StringIO):
    """A terminal that gets text, and nothing to obey."""

    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(printable(text.replace("\r\n", "\n")))


def _escaped(json: str) -> str:
    return _UNSHOWN.sub(lambda character: f"\\u{ord(character[0]):04x}", json)


def done(text: str, value: Any, *, as_json: bool) -> None:
    """What a command did: a line for people, or an object."""
    if as_json:
        write_json(value)
    else:
        write(f"[green]✓[/] {escape(text)}")


def write_list(
    items: Sequence[T],
    headings: Sequence[str],
    row: Callable[[T], Sequence[Any]],
    *,
    as_json: bool,
    nothing: tuple[str, str],
    shape: Callable[[T], Any] = lambda item: item,
    text_columns: int | None = None,
    has_excerpt: bool = False,
) -> None:
    """A table, or a list in JSON. Of an empty table `nothing` is shown: a message and a hint."""
    if as_json:
        write_json([shape(item) for item in items])
    elif items:
        columns = len(headings) if text_columns is None else text_columns
        write(table(headings, [row(item) for item in items], text_columns=columns, has_excerpt=has_excerpt))
    else:
        write_nothing(*nothing)


def has_terminal() -> bool:
    """Whether someone is there to answer."""
    return sys.stdin.isatty()


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be undone; without a terminal only --yes is an answer."""
    if yes:
        return
    if not has_terminal():
        hint = "it cannot be undone, and there is no terminal to ask: confirm with --yes"
        raise CommandError(f"not confirmed: {question}", hint=hint)
    typer.confirm(question, abort=True, err=True)


def write_error(code: str, message: str, hint: str, *, as_json: bool) -> None:
    """One line, and the hint."""
    if as_json:
        write_json_line({"error": {"code": code, "message": message, "hint": hint}})
        return
    errors = SafeConsole(stderr=True, highlight=False)
    errors.print(f"[bold red]error:[/] {escape(' '.join(message.split()))}", soft_wrap=True)
    if hint:
        errors.print(f"[dim]hint:[/]  {escape(hint)}", soft_wrap=True)


def write_note(text: str) -> None:
    """Something to know while a command goes on; on standard error, so that output stays what it is."""
    SafeConsole(stderr=True, highlight=False).print(f"[dim]{escape(text)}[/]", soft_wrap=True)


def write_nothing(message: str, hint: str = "") -> None:
    """What a list that is empty shows. It is not an error; and what reads standard output finds nothing there."""
    write_note(f"{message}; {hint}" if hint else message)


def table(
    headings: Sequence[str], rows: Sequence[Sequence[Any]], *, text_columns: int = 1, has_excerpt: bool = False
) -> Table:
    """Numbers to the right, with separators; the first columns are text. Fits a narrow screen if it can.

    With `has_excerpt` the last column is text too, cut at the edge of the screen.
    """
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    if sum(map(len, headings)) > NARROW:
        made.padding = (0, 1, 0, 0)
    for index, heading in enumerate(headings):
        if has_excerpt and index == len(headings) - 1:
            # What is left of the screen: Rich would take it from the other columns.
            room = console().width - sum(_widths(headings, rows)[:-1]) - made.padding[1] * index
            made.add_column(heading, no_wrap=True, overflow="ellipsis", max_width=max(room, len(heading)))
        else:
            justify: Literal["left", "right"] = "left" if index < text_columns else "right"
            made.add_column(heading, justify=justify, min_width=len(heading), overflow="fold")
    for row in rows:
        made.add_row(*map(_cell, row))
    return made


def change_each(
    items: Sequence[T], name: str, change: Callable[[T], tuple[str, dict[str, Any]]], *, as_json: bool
) -> None:
    """Change several things, each reported on a line: `change` returns a text and JSON fields. `name` is JSON too.

    One that is refused does not keep the others from being changed, and its exit code is that of the command.
    """
    worst = 0
    for item in items:
        try:
            text, value = change(item)
        except PenstockError as error:
            if len(items) == 1:
                raise
            worst = max(worst, exit_code(error))
            if as_json:
                refusal = {"code": error.code, "message": error.message, "hint": error.hint}
                write_json_line({name: str(item), "status": "refused", "error": refusal})
            else:
                about = "" if str(item) in error.message else f"{item}: "
                write_error(error.code, about + error.message, error.hint, as_json=False)
        else:
            if as_json:
                write_json_line({name: str(item), **value})
            else:
                write(f"[green]✓[/] {escape(text)}")
    if worst:
        raise typer.Exit(worst)


def _widths(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[int]:
    """The longest text of each column."""
    texts = ([f"{value:,}" if isinstance(value, int) else str(value) for value in row] for row in rows)
    return [max(map(len, column)) for column in zip(headings, *texts, strict=True)]


def _cell(value: Any) -> str:
    text = f"{value:,}" if isinstance(value, int) else escape(str(value))
    return f"[dim]{text}[/]" if value in (0, human.EMPTY) else text


@contextmanager
def progress(what: str, *, is_shown: bool, is_counted: bool = False) -> Iterator[OnProgress]:
    """A bar on standard error while the block runs, on a terminal only; of bytes, or with `is_counted` of things."""
    errors = SafeConsole(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn() if is_counted else DownloadColumn())
    with Progress(*columns, console=errors, transient=True, disable=not (is_shown and errors.is_terminal)) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def edit(content: bytes) -> bytes | None:
    """Open content in the editor of the user, `$VISUAL` or `$EDITOR`; None when it was not saved."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "payload.txt"
        file.write_bytes(content)
        os.utime(file, (1, 1))  # so that a save within this second is seen too
        try:
            status = subprocess.run([*shlex.split(editor), str(file)], check=False).returncode  # noqa: S603
        except (OSError, ValueError) as error:
            raise CommandError(f"the editor {editor!r} cannot be started: {error}", hint="set EDITOR") from None
        if status:
            raise CommandError(f"the editor {editor!r} ended with exit code {status}", hint="nothing was changed")
        return file.read_bytes() if file.stat().st_mtime != 1 else None
