"""How the demonstration looks: a scene says what it shows, the code that does it, and what came out.

The code that is shown is the source of the function that runs, so it cannot drift from it.
"""

from __future__ import annotations

import inspect
import textwrap
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from rich.markup import escape
from rich.syntax import Syntax
from rich.text import Text

from penstock.cli import output

P = ParamSpec("P")
T = TypeVar("T")

PAUSE_SECONDS = 0.7  # to read what came out before the next scene


class Stage:
    """Prints scenes, and times what they run."""

    def __init__(self, *, is_quick: bool) -> None:
        self._console = output.console()
        self._number = 0
        self._is_apart = False  # an empty line was the last thing printed
        self._pause_seconds = 0.0 if is_quick or not self._console.is_terminal else PAUSE_SECONDS

    def scene(self, title: str, words: str) -> None:
        """Begin a scene."""
        if self._number:
            time.sleep(self._pause_seconds)
        self._number += 1
        self._console.print()
        self._console.rule(f"[bold cyan]{self._number}[/] [bold]{title}[/]", align="left", style="dim")
        self._console.print(words)
        self._is_apart = False

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, float]:
        """Show a function's body, run it: its result, and the seconds it took."""
        self.show(source_of(function))
        started = time.perf_counter()
        result = function(*args, **kwargs)
        return result, time.perf_counter() - started

    def show(self, code: str, lexer: str = "python") -> None:
        """Show some code."""
        text = Syntax("", lexer, theme="ansi_dark", background_color="default").highlight(code)
        text.rstrip()
        if not self._is_apart:
            self._console.print()
        for line in text.split("\n", allow_blank=True):
            self._console.print(Text("    ") + line, soft_wrap=True)
        self._console.print()
        self._is_apart = True

    def tell(self, text: str, *, is_good: bool = True) -> None:
        """What came out."""
        self._is_apart = False
        self._console.print(f"[{'green' if is_good else 'red'}]→[/] {text}", soft_wrap=True)

    def line(self, text: str) -> None:
        """A detail of it, as it happens."""
        self._is_apart = False
        self._console.print(f"    {escape(text)}", style="dim", soft_wrap=True)


def source_of(function: Callable[..., object]) -> str:
    """The body of a function, without its first line, its docstring and what it returns at the end."""
    lines = inspect.getsource(function).splitlines()
    start = next(index for index, line in enumerate(lines) if line.rstrip().endswith(":")) + 1
    body = textwrap.dedent("\n".join(lines[start:])).strip()
    if body.startswith('"""'):
        body = body.partition('"""')[2].partition('"""')[2].strip()
    *lines, last = body.splitlines()
    last = last.removeprefix("return ")
    return "\n".join(lines if last.isidentifier() else [*lines, last])


def rate(count: float, seconds: float) -> str:
    """So many a second, for people."""
    return f"{count / max(seconds, 1e-9):,.0f}/s"
