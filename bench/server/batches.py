"""Batches of a thousand: pushed with four under way, leased and acknowledged with two."""

from __future__ import annotations

import asyncio
from itertools import cycle
from pathlib import Path
from time import perf_counter

import uvloop

import penstock
from bench import peers
from bench.measure import Row, Scale, interleaved
from bench.server.load import workers
from bench.server.process import Running, broker
from bench.workload import BATCH, lists

PUSHES_UNDER_WAY = 4
LEASES_UNDER_WAY = 2
JOURNAL_FILES = 10
MESSAGES_PER_FILE = 540_000  # of 64 MiB


def pushed(scale: Scale) -> list[Row]:
    """Long enough that ten journal files are sealed meanwhile."""
    peer, name = peers.best("W3")
    count = scale(JOURNAL_FILES * MESSAGES_PER_FILE)
    with broker() as served:
        rate = uvloop.run(_pushed(served, count))
        sealed = len(list(Path(served.said["data"]).rglob("messages/**/*.parquet")))
    what = f"TCP, push_many(1000), 4 under way, fsync; {count:,} messages, {sealed} segment files"
    return [Row(what, rate, "/s", peer, name, None if peer is None else 2.5 * peer, "2.5 × the best peer, W3")]


async def _pushed(served: Running, count: int) -> float:
    payloads, left = cycle(lists()), count
    async with penstock.aio.connect(served.url) as ps:
        queue = ps.queue("bench")

        async def one() -> int:
            await queue.push_many(next(payloads))
            return BATCH

        await workers(PUSHES_UNDER_WAY, one, 0.3)
        started, done = perf_counter(), 0.0
        while done < left:
            begun = perf_counter()
            done += await workers(PUSHES_UNDER_WAY, one, 1.0) * (perf_counter() - begun)
        return done / (perf_counter() - started)


def leased(scale: Scale) -> list[Row]:
    """Every payload is looked at."""
    peer, name = peers.best("W4")

    batches = scale(200)  # as many as the peers have before them

    async def work(url: str) -> float:
        payloads = cycle(lists())
        async with penstock.aio.connect(url) as ps:
            queue = ps.queue("bench")
            for _ in range(batches):
                await queue.push_many(next(payloads))
            started = perf_counter()
            await asyncio.gather(*[drain(queue) for _ in range(LEASES_UNDER_WAY)])
            return batches * BATCH / (perf_counter() - started)

    async def drain(queue: penstock.aio.Queue) -> None:
        while leased := await queue.lease(BATCH):
            leased.payloads()
            await leased.ack()

    with broker() as served:
        (rate,) = interleaved(lambda: uvloop.run(work(served.url)), rounds=3)
    floor = None if peer is None else 4 * peer
    return [Row("TCP, lease(1000) + ack, 2 under way, fsync", rate, "/s", peer, name, floor, "4 × the best peer, W4")]
