"""One TCP connection: frames in, answers out; docs/formats/tcp.md describes the frames.

Requests are answered as soon as they can be, in any order; the correlation says which answer is whose. A client that
does not read its answers, or has too much under way, is not read from until it has caught up: memory per connection is
bounded. Whatever cannot be a frame ends the connection, after an error that says why.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from penstock import limits
from penstock.access.authenticator import HINT
from penstock.access.tls import peer_names
from penstock.broker.access import Client, Principal
from penstock.broker.logins import STRANGER_BYTES
from penstock.broker.seats import Seat
from penstock.embedded.connections import Activity
from penstock.errors import BadRequest, NotAuthenticated, PenstockError, Unavailable
from penstock.server.dispatch import HANDLERS, REFUSALS, SINGLES, TURN_FRAMES, Dispatch, is_heavy
from penstock.server.tcp.json_tasks import JsonTaskProtocol
from penstock.server.tcp.lingering_close import close_lingering
from penstock.wire import requests
from penstock.wire.frames import BINARY_FROM, JsonType, Splitter, Type, frame, json_frame
from penstock.wire.json_messages import encode, error_body
from penstock.wire.json_protocols import AUTH

if TYPE_CHECKING:
    from penstock.server.tcp.listener import TcpServer

UNANSWERED_MAX: Final = 4096  # requests of one connection that may be under way
HELD_BYTES_MAX: Final = 64 << 20  # of pushes of one connection that may be under way
WRITE_BUFFER_BYTES: Final = 1 << 20  # answers that may wait for the client to read them
RESERVED_BYTES_MIN: Final = 64 * 1024


class TcpConnection(Dispatch, asyncio.Protocol):
    """One client."""

    def __init__(self, server: TcpServer) -> None:
        nobody = Client(server.broker.logins.stranger, "", "", "tcp")
        super().__init__(server.broker, nobody, server.spawn, server.flush_soon, server.frame_bytes_max)
        self._server = server
        self._is_stranger = server.broker.logins.is_required
        self.is_counted = False  # among the connections of strangers
        self._seat = Seat(server.broker.seats)
        self._stranger_bytes = 0  # that came before it was known who this is
        self._splitter = Splitter(STRANGER_BYTES if self._is_stranger else server.frame_bytes_max)
        self._json_tasks: JsonTaskProtocol | None = None  # in JSON
        self._is_tls = False
        self._number = 0  # among the connections of the broker
        self._reserved = 0  # of what all unread requests may take
        self._window_since: float | None = None  # in which a frame must grow
        self._window_bytes = 0
        self._full_since: float | None = None

    # the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class does not derive from it
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        peer = transport.get_extra_info("peername")
        address = peer[0] if isinstance(peer, tuple) else "local"
        self._client = Client(self._client.principal, "", address, "tcp")
        self._number = self._broker.connections.enter(self)
        self._server.joined(self)
        if self._is_tls and self._is_stranger:
            principal = self._broker.logins.by_certificate(peer_names(transport))
            if principal is not None:
                self._logged_in(principal, "")

    def connection_lost(self, error: Exception | None) -> None:
        self._client.principal.forget(self._revoked)
        self._seat.leave()
        self._broker.connections.leave(self._number)
        self._cancel_all()
        self._broker.unread.give_back(self._client.address, self._reserved)
        self._reserved = 0
        self._server.left(self)
        if self._json_tasks is not None:
            self._json_tasks.close()

    def data_received(self, data: bytes) -> None:
        self._window_bytes += len(data)
        if self._is_stranger:
            self._stranger_bytes += len(data)
        try:
            whole, cuts = self._splitter.feed(data)
            if self._backlog or (len(cuts) > TURN_FRAMES and is_heavy(cuts)):
                self._backlog.extend((whole, cut) for cut in cuts)
                if len(self._backlog) == len(cuts):
                    self._take_turn()
            else:
                for kind, correlation, start, stop in cuts:
                    self._request(kind, correlation, whole, start, stop)
        except REFUSALS as error:
            self.refuse(error)
            return
        if self._is_stranger and self._stranger_bytes > STRANGER_BYTES:
            self.refuse(NotAuthenticated(f"no login within {STRANGER_BYTES:,} bytes", hint=HINT))
            return
        if not self._reserve():
            self.refuse(Unavailable("too many large requests are in flight", hint="send fewer of them at once"))
            return
        if self._unanswered > UNANSWERED_MAX or self._held_bytes > HELD_BYTES_MAX:
            self._set_reading()

    def _reserve(self) -> bool:
        """Count a large frame that is not whole yet into what all unread requests may take. False: it may not."""
        held = self._splitter.held_bytes
        if held < RESERVED_BYTES_MIN:
            held = 0
        more = held - self._reserved
        if more > 0 and not self._broker.unread.take(self._client.address, more):
            return False
        if more < 0:
            self._broker.unread.give_back(self._client.address, -more)
        self._reserved = held
        return True

    def check(self, now: float) -> None:
        """End a connection whose time is over. Called with every tick of the server."""
        server = self._server
        if self._is_full:
            if self._full_since is None:
                self._full_since = now
            elif now - self._full_since > server.stalled_seconds:
                self._transport.abort()
            return
        self._full_since = None
        if not self._splitter.held_bytes or not self._is_reading:
            self._window_since = None
        elif self._window_since is None:
            self._window_since, self._window_bytes = now, 0
        elif now - self._window_since > server.progress_seconds:
            if self._window_bytes < limits.progress_bytes:
                self.refuse(BadRequest("the frame did not arrive in time", hint="send it faster, or smaller ones"))
            self._window_since, self._window_bytes = now, 0

    def pause_writing(self) -> None:
        self._is_full = True
        self._set_reading()
        if self._json_tasks is not None:
            self._json_tasks.pause()

    def resume_writing(self) -> None:
        self._is_full = False
        self._set_reading()
        if self._json_tasks is not None:
            self._json_tasks.resume()
        self._go_on()

    def _set_reading(self) -> None:
        is_busy = self._unanswered > UNANSWERED_MAX or self._held_bytes > HELD_BYTES_MAX
        wanted = not (self._is_full or is_busy or self._backlog)
        if wanted == self._is_reading or self._is_lost or self._transport.is_closing():
            return
        self._is_reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # requests

    def _is_dealt_with(self, kind: int, data: bytes, start: int, stop: int) -> bool:
        if kind < BINARY_FROM:
            if kind == JsonType.AUTH:
                self._json_login(data[start:stop])
            elif self._is_stranger:
                raise NotAuthenticated("the first frame must be AUTH, type 10, with a token", hint=HINT)
            else:
                self._json(kind, data[start:stop])
            return True
        if kind not in self.handlers and kind not in SINGLES:
            raise BadRequest(f"type {kind} is no request", hint="see docs/formats/tcp.md; tasks have types 1 to 9")
        if kind != Type.HELLO:
            raise BadRequest("the first frame of a connection must be HELLO")
        return False

    def _json(self, kind: int, body: bytes) -> None:
        """A request of the JSON protocol, which has no HELLO."""
        if self._json_tasks is None:
            self._begin_json()
            assert self._json_tasks is not None
        self._unanswered += 1
        self._held_bytes += len(body)
        self._json_tasks.take(kind, body)

    def _begin_json(self) -> None:
        self._json_tasks = JsonTaskProtocol(self._broker, self._client, self._answer_json, self._server.spawn)
        if self._is_full:
            self._json_tasks.pause()

    def _json_login(self, body: bytes) -> None:
        """AUTH: `{"token": …}`; the answer is ACK with the name of the principal."""
        if self._json_tasks is not None or self.is_greeted:
            raise BadRequest("AUTH must be the first frame of a connection")
        self._begin_json()
        principal = self._broker.logins.by_token(AUTH.read(body).token, self._client.address, "tcp")
        self._logged_in(principal, self._client.name)
        self._begin_json()
        self._send(json_frame(JsonType.ACK, encode({"principal": principal.name})))

    def _answer_json(self, kind: int, body: bytes, held: int) -> None:
        self._unanswered -= 1
        self._held_bytes -= held
        self._send(json_frame(kind, body))
        self.flush()  # so that the transport says when it is full
        if not self._is_reading:
            self._set_reading()

    @property
    def is_json(self) -> bool:
        """Whether the client speaks nothing but JSON, as far as is known."""
        return self._json_tasks is not None and not self.is_greeted

    def _greeted(self, principal: Principal, hello: requests.Hello) -> None:
        is_begun = self.is_greeted or self._json_tasks is not None
        if is_begun and principal is not self._client.principal:  # what was begun as somebody ends with that credential
            raise BadRequest("HELLO: this connection belongs to another client", hint="open another connection")
        self._logged_in(principal, hello.client)
        self._producer = (hello.producer, hello.epoch) if hello.producer else None
        self.is_greeted = True

    def _logged_in(self, principal: Principal, name: str) -> None:
        self._seat.take(principal)
        if self._is_stranger:
            self._is_stranger = False
            self._server.known(self)
            self._splitter.allow(self._server.frame_bytes_max)
        self._client.principal.forget(self._revoked)
        self._client = Client(principal, name[: limits.name_length_max], self._client.address, "tcp")
        principal.once_revoked(self._revoked)
        self._broker.logins.succeeded(self._client)

    def _revoked(self) -> None:
        self.refuse(NotAuthenticated("the credential of this connection was revoked, or has expired"))

    @property
    def address(self) -> str:
        """Of the client."""
        return self._client.address

    @property
    def is_stranger(self) -> bool:
        """Whether it is not known yet who this is."""
        return self._is_stranger

    def _cancel(self, correlation: int, body: memoryview) -> None:
        self._unanswered -= 1  # it has no answer of its own; the request it is about gets none either
        given = requests.decode(body, requests.Cancel)
        wait = self._waits.pop(given.request, None)
        if wait is not None:
            wait.cancel()
        pending = self._pending.pop(given.request, None)
        if pending is not None:
            pending.cancel()
            self._unanswered -= 1
        self._set_reading()

    # the end

    def flush(self) -> None:
        out, self._out = self._out, []
        if out and not self._is_lost and not self._transport.is_closing():
            if self._is_tls:  # which would make a record of each
                self._transport.write(b"".join(out))
            else:
                self._transport.writelines(out)

    def goodbye(self) -> None:
        """The broker stops: say so. What is under way is still answered."""
        if not self._is_lost and not self.is_json:
            self._send(frame(Type.GOODBYE, 0))

    def refuse(self, error: PenstockError) -> None:
        if self.is_json:
            self._broker.count_rest(error)
            self._send(json_frame(JsonType.NACK, error_body(error)))
        else:
            self._fail(0, error)
        self.flush()
        if close_lingering(self._transport, self._broker.loop):
            self.connection_lost(None)

    def activity(self) -> Activity:
        """What is under way."""
        client, producer = self._client, self._producer
        return Activity(
            *("json" if self.is_json else "tcp", client.principal.name, client.address, client.name),
            in_flight=self._unanswered,
            producer="" if producer is None else f"{producer[0]}/{producer[1]}",
        )

    def end(self) -> None:
        """An operator ends the connection."""
        self.refuse(Unavailable("an operator closed this connection"))

    def close(self) -> None:
        """Send what is ready and close."""
        self.flush()
        if not self._is_lost:
            self._transport.close()


TcpConnection.handlers = HANDLERS | {
    Type.CANCEL: TcpConnection._cancel,
}
