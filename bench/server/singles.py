"""Single pushes, 64 at a time, each confirmed when it is durable."""

from __future__ import annotations

from itertools import cycle

import uvloop

import penstock
from bench import peers
from bench.measure import Row, Scale, interleaved
from bench.server.load import CONNECTIONS, SECONDS, repeated, workers
from bench.server.process import bare, broker
from bench.workload import lists
from penstock.wire.frames import PROTOCOL_VERSION, Type, frame
from penstock.wire.requests import Hello, encode, encode_push_one

PAYLOAD = lists()[0][0]
HELLO = frame(Type.HELLO, 1, encode(Hello(PROTOCOL_VERSION, "bench")))
PUSH = frame(Type.PUSH_ONE, 2, encode_push_one(b"bench", 0, PAYLOAD))


def against_echo(scale: Scale) -> list[Row]:
    """64 connections, one push under way on each, beside a server that sends back what it gets."""
    with broker() as served, bare("echo") as echo:
        ours, raw = interleaved(
            lambda: repeated(served.port("tcp"), PUSH, HELLO),
            lambda: repeated(echo.port("bare"), PUSH),
            rounds=1 if scale.quick else 3,
        )
    return [
        Row(
            "TCP, 64 connections, push one, fsync", ours, "/s", raw, "bare asyncio echo", 0.35 * raw, "35 % of the echo"
        )
    ]


def against_peers(scale: Scale) -> list[Row]:
    """64 tasks of the SDK on one connection, gathered by turns of the event loop."""
    peer, name = peers.best("W2")
    rate = pushed(None)
    floor = None if peer is None else 3 * peer
    return [Row("TCP, SDK, 64 tasks, push(), fsync", rate, "/s", peer, name, floor, "3 × the best peer, W2")]


def gathered(scale: Scale) -> list[Row]:
    """64 tasks of the SDK on one connection, with `linger_ms`."""
    peer, name = peers.best_gathered()
    rate = pushed(1.0)
    floor = None if peer is None else 2 * peer
    return [Row("the same with linger_ms=1", rate, "/s", peer, name, floor, "2 × PostgreSQL, gathered")]


def pushed(linger_ms: float | None) -> float:
    """push() per second by 64 tasks."""
    payloads = cycle(lists()[0])

    async def work(url: str) -> float:
        async with penstock.aio.connect(url, linger_ms=linger_ms) as ps:
            queue = ps.queue("bench")

            async def one() -> int:
                await queue.push(next(payloads))
                return 1

            await workers(CONNECTIONS, one, 0.3)
            return await workers(CONNECTIONS, one, SECONDS)

    with broker() as served:
        (rate,) = interleaved(lambda: uvloop.run(work(served.url)), rounds=3)
        return rate
