"""One conversation with a broker, over as many connections as it takes. No I/O, no clock.

    put ──▶ pending ──answer──▶ on_reply(answer)
               │
          lost() ── may be sent again ──▶ to be put again, with the same sequence
               └─── otherwise ──────────▶ on_reply(Unavailable): nobody knows whether it happened

A broker that stops refuses new work: such a request has not happened, and is put again on the next connection.
An older broker hangs up on a type of request that it does not know: that one fails, since it would never be answered.
An answer that nobody waits for any more is dropped; messages that come with it are given back at once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final

from penstock import limits
from penstock.errors import BadRequest, LeaseLost, Moved, OutcomeUnknown, PenstockError, TooLarge, Unavailable
from penstock.model import Outcome
from penstock.remote import request as asking
from penstock.remote.producer import Producer
from penstock.remote.request import Again, Request
from penstock.replies import leases_of
from penstock.requests import Settling
from penstock.version import VERSION
from penstock.wire.answers import decode_leased, decode_leased_queues
from penstock.wire.errors import ErrorReply, to_error
from penstock.wire.frames import Buffer, Splitter, Type, frame, frame_head
from penstock.wire.requests import Welcome, decode

ANSWERS: Final = {
    Type.PUSH_ONE: Type.PLACED,
    Type.PUSH_TYPED: Type.PLACED,
    Type.PUSH: Type.PUSHED,
    Type.LEASE: Type.LEASED,
    Type.LEASE_QUEUES: Type.LEASED_QUEUES,
}  # everything else is answered by OK
# Looking an enumeration up costs more than all else about it.
ERROR: Final = int(Type.ERROR)
OK: Final = int(Type.OK)
HELLO: Final = int(Type.HELLO)
CORRELATIONS: Final = 1 << 32
NOT_FRAMES: Final = (PenstockError, ValueError, TypeError, IndexError, OverflowError, struct.error)
_RELEASE: Final = Settling(Outcome.RELEASED)


class Garbled(Exception):
    """The peer sends what no broker would: the connection is unusable."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class Exchange:
    """`producer` numbers the pushes."""

    def __init__(self, producer: Producer | None) -> None:
        self.producer = producer
        self.is_leaving = False  # the broker has said goodbye
        self.is_moved = False  # this node has nothing to say any more: another one has
        self.frame_bytes_max = limits.frame_bytes_max  # as the broker says in its welcome
        self.server = "penstock"  # the broker and its version, as it says in its welcome
        self.pending: dict[int, Request] = {}
        self.turned_away: dict[int, Request] = {}  # by a broker that is leaving: for the next connection
        self._correlation = 0
        self._splitter = Splitter(2 * limits.frame_bytes_max)
        self.refused: PenstockError | None = None  # why the broker ends the connection

    def connected(self) -> None:
        """A new connection has been made; the first request must be a hello."""
        self._splitter = Splitter(2 * limits.frame_bytes_max)
        self.is_leaving = self.is_moved = False
        self.refused = None

    def put(self, request: Request) -> list[Buffer]:
        """Note a request; the bytes to send, none if the broker would not take them."""
        self._correlation = correlation = self._correlation % (CORRELATIONS - 1) + 1
        request.correlation = correlation
        if request.is_numbered and not request.sequence and self.producer is not None:
            request.producer = self.producer
            request.sequence = self.producer.take()
        first, *rest = request.encode(request.sequence)
        size = len(first) + sum(map(len, rest)) if rest else len(first)
        if size + 5 > self.frame_bytes_max:
            tell(request, TooLarge(f"a request of {size:,} bytes is over the limit of {self.frame_bytes_max:,}"))
            return []
        self.pending[correlation] = request
        request.sent += 1
        return [frame_head(request.kind, correlation, size) + first, *rest]

    def received(self, data: bytes, splitter: Splitter | None = None) -> list[Buffer]:
        """Deliver the replies in these bytes; returns what must be sent in turn. `Garbled`: drop the connection.

        `splitter` is that of the stream they came in, when there are several.
        """
        replies: list[Buffer] = []
        try:
            whole, cuts = (splitter or self._splitter).feed(data)
            view = memoryview(whole)
            for kind, correlation, start, stop in cuts:
                request = self.pending.pop(correlation, None)
                if request is not None:
                    self._answered(request, kind, view[start:stop])
                else:
                    replies += self._unasked(kind, correlation, view[start:stop])
        except NOT_FRAMES as error:
            if isinstance(error, PenstockError):
                raise Garbled(error.message, error.hint or None) from error
            raise Garbled(str(error)) from error
        return replies

    def _answered(self, request: Request, kind: int, body: memoryview) -> None:
        if kind == ERROR:
            answer: Any = to_error(decode(body, ErrorReply))
            if request.kind != HELLO and self._is_turned_away(request, answer):
                self.turned_away[request.correlation] = request
                return
            if request.again is Again.SETTLE and request.sent > 1 and isinstance(answer, LeaseLost):
                answer = LeaseLost(
                    "the connection was lost before the reply: the first try settled this, or its lease has ended"
                )
        elif kind == ANSWERS.get(request.kind, OK):
            try:
                answer = request.read(body)
            except NOT_FRAMES:
                self.pending[request.correlation] = request
                raise
        else:
            self.pending[request.correlation] = request
            raise ValueError(f"a reply of type {kind} to a request of type {request.kind}")
        if request.kind == HELLO and isinstance(answer, Welcome):
            self.frame_bytes_max = answer.frame_bytes_max
            self.server = answer.server
        tell(request, answer)

    def _is_turned_away(self, request: Request, error: PenstockError) -> bool:
        """Whether a request goes to the next connection instead of failing."""
        if isinstance(error, Moved) or (self.is_leaving and isinstance(error, Unavailable)):
            request.sent -= 1  # it has not happened
            self.is_moved = self.is_moved or isinstance(error, Moved)
        elif isinstance(error, OutcomeUnknown) and request.again is not Again.NEVER:
            self.is_moved = True  # it may have happened, and the next broker knows
        else:
            return False
        self.is_leaving = True
        return True

    def _unasked(self, kind: int, correlation: int, body: memoryview) -> list[Buffer]:
        if kind == Type.GOODBYE:
            self.is_leaving = True
        elif kind == Type.ERROR and not correlation:
            self.refused = to_error(decode(body, ErrorReply))
        elif kind == Type.LEASED:
            return self.give_back(decode_leased(body))
        elif kind == Type.LEASED_QUEUES:
            return self.give_back(decode_leased_queues(body))
        return []

    def give_back(self, answer: Any) -> list[Buffer]:
        """Nobody takes this answer: what to send to release the messages in it, if there are any."""
        nonces = [lease.nonce for lease in leases_of(answer) if lease.nonce]
        return [data for nonce in nonces for data in self.put(asking.settle((), nonce, _RELEASE))]

    def unanswered(self) -> list[Request]:
        """All that somebody waits for, those that a leaving broker has turned away among them."""
        return [*self.pending.values(), *self.turned_away.values()]

    def abandon(self, request: Request) -> list[Buffer]:
        """Nobody waits for this one any more; what to send about it."""
        is_turned_away = self.turned_away.pop(request.correlation, None) is not None
        if self.pending.pop(request.correlation, None) is None and not is_turned_away:
            return []
        request.release()
        if is_turned_away or not (request.kind == Type.LEASE or request.wait_seconds):
            return []
        return [frame(Type.CANCEL, 0, asking.cancel(request.correlation))]

    def lost(self, why: str, sent: Iterable[int] | None = None, unsent: Iterable[int] = ()) -> list[Request]:
        """The connection is gone. The requests to put again, in their order; all others have been answered.

        Where there are several connections, `sent` names the requests of this one, and `unsent` those that have
        certainly not happened.
        """
        again, self.turned_away = self.turned_away, {}
        again |= {correlation: self.pending.pop(correlation) for correlation in unsent}
        for correlation in list(self.pending if sent is None else sent):
            request = self.pending.pop(correlation, None)
            if request is None:  # whoever received another one before has taken it back
                continue
            if self.refused is not None and _is_unknown(request, self.refused):
                tell(request, self.explained(request, self.refused))
            elif request.kind == Type.HELLO or request.again is Again.NEVER:
                tell(request, self.refused or unknown(why))
            else:
                again[correlation] = request
        return [again[correlation] for correlation in sorted(again)]

    def fail(self, error: PenstockError) -> None:
        """Nobody will answer any more."""
        unanswered = self.unanswered()
        self.pending, self.turned_away = {}, {}
        for request in unanswered:
            tell(request, self.explained(request, error))

    def explained(self, request: Request, error: PenstockError) -> PenstockError:
        """Why a request was refused; that the broker is too old for it, if that is the reason."""
        if not _is_unknown(request, error):
            return error
        versions = f"the broker ({self.server}) is older than this client (penstock/{VERSION})"
        return BadRequest(
            f"{versions}: it does not know {Type(request.kind).name} requests",
            hint="upgrade the broker first, then clients and workers",
        )


def _is_unknown(request: Request, error: PenstockError) -> bool:
    """Whether a broker does not know requests of this type. It has no code for that, only these words."""
    return isinstance(error, BadRequest) and f"type {int(request.kind)} is no request" in error.message


def unknown(why: str) -> Unavailable:
    """The connection was lost under a request that must not be sent twice."""
    return Unavailable(
        f"{why}; the operation may or may not have happened", hint="check whether it happened before you retry"
    )


def tell(request: Request, answer: Any) -> None:
    """The end of a request, or of one try of it."""
    if request.producer is not None and not request.is_unsure(answer):
        request.release()
    request.on_reply(request, answer)


def given_up(answer: PenstockError) -> Unavailable:
    """What is said when the last try was refused, and an earlier one may have happened."""
    return unknown(answer.message)
