"""`penstock top`: a live view of all queues. One loop: sample, draw, then wait for a key or the next sample."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from penstock.cli import frame, output
from penstock.cli.exits import CommandError
from penstock.cli.options import AsJson, ContextOption, Url, seconds_option
from penstock.cli.sampling import KEYS, Row, Sampler, counted, ordered
from penstock.cli.target import address, opened
from penstock.errors import ServerError

if TYPE_CHECKING:
    from penstock import Penstock

QUIT: Final = ("q", "Q", "\x03", "\x1b")
Wait = Callable[[float], str]  # waits so long for a key: the key, or nothing
Sort = Literal["name", "ready", "lag", "dead", "in", "out", "age"]


def top(
    sort: Annotated[Sort, typer.Option(help="Which column decides the order.")] = "name",
    every: Annotated[float, seconds_option("--every", about="How often to look.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, print one frame, and leave.")] = False,
    url: Url = None,
    context: ContextOption = None,
    as_json: AsJson = False,
) -> None:
    """Watch all queues: rates in and out, what is ready, leased, waiting and dead, lag and the oldest message.

    Keys choose the order; q leaves. With --json each sample is a line.
    """
    if every < 0.05:
        raise CommandError(f"--every: {every:g} seconds is too often", hint="50ms is the least")
    where = address(url, context)
    with opened(url, context) as ps:
        view = Watch(ps, sort, every, where)
        if as_json:
            view.print_json(once=once)
        elif once or not output.console().is_terminal:
            view.print_once()
        else:
            view.run()


class Watch:
    """What is on the screen, and what comes next."""

    def __init__(self, ps: Penstock, sort: str, every_seconds: float, where: str) -> None:
        self._ps = ps
        self._sampler = Sampler()
        self._sort = sort
        self._every_seconds = every_seconds
        self._where = where
        self._rows: list[Row] = []
        self._trouble = ""

    def print_json(self, *, once: bool) -> None:
        """A line for each sample; the first one, which has no rates yet, is left out."""
        self.sample()
        while True:
            time.sleep(self._every_seconds)
            self.sample()
            if self._trouble:
                raise CommandError(self._trouble, hint="", code="unavailable", exit_code=2)
            rows = ordered(self._rows, self._sort)
            output.write_json_line({"at": datetime.now(UTC), "queues": [_json(row) for row in rows]})
            if once:
                return

    def print_once(self) -> None:
        """One frame, with rates, as tall as it needs to be."""
        self.sample()
        time.sleep(self._every_seconds)
        self.sample()
        console = output.console()
        console.print(self.draw(console.width, len(self._rows) + frame.LINES_AROUND, has_keys=False))

    def run(self) -> None:
        """Until someone has seen enough."""
        console = output.Paper(highlight=False)
        with keys() as wait_for_key, Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                self.sample()
                until = time.monotonic() + self._every_seconds
                while (left := until - time.monotonic()) > 0:
                    live.update(self.draw(console.width, console.height), refresh=True)
                    key = wait_for_key(left)
                    if key in QUIT:
                        return
                    self._sort = KEYS[key][0] if key in KEYS else self._sort

    def sample(self) -> None:
        """Look; when the broker does not answer, what is known stays on the screen with a word about it."""
        try:
            self._rows = self._sampler.take(counted(self._ps), time.monotonic())
            self._trouble = ""
        except ServerError as error:
            if not self._rows:
                raise
            self._trouble = error.message

    def draw(self, width: int, height: int, *, has_keys: bool = True) -> Group:
        """The screen as it should be now."""
        rows = ordered(self._rows, self._sort)
        now = datetime.now(UTC)
        drawn = frame.frame(rows, self._sort, now, width=width, height=height)
        title = frame.title(rows, self._where, now, self._trouble)
        return Group(title, Text(), drawn, *([Text(), frame.footer(self._sort)] if has_keys else []))


def _json(row: Row) -> dict[str, object]:
    found: dict[str, object] = msgspec.structs.asdict(row)
    del found["history"]
    return found


def no_key(seconds: float) -> str:
    """Nobody can press one."""
    time.sleep(seconds)
    return ""


@contextmanager
def keys() -> Iterator[Wait]:
    """Keys one by one, without Enter and without echo, while the block runs."""
    if not sys.stdin.isatty():
        yield no_key
        return
    door = sys.stdin.fileno()
    before = termios.tcgetattr(door)

    def wait_for_key(seconds: float) -> str:
        return os.read(door, 1).decode(errors="ignore") if select.select([door], [], [], seconds)[0] else ""

    tty.setcbreak(door)
    try:
        yield wait_for_key
    finally:
        termios.tcsetattr(door, termios.TCSADRAIN, before)
