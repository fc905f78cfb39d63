"""Load without a library: connections that send the same bytes again as soon as they are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

import uvloop

CONNECTIONS = 64
SECONDS = 2.0


class _Count:
    answers = 0


class Repeater(asyncio.Protocol):
    """One request under way at a time; every answer is a single read, as answers are small."""

    def __init__(self, count: _Count, request: bytes, first: bytes) -> None:
        self._count = count
        self._request = request
        self._first = first

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._first or self._request)

    def data_received(self, data: bytes) -> None:
        self._count.answers += 1
        self._transport.write(self._request)


def repeated(port: int, request: bytes, first: bytes = b"", seconds: float = SECONDS) -> float:
    """Answers per second over 64 connections."""

    async def work() -> float:
        count, loop = _Count(), asyncio.get_running_loop()
        made = [
            await loop.create_connection(lambda: Repeater(count, request, first), "127.0.0.1", port)
            for _ in range(CONNECTIONS)
        ]
        await asyncio.sleep(0.2)
        before, started = count.answers, perf_counter()
        await asyncio.sleep(seconds)
        rate = (count.answers - before) / (perf_counter() - started)
        for transport, _ in made:
            transport.abort()
        return rate

    return uvloop.run(work())


def workers(count: int, work: Callable[[], Awaitable[int]], seconds: float) -> Awaitable[float]:
    """`count` tasks that do `work` again and again; what they did per second."""

    async def run() -> float:
        done = 0
        end = perf_counter() + seconds

        async def one() -> None:
            nonlocal done
            while perf_counter() < end:
                did = await work()  # not `done += await …`: that reads `done` before it waits
                done += did

        started = perf_counter()
        await asyncio.gather(*[one() for _ in range(count)])
        return done / (perf_counter() - started)

    return run()
