"""POST /api/v1/rpc: the frames of the TCP protocol in the body of a request, answered by frames in its response.

    headers ── protocol, who asks, its producer      body ── one frame or more      response ── an answer to each

- A request stands alone: what HELLO says on TCP is in its headers. HELLO is answered too, and leaves nothing behind.
- The whole body is looked at before any of it is run: what is not made of requests is refused, and nothing happens.
- Answers leave as they are ready, as chunks; when all are ready at once, as one piece. While nothing is ready, PONG
  frames show everybody on the way that the connection is alive.
- A client that goes away takes its waiting requests with it: what was leased for them is given back, uncounted.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.parse import unquote

from penstock import limits
from penstock.access.authenticator import HINT
from penstock.broker.access import NOBODY, Client
from penstock.broker.callbacks import ignore
from penstock.errors import BadRequest, NotAuthenticated, PenstockError, TooLarge
from penstock.replies import LeaseReplies, LeaseReply, leases_of
from penstock.requests import RELEASE
from penstock.server.dispatch import HANDLERS, SINGLES, Dispatch, check_protocol, is_heavy
from penstock.server.http.exchange import Exchange
from penstock.wire.frames import HEAD, HEAD_BYTES, MEDIA_TYPE, Cut, Type, frame

FRAMES_MAX: Final = 4096  # of one request
FRAME_EXTRA_BYTES: Final = 4  # of a frame, beside what its length counts
GOODBYE: Final = frame(Type.GOODBYE, 0)
PONG: Final = frame(Type.PONG, 0)
_HEAD: Final = (
    b"content-type: %b\r\ncache-control: no-store, no-transform\r\nx-accel-buffering: no\r\n" % MEDIA_TYPE.encode()
)
_HINT: Final = "see docs/formats/tcp.md; streams are for TCP"


def run_frames(exchange: Exchange) -> None:
    """POST /api/v1/rpc."""
    FrameExchange(exchange).run()


class FrameExchange(Dispatch):
    """One request of the route."""

    handlers = HANDLERS

    def __init__(self, exchange: Exchange) -> None:
        site = exchange.site
        name = unquote(exchange.header(b"penstock-client"))[: limits.name_length_max]
        client = Client(exchange.client.principal, name, exchange.address, "http", site.is_for_operators)
        frame_bytes_max = site.settings.request_bytes_max - FRAME_EXTRA_BYTES
        super().__init__(site.broker, client, site.spawn, self._flush_later, frame_bytes_max)
        self.is_greeted = client.principal is not NOBODY
        self._exchange = exchange
        self._transport = exchange.protocol.transport
        self._ready: list[bytes | memoryview] = []  # answers to a client of HTTP/1.0, which gets them all at once
        self._timer: asyncio.TimerHandle | None = None

    def run(self) -> None:
        """Have every frame of the body answered."""
        exchange = self._exchange
        _check_head(exchange)
        self._producer = _producer(exchange.header(b"penstock-producer"))
        body = exchange.body
        cuts = _cut(body)
        exchange.on_gone = self._cancel_all
        exchange.on_full = self._set_full
        if is_heavy(cuts):
            self._backlog.extend((body, cut) for cut in cuts)
            self._take_turn()
        else:
            for kind, correlation, start, stop in cuts:
                self._request(kind, correlation, body, start, stop)

    def cancel(self) -> None:
        """Called when the client goes away, as `on_gone` is; one of them does it."""

    def _leased(self, correlation: int, answer: LeaseReply | LeaseReplies | PenstockError) -> None:
        leases = [lease for lease in leases_of(answer) if lease.nonce]
        if leases and self._transport.is_closing():
            for lease in leases:
                self._broker.settle_lease(self._client, lease.nonce, RELEASE, ignore)  # nobody would get the answer
        else:
            super()._leased(correlation, answer)

    # what a dispatch needs

    def flush(self) -> None:
        out, self._out = self._out, []
        if self._is_lost:
            return
        if out and (self._broker.is_draining or self._exchange.site.is_draining):
            out.insert(0, GOODBYE)
        if not (self._unanswered or self._waits or self._backlog):
            self._finish(out)
        elif self._exchange.may_stream:
            if out:
                self._exchange.stream(self._head(), out, is_last=False)
        else:
            self._ready += out

    def _finish(self, out: list[bytes | memoryview]) -> None:
        self._is_lost = True  # it is over: whatever comes after the last answer has nowhere to go
        if self._timer is not None:
            self._timer.cancel()
        if self._exchange.is_streaming:
            self._exchange.stream(b"", out, is_last=True)
            return
        body = b"".join((*self._ready, *out))
        self._exchange.respond(200, b"%bcontent-length: %d\r\n" % (self._head(), len(body)), body)

    def _head(self) -> bytes:
        """Proxies shall pass answers on as they come, and keep none."""
        return _HEAD + b"x-request-id: %b\r\n" % self._exchange.request_id

    def _flush_later(self, _: Any) -> None:
        self._broker.loop.call_soon(self.flush)

    def refuse(self, error: PenstockError) -> None:
        self._exchange.fail(error)

    def _is_dealt_with(self, kind: int, data: bytes, start: int, stop: int) -> bool:
        if not self.is_greeted and kind != Type.HELLO:
            raise NotAuthenticated("this broker requires authentication, and no token was sent", hint=HINT)
        return False  # the body was looked at

    def _set_reading(self) -> None:
        """One request is read: there is nothing to pause. What waits now is known to the connection."""
        is_waiting = bool(self._pending or self._waits)
        self._exchange.pending = self if is_waiting else None
        if self._timer is None and (is_waiting or self._calls) and not self._is_lost:
            self._show_life_later()

    def _set_full(self, is_full: bool) -> None:
        self._is_full = is_full
        if not is_full:
            self._go_on()

    def _show_life_later(self) -> None:
        self._timer = self._broker.loop.call_later(self._exchange.site.settings.ping_seconds, self._show_life)

    def _show_life(self) -> None:
        if not self._is_lost:
            self._send(PONG)
            self._show_life_later()


def _check_head(exchange: Exchange) -> None:
    media = exchange.header(b"content-type").partition(";")[0].strip().lower()
    if media != MEDIA_TYPE:
        raise BadRequest(
            f"content-type: {media[:100]!r} is not {MEDIA_TYPE}", hint="for curl and the like, use the JSON routes"
        )
    protocol = exchange.header(b"penstock-protocol")
    if not protocol.isdecimal() or len(protocol) > 9:
        raise BadRequest(f"penstock-protocol: {protocol[:100]!r} is not the version of a protocol")
    check_protocol(int(protocol))


def _producer(text: str) -> tuple[int, int] | None:
    """The producer whose sequences the pushes have, from `id/epoch`."""
    if not text:
        return None
    id, _, epoch = text.partition("/")
    if not (id.isdecimal() and epoch.isdecimal() and len(id) <= 20 and len(epoch) <= 20):
        raise BadRequest(f"penstock-producer: {text[:100]!r} is not id/epoch")
    return int(id), int(epoch)


def _cut(body: bytes) -> list[Cut]:
    """The frames of a body; `BadRequest` unless it holds whole requests and nothing else."""
    cuts: list[Cut] = []
    position, end = 0, len(body)
    while position < end:
        if len(cuts) == FRAMES_MAX:
            raise TooLarge(f"body: more than {FRAMES_MAX:,} frames", hint="send several smaller requests")
        if end - position < HEAD_BYTES:
            raise BadRequest("body: its last frame is cut short")
        length, kind, correlation = HEAD.unpack_from(body, position)
        if kind not in HANDLERS and kind not in SINGLES:
            raise BadRequest(f"body: type {kind} is no request of this route", hint=_HINT)
        start, position = position + HEAD_BYTES, position + FRAME_EXTRA_BYTES + length
        if position < start or position > end:
            raise BadRequest("body: its last frame is cut short")
        cuts.append((kind, correlation, start, position))
    if not cuts:
        raise BadRequest("body: contains no frame")
    return cuts
