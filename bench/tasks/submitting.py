"""Submitting tasks: 64 at a time one by one, and in batches of a thousand; each confirmed when it is durable."""

from __future__ import annotations

import asyncio
from time import perf_counter

import uvloop

from bench import peers
from bench.measure import Row, Scale, interleaved
from bench.server.load import CONNECTIONS, SECONDS, workers
from bench.server.process import broker
from bench.tasks.app import tasks_at
from bench.tasks.process import TEXT

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
