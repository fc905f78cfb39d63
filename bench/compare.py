"""`python -m bench.compare OTHER`: CPU time per message, this tree against another checkout, in interleaved pairs.

Each figure is the CPU time that the client and, where there is one, the broker and the worker spend on a message. Runs
take turns: this tree, the other, this tree again; so a slow second hits all three. The ratio is the median over the
pairs. Beside it stands the spread of this tree against itself: a difference within it is not resolvable.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles

WORK = Path(__file__).with_name("compare_work.py")
ROWS = (
    "push, one at a time",
    "push_many of 1,000",
    "lease(1) + ack",
    "lease(1000), touch, ack",
    "asyncio: 64 pushes at a time",
    "TCP: 64 pushes at a time",
    "TCP: push_many of 1,000",
    "TCP: lease(1000), ack",
    "HTTP client: push_many of 1,000",
    "tasks: submit 1,000 at a time, run by a worker",
)


def run(tree: Path, row: str) -> float:
    """CPU seconds per message of one run on one tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": ""}
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, str(WORK), row, directory]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, cwd=directory)
    return float(json.loads(done.stdout.strip().splitlines()[-1]))


def compared(ours: Path, other: Path, row: str, pairs: int) -> dict[str, object]:
    """The median ratio of this tree to the other, and of this tree to itself."""
    ratios, same, figures = [], [], []
    for _ in range(pairs):
        first, against, second = run(ours, row), run(other, row), run(ours, row)
        ratios.append((first + second) / 2 / against)
        same.append(second / first)
        figures.append(first)
    quarters = quantiles(same, n=4)
    return {
        "row": row,
        "us_per_message": round(median(figures) * 1e6, 2),
        "ratio": round(median(ratios), 3),
        "same_quartiles": [round(quarters[0], 3), round(quarters[2], 3)],
    }


def main() -> None:
    """Measure every row, and print each as it comes."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description="Compare with another checkout.")
    parser.add_argument("other", type=Path)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    ours = Path(__file__).parent.parent
    for row in ROWS:
        if given.only in row:
            print(json.dumps(compared(ours, given.other.resolve(), row, given.pairs)), flush=True)


if __name__ == "__main__":
    main()
