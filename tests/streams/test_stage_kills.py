"""kill -9 of a process that runs a stage, again and again: no message is counted twice, and none is missed."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from penstock import Message
from penstock.model import to_micros
from tests.support.dose import dose
from tests.support.killed_stage import OPTIONS, SINK, SOURCE, opened, stage

ROOT = Path(__file__).parent.parent.parent
KILLS = dose(4, 200)
ORDERS = 600


def killed_after(lines: int, directory: Path) -> None:
    command = [sys.executable, "-m", "tests.support.killed_stage", str(directory)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(lines):
            assert process.stdout.readline(), f"the process ended by itself: {process.wait()}"
        process.kill()


def test_kill_9_at_any_moment_leaves_neither_gap_nor_duplicate(tmp_path):
    rng = random.Random(KILLS)
    orders = [(f"k{number % 5}", number, number // 4) for number in range(ORDERS)]
    with opened(str(tmp_path)) as ps:
        ps.create_queue(SOURCE, **OPTIONS)
        rows = [Message(payload={"n": n, "at": at}, key=key, partition=n % 5 % 2) for key, n, at in orders]
        ps.queue(SOURCE).push_many(rows)

    for _ in range(KILLS):
        killed_after(rng.randint(1, ORDERS // 10 // KILLS) or 1, tmp_path)

    with opened(str(tmp_path)) as ps:
        stage(ps).run(idle_seconds=0)
        found = [message.json() for message in ps.queue(SINK).read(limit=10_000)]
    closed = ORDERS // 4 // 10 * 10 - 10
    sums: dict[tuple[str, int], int] = {}
    for key, n, at in orders:
        sums[key, at // 10 * 10] = sums.get((key, at // 10 * 10), 0) + n
    seconds = [to_micros(row["window_start"], "window_start") // 1_000_000 for row in found]
    assert len(found) == len({(row["key"], start) for row, start in zip(found, seconds, strict=True)})
    results = {(row["key"], start): row["value"] for row, start in zip(found, seconds, strict=True)}
    assert results == {(key, start): total for (key, start), total in sums.items() if start < closed}
