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
from functools import cache
from pathlib import Path

SYNCED = ("redis-streams:always", "postgres:lease", "postgres:delete")  # those that sync before they confirm
GATHERED = ("postgres:lease-coalesced",)


def best(workload: str) -> tuple[float | None, str]:
    """The best rate of a peer that confirms only what is durable, and its name."""
    return _best(_rates(SYNCED, workload))


def best_gathered() -> tuple[float | None, str]:
    """The same with single messages gathered by the client (W2)."""
    return _best(_rates(GATHERED, "W2"))


def _best(rates: dict[str, float]) -> tuple[float | None, str]:
    if not rates:
        return None, "no peers here: set PENSTOCK_PEERS"
    name = max(rates, key=lambda each: rates[each])
    return rates[name], name


@cache
def _rates(peers: tuple[str, ...], workload: str) -> dict[str, float]:
    harness = os.environ.get("PENSTOCK_PEERS")
    if not harness:
        return {}
    with tempfile.TemporaryDirectory(prefix="penstock-peers-") as results:
        python = os.environ.get("PENSTOCK_PEERS_PYTHON", sys.executable)
        command = [python, "run.py", *peers, "--workloads", workload, "--reps", "1", "--sizes", "100"]
        subprocess.run([*command, "--results", results], cwd=harness, capture_output=True, check=False)
        rows = Path(results) / "rows.jsonl"
        lines = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
        found = [json.loads(line) for line in lines]
    return {f"{row['peer']} {row['variant']}": row["rate"] for row in found if row.get("rate")}
