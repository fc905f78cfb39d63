"""The frames of the TCP protocol within HTTP: requests are the body of a POST, answers the body of its response.

`Responses` reads what comes on a connection and does no I/O. `HttpSocket` is what a blocking connection uses in place
of a socket: what it sends becomes a request, what it receives is unwrapped from the response.

A response that is not the broker's frames is an error:

    JSON of a broker         `Refused`: nothing has happened, and the error says why
    502, 503, 504            `OSError`, as when a connection is lost: nobody knows whether something has happened
    anything else            `Refused` with `Unavailable`: this is no broker
"""

from __future__ import annotations

import http.client
import select
import socket
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

import httptools
import msgspec

from penstock.clock import Clock
from penstock.errors import PenstockError, TooLarge, Unavailable
from penstock.remote.producer import Producer
from penstock.remote.settings import Address, Settings
from penstock.remote.tls import read_now
from penstock.version import VERSION
from penstock.wire.errors import ErrorReply, to_error
from penstock.wire.frames import HTTP_PATH, MEDIA_TYPE, PROTOCOL_VERSION, Buffer

# A broker closes a connection that has been idle for 50 s, proxies after 60 or 75: ours are not used for that long.
IDLE_SECONDS_MAX: Final = 30.0
ERROR_BYTES_MAX: Final = 64 * 1024  # that are read of a response without frames
GATEWAY: Final = (502, 503, 504)  # what something between us and a broker says when the broker is not there
_MEDIA_TYPE: Final = MEDIA_TYPE.encode()
_HINT: Final = "check that this is the HTTP port of a broker, and that no proxy is in between"


class Refused(Exception):
    """The request was refused: none of its frames was run."""

    def __init__(self, error: PenstockError) -> None:
        super().__init__(error.message)
        self.error = error


class ErrorFields(msgspec.Struct):
    """An error of a broker in JSON."""

    code: str
    message: str = ""
    hint: str = ""
    retry_after_ms: float = 0.0
    address: str = ""


class ErrorBody(msgspec.Struct):
    """The body of a response that is an error."""

    error: ErrorFields


class Head:
    """The head of every request to an address: who asks, and what HELLO says on TCP."""

    def __init__(self, settings: Settings, address: Address) -> None:
        lines = [
            f"POST {HTTP_PATH} HTTP/1.1",
            f"host: {str(address).partition('://')[2]}",
            f"user-agent: penstock/{VERSION}",
            f"content-type: {MEDIA_TYPE}",
            f"penstock-protocol: {PROTOCOL_VERSION}",
        ]
        if settings.client:
            lines.append(f"penstock-client: {quote(settings.client, safe=' ')}")
        self._token = b""
        self._start = "".join(f"{line}\r\n" for line in lines).encode()

    def authorise(self, token: str) -> None:
        """Show this token with every request from now on."""
        self._token = f"authorization: Bearer {token}\r\n".encode() if token else b""

    def of(self, body_bytes: int, producer: Producer | None) -> bytes:
        """The head of a request with such a body; `producer` is who numbers the pushes in it."""
        if producer is None:
            return b"%b%bcontent-length: %d\r\n\r\n" % (self._start, self._token, body_bytes)
        return b"%b%bpenstock-producer: %d/%d\r\ncontent-length: %d\r\n\r\n" % (
            *(self._start, self._token, producer.id, producer.epoch),
            body_bytes,
        )

    def of_route(self, path: str, body_bytes: int, method: str = "POST") -> bytes:
        """The head of a request to another route, with JSON for its body."""
        host = self._start.split(b"\r\n", 2)[1]
        first = b"%b %b HTTP/1.1\r\n%b\r\nconnection: close\r\n" % (method.encode(), path.encode(), host)
        return b"%b%bcontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (first, self._token, body_bytes)


class Responses:
    """The responses of a connection, one after the other. `feed` returns what has come of the frames of one."""

    def __init__(self) -> None:
        self._parser: Any = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self.begin()
        self.is_complete = self.keep_alive = True  # nothing was asked yet

    def begin(self) -> None:
        """A request was sent."""
        self._status = 0
        self._is_frames = False
        self._error = bytearray()  # the body, when it is not frames
        self.is_complete = False
        self.keep_alive = False

    def feed(self, data: bytes) -> bytes:
        """Bytes of frames. `Refused` or `OSError` when there are none to come."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            hint = "use a penstock:// URL for a TCP port; the HTTP port is 7711 by default"
            raise Refused(Unavailable("the server does not speak HTTP", hint=hint)) from None
        body = b"".join(self._pieces)
        self._pieces.clear()
        if self._is_frames or not self._status:
            return body
        self._error += body
        if self.is_complete or len(self._error) > ERROR_BYTES_MAX:
            self._refuse()
        return b""

    def end(self) -> None:
        """The connection has ended before the response did."""
        if self._status and not self._is_frames:
            self._refuse()
        raise ConnectionError("it was closed before the reply was complete")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser, as all that are named on_…."""
        if name.lower() == b"content-type":
            self._is_frames = value.partition(b";")[0].strip().lower() == _MEDIA_TYPE

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._status = 0 if status < 200 else status  # 100 Continue, say, goes before the response
        self._is_frames = self._is_frames and status == 200

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        if self._status:
            self.is_complete = True
            self.keep_alive = self._parser.should_keep_alive()

    def _refuse(self) -> None:
        status = f"status {self._status} {http.client.responses.get(self._status, '')}".rstrip()
        if self._status == 404:
            hint = f"{_HINT}; an older broker has no such route"
            raise Refused(Unavailable(f"there is no {HTTP_PATH}: {status}", hint=hint))
        try:
            error = msgspec.json.decode(self._error, type=ErrorBody).error
        except (msgspec.DecodeError, UnicodeDecodeError):
            if self._status in GATEWAY:
                raise ConnectionError(f"{status}, from a proxy in between") from None
            if self._status == 413:
                hint = "raise its limit for request bodies, or send smaller batches"
                raise Refused(
                    TooLarge(f"a proxy in front of the broker refuses the request: {status}", hint=hint)
                ) from None
            raise Refused(Unavailable(f"the reply is not from a broker: {status}", hint=_HINT)) from None
        raise Refused(_raised(error))


def error_of(body: bytes) -> PenstockError:
    """The error that a broker answers with."""
    try:
        return _raised(msgspec.json.decode(body, type=ErrorBody).error)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Unavailable("the reply is not from a broker", hint=_HINT)


def _raised(error: ErrorFields) -> PenstockError:
    return to_error(ErrorReply(error.code, error.message, error.hint, error.retry_after_ms / 1000, error.address))


class HttpSocket:
    """A connection that looks like a socket on which frames travel. One POST is under way at a time."""

    def __init__(self, connect: Callable[[], socket.socket], head: Head, clock: Clock) -> None:
        self._connect = connect
        self._socket = connect()
        self.head = head
        self._clock = clock
        self.producer: Producer | None = None  # whose sequences the next request has
        self._responses = Responses()
        self._idle_since = clock.monotonic()

    def sendall(self, data: Buffer) -> None:
        """Send frames, as one request; on a new connection if the last response has ended the old one."""
        if not self.is_reusable():
            seconds = self._socket.gettimeout()
            self._socket.close()
            self._socket = self._connect()
            self._socket.settimeout(seconds)
            self._responses = Responses()
        self._responses.begin()
        self._socket.sendall(self.head.of(len(data), self.producer) + data)

    def recv(self, size: int) -> bytes:
        """Some of the answers; nothing when the response is over."""
        while not self._responses.is_complete:
            data = self._socket.recv(size)
            if not data:
                self._responses.end()
            body = self._responses.feed(data)
            if body:
                self._idle_since = self._clock.monotonic()
                return body
        return b""

    def post(self, path: str, body: bytes) -> bytes:
        """The answer of another route, whose error is raised. Nothing can be sent on this connection afterwards."""
        self._socket.sendall(self.head.of_route(path, len(body)) + body)
        response = http.client.HTTPResponse(self._socket, method="POST")
        response.begin()
        answer = response.read()
        if response.status >= 300:
            raise error_of(answer)
        return answer

    def get_status(self, path: str) -> int:
        """The status of a GET of a page. Nothing can be sent on this connection afterwards."""
        self._socket.sendall(self.head.of_route(path, 0, "GET"))
        response = http.client.HTTPResponse(self._socket, method="GET")
        response.begin()
        return response.status

    def is_reusable(self) -> bool:
        """Whether another request may be sent: the last response is over, and the connection is not."""
        responses = self._responses
        if self._clock.monotonic() - self._idle_since > IDLE_SECONDS_MAX * 1_000_000:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if poll.poll(0):
            try:
                data = read_now(self._socket, 65_536)
                if data is not None:
                    if responses.is_complete:
                        return False  # it was closed, or what comes was not asked for
                    responses.feed(data)
            except (OSError, Refused):
                return False
        return responses.is_complete and responses.keep_alive

    def settimeout(self, seconds: float) -> None:
        self._socket.settimeout(seconds)

    @property
    def plain(self) -> socket.socket:
        """The socket underneath."""
        return self._socket

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()
