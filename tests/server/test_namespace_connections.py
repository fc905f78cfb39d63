"""Connections of a namespace: counted over every protocol, refused at login when there are too many."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import websockets

from penstock import aio
from penstock.config import Settings
from penstock.errors import Unavailable
from penstock.model_access import Quotas
from penstock.server.serve import Server
from tests.support.broker_loop import on_uvloop, until

QUOTA = "quota 'connections'"


class Running(NamedTuple):
    session: Any
    tcp: str
    http: str
    token: str
    other: str

    def limit(self, connections: int | None) -> None:
        self.session.access.set_namespace("team-a", Quotas(connections=connections))

    @property
    def connections(self) -> int:
        usage = self.session.usage()
        return int(usage["team-a"].connections)


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[Running]:
    server = Server(Settings(data=str(path / "data"), tcp_port=0, grpc_port="off", http_port=0))
    started = await server.start()
    try:
        session = server._session
        assert session is not None
        session.access.set_namespace("team-a", Quotas())
        _, token = session.access.create_key("ann", ["push:*", "monitor:*"], "team-a")
        _, other = session.access.create_key("bob", ["push:*", "monitor:*"])
        ports = {address.protocol: address.port for address in started.addresses}
        tcp, http = f"penstock://127.0.0.1:{ports['tcp']}", f"127.0.0.1:{ports['http']}"
        yield Running(session, tcp, http, token, other)
    finally:
        await server.stop(drain=False)


@on_uvloop
async def test_a_tcp_connection_too_many_is_refused_at_login_until_another_ends(tmp_path):
    async with running(tmp_path) as broker:
        broker.limit(1)
        first = aio.connect(broker.tcp, token=broker.token)
        await first.queue("team-a.q").push(b"1")
        with pytest.raises(Unavailable, match=QUOTA):
            async with aio.connect(broker.tcp, token=broker.token, connect_seconds=0.2) as second:
                await second.queue("team-a.q").push(b"1")
        assert broker.connections == 1
        async with aio.connect(broker.tcp, token=broker.other) as elsewhere:
            await elsewhere.queue("other").push(b"1")
        await first.close()
        await until(lambda: broker.connections == 0)
        async with aio.connect(broker.tcp, token=broker.token) as again:
            await again.queue("team-a.q").push(b"1")


@on_uvloop
async def test_an_http_connection_too_many_is_refused_and_those_that_are_there_go_on(tmp_path):
    async with running(tmp_path) as broker:
        broker.limit(1)
        headers = {"authorization": f"Bearer {broker.token}"}
        url = f"http://{broker.http}/api/v1/me"
        async with httpx.AsyncClient(headers=headers) as first, httpx.AsyncClient(headers=headers) as second:
            for _ in range(3):
                assert (await first.get(url)).status_code == 200
            refused = await second.get(url)
            assert refused.status_code == 503
            assert QUOTA in refused.json()["error"]["message"]
            broker.limit(0)
            assert (await first.get(url)).status_code == 200
        await until(lambda: broker.connections == 0)


@on_uvloop
async def test_a_connection_of_another_principal_is_no_longer_counted(tmp_path):
    async with running(tmp_path) as broker:
        url = f"http://{broker.http}/api/v1/me"
        async with httpx.AsyncClient() as http:
            await http.get(url, headers={"authorization": f"Bearer {broker.token}"})
            assert broker.connections == 1
            await http.get(url, headers={"authorization": f"Bearer {broker.other}"})
            assert broker.connections == 0


@on_uvloop
@pytest.mark.parametrize("by", ["header", "message"])
async def test_a_websocket_counts_once_and_one_too_many_is_refused(tmp_path, by):
    async with running(tmp_path) as broker:
        broker.limit(1)
        url = f"ws://{broker.http}/api/v1/stream"
        headers = {"authorization": f"Bearer {broker.token}"} if by == "header" else {}
        login = f'{{"type": "auth", "id": "1", "token": "{broker.token}"}}'
        async with websockets.connect(url, additional_headers=headers) as first:
            await first.send('{"type": "ping", "id": "0"}' if by == "header" else login)
            await first.recv()
            assert broker.connections == 1
            if by == "header":
                with pytest.raises(websockets.InvalidStatus) as refusal:
                    await websockets.connect(url, additional_headers=headers)
                assert refusal.value.response.status_code == 503
            else:
                async with websockets.connect(url) as second:
                    await second.send(login)
                    assert QUOTA in str(await second.recv())
            assert broker.connections == 1
        await until(lambda: broker.connections == 0)
