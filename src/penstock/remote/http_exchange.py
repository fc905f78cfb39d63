"""One request over HTTP until it is answered, over as many connections as it takes. No I/O.

`conversation` is a generator: it yields what to do next, and is sent what came of it.

    Send ──▶ Reply ── rate limited ──▶ Pause ──▶ Send, as a new one
      │        └───── anything else: the end, unless the broker is stopping
      └────▶ Failure ── may be sent again ──▶ Send to the next address; Pause when all have failed
                └────── otherwise: nobody knows whether it happened
    Room ──▶ before a push, while too many are under way; threads wait for it when they take their number
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from penstock.errors import InputError, LeaseLost, PenstockError, RateLimited, Unavailable
from penstock.remote.exchange import unknown
from penstock.remote.http_request import HttpRequest
from penstock.remote.producer import Producer, SharedProducer
from penstock.remote.request import Again
from penstock.remote.settings import Settings
from penstock.remote.urls import Address
from penstock.version import VERSION
from penstock.wire.errors import ErrorReply, to_error
from penstock.wire.json_views import ErrorView

SECONDS_MIN: Final = 0.001
GATEWAY: Final = (502, 503, 504)  # what something between us and a broker says when the broker is not there


class Send(NamedTuple):
    """Send this, and wait for the answer so long."""

    address: Address
    method: str
    path: str
    body: bytes | None
    connect_seconds: float
    seconds: float


class Pause(NamedTuple):
    """Wait."""

    seconds: float


class Room(NamedTuple):
    """Wait until another push is answered."""


class Reply(NamedTuple):
    """What came back."""

    status: int
    body: bytes


class Failure(NamedTuple):
    """Nothing came back."""

    why: str
    was_sent: bool  # perhaps
    is_late: bool = False


Step = Send | Pause | Room
Conversation = Generator[Step, Reply | Failure | None, Any]


class Exchange:
    """What the conversations of a session have in common. `producer` numbers the pushes."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.producer: Producer | None = None
        self._place = 0  # of the address that answered last
        self._decode = msgspec.json.Decoder(ErrorView).decode

    def headers(self) -> dict[str, str]:
        """What every request has."""
        headers = {"user-agent": self.settings.client or f"penstock/{VERSION}", "content-type": "application/json"}
        if self.settings.token:
            headers["authorization"] = f"Bearer {self.settings.token}"
        return headers

    def conversation(self, request: HttpRequest, seconds: float | None = None) -> Conversation:
        """The answer is returned; its error, if it is one, is raised."""
        settings = self.settings
        deadline = self._after((settings.timeout_seconds if seconds is None else seconds) + request.wait_seconds)
        patience = min(deadline, self._after(settings.rate_limit_seconds))
        failures: list[Failure] = []
        try:
            while True:
                yield from self._number(request)
                address = self.settings.addresses[self._place]
                heard = yield self._send(request, address, deadline)
                answer = self._answer(request, address, heard) if isinstance(heard, Reply) else heard
                if isinstance(answer, Failure):
                    failures.append(answer)
                    pause = self._again(request, address, failures, deadline)
                elif isinstance(answer, PenstockError):
                    pause = self._polite_pause(answer, patience)
                    self._done(request)
                    request.renew()
                else:
                    return answer
                if pause:
                    yield Pause(pause)
        finally:
            self._done(request)

    def _number(self, request: HttpRequest) -> Generator[Step, Any, None]:
        if request.is_numbered and not request.sequence and self.producer is not None:
            while not isinstance(self.producer, SharedProducer) and not self.producer.has_room():
                yield Room()
            request.sequence = self.producer.take()
            request.producer = self.producer

    def _send(self, request: HttpRequest, address: Address, deadline: int) -> Send:
        left = max(SECONDS_MIN, self._left(deadline))
        connect_seconds = min(left, self.settings.connect_seconds)
        body = b"".join(request.encode(request.sequence)) or None
        return Send(address, request.method, request.path, body, connect_seconds, left)

    def _answer(self, request: HttpRequest, address: Address, reply: Reply) -> Any:
        try:
            if reply.status < 300:
                return request.read(reply.body)  # type: ignore[arg-type]
            if request.is_each:
                with suppress(msgspec.DecodeError):
                    return request.read(reply.body)  # type: ignore[arg-type]
            error = self._decode(reply.body).error
        except (msgspec.DecodeError, InputError, ValueError, IndexError) as fault:
            if reply.status in GATEWAY:
                return Failure(f"status {reply.status}", was_sent=True)
            return Unavailable(
                f"what comes from {address} is no broker's answer: status {reply.status}, {fault}",
                hint="is this the HTTP port of a broker, or is something in between?",
            )
        wait = 0.0 if error.retry_after_ms is msgspec.UNSET else error.retry_after_ms / 1000
        told = to_error(ErrorReply(error.code, error.message, error.hint, wait))
        if isinstance(told, Unavailable):
            return Failure(told.message, was_sent=False)  # a broker that is stopping has done nothing
        if request.again is Again.SETTLE and request.sent and isinstance(told, LeaseLost):
            return LeaseLost(
                "the connection was lost before the answer came: the first try settled this, or its lease is over"
            )
        return told

    def _polite_pause(self, error: PenstockError, patience: int) -> float:
        """How long to wait before trying again what was refused; raises when that is of no use."""
        if not isinstance(error, RateLimited) or self._left(patience) < error.retry_after_seconds:
            raise error
        return error.retry_after_seconds

    def _again(self, request: HttpRequest, address: Address, failures: list[Failure], deadline: int) -> float:
        """How long to wait before sending again what was not answered; raises when that is of no use."""
        settings, failure = self.settings, failures[-1]
        # The last try has as long as is left, which may be nothing: the one before it tells more.
        before = f"; before that: {failures[-2].why}" if failure.is_late and len(failures) > 1 else ""
        if failure.is_late and failure.was_sent:
            raise Unavailable(
                f"the broker does not answer in time: {address}{before}; the operation may or may not have happened"
            )
        if failure.was_sent:
            request.sent += 1
            if request.again is Again.NEVER:
                raise unknown(f"the connection to {address} was lost: {failure.why}")
        if address == settings.addresses[self._place]:  # otherwise somebody else has moved on already
            self._place = (self._place + 1) % len(settings.addresses)
        rounds, turn = divmod(len(failures), len(settings.addresses))
        pause = 0.0 if turn else settings.backoff(rounds - 1)
        if self._left(deadline) <= pause:
            raise Unavailable(f"no broker answers at {address}: {failure.why}{before}")
        return pause

    @staticmethod
    def _done(request: HttpRequest) -> None:
        if request.producer is not None:
            request.producer.done(request.sequence)
            request.producer = None

    def _after(self, seconds: float) -> int:
        return self.settings.clock.monotonic() + round(seconds * 1_000_000)

    def _left(self, deadline: int) -> float:
        return (deadline - self.settings.clock.monotonic()) / 1e6
