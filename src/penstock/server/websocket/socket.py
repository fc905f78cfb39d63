"""One WebSocket on its transport, over the Sans-I/O protocol of `websockets`.

Messages are read one chunk of the network at a time: while some are not taken, nothing more is read. The server's tick
checks the deadlines: a peer that does not read, a message that does not grow, a ping that is not answered, the end.
Compression is not offered: it would cost the event loop more than it saves.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from websockets.exceptions import InvalidState
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from penstock.access.sessions import SIGN_IN_AGAIN
from penstock.broker.access import NOBODY, Principal
from penstock.broker.logins import STRANGER_BYTES
from penstock.errors import NotAuthenticated

if TYPE_CHECKING:
    from penstock.server.http.site import Site

logger: Final = logging.getLogger("penstock.websocket")
TURN_MESSAGES_MAX: Final = 32  # that are taken in one turn of the event loop
NOT_TEXT: Final = None


class Disconnected(Exception):
    """The peer has gone."""


class Socket(asyncio.Protocol):
    """One WebSocket connection: whole messages in, whole messages out."""

    def __init__(
        self,
        site: Site,
        transport: asyncio.Transport,
        address: str,
        headers: dict[bytes, bytes],
        principal: Principal,
    ) -> None:
        self.transport = transport
        self.principal = principal  # `NOBODY` until the first message says who it is
        self.on_known: Callable[[], None] | None = None  # called once: it is known who this is, or it has ended
        self.address = address
        self.client_name = headers.get(b"user-agent", b"").decode("latin-1")
        self._site = site
        self._headers = headers
        message_bytes_max = STRANGER_BYTES if principal is NOBODY else site.settings.request_bytes_max
        self._protocol = ServerProtocol(max_size=message_bytes_max, logger=wire_logger)
        self._messages: deque[bytes | None] = deque()  # that are whole; None: not text
        self._message = bytearray()  # one that comes in fragments
        self._is_text = True
        self._is_fragmented = False
        self._has_message = asyncio.Event()
        self._taken = 0
        self._is_writable = asyncio.Event()
        self._is_writable.set()
        self._is_paused = False
        self._has_gone = False
        self._stalled_since: float | None = None
        self._closing_since: float | None = None
        self._window_since = site.now  # in which a message must grow
        self._window_bytes = 0
        self._sign_of_life = site.now
        self._pinged_at: float | None = None

    def signed_in(self, tab_secret: str) -> Principal:
        """Who is signed in by the cookie of the upgrade and the secret of the tab; raises `NotAuthenticated`."""
        principal = self._site.by_cookie(self._headers, tab_secret)
        if principal is NOBODY:
            raise NotAuthenticated("nobody is signed in: the upgrade request had no cookie", hint=SIGN_IN_AGAIN)
        return principal

    def known(self) -> None:
        """It is known who this is: messages may be as large as all requests."""
        self._protocol.max_message_size = self._site.settings.request_bytes_max
        self._not_a_stranger()

    def _not_a_stranger(self) -> None:
        on_known, self.on_known = self.on_known, None
        if on_known is not None:
            on_known()

    # the beginning

    def handshake(self, request: bytes) -> str:
        """What is wrong with the request of an upgrade; nothing when it is accepted, though not answered yet."""
        self._protocol.receive_data(request)
        for event in self._protocol.events_received():
            assert isinstance(event, Request)
            self._response = self._protocol.accept(event)
            if self._response.status_code == 101:
                return ""
            return (self._response.body or b"").decode(errors="replace").strip() or self._response.reason_phrase
        return "the request cannot be read"

    def begin(self, rest: bytes) -> None:
        """Answer the handshake, and serve; `rest` came behind it."""
        self._site.connections.add(self)
        self.transport.set_protocol(self)
        self._protocol.send_response(self._response)
        self._flush()
        self._site.spawn(self._serve())
        if rest:
            self.data_received(rest)

    async def _serve(self) -> None:
        assert self._site.serve_socket is not None
        try:
            await self._site.serve_socket(self)
        except Exception:  # a fault in one socket must not pass for a fault of the loop
            logger.exception("internal error in a WebSocket")
        finally:
            self._close()

    # in

    def data_received(self, data: bytes) -> None:
        self._window_bytes += len(data)
        if self._protocol.state is not State.CONNECTING:
            self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            self._sign_of_life, self._pinged_at = self._site.now, None
            if isinstance(event, Frame):
                self._frame(event)
        self._flush()
        if self._protocol.parser_exc is not None or self._protocol.close_rcvd is not None:
            self._end()
        elif self._messages and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def _frame(self, frame: Frame) -> None:
        if frame.opcode in {Opcode.TEXT, Opcode.BINARY}:
            self._is_text = frame.opcode is Opcode.TEXT
            self._window_since, self._window_bytes = self._site.now, 0
        elif frame.opcode is not Opcode.CONT:
            return
        if frame.fin and not self._message:
            self._put(bytes(frame.data))
            return
        self._message += frame.data
        self._is_fragmented = not frame.fin
        if frame.fin:
            whole, self._message = bytes(self._message), bytearray()
            self._put(whole)

    def _put(self, message: bytes) -> None:
        self._is_fragmented = False
        if self._closing_since is None:
            self._messages.append(message if self._is_text else NOT_TEXT)
            self._has_message.set()

    async def receive(self) -> bytes | None:
        """The next message; None when it is not text."""
        self._taken += 1
        if self._taken % TURN_MESSAGES_MAX == 0:
            await asyncio.sleep(0)  # others have their turn
        while not self._messages:
            if self._has_gone:
                raise Disconnected
            self._has_message.clear()
            self._resume()
            await self._has_message.wait()
        return self._messages.popleft()

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._sign_of_life = self._site.now
            self.transport.resume_reading()

    # out

    async def send(self, text: bytes) -> None:
        """Send a message; returns when there is room for more."""
        await self._is_writable.wait()
        if self._has_gone:
            raise Disconnected
        try:
            self._protocol.send_text(text)
        except InvalidState:
            raise Disconnected from None
        self._flush()

    async def close(self, code: int, reason: str) -> None:
        """Say that it ends, and why."""
        with suppress(InvalidState):
            self._protocol.send_close(code, reason)
        self._flush()
        self._end()

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self.transport.write(data)

    # the end

    def check(self, now: float) -> None:
        """End a socket whose time is over. Called with every tick."""
        settings = self._site.settings
        if self._closing_since is not None:
            if now - self._closing_since > settings.lingering_seconds:
                self.transport.abort()
        elif self._stalled_since is not None:
            if now - self._stalled_since > settings.write_seconds:
                self.transport.abort()
        elif not self._is_paused:
            self._check_message(now)
            self._check_life(now)

    def _check_message(self, now: float) -> None:
        settings = self._site.settings
        if self._is_fragmented and now - self._window_since > settings.progress_seconds:
            if self._window_bytes < settings.progress_bytes:
                self._fail("the message did not arrive in time")
            self._window_since, self._window_bytes = now, 0

    def _check_life(self, now: float) -> None:
        settings = self._site.settings
        if self._window_bytes >= settings.progress_bytes:  # one large frame, in the middle of which nothing can be said
            self._sign_of_life, self._window_bytes, self._pinged_at = now, 0, None
        if self._pinged_at is not None and now - self._pinged_at > settings.ping_seconds:
            self._fail("the ping was not answered")
        elif self._pinged_at is None and now - self._sign_of_life > settings.ping_seconds:
            self._pinged_at = now
            with suppress(InvalidState):
                self._protocol.send_ping(b"")
            self._flush()

    def _fail(self, reason: str) -> None:
        self._protocol.fail(1011, reason)
        self._flush()
        self._close()

    def shutdown(self) -> None:
        """The server ends. What was delivered may still be settled, so nothing is closed here."""

    def _end(self) -> None:
        """No more messages; the last bytes are on their way."""
        if not self._has_gone:
            self._has_gone = True
            self._has_message.set()
            self._is_writable.set()
        if self._closing_since is None:
            self._closing_since = self._site.now

    def _close(self) -> None:
        self._end()
        self.transport.close()

    def pause_writing(self) -> None:
        self._stalled_since = self._site.now
        self._is_writable.clear()

    def resume_writing(self) -> None:
        self._stalled_since = None
        self._is_writable.set()

    def eof_received(self) -> bool:
        self._protocol.receive_eof()
        self._end()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._site.connections.discard(self)
        self._not_a_stranger()
        self._end()


wire_logger: Final = logging.getLogger("penstock.websocket.wire")
wire_logger.setLevel(logging.CRITICAL)  # it reports every peer that goes without a farewell
