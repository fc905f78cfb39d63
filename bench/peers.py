"""Peers, measured in the same run by a harness outside this repository.

`PENSTOCK_PEERS` names the directory of the harness (its `run.py`), `PENSTOCK_PEERS_PYTHON` the interpreter that has the
peers' client libraries. Without them the rows have no peer to be compared with, and say so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

SYNCED = ("redis-streams:always", "postgres:lease", "postgres:delete")  # those that sync before they confirm
GATHERED = ("postgres:lease-coalesced",)
TASKS = ("taskiq", "huey", "huey-on-sqlite:sqlite-threads1", "dramatiq", "celery")
SYNCED_TASKS = ("dramatiq redis-always-threads8", "huey sqlite-threads1")
NOBODY = (None, "no peers here: set PENSTOCK_PEERS")

Best = tuple[float | None, str]


def best(workload: str) -> Best:
    """The best rate of a peer that confirms only what is durable, and its name."""
    return _most(_rows(SYNCED, workload), "rate")


def best_gathered() -> Best:
    """As `best`, with single messages gathered by the client (W2)."""
    return _most(_rows(GATHERED, "W2"), "rate")


def fastest_tasks(part: str, figure: str = "rate") -> Best:
    """The fastest task library in one part of W5: drain, e2e."""
    return _most(_tasks(part), figure)


def soonest_start(figure: str) -> Best:
    """Of the task libraries that sync what they store, the one that starts tasks soonest; in milliseconds."""
    synced = [row for row in _tasks("lat100") if _name(row) in SYNCED_TASKS]
    found, name = _chosen(synced, figure, min)
    return (None, name) if found is None else (found / 1_000, name)


def _tasks(part: str) -> list[dict[str, Any]]:
    return [row for row in _rows(TASKS, "W5") if row["workload"] == f"W5 {part}"]


def _most(rows: Iterable[dict[str, Any]], figure: str) -> Best:
    return _chosen(rows, figure, max)


def _chosen(rows: Iterable[dict[str, Any]], figure: str, choose: Callable[..., float]) -> Best:
    figures = {_name(row): row[figure] for row in rows if row.get(figure)}
    if not figures:
        return NOBODY
    name = choose(figures, key=lambda each: figures[each])
    return figures[str(name)], str(name)


def _name(row: dict[str, Any]) -> str:
    return f"{row['peer']} {row['variant']}"


@cache
def _rows(peers: tuple[str, ...], workload: str) -> list[dict[str, Any]]:
    harness = os.environ.get("PENSTOCK_PEERS")
    if not harness:
        return []
    with tempfile.TemporaryDirectory(prefix="penstock-peers-") as results:
        python = os.environ.get("PENSTOCK_PEERS_PYTHON", sys.executable)
        command = [python, "run.py", *peers, "--workloads", workload, "--reps", "1", "--sizes", "100"]
        subprocess.run([*command, "--results", results], cwd=harness, capture_output=True, check=False)
        rows = Path(results) / "rows.jsonl"
        lines = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
        return [json.loads(line) for line in lines]
