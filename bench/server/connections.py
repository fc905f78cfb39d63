"""What connections cost: memory while they are idle, and time when they come all at once."""

from __future__ import annotations

import asyncio
import resource
from time import perf_counter

import uvloop

from bench.measure import Row, Scale
from bench.server.process import broker
from bench.server.singles import HELLO, PUSH

IDLE = 1_000
AT_ONCE = 2_000


def memory(scale: Scale) -> list[Row]:
    """An idle broker, and one with a thousand idle clients."""
    _many_files()

    async def connected(port: int, resident: object) -> float:
        made = [await _greeted(port) for _ in range(IDLE)]
        found = resident()  # type: ignore[operator]
        for _, writer in made:
            writer.close()
        return float(found)

    with broker() as served:
        idle = served.resident_mb()
        busy = uvloop.run(connected(served.port("tcp"), served.resident_mb))
    return [
        Row("memory, idle", idle, "MB", floor=150, ceiling=True),
        Row("memory, 1,000 idle connections", busy, "MB", floor=220, ceiling=True),
    ]


def at_once(scale: Scale) -> list[Row]:
    """Two thousand connections, and a push on each."""
    _many_files()

    async def one(port: int) -> None:
        reader, writer = await _greeted(port)
        writer.write(PUSH)
        assert await reader.read(1024)
        writer.close()

    async def work(port: int) -> float:
        started = perf_counter()
        await asyncio.gather(*[one(port) for _ in range(AT_ONCE)])
        return perf_counter() - started

    with broker() as served:
        seconds = uvloop.run(work(served.port("tcp")))
    return [Row("2,000 connections at once, all served", seconds, "s", floor=3, ceiling=True)]


async def _greeted(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HELLO)
    assert await reader.read(1024)
    return reader, writer


def _many_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
