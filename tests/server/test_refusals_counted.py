"""Requests that cannot be read are refusals too: each moves the counter once, in every protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import grpc.aio
import pytest
from websockets.asyncio.client import connect

from penstock.broker.broker import Broker
from penstock.server.grpc import start_grpc
from penstock.server.http.serve import start_http
from penstock.server.http.site import HttpSettings
from penstock.server.tcp.listener import start_tcp
from penstock.server.websocket.conversation import WebSockets
from penstock.wire.frames import PROTOCOL_VERSION, JsonType, Type, frame, json_frame
from penstock.wire.requests import Hello, PushHead, encode, encode_push, encode_push_one
from tests.support.broker_loop import broker_on, on_uvloop

Ask = Callable[[Broker], Awaitable[None]]


def tcp(*frames: bytes) -> Ask:
    """Say hello, and send frames."""

    async def ask(broker: Broker) -> None:
        server = await start_tcp(broker, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"".join(frames))
        while True:
            length = int.from_bytes(await reader.readexactly(4), "big")
            kind = (await reader.readexactly(length))[0]
            if kind in (Type.ERROR, JsonType.NACK):
                break
        writer.close()
        await server.close()

    return ask


HELLO = frame(Type.HELLO, 1, encode(Hello(PROTOCOL_VERSION)))


def http(method: str, path: str, body: bytes = b"", **headers: str) -> Ask:
    async def ask(broker: Broker) -> None:
        server = await start_http(broker, HttpSettings(port=0))
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}", "connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        answer = await reader.read()
        assert int(answer[9:12]) >= 400, answer
        writer.close()
        await server.close()

    return ask


def called(method: str, data: bytes) -> Ask:
    """A gRPC call with a body that is sent as it is."""

    async def ask(broker: Broker) -> None:
        server = await start_grpc(broker, "127.0.0.1", 0)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary(f"/penstock.v1.{method}")(data)
        await server.close()

    return ask


def socket(message: str) -> Ask:
    async def ask(broker: Broker) -> None:
        server = await start_http(broker, HttpSettings(port=0), stream=WebSockets(broker).serve)
        async with connect(f"ws://127.0.0.1:{server.port}/api/v1/stream") as link:
            await link.send(message)
            while json.loads(await link.recv())["type"] != "error":
                pass
        await server.close()

    return ask


NO_NAME = encode_push_one(b"a/b", 0, b"x")
NO_BATCH = encode_push(PushHead("mail")) + b"junk"
MESSAGES = "/api/v1/queues/mail/messages"
# name: (how to ask, queue, code)
REFUSED: dict[str, tuple[Ask, str, str]] = {
    "tcp: a name that is none": (tcp(HELLO, frame(Type.PUSH_ONE, 2, NO_NAME)), "", "invalid_name"),
    "tcp: a batch that is none": (tcp(HELLO, frame(Type.PUSH, 2, NO_BATCH)), "mail", "bad_batch"),
    "tcp: a body that is none": (tcp(HELLO, frame(Type.LEASE, 2, b"\xc1")), "", "bad_request"),
    "tcp: a call of nothing": (tcp(HELLO, frame(Type.CALL, 2, encode(["nothing", {}]))), "", "bad_request"),
    "tcp: JSON that is none": (tcp(json_frame(JsonType.SUBMIT_TASK, b"{")), "", "bad_request"),
    "tcp: a task without a type": (tcp(json_frame(JsonType.SUBMIT_TASK, b"{}")), "", "invalid_field"),
    "http: JSON that is none": (http("POST", MESSAGES, b"{", content_type="application/json"), "mail", "bad_request"),
    "http: a field that is none": (http("POST", "/api/v1/queues/mail/lease", b'{"max":0}'), "mail", "invalid_field"),
    "http: a composed route": (http("POST", "/api/v1/tasks", b"{}"), "", "invalid_field"),
    "http: a query that is none": (http("GET", "/api/v1/tasks?limit=many"), "", "invalid_field"),
    "http: no such path": (http("GET", "/nowhere"), "", "not_found"),
    "http: no such method": (http("PATCH", "/api/v1/info"), "", "method_not_allowed"),
    "grpc: a message that is none": (called("Queues/Push", b"\xff\xff"), "", "bad_request"),
    "grpc: a field that is none": (called("Tasks/SubmitTask", b""), "", "invalid_field"),
    "websocket: JSON that is none": (socket("{"), "", "bad_request"),
    "websocket: no such type": (socket('{"type":"nothing"}'), "", "invalid_field"),
}


@pytest.mark.parametrize("way", REFUSED)
def test_it_is_counted_once(way):
    ask, queue, code = REFUSED[way]

    @on_uvloop
    async def run() -> None:
        async with broker_on() as broker:
            await ask(broker)
            assert dict(broker.meter.refusals) == {(queue, code): [1]}

    run()


def test_a_push_that_was_read_is_not_counted_twice():
    @on_uvloop
    async def run() -> None:
        async with broker_on() as broker:
            await tcp(HELLO, frame(Type.PUSH_ONE, 2, encode_push_one(b"mail.dlq", 0, b"x")))(broker)
            assert list(broker.meter.refusals.values()) == [[1]]

    run()
