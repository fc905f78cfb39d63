"""From the beginning of a push to its delivery to a consumer that waits, a hundred times a second."""

from __future__ import annotations

import asyncio
from statistics import quantiles
from time import perf_counter

import uvloop

import penstock
from bench.measure import Row, Scale, directory
from bench.raw import RawFile
from bench.server.process import broker
from bench.workload import lists

PER_SECOND = 100


def long_poll(scale: Scale) -> list[Row]:
    """Beside the bare sync, measured between the pushes."""
    count = scale(1_000)
    with broker() as served, directory() as path:
        file = RawFile(path / "raw")
        delivered, synced = uvloop.run(_measured(served.url, count, file))
        file.close()
    (p50, p99), (raw50, raw99) = _percentiles(delivered), _percentiles(synced)
    return [
        Row("push → long poll, p50", p50, "ms", raw50, "bare fdatasync", raw50 + 1.0, "sync + 1 ms", ceiling=True),
        Row("push → long poll, p99", p99, "ms", raw99, "bare fdatasync", raw99 + 5.0, "sync + 5 ms", ceiling=True),
    ]


async def _measured(url: str, count: int, file: RawFile) -> tuple[list[float], list[float]]:
    delivered: list[float] = []
    synced: list[float] = []
    payloads = lists()[0]
    async with penstock.aio.connect(url) as producer, penstock.aio.connect(url) as consumer:
        await producer.create_queue("bench")

        async def consume() -> None:
            while len(delivered) < count:
                leased = await consumer.queue("bench").lease(1, wait=10)
                arrived.set_result(perf_counter())
                await leased.ack()

        task = asyncio.create_task(consume())
        await asyncio.sleep(0.2)
        for number in range(count):
            arrived = asyncio.get_running_loop().create_future()
            begun = perf_counter()
            await producer.queue("bench").push(payloads[number % len(payloads)])
            delivered.append(await arrived - begun)
            file.write(payloads[0])
            begun = perf_counter()
            await asyncio.to_thread(file.sync)
            synced.append(perf_counter() - begun)
            await asyncio.sleep(1 / PER_SECOND)
        task.cancel()
    return delivered, synced


def _percentiles(seconds: list[float]) -> tuple[float, float]:
    cuts = quantiles(seconds, n=100)
    return cuts[49] * 1000, cuts[98] * 1000
