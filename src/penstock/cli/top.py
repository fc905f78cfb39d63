"""`penstock top`: a live view of all queues. One loop: sample, draw, then wait for a key or the next sample."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
import typer
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from penstock.cli import human, output
from penstock.cli.exits import CommandError
from penstock.cli.options import AsJson, seconds_option
from penstock.cli.target import Broker
from penstock.errors import QueueNotFound, ServerError
from penstock.model import DEFAULT_GROUP, DLQ_SUFFIX, GroupStats, QueueStats
from penstock.units import plural

if TYPE_CHECKING:
    from penstock import Penstock


HISTORY: Final = 120  # samples that a sparkline may go back

Count = tuple[QueueStats, int]  # an account, and the sum of the end offsets of all partitions


class Row(msgspec.Struct, kw_only=True):
    """One queue at one moment. Counts are those of the default group; lag and oldest of the group furthest behind."""

    name: str
    ready: int
    leased: int
    waiting: int
    dead: int
    lag: int
    oldest_unsettled_at: datetime | None
    bytes_stored: int
    paused: bool
    push_paused: bool = False
    pushed_per_second: float = 0.0
    settled_per_second: float = 0.0
    history: list[float] = []  # messages pushed per second, oldest first


class Sampler:
    """Remembers the sample before, so that the next one has rates."""

    def __init__(self) -> None:
        self._before: dict[str, Count] = {}
        self._before_seconds = 0.0
        self._histories: dict[str, deque[float]] = {}

    def take(self, counts: list[Count], now_seconds: float) -> list[Row]:
        """A row for each queue; `now_seconds` is monotonic."""
        passed = now_seconds - self._before_seconds
        rows = [self._row(count, passed) for count in counts]
        self._before = {stats.name: (stats, end) for stats, end in counts}
        self._before_seconds = now_seconds
        self._histories = {row.name: self._histories[row.name] for row in rows}
        return rows

    def _row(self, count: Count, passed_seconds: float) -> Row:
        stats, end = count
        history = self._histories.setdefault(stats.name, deque(maxlen=HISTORY))
        row = _row(stats)
        before = self._before.get(stats.name)
        if before is not None and passed_seconds > 0:
            row.pushed_per_second = max(0, end - before[1]) / passed_seconds
            row.settled_per_second = _settled(before, count) / passed_seconds
            history.append(row.pushed_per_second)
        row.history = list(history)
        return row


def _row(stats: QueueStats) -> Row:
    groups = list(stats.groups.values())
    oldest = [group.oldest_unsettled_at for group in groups if group.oldest_unsettled_at is not None]
    return Row(
        name=stats.name,
        ready=stats.ready,
        leased=stats.leased,
        waiting=stats.waiting,
        dead=stats.dead,
        lag=max(group.lag for group in groups),
        oldest_unsettled_at=min(oldest, default=None),
        bytes_stored=stats.bytes_stored,
        paused=stats.paused or any(group.paused for group in groups),
        push_paused=stats.push_paused,
    )


def _settled(before: Count, after: Count) -> int:
    """How many messages groups are done with since: what came, less what more they have before them."""
    came = after[1] - before[1]
    return sum(
        max(0, came + _unsettled(before[0].groups[name]) - _unsettled(group))
        for name, group in after[0].groups.items()
        if name in before[0].groups
    )


def _unsettled(group: GroupStats) -> int:
    return group.ready + group.leased + group.waiting


def counted(ps: Penstock) -> list[Count]:
    """The counters of all queues but those of dead letters."""
    found = []
    for name in ps.queues():
        if name.endswith(DLQ_SUFFIX):
            continue
        try:
            queue = ps.queue(name)
            found.append((queue.stats(), sum(row.end_offset for row in queue.groups()[DEFAULT_GROUP])))
        except QueueNotFound:  # deleted meanwhile
            continue
    return found


KEYS: Final[dict[str, tuple[str, Any]]] = {
    "n": ("name", lambda row: row.name),
    "r": ("ready", lambda row: -row.ready),
    "l": ("lag", lambda row: -row.lag),
    "d": ("dead", lambda row: -row.dead),
    "i": ("in", lambda row: -row.pushed_per_second),
    "o": ("out", lambda row: -row.settled_per_second),
    "a": ("age", lambda row: row.oldest_unsettled_at or datetime.max.replace(tzinfo=UTC)),
}
SORTS: Final = dict(KEYS.values())


def ordered(rows: list[Row], sort: str) -> list[Row]:
    """Rows by a column, the greatest first; names break ties."""
    return sorted(sorted(rows, key=lambda row: row.name), key=SORTS[sort])


WIDE: Final = 100  # columns from which on there is room to spare
LINES_AROUND: Final = 6  # the title, the headings, the footer, and air between
SPARKS: Final = {False: 8, True: 24}
OLD_SECONDS: Final = 60.0
PAUSED: Final = "‖"
PUSH_PAUSED: Final = "⊘"


def frame(rows: list[Row], sort: str, now: datetime, *, width: int, height: int) -> Group:
    """As many queues as fit."""
    shown = rows[: max(1, height - LINES_AROUND)]
    parts: list[Table | Text] = [_table(shown, sort, now, width)]
    if len(rows) > len(shown):
        parts.append(Text(f"… and {len(rows) - len(shown):,} more", style="dim"))
    if not rows:
        parts.append(Text("no queues yet", style="dim"))
    return Group(*parts)


def title(rows: list[Row], where: str, now: datetime, trouble: str) -> Text:
    """What it all comes to, or what is wrong."""
    if trouble:
        return Text.from_markup(f"[bold]penstock top[/] [bold red]{escape(trouble)}[/]", overflow="ellipsis")
    pushed = sum(row.pushed_per_second for row in rows)
    settled = sum(row.settled_per_second for row in rows)
    rates = f"in {human.rate(pushed)}/s, out {human.rate(settled)}/s"
    text = f"[bold]penstock top[/] [dim]{now:%H:%M:%S}[/] {plural(len(rows), 'queue')}, {rates} [dim]{escape(where)}[/]"
    return Text.from_markup(text, overflow="ellipsis")


def _table(rows: list[Row], sort: str, now: datetime, width: int) -> Table:
    is_wide = width >= WIDE
    table = Table(box=None, pad_edge=False, padding=(0, 2 if is_wide else 1, 0, 0), header_style="bold", width=width)
    table.add_column(_heading("queue", "name", sort), no_wrap=True, overflow="ellipsis", ratio=1)
    for heading in ("ready", "leased", "waiting", "dead", "lag"):
        table.add_column(_heading(heading, heading, sort), justify="right", no_wrap=True, min_width=6)
    table.add_column(_heading("oldest", "age", sort), justify="right", no_wrap=True, min_width=6)
    table.add_column(_heading("in/s", "in", sort), justify="right", no_wrap=True, min_width=5)
    table.add_column(_heading("out/s", "out", sort), justify="right", no_wrap=True, min_width=5)
    table.add_column("pushed", no_wrap=True, min_width=SPARKS[is_wide])
    for row in rows:
        table.add_row(*_cells(row, now, SPARKS[is_wide]))
    return table


def _heading(text: str, name: str, sort: str) -> str:
    return f"[reverse]{text}[/]" if name == sort else text


def _cells(row: Row, now: datetime, spark: int) -> list[str]:
    signs = PAUSED * row.paused + PUSH_PAUSED * row.push_paused
    name = f"[yellow]{signs} {escape(row.name)}[/]" if signs else escape(row.name)
    counts = [_dimmed(human.compact(count), count) for count in (row.ready, row.leased, row.waiting)]
    dead = f"[red]{human.compact(row.dead)}[/]" if row.dead else "[dim]0[/]"
    rates = [_dimmed(human.rate(rate), rate) for rate in (row.pushed_per_second, row.settled_per_second)]
    lag = _dimmed(human.compact(row.lag), row.lag)
    return [name, *counts, dead, lag, _age(row, now), *rates, f"[cyan]{human.sparkline(row.history, spark)}[/]"]


def _age(row: Row, now: datetime) -> str:
    at = row.oldest_unsettled_at
    if at is None:
        return f"[dim]{human.EMPTY}[/]"
    text = human.age(at, now)
    return f"[yellow]{text}[/]" if (now - at).total_seconds() > OLD_SECONDS else text


def _dimmed(text: str, value: float) -> str:
    return text if value else f"[dim]{text}[/]"


def footer(sort: str) -> Text:
    """The keys."""
    keys = "  ".join(
        f"[bold]{key}[/] {f'[reverse]{name}[/]' if name == sort else name}" for key, (name, _) in KEYS.items()
    )
    return Text.from_markup(f"[bold]q[/] quit   [dim]sort:[/] {keys}", overflow="ellipsis")


QUIT: Final = ("q", "Q", "\x03", "\x1b")
Wait = Callable[[float], str]  # waits the given seconds for a key: the key, or nothing
Sort = Literal["name", "ready", "lag", "dead", "in", "out", "age"]


def top(
    broker: Broker,
    sort: Annotated[Sort, typer.Option(help="The column to sort by.")] = "name",
    every: Annotated[float, seconds_option("--every", about="How often to refresh.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch all queues: rates, ready, leased, waiting and dead messages, lag and the oldest message.

    Press a column's key to sort by it, q to quit. With --json, each sample is a line.
    """
    if every < 0.05:
        raise CommandError(f"--every: {human.duration(every)} is too often", hint="the minimum is 50ms")
    where = broker.address
    with broker.opened() as ps:
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
        console.print(self.draw(console.width, len(self._rows) + LINES_AROUND, has_keys=False))

    def run(self) -> None:
        """Until someone has seen enough."""
        console = output.SafeConsole(highlight=False)
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
        drawn = frame(rows, self._sort, now, width=width, height=height)
        heading = title(rows, self._where, now, self._trouble)
        return Group(heading, Text(), drawn, *([Text(), footer(self._sort)] if has_keys else []))


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
