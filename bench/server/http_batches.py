"""Large HTTP requests over a few connections, with answers that take several reads."""

from __future__ import annotations

import asyncio
from time import perf_counter

import uvloop

CONNECTIONS = 4
SECONDS = 2.0


def pushed(port: int, request: bytes, messages: int) -> float:
    """Messages per second."""

    async def one(end: float) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        done = 0
        while perf_counter() < end:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 201"), head
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            done += messages
        writer.close()
        return done

    async def work() -> float:
        started = perf_counter()
        done = await asyncio.gather(*[one(started + SECONDS) for _ in range(CONNECTIONS)])
        return sum(done) / (perf_counter() - started)

    return uvloop.run(work())
