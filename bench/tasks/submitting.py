"""Submitting tasks: 64 at a time one by one, and in batches of a thousand; each confirmed when it is durable."""

from __future__ import annotations

import asyncio
from statistics import quantiles
from time import perf_counter, time

import uvloop

from bench import peers
from bench.measure import Row, Scale, directory, interleaved
from bench.server.load import CONNECTIONS, SECONDS, workers
from bench.server.process import broker
from bench.tasks.app import Marks, tasks_at
from bench.tasks.process import TEXT, wait_for, worker

BATCH = 1_000
IN_FLIGHT = 4


def singles(scale: Scale) -> list[Row]:
    """`aenqueue`, 64 of them under way."""
    peer, name = peers.fastest_tasks("e2e", "enqueue_rate")

    async def work(url: str) -> float:
        tasks = tasks_at(url)
        async with tasks.app:

            async def one() -> int:
                await tasks.noop.aenqueue(0.0, TEXT)
                return 1

            await workers(CONNECTIONS, one, 0.3)
            return await workers(CONNECTIONS, one, SECONDS)

    with broker() as served:
        (rate,) = interleaved(lambda: uvloop.run(work(served.url)), rounds=1 if scale.quick else 3)
    floor = None if peer is None else 2 * peer
    return [Row("submit, 64 concurrent", rate, "/s", peer, name, floor, "2 × the best peer")]


def batches(scale: Scale) -> list[Row]:
    """`aenqueue_many` of a thousand, four under way."""
    rounds = scale(100)

    async def work(url: str) -> float:
        tasks = tasks_at(url)
        async with tasks.app:
            left = iter(range(rounds))

            async def lane() -> None:
                for _ in left:
                    await tasks.noop.aenqueue_many(arguments)

            begun = perf_counter()
            await asyncio.gather(*[lane() for _ in range(IN_FLIGHT)])
            return rounds * BATCH / (perf_counter() - begun)

    arguments = [(0.0, TEXT)] * BATCH
    with broker() as served:
        (rate,) = interleaved(lambda: uvloop.run(work(served.url)), rounds=3)
    return [Row("submit, batches of 1,000, 4 in flight", rate, "/s", floor=150_000)]


PER_SECOND = 100
P50_MS = 1.5
P99_MS = 4.0


def latency(scale: Scale) -> list[Row]:
    """From a submit to the start of its handler in a waiting worker, 100 times a second; beside the soonest peer."""
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
