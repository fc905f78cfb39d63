"""One HTTP connection: requests in, parsed by httptools; responses out, in the order of the requests.

- One request is answered at a time. What comes meanwhile is kept unparsed, within a bound; beyond it the connection is
  not read until there is room. So memory is bounded, and the end of the connection is noticed while a request waits.
- What breaks a limit is refused before it is kept. A refusal ends the connection: nothing behind it is run.
- Every state has a deadline, which the server's tick checks: receiving (some bytes within some seconds), not read,
  paused, closing, idle. Only a request that is being answered has none of its own; the broker bounds that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import Any, Final, cast

import httptools

from penstock.access.authenticator import HINT
from penstock.access.tls import peer_names
from penstock.broker.access import NOBODY, Client, Principal
from penstock.broker.logins import STRANGER_BYTES, STRANGER_SECONDS
from penstock.broker.seats import Seat
from penstock.embedded.connections import Activity
from penstock.errors import BadRequest, Internal, NotAuthenticated, PenstockError, Unavailable
from penstock.server.http.asgi import run_app
from penstock.server.http.exchange import Exchange, too_large
from penstock.server.http.hot import Matcher
from penstock.server.http.origins import OPEN, PROBES
from penstock.server.http.site import JSON, Site
from penstock.server.tcp.lingering_close import send_end
from penstock.server.websocket.socket import Socket
from penstock.wire.frames import MEDIA_TYPE

logger: Final = logging.getLogger("penstock.http")

HEADERS_BYTES_MAX: Final = 64 * 1024
UNPARSED_BYTES_MAX: Final = 64 * 1024  # kept while a request is answered; then reading pauses
IGNORED_BYTES_MAX: Final = 1024 * 1024  # read and thrown away after a refusal, so that the client gets to see it
UNFORGEABLE: Final = (JSON, MEDIA_TYPE.encode())  # types of bodies that no form can send
TURN_REQUESTS_MAX: Final = 64  # of one connection that are run in one turn of the event loop


class HttpConnection(asyncio.Protocol):
    """One connection: parses requests, and answers them in order."""

    transport: asyncio.Transport

    def __init__(self, site: Site, matcher: Matcher) -> None:
        self.site = site
        self.address = ""  # of who asked last: a proxy speaks for many
        self._peer = ""
        self.is_proxied = False
        self._matcher = matcher
        self._parser: Any = httptools.HttpRequestParser(self)
        self._client: tuple[bytes, Client] | None = None
        self._is_stranger = site.broker.logins.is_required
        self._seat = Seat(site.broker.seats)
        self._number = 0  # among the connections of the broker
        self._names: tuple[str, ...] = ()  # in the certificate of the client
        self._shown: bytes | None = None  # the header of the last request that logged in, and as whom
        self._known_as: Principal | None = None
        self._certified: Principal | None = None  # for whom they stand
        self._host = b"/"  # that was accepted last; no host at first
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._headers_bytes = 0
        self._receiving: Exchange | None = None  # its headers are in, its body is not
        self._current: Exchange | None = None  # the next to be answered
        self._waiting: deque[Exchange] = deque()  # behind it
        self._unparsed = bytearray()
        self._is_advancing = False
        self._is_advance_due = False
        self._has_ended = False  # the client sends no more
        self._is_refused = False  # what comes is thrown away
        self._ignored_bytes = 0
        self._is_head_open = False  # some of a request's headers are in, or none since the connection was made
        # When the state was entered whose deadline counts; the last progress while receiving.
        self._since = site.now
        self._progress_bytes = 0
        self._stalled_since: float | None = None  # the client does not read
        self._paused_since: float | None = None  # it is not read from
        self._closing_since: float | None = None

    # the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's own class does not derive from it
        peer = transport.get_extra_info("peername")
        self.address = self._peer = peer[0] if isinstance(peer, tuple) else ""
        self.is_proxied = self.site.proxies.trusts(self._peer)
        if not self.is_proxied:  # its certificate is not that of who asks
            self._names = peer_names(transport)
        self.site.connections.add(self)
        self._number = self.site.broker.connections.enter(self)
        self.site.broker.meter.connected("http")
        self._since = self.site.now
        self._is_head_open = True
        if len(self.site.connections) > self.site.settings.connections_max:
            self._refuse(Unavailable("too many connections", hint="use fewer connections, or raise connections_max"))
        try:
            self.site.broker.logins.enter(self._peer)
        except Unavailable as error:
            self._is_stranger = False  # it is not counted
            self._refuse(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._leave()
        for exchange in (self._current, *self._waiting):
            if exchange is not None:
                exchange.cancel()
        self._waiting.clear()
        self._unparsed.clear()
        self._parser = self._receiving = self._current = None

    def _leave(self) -> None:
        self._known()
        if self._client is not None:
            self._client[1].principal.forget(self._revoked)
        self._seat.leave()
        self.site.broker.connections.leave(self._number)
        self.site.connections.discard(self)
        self.site.broker.meter.disconnected("http")

    def client_named(self, user_agent: bytes, address: str, principal: Principal) -> Client:
        """Who asks; most connections never change their mind about that."""
        known = self._client
        if known is not None:
            client = known[1]
            if known[0] == user_agent and client.address == address and client.principal is principal:
                return client
            client.principal.forget(self._revoked)
        principal.once_revoked(self._revoked)
        # Without the port: a client may have many connections.
        client = Client(principal, user_agent.decode("latin-1"), address, "http", self.site.is_for_operators)
        self._client = user_agent, client
        self.site.broker.logins.succeeded(client)
        return client

    def _revoked(self) -> None:
        """Whoever asks here lost the right to: what waits on this connection ends with it.

        Only an answer that comes by itself is still given: signing out has one.
        """
        current = self._current
        if current is None:
            self._close()
        elif current.is_started and current.is_of_app and not current.is_waiting:
            current.keep_alive = False
        else:
            self.transport.abort()

    def activity(self) -> Activity:
        """What is under way."""
        client = None if self._client is None else self._client[1]
        name, program = ("", "") if client is None else (client.principal.name, client.name)
        waiting = len(self._waiting) + (self._current is not None)
        return Activity("http", name, self.address, program, in_flight=waiting)

    def end(self) -> None:
        """An operator ends the connection."""
        self.transport.abort()

    def shutdown(self) -> None:
        """The server ends: close, after the answer that is under way."""
        if self._current is None:
            self._close()
        else:
            self._current.keep_alive = False

    def check(self, now: float) -> None:
        """End a connection whose time is over. Called with every tick."""
        settings = self.site.settings
        if self._closing_since is not None:
            if now - self._closing_since > settings.lingering_seconds:
                self.transport.abort()
        elif self._is_stuck(now):
            self.transport.abort()
        elif self._is_answering:
            self._since = now  # what is being received behind it has its time from here on
        elif self._receiving is not None:
            self._check_progress(now)
        elif self._is_head_open:
            seconds = settings.headers_seconds
            if now - self._since > (min(seconds, STRANGER_SECONDS) if self._is_stranger else seconds):
                self._time_out()
        elif now - self._since > settings.keep_alive_seconds:
            self._close()

    def _is_stuck(self, now: float) -> bool:
        """Whether the client has not read for too long, or was not read from because of one request of its own."""
        settings = self.site.settings
        if self._stalled_since is not None:
            return now - self._stalled_since > settings.write_seconds
        return self._paused_since is not None and now - self._paused_since > settings.paused_seconds

    def _check_progress(self, now: float) -> None:
        settings = self.site.settings
        if now - self._since <= settings.progress_seconds:
            return
        if self._progress_bytes < settings.progress_bytes:
            self._time_out()
        else:
            self._since, self._progress_bytes = now, 0

    def _time_out(self) -> None:
        if self._receiving is None and not self._url:
            self._close()  # nothing was asked, so there is nothing to answer
        else:
            self._refuse(BadRequest("the request did not arrive in time", hint="send it faster, or in smaller parts"))

    @property
    def _is_answering(self) -> bool:
        return self._current is not None and self._current.is_whole

    # receiving

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            self._ignored_bytes += len(data)
            if self._ignored_bytes > IGNORED_BYTES_MAX:
                self.transport.abort()
        elif self._is_answering or self._unparsed or self._stalled_since is not None:
            self._unparsed += data
            self._set_reading()
        else:
            self._parse(data)
            self._advance()

    def _parse(self, data: bytes) -> None:
        if self._receiving is None:
            self._headers_bytes += len(data)
        self._progress_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError:
            logger.exception("internal error in an HTTP connection")
            self._refuse(Internal("internal error in the broker"))
        except httptools.HttpParserError as error:
            self._refuse(BadRequest(f"this is not HTTP: {error}"))
        limit = STRANGER_BYTES if self._is_stranger else HEADERS_BYTES_MAX
        if self._receiving is None and self._is_head_open and self._headers_bytes > limit:
            self._refuse(BadRequest(f"headers: over the limit of {limit:,} bytes"))

    def on_message_begin(self) -> None:
        """Called by the parser, as all that are named on_…."""
        self._url = b""
        self._headers = []
        self._is_head_open = True
        self._since, self._progress_bytes = self.site.now, 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._headers_bytes = 0
        self._is_head_open = False
        parser = self._parser
        method = parser.get_method()
        if self._is_refused or parser.should_upgrade():
            return
        headers = dict(self._headers)
        if self.is_proxied:
            self.address = self.site.proxies.client(self._peer, self._headers)
        hot = self._matcher.match(self._url) if method == b"POST" else None
        if hot is not None:
            exchange = Exchange(self, method, self._url, headers, *hot)
        else:
            exchange = Exchange(self, method, self._url, headers, run_app)
            exchange.all_headers = self._headers
        exchange.may_stream = parser.get_http_version() != "1.0"
        exchange.keep_alive = exchange.may_stream and parser.should_keep_alive()
        refused = self._refused(method, headers) or self._misled(method, headers) or self._login(exchange, headers)
        self._receiving = exchange
        self._waiting.append(exchange)
        if refused is not None:
            self._refuse(refused)

    def _refused(self, method: bytes, headers: dict[bytes, bytes]) -> PenstockError | None:
        """What is wrong with a request before its body is seen."""
        limit = self.site.settings.request_bytes_max
        if int(headers.get(b"content-length", b"0")) > limit:
            return too_large(limit)
        coding = headers.get(b"content-encoding", b"identity")
        if coding.lower() != b"identity":
            return BadRequest(
                f"content-encoding: {coding.decode('latin-1')!r} is not supported", hint="send plain JSON"
            )
        return None

    def _login(self, exchange: Exchange, headers: dict[bytes, bytes]) -> PenstockError | None:
        """Find out who asks, before the body is taken: a stranger's is small."""
        path = self._url.partition(b"?")[0]
        is_open = path in OPEN or path.startswith(b"/ui/")
        try:
            exchange.principal = self._principal(headers, is_open)
            self._seat.take(exchange.principal)
        except PenstockError as error:
            return error
        if exchange.principal is not NOBODY:
            self._known()
            return self._forged(exchange, headers)
        if not is_open:
            return NotAuthenticated("this broker requires authentication, and no token was sent", hint=HINT)
        exchange.body_bytes_max = STRANGER_BYTES
        length = int(headers.get(b"content-length", b"0"))
        return too_large(STRANGER_BYTES) if length > STRANGER_BYTES else None

    def _principal(self, headers: dict[bytes, bytes], is_open: bool) -> Principal:
        """Who asks. What is open to strangers is open to browsers whose session is over, so that they sign in again."""
        if len(headers) < len(self._headers) and sum(name == b"authorization" for name, _ in self._headers) > 1:
            raise BadRequest("authorization: sent more than once")
        header = headers.get(b"authorization")
        known = self._known_as
        if header is not None and header == self._shown and known is not None and not known.is_revoked:
            return known  # as with the request before; who has expired is revoked within a second
        try:
            principal = self.site.principal(headers, self.address)
        except NotAuthenticated:
            if is_open and b"authorization" not in headers:
                return NOBODY
            raise
        self._shown, self._known_as = header, principal
        return principal if principal is not NOBODY or not self._names else self._by_certificate()

    def _by_certificate(self) -> Principal:
        if self._certified is None or self._certified.is_revoked:
            self._certified = self.site.broker.logins.by_certificate(self._names)
        return self._certified or NOBODY

    def _forged(self, exchange: Exchange, headers: dict[bytes, bytes]) -> PenstockError | None:
        """Whether a form could have sent this: browsers add their cookie or certificate to it by themselves."""
        is_by_itself = self.site.broker.logins.is_required and b"authorization" not in headers
        is_ours = headers.get(b"content-type", b"").lower().startswith(UNFORGEABLE)
        if is_by_itself and exchange.method == b"POST" and not is_ours:
            return BadRequest("content-type: with a cookie or a certificate it must be application/json")
        return None

    def _known(self) -> None:
        """It is known who is behind this connection, or it has ended."""
        if self._is_stranger:
            self._is_stranger = False
            self.site.broker.logins.leave(self._peer)

    def _misled(self, method: bytes, headers: dict[bytes, bytes]) -> PenstockError | None:
        """Whether somebody else's page is behind a request."""
        has_doubles = len(headers) < len(self._headers)
        is_plain = not has_doubles and b"origin" not in headers and b"sec-fetch-site" not in headers
        if is_plain and headers.get(b"host") == self._host:
            return None  # as the request before it
        if has_doubles:
            has_doubles = sum(name == b"host" for name, _ in self._headers) > 1
        refused = self.site.browsers.refused(method, self._url, headers, has_doubles)
        if refused is None and not self._url.startswith(PROBES):
            self._host = headers[b"host"]
        return refused

    def on_body(self, body: bytes) -> None:
        receiving = self._receiving
        if receiving is None:
            return
        if not receiving.add(body):
            self._refuse(too_large(receiving.body_bytes_max))
        elif not receiving.reserve():
            self._refuse(Unavailable("too many large requests are in flight", hint="send fewer of them at once"))

    def on_message_complete(self) -> None:
        self._since = self.site.now
        if self._receiving is not None:
            self._receiving.is_whole = True
            self._receiving = None

    def _refuse(self, error: PenstockError) -> None:
        """Answer what is being received with an error, after those that are whole, and read no more requests."""
        if self._is_refused:
            return
        self._is_refused = True
        exchange = self._receiving
        if exchange is None:
            exchange = Exchange(self, b"", self._url, {}, run_app)
            self._waiting.append(exchange)
        self._receiving = None
        exchange.refuse(error)
        self._unparsed.clear()
        self._set_reading()
        self._advance()

    # answering

    def _advance(self) -> None:
        """Run what can be run now. Never from within: each answer calls this."""
        if self._is_advancing or self._is_advance_due:
            return
        self._is_advancing = True
        try:
            for _ in range(TURN_REQUESTS_MAX):
                if not self._run_next():
                    break
            else:  # others have their turn first
                self._is_advance_due = True
                self.site.broker.loop.call_soon(self._advance_later)
        finally:
            self._is_advancing = False
        self._set_reading()

    def _advance_later(self) -> None:
        self._is_advance_due = False
        self._advance()

    def _run_next(self) -> bool:
        """Whether there was something to run, and more may follow."""
        if self.transport.is_closing() or self._closing_since is not None or self._stalled_since is not None:
            return False
        if self._current is None:
            if self._waiting:
                self._current = self._waiting.popleft()
                self._current.ask_for_body()
            elif self._unparsed and not self._is_refused:
                data = bytes(self._unparsed)
                self._unparsed.clear()
                self._parse(data)
                return True
            else:
                if self._has_ended:
                    self._close()
                return False
        exchange = self._current
        if exchange.is_started or not exchange.is_whole:
            return False
        exchange.run()
        if self._has_ended and self._current is exchange and exchange.is_waiting:
            self._close()  # the client has gone, as far as one can tell: nobody would get the answer
        return self._current is None

    def answered(self, exchange: Exchange) -> None:
        """An exchange has sent its response."""
        self._current = None
        self._since = self.site.now
        if self._paused_since is not None:
            self._paused_since = self.site.now
        if exchange.keep_alive:
            self._advance()
        elif self._is_refused or self._receiving is not None or self._unparsed or self._waiting:
            self._part()
        else:
            self._close()

    def _part(self) -> None:
        """Close, but hear the client out for a moment: a connection closed on unread bytes loses the response."""
        self._is_refused = True
        self._receiving = None
        for exchange in self._waiting:
            exchange.cancel()
        self._waiting.clear()
        self._unparsed.clear()
        if not self.transport.is_closing():
            self._closing_since = self.site.now
            self._set_reading()
            send_end(self.transport, self.site.broker.loop)

    def _close(self) -> None:
        if self._closing_since is None:
            self._closing_since = self.site.now
        self.transport.close()

    def _set_reading(self) -> None:
        """Read unless too much is kept already."""
        is_wanted = len(self._unparsed) <= UNPARSED_BYTES_MAX
        if is_wanted == (self._paused_since is None) or self.transport.is_closing():
            return
        if is_wanted:
            self._paused_since = None
            self.transport.resume_reading()
        else:
            self._paused_since = self.site.now
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        self._stalled_since = self.site.now
        if self._current is not None and self._current.on_full is not None:
            self._current.on_full(True)

    def resume_writing(self) -> None:
        self._stalled_since = None
        if self._current is not None and self._current.on_full is not None:
            self._current.on_full(False)
        self._advance()

    def eof_received(self) -> bool:
        """The client sends no more. It may still want its answers, unless they may take long or cannot be given."""
        self._has_ended = True
        current = self._current
        if self._closing_since is not None or current is None or not current.is_whole or current.is_waiting:
            return False
        if not self.transport.can_write_eof():  # with TLS both sides end together
            return False
        if self._receiving is not None and self._waiting:
            self._waiting.pop().cancel()
        self._receiving = None
        return True

    # the end of HTTP on it

    def _upgrade(self, rest: bytes) -> None:
        """The parser has met an upgrade, and stops there."""
        headers = dict(self._headers)
        if self.is_proxied:
            self.address = self.site.proxies.client(self._peer, self._headers)
        path = self._url.partition(b"?")[0]
        if headers.get(b"upgrade", b"").lower() != b"websocket" or path != b"/api/v1/stream":
            self._refuse(BadRequest("upgrade: only WebSocket is supported, at /api/v1/stream"))
        elif (refused := self._misled(b"GET", headers)) is not None:
            self._refuse(refused)
        elif self._current is not None or self._waiting or self.site.serve_socket is None:
            self._refuse(BadRequest("upgrade: it must be the only request in flight"))
        else:
            if b"origin" not in headers:  # as every browser sends it: without, no page is behind this
                headers.pop(b"cookie", None)
            try:
                principal = self._principal(headers, is_open=True)  # its first message may say who it is
                self._seat.take(principal)
            except PenstockError as error:
                self._refuse(error)
            else:
                self._become_socket(headers, rest, principal)

    def _become_socket(self, headers: dict[bytes, bytes], rest: bytes, principal: Principal) -> None:
        lines = [b"GET %b HTTP/1.1\r\n" % self._url, *(b"%b: %b\r\n" % header for header in self._headers), b"\r\n"]
        socket = Socket(self.site, self.transport, self.address, headers, principal)
        problem = socket.handshake(b"".join(lines))
        if problem:
            self._refuse(BadRequest(f"upgrade: {problem}"))
            return
        if principal is NOBODY and self._is_stranger:  # it stays one
            self._is_stranger = False
            socket.on_known = partial(self.site.broker.logins.leave, self._peer)
        self._leave()
        self._parser = None
        self._is_refused = True
        socket.begin(rest)
