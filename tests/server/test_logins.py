"""Who is let in, over every protocol; how little strangers are given; and that revoking ends what a key had begun."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from penstock.access.keys import make_key
from penstock.access.store import AccessStore
from penstock.broker import logins
from penstock.broker.broker import Broker
from penstock.config import Settings
from penstock.server.grpc.generated import queues_pb2
from penstock.server.serve import Server
from penstock.server.tcp import listener
from penstock.server.websocket import conversation
from penstock.wire import requests
from penstock.wire.errors import ErrorReply
from penstock.wire.frames import PROTOCOL_VERSION, JsonType, Type, frame, json_frame
from tests.support.broker_loop import on_uvloop, until
from tests.support.grpc_stub import Stub
from tests.support.tcp_peer import Peer

pb: Any = queues_pb2
QUEUE = "/api/v1/queues/orders"


class Running(NamedTuple):
    """A broker with access control, on all its ports."""

    broker: Broker
    store: AccessStore
    ports: dict[str, int]

    def key(self, *grants: str, name: str = "shop") -> str:
        return self.store.create_key(name, grants or ("push", "consume", "monitor"))[1]

    def http(self, key: str | None) -> httpx.AsyncClient:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.ports['http']}", headers=headers, timeout=60)

    @asynccontextmanager
    async def tcp(self) -> AsyncIterator[Peer]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ports["tcp"])
        try:
            yield Peer(reader, writer)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    @asynccontextmanager
    async def grpc(self) -> AsyncIterator[Any]:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.ports['grpc']}") as channel:
            yield Stub(channel)

    def socket(self) -> Any:
        return connect(f"ws://127.0.0.1:{self.ports['http']}/api/v1/stream")


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[Running]:
    server = Server(Settings(data=str(path / "data"), tcp_port=0, http_port=0, grpc_port=0, auth="on"))
    started = await server.start()
    try:
        assert server.broker is not None
        ports = {address.protocol: address.port for address in started.addresses}
        yield Running(server.broker, server.broker.session.access, ports)
    finally:
        await server.stop(drain=False)


def push_frame() -> bytes:
    return requests.encode_push_one(b"orders", 0, b"x")


# Each protocol with a key, with a wrong one and without: how a push of each is answered.


async def by_tcp(broker: Running, key: str | None) -> str:
    async with broker.tcp() as peer:
        kind, body = await peer.ask(Type.HELLO, requests.Hello(PROTOCOL_VERSION, "test", key or ""))
        if kind == Type.OK:
            kind, body = await peer.ask(Type.PUSH_ONE, raw=push_frame())
        return "ok" if kind != Type.ERROR else requests.decode(body, ErrorReply).code


async def by_json(broker: Running, key: str | None) -> str:
    async with broker.tcp() as peer:
        if key is not None:
            peer.send(json_frame(JsonType.AUTH, json.dumps({"token": key}).encode()))
            head = await peer.reader.read(5)
            if not head or head[4] != JsonType.ACK:
                return await _json_error(peer, head)
            await peer.reader.readexactly(int.from_bytes(head[:4], "big") - 1)
        task = {"task_type": "t", "queue": "orders", "args": []}
        peer.send(json_frame(JsonType.SUBMIT_TASK, json.dumps(task).encode()))
        head = await peer.reader.read(5)
        return "ok" if head and head[4] == JsonType.ACK else await _json_error(peer, head)


async def _json_error(peer: Peer, head: bytes) -> str:
    text = head + await peer.reader.read(1 << 16)
    return next((code for code in ("not_authenticated", "not_authorised") if code.encode() in text), repr(text))


async def by_http(broker: Running, key: str | None) -> str:
    async with broker.http(key) as http:
        answer = await http.post(f"{QUEUE}/messages", json={"messages": [{"payload": 1}]})
        if answer.status_code == 401:
            assert answer.headers["www-authenticate"].startswith("Bearer")
        return "ok" if answer.status_code == 201 else str(answer.json()["error"]["code"])


async def by_websocket(broker: Running, key: str | None) -> str:
    async with broker.socket() as link:
        if key is not None:
            await link.send(json.dumps({"type": "auth", "token": key}))
            answer = json.loads(await link.recv())
            if answer["type"] == "error":
                return str(answer["error"]["code"])
        await link.send(json.dumps({"type": "push", "id": 1, "queue": "orders", "messages": [{"payload": 1}]}))
        answer = json.loads(await link.recv())
        return str(answer["error"]["code"]) if answer["type"] == "error" else "ok"


async def by_grpc(broker: Running, key: str | None) -> str:
    metadata = [] if key is None else [("authorization", f"Bearer {key}")]
    async with broker.grpc() as stub:
        try:
            await stub.Push(pb.PushRequest(queue="orders", payloads=[b"x"]), metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return {grpc.StatusCode.UNAUTHENTICATED: "not_authenticated"}.get(error.code(), "not_authorised")
        return "ok"


WAYS: dict[str, Callable[[Running, str | None], Coroutine[Any, Any, str]]] = {
    "tcp": by_tcp,
    "json": by_json,
    "http": by_http,
    "websocket": by_websocket,
    "grpc": by_grpc,
}


@pytest.mark.parametrize("way", WAYS)
@on_uvloop
async def test_only_a_key_that_counts_lets_in(way, tmp_path):
    async with running(tmp_path) as broker:
        key, other = broker.key("push:orders"), broker.key("push:mail", name="other")
        id = key.split("_")[1]
        wrong = make_key(id).text

        assert await WAYS[way](broker, None) == "not_authenticated"
        assert await WAYS[way](broker, wrong) == "not_authenticated"
        assert await WAYS[way](broker, make_key().text) == "not_authenticated"
        assert await WAYS[way](broker, other) == "not_authorised"
        assert await WAYS[way](broker, key) == "ok"
        await asyncio.to_thread(broker.store.revoke_key, id)
        assert await WAYS[way](broker, key) == "not_authenticated"
        names, _ = broker.broker.shard.look(lambda now: sorted(broker.broker.shard.core.by_name))
        assert [name for name in names if not name.startswith("penstock.")] == ["orders"]


@on_uvloop
async def test_strangers_see_that_it_lives_and_nothing_else(tmp_path):
    async with running(tmp_path) as broker, broker.http(None) as http:
        for path in ("/livez", "/readyz"):
            assert (await http.get(path)).status_code == 200
        for path in ("/metrics", "/docs", "/openapi.json", "/api/v1/queues", "/api/v1/info", "/api/v1/me", "/x"):
            answer = await http.get(path)
            assert (path, answer.status_code) == (path, 401)
            assert "penstock key create" in answer.json()["error"]["hint"]


@on_uvloop
async def test_who_is_known_learns_who_they_are_whatever_they_may_do(tmp_path):
    async with running(tmp_path) as broker, broker.http(broker.key("push:orders")) as http:
        assert (await http.get("/api/v1/me")).json() == {"name": "shop", "namespace": "", "grants": ["push:orders"]}
        for method, path in (("GET", "keys"), ("GET", "users"), ("GET", "roles"), ("DELETE", "keys/x")):
            assert (await http.request(method, f"/api/v1/{path}")).status_code == 403


# How little strangers are given.


@on_uvloop
async def test_a_strangers_first_frame_is_small(tmp_path):
    async with running(tmp_path) as broker:
        async with broker.tcp() as peer:
            peer.send((logins.STRANGER_BYTES + 1).to_bytes(4, "big") + bytes(100))
            found = await peer.frame()
            assert found is not None
            assert found[0] == Type.ERROR
            assert await peer.frame() is None
        async with broker.tcp() as peer:
            peer.send(frame(Type.PUSH_ONE, 1, push_frame()))
            found = await peer.frame()
            assert found is not None
            assert found[0] == Type.ERROR
        async with broker.http(None) as http:
            large = await http.post("/api/v1/sessions", content=b"x" * (logins.STRANGER_BYTES + 1))
            assert large.status_code == 413
        async with broker.socket() as link:
            with pytest.raises(ConnectionClosed):  # noqa: PT012 - it may be closed while it is being sent
                await link.send("x" * (logins.STRANGER_BYTES + 1))
                await link.recv()


@on_uvloop
async def test_a_stranger_has_a_moment_to_log_in(tmp_path, monkeypatch):
    for module in (listener, conversation):
        monkeypatch.setattr(module, "STRANGER_SECONDS", 0.05)
    async with running(tmp_path) as broker:
        async with broker.tcp() as peer:
            assert await peer.frame() is not None
            assert await peer.frame() is None
        async with broker.socket() as link:
            with pytest.raises(ConnectionClosed):
                await link.recv()


@on_uvloop
async def test_an_address_has_so_many_connections_that_have_not_logged_in(tmp_path, monkeypatch):
    monkeypatch.setattr(logins, "STRANGERS_MAX", 3)
    async with running(tmp_path) as broker:
        key = broker.key()
        held = [await asyncio.open_connection("127.0.0.1", broker.ports["tcp"]) for _ in range(3)]
        await until(lambda: sum(broker.broker.logins._strangers.values()) == 3)
        for port in ("tcp", "http"):
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.ports[port])
            assert b"have not logged in" in await reader.read(1 << 16)
            writer.close()

        peer = Peer(*held[0])
        await peer.hello(token=key)  # whoever logs in makes room
        await until(lambda: sum(broker.broker.logins._strangers.values()) == 2)
        assert await by_http(broker, key) == "ok"
        for _, writer in held:
            writer.close()
        await until(lambda: not broker.broker.logins._strangers)


# Revoking. `SECONDS` is the promise; a broker that keeps it is far below.

SECONDS = 1.0


async def revoked(broker: Running, ended: Coroutine[Any, Any, Any]) -> None:
    """Revoke every key; `ended` must return within the promised time."""
    waiting = asyncio.ensure_future(ended)
    for id in list(broker.store.document.keys):
        await asyncio.to_thread(broker.store.revoke_key, id)
    await asyncio.wait_for(waiting, SECONDS)


@on_uvloop
async def test_revoking_ends_a_tcp_connection_and_the_lease_that_waits_on_it(tmp_path):
    async with running(tmp_path) as broker, broker.tcp() as peer:
        await peer.hello(token=broker.key())
        await peer.ask(Type.PUSH_ONE, raw=push_frame())
        await peer.ask(Type.LEASE, requests.Lease("orders"))
        peer.request(Type.LEASE, requests.encode(requests.Lease("orders", wait_seconds=60)))
        await until(lambda: broker.broker.waiting)

        async def closed() -> None:
            while await peer.frame() is not None:
                pass

        await revoked(broker, closed())
        assert not broker.broker.waiting


@on_uvloop
async def test_revoking_ends_a_long_poll(tmp_path):
    async with running(tmp_path) as broker, broker.http(broker.key()) as http:
        await http.post(f"{QUEUE}/messages", json={"messages": [{"payload": 1}]})
        await http.post(f"{QUEUE}/lease", json={"max": 1})
        polling = asyncio.ensure_future(http.post(f"{QUEUE}/lease", json={"wait_ms": 60_000}))
        await until(lambda: broker.broker.waiting)

        async def closed() -> None:
            with pytest.raises(httpx.HTTPError):
                await polling

        await revoked(broker, closed())
        assert not broker.broker.waiting


@on_uvloop
async def test_revoking_ends_a_websocket_and_gives_back_what_it_holds(tmp_path):
    async with running(tmp_path) as broker, broker.socket() as link:
        key = broker.key()
        await link.send(json.dumps({"type": "auth", "token": key}))
        await link.recv()
        await by_http(broker, key)
        await link.send(json.dumps({"type": "subscribe", "subscription": "s", "queue": "orders", "credit": 5}))
        while json.loads(await link.recv())["type"] != "delivery":
            pass
        assert broker.broker.shard.leased_count() == 1

        async def closed() -> None:
            await link.wait_closed()
            assert link.close_code == conversation.UNAUTHORISED

        await revoked(broker, closed())
        await until(lambda: broker.broker.shard.leased_count() == 0)


@on_uvloop
async def test_revoking_ends_a_grpc_stream_and_gives_back_what_it_holds(tmp_path):
    async with running(tmp_path) as broker, broker.grpc() as stub:
        key = broker.key()
        await by_http(broker, key)
        call = stub.Stream(metadata=[("authorization", f"Bearer {key}")])
        await call.write(pb.StreamRequest(open=pb.StreamOpen(queue="orders", credit=5)))
        while (await call.read()).WhichOneof("response") != "lease":
            pass

        async def closed() -> None:
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED

        await revoked(broker, closed())
        await until(lambda: broker.broker.shard.leased_count() == 0)


@on_uvloop
async def test_a_key_that_expires_ends_its_connections(tmp_path):
    async with running(tmp_path) as broker, broker.tcp() as peer:
        _, key = broker.store.create_key("shop", ["push"], expires_seconds=0.2)
        await peer.hello(token=key)
        assert await peer.frame() is not None
        assert await peer.frame() is None
