"""A broker on a real socket, on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from penstock.broker.broker import Broker
from penstock.embedded.session import Session
from penstock.server.http.serve import start_http
from penstock.server.http.site import HttpSettings
from penstock.server.tcp.listener import start_tcp

T = TypeVar("T")
SECONDS = 60  # nothing here takes that long
TURNS = 10  # of a loop, at most, that a connection takes to be made, or to be closed


class BrokerThread:
    """Serves a session over TCP, or HTTP, until it is stopped; the session stays open."""

    def __init__(self, session: Session, port: int = 0, protocol: str = "penstock") -> None:
        self.session = session
        self.protocol = protocol
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="broker", daemon=True)
        self._thread.start()
        self.broker: Broker
        self.server: Any
        self.run(self._start(port))

    @property
    def url(self) -> str:
        return f"{self.protocol}://127.0.0.1:{self.server.port}"

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """A coroutine, on the broker's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(SECONDS)

    def cut(self) -> None:
        """End every connection without a word."""

        async def abort() -> None:
            if self.protocol == "http":
                transports = [connection.transport for connection in self.server._site.connections]
            else:
                transports = [connection._transport for connection in self.server._connections]
            for transport in transports:
                transport.abort()

        self.run(abort())

    def stop(self) -> None:
        if self.loop.is_closed():
            return
        self.run(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(SECONDS)
        self.loop.close()

    async def _start(self, port: int) -> None:
        self.broker = Broker(self.session)
        if self.protocol == "http":
            self.server = await start_http(self.broker, HttpSettings(port=port))
        else:
            self.server = await start_tcp(self.broker, "127.0.0.1", port)

    async def _stop(self) -> None:
        await self._take_turns()  # a connection that is accepted while the server is closed, asyncio leaves open
        await self.server.close()
        self.broker.close()
        await self._take_turns()

    async def _take_turns(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)
