"""One request that the connection answers itself, from its headers to its response.

It stands in for a cycle of the ASGI side, so it has the attributes that the connection looks at in either: that way
requests of both kinds may follow each other on one connection, and are answered in the order in which they came.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.broker import Client, Pending
from penstock.errors import Internal, PenstockError, TooLarge
from penstock.server.http.site import refusal
from penstock.telemetry.logs import log_request

if TYPE_CHECKING:
    from penstock.server.http.protocol import HttpProtocol

logger: Final = logging.getLogger("penstock.http")
JOINED_BYTES_MAX: Final = 16_384  # a small body goes out in one piece with its headers


class _Event(Protocol):
    def set(self) -> None: ...


class _NoEvent:
    """Nobody waits for the body of an exchange."""

    def set(self) -> None:
        """There is nothing to do."""


class Exchange:
    """See the module's rules."""

    __slots__ = (
        "_chunks",
        "_headers",
        "_received",
        "_run",
        "_started",
        "disconnected",
        "is_whole",
        "keep_alive",
        "message_event",
        "path",
        "pending",
        "protocol",
        "queue",
        "request_id",
        "response_complete",
        "site",
    )

    def __init__(
        self,
        protocol: HttpProtocol,
        path: bytes,
        headers: dict[bytes, bytes],
        run: Callable[[Exchange], None],
        queue: str = "",
    ) -> None:
        self.protocol = protocol
        self.path = path
        self.site = protocol.site
        self.queue = queue
        self.request_id = self.site.request_id(headers.get(b"x-request-id"))
        self.keep_alive = True
        self.is_whole = False
        self.response_complete = False
        self.disconnected = False
        self.message_event: _Event = _NO_EVENT
        self.pending: Pending | None = None
        self._headers = headers
        self._run = run
        self._chunks: list[bytes] = []
        self._received = 0
        self._started = 0

    # the request

    def add(self, chunk: bytes) -> None:
        """Some of the body has come."""
        self._received += len(chunk)
        if self._received > self.site.settings.request_bytes_max:
            self._chunks.clear()
            self.refuse(too_large(self.site.settings.request_bytes_max))
        else:
            self._chunks.append(chunk)

    def refuse(self, error: PenstockError) -> None:
        """Whatever else comes of this request, answer with the error and close the connection."""
        self.keep_alive = False
        self.is_whole = True
        self._run = lambda exchange: exchange.fail(error)

    @property
    def wants_continue(self) -> bool:
        """Whether the client holds its body back until it is asked for."""
        return not self.is_whole and self._headers.get(b"expect", b"").lower() == b"100-continue"

    def run(self) -> None:
        """The request is whole and it is its turn."""
        self._started = self.site.broker.clock.monotonic()
        try:
            self._run(self)
        except PenstockError as error:
            self.fail(error)
        except Exception:  # a fault in one request must not take the connection down without an answer
            logger.exception("a fault in an HTTP request", extra={"request_id": self.request_id.decode()})
            self.fail(Internal("the broker failed"))

    @property
    def body(self) -> bytes:
        chunks = self._chunks
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    @property
    def client(self) -> Client:
        return self.protocol.client_named(self._headers.get(b"user-agent", b""))

    @property
    def traceparent(self) -> str | None:
        given = self._headers.get(b"traceparent")
        return None if given is None else given.decode("latin-1")

    # the response

    def answer(self, told: Any, status: int, encode: Callable[[Any], bytes]) -> None:
        """What the broker told: an error, or what `encode` makes JSON of."""
        if isinstance(told, PenstockError):
            self.fail(told)
        elif not self.response_complete:
            self.reply(status, encode(told))

    def fail(self, error: PenstockError) -> None:
        """Answer with an error."""
        status, body, headers = refusal(error)
        self.reply(status, body, b"".join(b"%b: %b\r\n" % header for header in headers))

    def reply(self, status: int, body: bytes, more: bytes = b"") -> None:
        """Answer. A client that has gone gets nothing."""
        if self.response_complete:
            return
        self.response_complete = True
        self._chunks.clear()
        if self.disconnected:
            return
        site = self.site
        self.keep_alive = self.keep_alive and not site.is_draining
        more += site.cors(self._headers.get(b"origin"))
        if not self.keep_alive:
            more += b"connection: close\r\n"
        head = site.head(status, len(body), self.request_id, more)
        transport = self.protocol.transport
        if len(body) < JOINED_BYTES_MAX:
            transport.write(head + body)
        else:
            transport.writelines((head, body))
        self._log(status)
        self.protocol.answered(self)

    def cancel(self) -> None:
        """The client has gone."""
        self.disconnected = True
        self._chunks.clear()
        if self.pending is not None:
            self.pending.cancel()

    def _log(self, status: int) -> None:
        if self._started:
            seconds = (self.site.broker.clock.monotonic() - self._started) / 1e6
            slow = self.site.settings.slow_request_seconds
            if (seconds >= slow and self.pending is None) or access.isEnabledFor(logging.DEBUG):
                path = self.path.partition(b"?")[0].decode("latin-1")
                log_request("POST", path, status, seconds, slow, request_id=self.request_id.decode(), queue=self.queue)


def too_large(limit: int) -> PenstockError:
    """The refusal of a body."""
    return TooLarge(f"body: it is over the limit of {limit:,} bytes", hint="send several smaller requests")


_NO_EVENT: Final = _NoEvent()
access: Final = logging.getLogger("penstock.access")
