"""`python -m bench [table …] [--quick] [--only text] [--json file]`: measure, and print the table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench import cluster, embedded, growth, server, spark, table, tasks
from bench.measure import Row, Scale

TABLES = {
    "cluster": cluster.GROUPS,
    "embedded": embedded.GROUPS,
    "growth": growth.GROUPS,
    "server": server.GROUPS,
    "spark": spark.GROUPS,
    "tasks": tasks.GROUPS,
}


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Penstock beside the raw limits.")
    parser.add_argument("tables", nargs="*", metavar="table", help=f"one of: {', '.join(TABLES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes")
    parser.add_argument("--only", default="", metavar="text", help="only the groups with this in their name")
    parser.add_argument("--json", type=Path, metavar="file", help="write the rows there too")
    parser.add_argument("--list", action="store_true", help="name the groups and stop")
    given = parser.parse_args()
    if unknown := set(given.tables) - set(TABLES):
        parser.error(f"no such table: {', '.join(sorted(unknown))}")
    return given


def main() -> None:
    """Measure, print, and write the rows when asked."""
    given = arguments()
    console = Console() if sys.stdout.isatty() else Console(width=150)
    rows: list[Row] = []
    for name in given.tables or TABLES:
        rows += measure(name, given, console)
    if given.json:
        given.json.write_text(json.dumps([described(row) for row in rows], indent=1) + "\n", encoding="utf-8")


def measure(name: str, given: argparse.Namespace, console: Console) -> list[Row]:
    """The rows of one table, told as they come and printed at the end."""
    groups = {key: group for key, group in TABLES[name].items() if given.only in key}
    if given.list:
        console.print("\n".join(groups))
        return []
    rows: list[Row] = []
    for key, group in groups.items():
        with console.status(f"{name}: {key}"):
            found = group(Scale(given.quick))
        for row in found:
            console.print(f"[dim]{row.what}: {table.number(row.value, row.unit)}[/dim]")
        rows += found
    console.print()
    table.show(rows, console, f"{name}, 100-byte payloads{' (quick)' if given.quick else ''}; {machine()}")
    console.print(summary(rows))
    return rows


def machine() -> str:
    """Where it ran."""
    load = os.getloadavg()[0]
    return f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f}"


def described(row: Row) -> dict[str, object]:
    """A row as JSON has it."""
    return {**row._asdict(), "ratio": row.ratio, "passed": row.passed}


def summary(rows: Sequence[Row]) -> str:
    """How many floors are met."""
    asked = [row for row in rows if row.passed is not None]
    return f"{sum(bool(row.passed) for row in asked)} of {len(asked)} floors are met"


if __name__ == "__main__":
    main()
