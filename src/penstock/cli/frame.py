"""One frame of `penstock top`: rows laid out for a terminal of some size. Nothing here reads a clock or a key."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from penstock.cli import human
from penstock.cli.sampling import KEYS, Row

WIDE: Final = 100  # columns from which on there is room to spare
LINES_AROUND: Final = 6  # the title, the headings, the footer, and air between
SPARKS: Final = {False: 8, True: 24}
OLD_SECONDS: Final = 60.0
PAUSED: Final = "‖"


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
    queues = f"{len(rows):,} queue{'' if len(rows) == 1 else 's'}"
    rates = f"in {human.rate(pushed)}/s, out {human.rate(settled)}/s"
    text = f"[bold]penstock top[/] [dim]{now:%H:%M:%S}[/] {queues}, {rates} [dim]{escape(where)}[/]"
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
    name = f"[yellow]{PAUSED} {escape(row.name)}[/]" if row.paused else escape(row.name)
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
