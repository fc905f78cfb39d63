"""HTTP: single JSON messages over 64 connections, and a thousand of them in one request."""

from __future__ import annotations

import asyncio
import json
from time import perf_counter

import uvloop

from bench.measure import Row, Scale, interleaved
from bench.server.load import repeated
from bench.server.process import bare, broker
from bench.workload import BATCH, lists

PATH = "/api/v1/queues/bench/messages"


def request(payloads: list[bytes]) -> bytes:
    """A push as it travels."""
    body = b'{"messages":[' + b",".join(b'{"payload":' + payload + b"}" for payload in payloads) + b"]}"
    assert json.loads(body)
    head = [
        f"POST {PATH} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


def single(scale: Scale) -> list[Row]:
    """One message per request."""
    data = request(lists()[0][:1])
    with broker() as served, bare("asgi") as asgi:
        ours, raw = interleaved(
            lambda: repeated(served.port("http"), data),
            lambda: repeated(asgi.port("bare"), data),
            rounds=1 if scale.quick else 3,
        )
    return [
        Row(
            "HTTP, 64 connections, one JSON message, fsync",
            ours,
            "/s",
            raw,
            "bare ASGI echo",
            0.5 * raw,
            "50 % of the echo",
        )
    ]


def batches(scale: Scale) -> list[Row]:
    """A thousand messages per request; the answer lists their ids."""
    with broker() as served:
        (rate,) = interleaved(lambda: pushed(served.port("http"), request(lists()[0]), BATCH), rounds=3)
    return [Row("HTTP, 1,000 JSON messages per request", rate, "/s", floor=300_000)]


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
