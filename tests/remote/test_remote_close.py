"""A session that is closed while a call has yet to connect: the call ends, and does not wait on its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import penstock
from penstock import aio
from penstock import operations as ops
from penstock.embedded.session import Session
from penstock.errors import Closed
from penstock.remote.http import HttpSocket
from penstock.remote.http_pool import HttpPool, Post
from tests.support.broker_loop import on_uvloop, until
from tests.support.brokers import BrokerThread
from tests.support.operations import run_operation

SHORT_SECONDS = 5.0  # what a call would wait that nobody ends


@pytest.fixture
def session() -> Iterator[Session]:
    opened = Session(None, durability="os")
    run_operation(opened, ops.CreateQueue("mail"))
    yield opened
    opened.close()


@pytest.fixture(params=["penstock", "http"])
def broker(session: Session, request: pytest.FixtureRequest) -> Iterator[BrokerThread]:
    running = BrokerThread(session, protocol=request.param)
    yield running
    running.stop()


def test_closing_ends_a_call_that_connects(broker, session, monkeypatch):
    ps = penstock.connect(broker.url)
    caught: list[Exception] = []

    def wait() -> None:
        try:
            ps.queue("mail").lease(1, wait=60)
        except Closed as error:
            caught.append(error)

    waiting = threading.Thread(target=wait)  # on the connection that is there already
    waiting.start()
    asyncio.run(until(lambda: len(session.shard.waiters) == 1))
    connect = socket.create_connection

    def closing(*call: Any, **options: Any) -> socket.socket:
        made = connect(*call, **options)
        ps.close()
        return made

    monkeypatch.setattr(socket, "create_connection", closing)
    with pytest.raises(Closed):
        ps.queue("mail").lease(1, wait=SHORT_SECONDS)
    waiting.join(60)
    assert len(caught) == 1


@on_uvloop
async def test_closing_ends_a_task_that_connects(session, monkeypatch):
    broker = await asyncio.to_thread(BrokerThread, session, protocol="http")
    ps = aio.connect(broker.url)
    await ps.queues()
    waiting = asyncio.create_task(ps.queue("mail").lease(1, wait=60))
    await until(lambda: len(session.shard.waiters) == 1)
    connecting = asyncio.Event()

    async def slowly(pool: HttpPool, post: Post) -> None:
        connecting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(HttpPool, "_dial", slowly)
    late = asyncio.create_task(ps.queue("mail").lease(1, wait=60))
    await connecting.wait()
    await ps.close()
    for task in (waiting, late):
        with pytest.raises(Closed):
            await asyncio.wait_for(task, SHORT_SECONDS)
    await asyncio.to_thread(broker.stop)


def test_connections_are_closed_when_nobody_reads_from_them_any_more(session, monkeypatch):
    """A file descriptor may be somebody else's as soon as it is closed: a thread would wait for what is not its own."""
    broker = BrokerThread(session, protocol="http")
    ps = penstock.connect(broker.url)
    receive, close = HttpSocket.recv, HttpSocket.close
    under_way: list[int] = []
    closed: list[int] = []

    def received(sock: HttpSocket, size: int) -> bytes:
        under_way.append(1)
        try:
            return receive(sock, size)
        finally:
            under_way.pop()

    def noted(sock: HttpSocket) -> None:
        closed.append(len(under_way))
        close(sock)

    monkeypatch.setattr(HttpSocket, "recv", received)
    monkeypatch.setattr(HttpSocket, "close", noted)

    def wait() -> None:
        with suppress(Closed):
            ps.queue("mail").lease(1, wait=60)

    waiting = threading.Thread(target=wait)
    waiting.start()
    asyncio.run(until(lambda: len(session.shard.waiters) == 1))
    ps.close()
    waiting.join(60)
    broker.stop()

    assert closed == [0]
