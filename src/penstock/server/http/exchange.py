"""One request of a connection, from its headers to its response.

`run` answers it once its body is whole: one of the hot routes, or the ASGI application.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.broker.access import NOBODY, Client, Principal
from penstock.errors import Internal, PenstockError, TooLarge
from penstock.replies import LeaseReplies, LeaseReply, PushReply
from penstock.server.http.site import refusal
from penstock.telemetry.logs import log_request

if TYPE_CHECKING:
    from penstock.server.http.connection import HttpConnection

logger: Final = logging.getLogger("penstock.http")
LARGE: Final = (LeaseReply, LeaseReplies, PushReply)  # replies that may be
SMALL_CHUNK_BYTES: Final = 4096  # smaller ones are put together: each has its price beside its bytes
RESERVED_BYTES_MIN: Final = 64 * 1024
LARGE_COUNT: Final = 2000  # messages whose reply takes some milliseconds to write
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
JOINED_BYTES_MAX: Final = 16_384  # a small body goes out in one piece with its headers


class Cancellable(Protocol):
    """What a request waits for."""

    def cancel(self) -> None: ...


class Exchange:
    """One request and its response."""

    __slots__ = (
        "_chunks",
        "_headers",
        "_received",
        "_reserved",
        "_run",
        "_started",
        "address",
        "all_headers",
        "body_bytes_max",
        "disconnected",
        "is_started",
        "is_streaming",
        "is_whole",
        "keep_alive",
        "may_stream",
        "method",
        "on_full",
        "on_gone",
        "path",
        "pending",
        "principal",
        "protocol",
        "queue",
        "request_id",
        "response_complete",
        "site",
    )

    def __init__(
        self,
        protocol: HttpConnection,
        method: bytes,
        path: bytes,
        headers: dict[bytes, bytes],
        run: Callable[[Exchange], None],
        queue: str = "",
    ) -> None:
        self.protocol = protocol
        self.address = protocol.address
        self.method = method
        self.path = path
        self.site = protocol.site
        self.queue = queue
        self.request_id = self.site.request_id(headers.get(b"x-request-id"))
        self.principal: Principal = NOBODY
        self.body_bytes_max = self.site.settings.request_bytes_max
        self.keep_alive = True
        self.may_stream = True  # HTTP/1.0 knows no chunks
        self.is_whole = False
        self.is_started = False
        self.response_complete = False
        self.disconnected = False
        self.all_headers: list[tuple[bytes, bytes]] = []  # with those that are there twice; for the application
        self.on_gone: Callable[[], object] | None = None  # called when the client has gone before the answer
        self.on_full: Callable[[bool], object] | None = None  # called when the client stops reading, and goes on
        self.pending: Cancellable | None = None  # what it waits for
        self._headers = headers
        self._run = run
        self._chunks: list[bytes | bytearray] = []
        self._received = 0
        self._reserved = 0  # of what all unread requests may take
        self._started = 0
        self.is_streaming = False  # the head of the response has left, and perhaps some of the body

    # the request

    def add(self, chunk: bytes) -> bool:
        """Some of the body has come. False: it is too large now."""
        self._received += len(chunk)
        if len(chunk) >= SMALL_CHUNK_BYTES or not self._chunks:
            self._chunks.append(chunk)
        elif isinstance(self._chunks[-1], bytearray):
            self._chunks[-1] += chunk
        else:
            self._chunks.append(bytearray(chunk))
        return self._received <= self.body_bytes_max

    def reserve(self) -> bool:
        """Count a large body into what all unread requests may take. False: it may take no more."""
        more = self._received - self._reserved
        if more < RESERVED_BYTES_MIN:
            return True
        if not self.site.broker.unread.take(self.address, more):
            return False
        self._reserved += more
        return True

    def _drop_body(self) -> None:
        self._chunks.clear()
        self.site.broker.unread.give_back(self.address, self._reserved)
        self._reserved = 0

    def refuse(self, error: PenstockError) -> None:
        """Whatever else comes of this request, answer with the error and close the connection."""
        self.keep_alive = False
        self.is_whole = True
        self._drop_body()
        self._run = lambda exchange: exchange.fail(error)

    def ask_for_body(self) -> None:
        """It is its turn: ask for the body, if the client holds it back until then."""
        if not self.is_whole and self._headers.get(b"expect", b"").lower() == b"100-continue":
            self.protocol.transport.write(CONTINUE)

    @property
    def is_waiting(self) -> bool:
        """Whether it is answered when something happens, which may take long."""
        return self.pending is not None or b"wait_ms=" in self.path

    @property
    def is_of_app(self) -> bool:
        """Whether the application answers it."""
        return bool(self.all_headers)

    def run(self) -> None:
        """The request is whole and it is its turn."""
        self.is_started = True
        self._started = self.site.broker.clock.monotonic()
        self.attempt(lambda: self._run(self))

    def attempt(self, work: Callable[[], None]) -> None:
        """Do something for the request; whatever it raises is the answer."""
        try:
            work()
        except PenstockError as error:
            self.fail(error)
        except Exception:  # a fault in one request must not take the connection down without an answer
            logger.exception("internal error in an HTTP request", extra={"request_id": self.request_id.decode()})
            self.fail(Internal("internal error in the broker"))

    @property
    def body(self) -> bytes:
        chunks = self._chunks
        return bytes(chunks[0]) if len(chunks) == 1 else b"".join(chunks)

    @property
    def client(self) -> Client:
        return self.protocol.client_named(self._headers.get(b"user-agent", b""), self.address, self.principal)

    def header(self, name: bytes) -> str:
        """A header of the request; empty when it is not there."""
        return self._headers.get(name, b"").decode("latin-1")

    @property
    def traceparent(self) -> str | None:
        header = self._headers.get(b"traceparent")
        return None if header is None else header.decode("latin-1")

    # the response

    def answer(self, reply: Any, status: int, encode: Callable[[Any], bytes]) -> None:
        """Respond with a reply of the broker: an error, or what `encode` makes JSON of."""
        if isinstance(reply, PenstockError):
            self.fail(reply)
        elif not self.response_complete:
            self.reply_with(status, lambda: encode(reply), reply.count if isinstance(reply, LARGE) else 1)

    def reply_with(self, status: int, write: Callable[[], bytes], count: int) -> None:
        """Answer with what `write` makes of `count` things: in a thread when they are many, for the loop's sake."""
        if count <= LARGE_COUNT:
            self.reply(status, write())
        else:
            self.site.broker.in_thread(write, partial(self._written, status))

    def _written(self, status: int, body: Any) -> None:
        if isinstance(body, PenstockError):
            self.fail(body)
        else:
            self.reply(status, body)

    def fail(self, error: PenstockError) -> None:
        """Answer with an error."""
        self.site.broker.count_rest(error, self.queue)
        status, body, headers = refusal(error)
        self.reply(status, body, b"".join(b"%b: %b\r\n" % header for header in headers))

    def reply(self, status: int, body: bytes, more: bytes = b"") -> None:
        """Answer with JSON; `more` is lines of headers."""
        if not self.response_complete:
            more += self.site.cors(self._headers.get(b"origin"))
            lines = b"content-type: application/json\r\ncontent-length: %d\r\nx-request-id: %b\r\n%b"
            self.respond(status, lines % (len(body), self.request_id, more), body)

    def respond(self, status: int, lines: bytes, body: bytes) -> None:
        """Answer with lines of headers and a body. A client that has gone gets nothing."""
        if self.response_complete:
            return
        self._complete()
        if self.disconnected:
            return
        if self.is_streaming:  # it is too late for another answer
            self.protocol.transport.abort()
            return
        self.keep_alive = self.keep_alive and not self.site.is_draining
        head = self.site.head(status, lines, self.keep_alive)
        transport = self.protocol.transport
        if self.method == b"HEAD":
            transport.write(head)
        elif len(body) < JOINED_BYTES_MAX:
            transport.write(head + body)
        else:
            transport.writelines((head, body))
        self._log(status)
        self.protocol.answered(self)

    def stream(self, lines: bytes, data: Sequence[bytes | memoryview], *, is_last: bool) -> None:
        """Send a part of a response as a chunk; before the first, its head, with these lines of headers."""
        if self.response_complete or self.disconnected:
            return
        parts: list[bytes | memoryview] = []
        if not self.is_streaming:
            self.is_streaming = True
            self.keep_alive = self.keep_alive and not self.site.is_draining
            parts.append(self.site.head(200, lines + b"transfer-encoding: chunked\r\n", self.keep_alive))
        if data:
            parts += [b"%x\r\n" % sum(map(len, data)), *data, b"\r\n"]
        if is_last:
            parts.append(b"0\r\n\r\n")
        self.protocol.transport.writelines(parts)
        if is_last:
            self._complete()
            self._log(200)
            self.protocol.answered(self)

    def _complete(self) -> None:
        self.response_complete = True
        self._drop_body()

    def cancel(self) -> None:
        """The client has gone."""
        self.disconnected = True
        self._drop_body()
        if self.pending is not None:
            self.pending.cancel()
        if self.on_gone is not None:
            self.on_gone()

    def _log(self, status: int) -> None:
        if self.queue or (self.method == b"POST" and not self.all_headers):
            seconds = (self.site.broker.clock.monotonic() - self._started) / 1e6
            slow = self.site.settings.slow_request_seconds
            if (seconds >= slow and self.pending is None) or access_logger.isEnabledFor(logging.DEBUG):
                path = self.path.partition(b"?")[0].decode("latin-1")
                log_request("POST", path, status, seconds, slow, request_id=self.request_id.decode(), queue=self.queue)


def too_large(limit: int) -> PenstockError:
    """The refusal of a body."""
    return TooLarge(f"body: over the limit of {limit:,} bytes", hint="send several smaller requests")


access_logger: Final = logging.getLogger("penstock.access")
