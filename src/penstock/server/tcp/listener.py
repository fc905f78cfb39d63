"""Listening for TCP connections, and ending them all in good order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from penstock import limits
from penstock.access.tls import ServerTls
from penstock.broker.broker import Broker
from penstock.broker.logins import STRANGER_SECONDS
from penstock.errors import BadRequest, NotAuthenticated, Unavailable
from penstock.server.dispatch import Dispatch
from penstock.server.tcp.connection import TcpConnection
from penstock.server.tls_listener import TlsListener, listen
from penstock.wire.errors import to_reply
from penstock.wire.frames import Type, frame
from penstock.wire.requests import encode

TICK_SECONDS: Final = 1.0
HELLO_SECONDS: Final = 10.0  # for a client to say who it is
_TLS_ERROR: Final = BadRequest("this port requires TLS", hint="use a URL that starts with penstocks://")
NEEDS_TLS: Final = frame(Type.ERROR, 0, encode(to_reply(_TLS_ERROR)))  # to a client that does not speak it


class TcpServer:
    """Accepts connections until it is closed."""

    def __init__(self, broker: Broker, frame_bytes_max: int, connections_max: int) -> None:
        self.broker = broker
        self.frame_bytes_max = frame_bytes_max
        self.connections_max = connections_max
        self.hello_seconds = HELLO_SECONDS
        self.progress_seconds = limits.progress_seconds
        self.stalled_seconds = limits.stalled_seconds
        self.tick_seconds = TICK_SECONDS
        self.port = 0
        self._listener: asyncio.Server | TlsListener | None = None
        self._is_stopping = False
        self._connections: set[TcpConnection] = set()
        self._unsent: list[Dispatch] = []  # connections with answers of this turn of the loop
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int, tls: ServerTls | None = None) -> None:
        loop = self.broker.loop
        about = (host, port, tls, self.connections_max, NEEDS_TLS)
        self._listener = await listen(loop, lambda: TcpConnection(self), *about)
        self.port = self._listener.sockets[0].getsockname()[1]
        self._timer = self.broker.loop.call_later(self.tick_seconds, self._tick)

    def _tick(self) -> None:
        now = self.broker.loop.time()
        for connection in list(self._connections):
            connection.check(now)
        self._timer = self.broker.loop.call_later(self.tick_seconds, self._tick)

    def joined(self, connection: TcpConnection) -> None:
        self._connections.add(connection)
        self.broker.meter.connected("tcp")
        if self._is_stopping:  # it was accepted just before
            connection.close()
        elif len(self._connections) > self.connections_max:
            hint = "use fewer connections, or raise connections_max"
            connection.refuse(Unavailable("too many connections", hint=hint))
        else:
            self._watch_stranger(connection)

    def _watch_stranger(self, connection: TcpConnection) -> None:
        try:
            self.broker.logins.enter(connection.address)
        except Unavailable as error:
            connection.refuse(error)
            return
        connection.is_counted = True
        seconds = STRANGER_SECONDS if connection.is_stranger else self.hello_seconds
        self.broker.loop.call_later(seconds, self._check_greeted, connection)

    def known(self, connection: TcpConnection) -> None:
        """A connection has logged in, or has ended."""
        if connection.is_counted:
            connection.is_counted = False
            self.broker.logins.leave(connection.address)

    def _check_greeted(self, connection: TcpConnection) -> None:
        if connection not in self._connections:
            return
        if connection.is_stranger:
            connection.refuse(NotAuthenticated(f"no login within {STRANGER_SECONDS:g} s"))
        elif not (connection.is_greeted or connection.is_json):
            connection.refuse(BadRequest(f"no HELLO within {self.hello_seconds:g} s"))

    def left(self, connection: TcpConnection) -> None:
        self.known(connection)
        self._connections.discard(connection)
        self.broker.meter.disconnected("tcp")

    def flush_soon(self, connection: Dispatch) -> None:
        """Have the connection's answers sent at the end of this turn of the loop."""
        if not self._unsent:
            self.broker.loop.call_soon(self._flush)
        self._unsent.append(connection)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        for connection in unsent:
            connection.flush()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine on behalf of a connection."""
        task = self.broker.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def stop_accepting(self) -> None:
        """The first step of a drain; clients are notified."""
        self._is_stopping = True
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections):
            connection.goodbye()

    async def close(self) -> None:
        """Finish what was begun and close every connection."""
        self.stop_accepting()
        self._timer.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        for connection in list(self._connections):
            connection.close()
        if self._listener is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._listener.wait_closed(), 1.0)


async def start_tcp(
    broker: Broker,
    host: str,
    port: int,
    *,
    frame_bytes_max: int = limits.frame_bytes_max,
    connections_max: int = limits.connections_max,
    tls: ServerTls | None = None,
) -> TcpServer:
    """Listen; port 0 takes any free one, which `TcpServer.port` names."""
    server = TcpServer(broker, frame_bytes_max, connections_max)
    await server.start(host, port, tls)
    return server
