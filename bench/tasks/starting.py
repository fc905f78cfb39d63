"""From the beginning of a submit to the start of its handler in a waiting worker, a hundred times a second."""

from __future__ import annotations

import asyncio
from statistics import quantiles
from time import time

import uvloop

from bench import peers
from bench.measure import Row, Scale, directory
from bench.server.process import broker
from bench.tasks.app import Marks, tasks_at
from bench.tasks.process import TEXT, wait_for, worker

PER_SECOND = 100
P50_MS = 1.5
P99_MS = 4.0


def latency(scale: Scale) -> list[Row]:
    """Beside the peer that syncs and is soonest."""
    count = scale(1_000)
    with broker() as served, directory() as path:
        marks = Marks(path / "marks")
        with worker(served, marks) as process:

            async def submit() -> None:
                tasks = tasks_at(served.url)
                async with tasks.app:
                    await tasks.noop.aenqueue(time(), TEXT)
                    await asyncio.to_thread(wait_for, marks, 1, process)
                    for _ in range(count):
                        await tasks.noop.aenqueue(time(), TEXT)
                        await asyncio.sleep(1 / PER_SECOND)

            uvloop.run(submit())
            wait_for(marks, count + 1, process)
        waits = [1_000 * (started - submitted) for started, submitted in marks.read()[1:]]
    cuts = quantiles(waits, n=100)
    return [_row("p50", cuts[49], P50_MS), _row("p99", cuts[98], P99_MS)]


def _row(which: str, value: float, asked: float) -> Row:
    peer, name = peers.soonest_start(f"{which}_us")
    floor = asked if peer is None else min(asked, peer)
    about = f"{asked:g} ms, and below who syncs"
    return Row(f"submit → handler starts, {which}", value, "ms", peer, name, floor, about, ceiling=True)
