"""Starting and stopping the HTTP server on the broker's own event loop."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from penstock.access.tls import ServerTls
from penstock.broker.broker import Broker
from penstock.errors import BadRequest
from penstock.server.http.app import make_app
from penstock.server.http.connection import HttpConnection
from penstock.server.http.hot import Matcher
from penstock.server.http.site import HttpSettings, ServeSocket, Site
from penstock.server.tls_listener import TlsListener, listen
from penstock.telemetry.metrics import Metrics
from penstock.wire.json_messages import error_body

TICK_SECONDS_MAX: Final = 1.0
_TLS_ERROR: Final = error_body(BadRequest("this port requires TLS", hint="use a URL that starts with https://"))
NEEDS_TLS: Final = (  # to a client that does not speak it
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_TLS_ERROR), _TLS_ERROR)
)


class HttpServer:
    """A server that listens. `drain`, then `close`."""

    def __init__(self, site: Site, server: asyncio.Server | TlsListener) -> None:
        self._site = site
        self._server = server
        self._gone = asyncio.Event()
        settings = site.settings
        patience = (
            settings.keep_alive_seconds,
            settings.headers_seconds,
            settings.progress_seconds,
            settings.write_seconds,
            settings.paused_seconds,
            settings.lingering_seconds,
            settings.ping_seconds,
        )
        site.port = self.port
        self._tick_seconds = min(TICK_SECONDS_MAX, min(patience) / 2)
        self._timer = site.broker.loop.call_later(self._tick_seconds, self._tick)

    @property
    def port(self) -> int:
        """Where it listens, also when any free port was asked for."""
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        return len(self._site.connections)

    def _tick(self) -> None:
        self._site.tick()
        for connection in list(self._site.connections):
            connection.check(self._site.now)
        if self._site.is_draining and not self._site.connections:
            self._gone.set()
        self._timer = self._site.broker.loop.call_later(self._tick_seconds, self._tick)

    async def drain(self, seconds: float = 10.0) -> None:
        """Stop accepting, let what was begun be answered, and close each connection after that."""
        self._site.is_draining = True
        self._server.close()
        for connection in list(self._site.connections):
            if isinstance(connection, HttpConnection):  # a WebSocket may still settle what it holds
                connection.shutdown()
        loop = self._site.broker.loop
        self._timer.cancel()
        self._tick_seconds = 0.02
        self._timer = loop.call_later(0, self._tick)
        with suppress(TimeoutError):  # those that are left then are cut off
            await asyncio.wait_for(self._gone.wait(), seconds)

    async def close(self) -> None:
        """End every connection that is left."""
        self._timer.cancel()
        self._server.close()
        for connection in list(self._site.connections):
            connection.transport.abort()
        for task in list(self._site.tasks):
            task.cancel()
        await asyncio.gather(*self._site.tasks, return_exceptions=True)


async def start_http(
    broker: Broker,
    settings: HttpSettings,
    *,
    metrics: Metrics | None = None,
    stream: ServeSocket | None = None,
    tls: ServerTls | None = None,
) -> HttpServer:
    """Listen; `stream` serves the WebSockets at /api/v1/stream. Raises `OSError` when the address is taken."""
    site, matcher = Site(broker, settings), Matcher()
    site.app = make_app(site, metrics)
    site.serve_socket = stream
    about = (settings.host, settings.port, tls, settings.connections_max, NEEDS_TLS)
    return HttpServer(site, await listen(broker.loop, lambda: HttpConnection(site, matcher), *about))
