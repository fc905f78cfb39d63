"""The table of a run."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bench.measure import Row

MARKS = {True: "[green]✓[/green]", False: "[red]✗[/red]", None: ""}


def number(value: float | None, unit: str) -> str:
    """A value with its unit."""
    if value is None:
        return "–"
    if unit == "s":
        return f"{value:.3f} s"
    if unit == "ms":
        return f"{value:.2f} ms"
    if unit == "×":
        return f"{value:.2f} ×"
    if unit == "exponent":
        return f"n^{value:.2f}"
    if unit == "MB":
        return f"{value:,.0f} MB"
    return f"{value:,.0f} {unit}"


def show(rows: Sequence[Row], console: Console, title: str) -> None:
    """Print the table."""
    table = Table(title=title, title_justify="left")
    for name in ("what", "measured", "raw limit, same run", "ratio", "asked", ""):
        table.add_column(name, justify="left" if name in {"what", ""} else "right", overflow="fold")
    for row in rows:
        table.add_row(*cells(row))
    console.print(table)


def cells(row: Row) -> tuple[str, ...]:
    """One line of it."""
    raw = "–" if row.raw is None else f"{number(row.raw, row.unit)}\n[dim]{row.raw_what}[/dim]"
    ratio = "–" if row.ratio is None else f"{row.ratio:.2f}"
    return row.what, number(row.value, row.unit), raw, ratio, asked(row), MARKS[row.passed]


def asked(row: Row) -> str:
    """The floor, and where it comes from."""
    if row.floor is None:
        return "–"
    sign = "<" if row.ceiling else "≥"
    text = f"{sign} {number(row.floor, row.unit)}"
    return f"{text}\n[dim]{row.floor_what}[/dim]" if row.floor_what else text
