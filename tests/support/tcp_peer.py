"""A client of the TCP protocol that does as it is told, right or wrong: for tests of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from penstock.broker.broker import Broker
from penstock.server.tcp.listener import TcpServer, start_tcp
from penstock.wire import answers, requests
from penstock.wire.errors import ErrorReply
from penstock.wire.frames import PROTOCOL_VERSION, Splitter, Type, frame
from tests.support.broker_loop import broker_on

FRAME_BYTES_MAX = 1 << 25


class Peer:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._splitter = Splitter(FRAME_BYTES_MAX)
        self._got: list[tuple[int, int, bytes]] = []
        self._number = 0

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def request(self, kind: int, body: bytes = b"") -> int:
        """Send a request; its correlation."""
        self._number += 1
        self.send(frame(kind, self._number, body))
        return self._number

    async def frame(self) -> tuple[int, int, bytes] | None:
        """The next frame; None when the server has closed."""
        while not self._got:
            data = await self.reader.read(1 << 16)
            if not data:
                return None
            whole, cuts = self._splitter.feed(data)
            self._got += [(kind, correlation, whole[start:stop]) for kind, correlation, start, stop in cuts]
        return self._got.pop(0)

    async def next(self) -> tuple[int, int, bytes]:
        """The next frame, which must come."""
        found = await self.frame()
        assert found is not None, "the server closed the connection"
        return found

    async def ask(self, kind: int, value: Any = None, *, raw: bytes | None = None) -> tuple[int, bytes]:
        """A request and its answer."""
        correlation = self.request(kind, requests.encode(value) if raw is None else raw)
        answer = await self.next()
        assert answer[1] == correlation
        return answer[0], answer[2]

    async def refused(self, kind: int, value: Any = None, *, raw: bytes | None = None) -> str:
        """The code of the error that a request gets."""
        got, body = await self.ask(kind, value, raw=raw)
        assert got == Type.ERROR, f"answered with {got}"
        return requests.decode(body, ErrorReply).code

    async def hello(self, **fields: Any) -> None:
        kind, _ = await self.ask(Type.HELLO, requests.Hello(PROTOCOL_VERSION, "test", **fields))
        assert kind == Type.OK

    async def push_one(self, payload: bytes, queue: bytes = b"mail", sequence: int = 0) -> tuple[str, int]:
        kind, body = await self.ask(Type.PUSH_ONE, raw=requests.encode_push_one(queue, sequence, payload))
        assert kind == Type.PLACED
        return answers.decode_placed(body)

    async def lease(self, count: int = 100, **fields: Any) -> Any:
        kind, body = await self.ask(Type.LEASE, requests.Lease("mail", count_max=count, **fields))
        assert kind == Type.LEASED
        return answers.decode_leased(memoryview(body))

    async def farewell(self) -> tuple[str | None, bool]:
        """What the server says before it closes, and that it does."""
        last = await self.frame()
        if last is None:
            return None, True
        return requests.decode(last[2], ErrorReply).code, await self.frame() is None

    def close(self) -> None:
        self.writer.close()


class Serving:
    """A broker that listens."""

    def __init__(self, broker: Broker, server: TcpServer) -> None:
        self.broker = broker
        self.server = server
        self._peers: list[Peer] = []

    async def peer(self, *, hello: bool = True) -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self.server.port))
        self._peers.append(peer)
        if hello:
            await peer.hello()
        return peer

    def close(self) -> None:
        for peer in self._peers:
            peer.close()


@asynccontextmanager
async def serving(path: Any, **options: Any) -> AsyncIterator[Serving]:
    """A broker on a directory, listening on a free port."""
    async with broker_on(path) as broker:
        server = await start_tcp(broker, "127.0.0.1", 0, **options)
        place = Serving(broker, server)
        try:
            yield place
        finally:
            place.close()
            await server.close()
