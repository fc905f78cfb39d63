"""Tasks of a filled queue through one worker process, results stored, fsync on."""

from __future__ import annotations

from time import time
from typing import Literal

import penstock
from bench import peers
from bench.measure import Row, Scale, directory
from bench.server.process import broker
from bench.tasks.app import QUEUE, Marks, tasks_at
from bench.tasks.process import TEXT, wait_for, worker

COUNT = 20_000
CONCURRENCY = 100
BATCH = 1_000


def on_the_loop(scale: Scale) -> list[Row]:
    """Async functions."""
    return _rows("async", "noop", scale, 4, "4 × the fastest, and 10,000/s", 10_000)


def in_threads(scale: Scale) -> list[Row]:
    """Plain functions."""
    return _rows("sync, in threads", "noop_sync", scale, 3, "3 × the fastest", 0)


def _rows(
    what: str, name: Literal["noop", "noop_sync"], scale: Scale, times: float, asked: str, least: float
) -> list[Row]:
    peer, whose = peers.fastest_tasks("drain")
    rate = drained(name, scale(COUNT))
    floor = None if peer is None else max(least, times * peer)
    return [Row(f"20,000 no-op tasks ({what}), results stored", rate, "/s", peer, whose, floor, asked)]


def drained(name: Literal["noop", "noop_sync"], count: int) -> float:
    """Tasks a second, without the start of the worker; every result must be there."""
    with broker() as served, directory() as path:
        marks = Marks(path / "marks")
        tasks = tasks_at(served.url)
        task = tasks.noop if name == "noop" else tasks.noop_sync
        with tasks.app:
            begun = time()
            jobs = [job for _ in range(0, count, BATCH) for job in task.enqueue_many([(begun, TEXT)] * BATCH)]
            with worker(served, marks, "--concurrency", str(CONCURRENCY)) as process:
                wait_for(marks, count, process)
                results = {job.result(timeout=60) for job in jobs[:: BATCH // 2]}
        with penstock.connect(served.url) as ps:
            acked = ps.queue(QUEUE).stats().acked
        assert (results, acked) == ({1}, count), f"{acked} of {count} are done, with results {results}"
        started = sorted(at for at, _ in marks.read())
        first = count // 10
        return (count - first) / (started[-1] - started[first])
