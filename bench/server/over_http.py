"""HTTP: single JSON messages over 64 connections, and a thousand of them in one request."""

from __future__ import annotations

import json

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
    from bench.server.http_batches import pushed

    with broker() as served:
        (rate,) = interleaved(lambda: pushed(served.port("http"), request(lists()[0]), BATCH), rounds=3)
    return [Row("HTTP, 1,000 JSON messages per request", rate, "/s", floor=300_000)]
