"""One HTTP connection.

uvicorn's protocol, which parses and runs ASGI, with the hot routes answered on the spot. Rules:

- Responses leave in the order of the requests. A request begins when the one before it is answered and the client has
  read enough of what it was sent; until then nothing more is read from it. So memory stays bounded.
- What is over a limit is refused before it is kept.
- A client that is too slow, in sending or in reading, is let go. The server's tick looks after that: no timer per
  request.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from penstock.broker import Client
from penstock.errors import BadRequest, Internal, NotAuthorised, PenstockError, Unavailable
from penstock.server.http.exchange import Exchange, too_large
from penstock.server.http.hot import Matcher
from penstock.server.http.site import Site

logger: Final = logging.getLogger("penstock.http")

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
HEADERS_BYTES_MAX: Final = 64 * 1024
DEAF_BYTES_MAX: Final = 1024 * 1024  # read and thrown away after a refusal, so that the client gets to see it
DEAF_SECONDS: Final = 2.0
SAFE: Final = (b"GET", b"HEAD", b"OPTIONS")


class HttpProtocol(HttpToolsProtocol):
    """See the module's rules."""

    def __init__(
        self, config: Config, state: ServerState, loop: asyncio.AbstractEventLoop, site: Site, matcher: Matcher
    ) -> None:
        super().__init__(config, state, {}, loop)
        self.site = site
        self.cycle: Any = None
        self.pipeline: deque[tuple[Any, Any]] = deque()
        self.url = b""
        self._matcher = matcher
        self._current: Any = None  # the cycle or exchange that is being answered, or was last
        self._advancing = False
        self._client: tuple[bytes, Client] | None = None
        self._headers_bytes = 0
        self._body_bytes = 0
        self._since: float | None = None  # when what is being received began
        self._is_receiving_body = False
        self._idle_since = 0.0
        self._stalled_since: float | None = None
        self._deaf_bytes = -1  # thrown away since the refusal; -1: not deaf

    # the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.site.broker.meter.connected("http")
        self._since = self.site.now
        if len(self.connections) > self.site.settings.connections_max:
            self._refuse(Unavailable("too many connections", hint="use fewer connections, or raise connections_max"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.site.broker.meter.disconnected("http")
        for cycle in (self._current, *(cycle for cycle, _ in self.pipeline)):
            if isinstance(cycle, Exchange):
                cycle.cancel()
            elif cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def client_named(self, user_agent: bytes) -> Client:
        """Who asks; most connections never change their mind about that."""
        if self._client is None or self._client[0] != user_agent:
            # Without the port: a client may have many connections.
            address = self.client[0] if self.client else ""
            self._client = user_agent, self.site.client(user_agent.decode("latin-1"), address)
        return self._client[1]

    def check(self, now: float) -> None:
        """Let a client go that is too slow. Called with every tick."""
        settings = self.site.settings
        if self._stalled_since is not None and now - self._stalled_since > settings.write_seconds:
            self.transport.abort()
        elif self._since is not None and not self.flow.read_paused:
            patience = settings.headers_seconds
            if self._is_receiving_body:
                patience = settings.body_seconds + self._body_bytes / settings.body_bytes_per_second_min
            if now - self._since > patience:
                self._time_out()
        elif self._since is None and self._is_idle() and now - self._idle_since > settings.keep_alive_seconds:
            self.transport.close()

    def _time_out(self) -> None:
        late = BadRequest("the request did not arrive in time", hint="send it faster, or in smaller parts")
        current = self._current
        if isinstance(current, Exchange) and current is self.cycle and not current.is_whole:
            current.refuse(late)
            current.run()
        elif self.url and self._is_idle():
            self._refuse(late)
        else:
            self.transport.close()

    def _is_idle(self) -> bool:
        return (self._current is None or self._current.response_complete) and not self.pipeline

    # receiving

    def data_received(self, data: bytes) -> None:
        if self._deaf_bytes >= 0:
            self._deaf_bytes += len(data)
            if self._deaf_bytes > DEAF_BYTES_MAX:
                self.transport.abort()
            return
        if not self._is_receiving_body:
            self._headers_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._upgrade()
        except httptools.HttpParserCallbackError:
            logger.exception("a fault in an HTTP connection")
            self._refuse(Internal("the broker failed"))
        except httptools.HttpParserError as error:
            self._refuse(BadRequest(f"this is not HTTP: {error}"))
        if not self._is_receiving_body and self._headers_bytes > HEADERS_BYTES_MAX and self._since is not None:
            self._refuse(BadRequest(f"headers: they are over the limit of {HEADERS_BYTES_MAX:,} bytes"))

    def _upgrade(self) -> None:
        if not self._should_upgrade():
            self._refuse(BadRequest("upgrade: this server knows only WebSocket"))
        elif not self.site.is_allowed(self._header(b"origin"), self._header(b"host")):
            self._refuse(NotAuthorised("origin: pages of this origin are not allowed", hint=_ORIGIN_HINT))
        else:
            self._since = None
            self.site.broker.meter.disconnected("http")
            self.handle_websocket_upgrade()

    def _header(self, name: bytes) -> bytes | None:
        return dict(self.headers).get(name)

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self._since = self.site.now
        self._is_receiving_body = False
        self._body_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._headers_bytes = 0
        self._is_receiving_body = True
        method = self.parser.get_method()
        headers = dict(self.headers)
        refused = self._refused(method, headers)
        found = self._matcher.match(self.url) if method == b"POST" else None
        if refused is not None:
            exchange = Exchange(self, self.url, headers, _nothing)
            exchange.refuse(refused)
        elif found is not None:
            exchange = Exchange(self, self.url, headers, *found)
            exchange.keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        else:
            self._begin_asgi(headers)
            return
        self._enqueue(exchange)

    def _refused(self, method: bytes, headers: dict[bytes, bytes]) -> PenstockError | None:
        """What is wrong with a request before its body is seen."""
        limit = self.site.settings.request_bytes_max
        if int(headers.get(b"content-length", b"0")) > limit:
            return too_large(limit)
        coding = headers.get(b"content-encoding", b"identity")
        if coding.lower() != b"identity":
            return BadRequest(f"content-encoding: {coding.decode('latin-1')!r} is not known", hint="send plain JSON")
        if method not in SAFE and not self.site.is_allowed(headers.get(b"origin"), headers.get(b"host")):
            return NotAuthorised("origin: pages of this origin may change nothing here", hint=_ORIGIN_HINT)
        return None

    def _begin_asgi(self, headers: dict[bytes, bytes]) -> None:
        """Hand a request to the application."""
        url, given = self.url, self.headers
        super().on_message_begin()
        self.url, self.headers = url, given
        self.expect_100_continue = headers.get(b"expect", b"").lower() == b"100-continue"
        self.scope["headers"] = given
        try:
            super().on_headers_complete()
        except httptools.HttpParserInvalidURLError:
            exchange = Exchange(self, url, headers, _nothing)
            exchange.refuse(BadRequest("the URL cannot be read"))
            self._enqueue(exchange)

    def _enqueue(self, exchange: Exchange) -> None:
        is_free = self._is_idle() and not self.flow.write_paused
        self.cycle = exchange
        if is_free:
            self._start(exchange)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((exchange, self.app))

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        cycle = self.cycle
        if not isinstance(cycle, Exchange):
            super().on_body(body)
        elif not cycle.is_whole:
            cycle.add(body)
            if cycle.is_whole and cycle is self._current:
                cycle.run()

    def on_message_complete(self) -> None:
        self._since = None
        self._idle_since = self.site.now
        self._is_receiving_body = False
        cycle = self.cycle
        if not isinstance(cycle, Exchange):
            super().on_message_complete()
        elif not cycle.is_whole:
            cycle.is_whole = True
            if cycle is self._current:
                cycle.run()

    # answering

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Called by uvicorn when a request of the application is next."""
        self._current = cycle
        super()._start_asgi_task(cycle, app)

    def _start(self, exchange: Exchange) -> None:
        self._current = exchange
        if exchange.is_whole:
            exchange.run()
        elif exchange.wants_continue:
            self.transport.write(CONTINUE)

    def answered(self, exchange: Exchange) -> None:
        """An exchange has sent its response."""
        if exchange.keep_alive:
            self.on_response_complete()
        elif exchange.is_whole and exchange is self.cycle and self._since is None:
            self.transport.close()
        else:
            self._turn_deaf()

    def on_response_complete(self) -> None:
        """The current request is answered: on to the next one."""
        self.server_state.total_requests += 1
        self._idle_since = self.site.now
        self._advance()

    def _advance(self) -> None:
        # Not from within: many small requests may have come in one piece, and each answer calls this.
        if self._advancing or self.transport.is_closing():
            return
        self._advancing = True
        try:
            while self.pipeline and self._current.response_complete and not self.flow.write_paused:
                cycle, app = self.pipeline.pop()
                if isinstance(cycle, Exchange):
                    self._start(cycle)
                else:
                    self._start_asgi_task(cycle, app)
        finally:
            self._advancing = False
        if not self.pipeline and not self.flow.write_paused and self._deaf_bytes < 0:
            self.flow.resume_reading()

    def _refuse(self, error: PenstockError) -> None:
        """Answer what is no request, after those that were, and close."""
        exchange = Exchange(self, self.url, {}, _nothing)
        exchange.refuse(error)
        self._deaf_bytes = max(self._deaf_bytes, 0)
        self._enqueue(exchange)

    def _turn_deaf(self) -> None:
        """Close, but hear the client out for a moment: a connection closed on unread bytes loses the response."""
        self._deaf_bytes = max(self._deaf_bytes, 0)
        self._since = None
        self.pipeline.clear()
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self.transport.write_eof()
            self.loop.call_later(DEAF_SECONDS, self.transport.close)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled_since = self.site.now

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stalled_since = None
        if self._current is not None:
            self._advance()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. It may still want its answer, unless that may take long or cannot be given."""
        current = self._current
        if self._is_idle():
            return False
        if isinstance(current, Exchange):
            is_hopeless = not current.is_whole or current.pending is not None
        else:
            is_hopeless = current.more_body or b"wait_ms=" in current.scope["query_string"]
        if is_hopeless:
            return False
        self.cycle.keep_alive = False
        return True


def _nothing(exchange: Exchange) -> None:
    """In place of what a refused request would have done."""


_ORIGIN_HINT: Final = "name the origin in cors_origins"
