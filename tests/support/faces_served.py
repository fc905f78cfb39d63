"""A broker on a loop in a thread of its own, with every protocol that it speaks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from penstock.broker.broker import Broker
from penstock.embedded.session import Session
from penstock.server.grpc import start_grpc
from penstock.server.http.serve import start_http
from penstock.server.http.site import HttpSettings
from penstock.server.tcp.listener import start_tcp
from penstock.server.websocket.conversation import WebSockets

T = TypeVar("T")
SECONDS = 60


class Served:
    """Serves a session until it is stopped; the session stays open."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="broker", daemon=True)
        self._thread.start()
        self._servers: dict[str, Any] = {}
        self._sockets: WebSockets
        self.broker = self.run(self._made())

    async def _made(self) -> Broker:
        return Broker(self.session)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """A coroutine, on the broker's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(SECONDS)

    def url(self, protocol: str) -> str:
        """Where a protocol is spoken; it is from now on."""
        if protocol not in self._servers:
            self._servers[protocol] = self.run(self._started(protocol))
        return f"{protocol}://127.0.0.1:{self._servers[protocol].port}"

    async def _started(self, protocol: str) -> Any:
        if protocol == "penstock":
            return await start_tcp(self.broker, "127.0.0.1", 0)
        if protocol == "grpc":
            return await start_grpc(self.broker, "127.0.0.1", 0)
        self._sockets = WebSockets(self.broker)
        return await start_http(self.broker, HttpSettings(port=0), stream=self._sockets.serve)

    def stop(self) -> None:
        self.run(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(SECONDS)
        self.loop.close()

    async def _stop(self) -> None:
        for protocol, server in self._servers.items():
            if protocol == "http":
                await self._sockets.close()
            await server.close()
        self.broker.close()
        await asyncio.sleep(0)
