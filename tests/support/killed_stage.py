"""A process that runs a stage until it is killed, and writes a line for each batch that it begins.

python -m tests.support.killed_stage DIRECTORY
"""

from __future__ import annotations

import sys
from typing import Any

from penstock.client.handles import Penstock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session

SOURCE, SINK = "orders", "totals"
OPTIONS: dict[str, Any] = {
    "partitions": 2, "ordering": "partition", "max_attempts": 1000, "backoff_base_seconds": 0.0,
}  # fmt: skip


def opened(directory: str) -> Penstock:
    """With small journal files: the state is sealed and compacted while the stage runs."""
    return Penstock(BlockingSession(Session(directory, journal_file_bytes=1 << 15)))


def stage(ps: Penstock) -> Any:
    """Sums of each key in windows of ten seconds."""

    def add(total: int, order: dict[str, int]) -> int:
        if order["n"] % 10 == 0:
            sys.stdout.write("working\n")
            sys.stdout.flush()
        return total + order["n"]

    windows = ps.stream(SOURCE).tumbling(10, at=lambda order: order["at"])
    return windows.aggregate(0, add).to(SINK)


if __name__ == "__main__":
    stage(opened(sys.argv[1])).run(batch=7)
