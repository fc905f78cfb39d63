"""The session of the blocking face over TCP: a connection per concurrent caller.

A caller takes a line that is free, or a new one, and gives it back. What waits long, such as a lease, holds its line
and nobody else's. Lines to a broker that is stopping are kept for settling what it has handed out.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from penstock import limits
from penstock.batch import Batch, encode_one
from penstock.errors import Closed, LeaseLost, PenstockError, RateLimited
from penstock.forks import refuse_in_forks
from penstock.model import MessageId, Receipt
from penstock.remote import request as asking
from penstock.remote.gathering_threads import Gatherer
from penstock.remote.line import Line, Shared
from penstock.remote.request import Request
from penstock.remote.session import RemoteSession
from penstock.remote.settings import Settings
from penstock.replies import PushReply
from penstock.requests import Settling

IDLE_MAX: Final = 16  # connections kept for the next caller
UNANSWERED_MAX: Final = 256  # settles of a pipeline before it listens


class Session(RemoteSession):
    """A session over TCP, for threads. Connects at once."""

    def __init__(self, settings: Settings) -> None:
        self.clock = settings.clock
        self._settings = settings
        self._shared = Shared(settings)
        self._lock = threading.Lock()
        self._idle: list[Line] = []
        self._leaving: list[Line] = []  # free too; their broker has said goodbye
        self._busy: set[Line] = set()
        self._gatherer = None if settings.linger_seconds is None else Gatherer(settings, self._push_payloads)
        refuse_in_forks(self)
        with self.line() as line:
            line.open(self._shared.micros(settings.connect_seconds))

    def close(self) -> None:
        """Wait for pushes that are gathered, then hang up; calls that wait end with `Closed`."""
        if self._gatherer is not None:
            self._gatherer.close()
        self._shared.closing.set()
        with self._lock:
            idle, self._idle, self._leaving = self._idle + self._leaving, [], []
            busy = list(self._busy)
        for line in idle:
            line.close()
        for line in busy:
            line.interrupt()

    # lines

    @contextmanager
    def line(self, finishes: bool = False) -> Iterator[Line]:
        """A line for the block."""
        line = self.take(finishes)
        try:
            yield line
        finally:
            self.give(line)

    def take(self, finishes: bool = False) -> Line:
        """A line; with `finishes` one to the broker that the leases are from, as long as that listens."""
        while True:
            if self._shared.closing.is_set():
                raise Closed("this Penstock is closed", hint="connect again with penstock.connect()")
            with self._lock:
                free = self._leaving if finishes and self._leaving else self._idle
                line = free.pop() if free else Line(self._shared)
                self._busy.add(line)
            line.listen()
            if finishes or not line.is_leaving:
                return line
            self.give(line)

    def give(self, line: Line) -> None:
        with self._lock:
            self._busy.discard(line)
            free = self._leaving if line.is_leaving else self._idle
            if line.is_usable and len(free) < IDLE_MAX and not self._shared.closing.is_set():
                free.append(line)
                return
        line.close()

    def deadline(self, request: Request) -> int:
        return self._shared.micros(self._settings.timeout_seconds + request.wait_seconds)

    def ask(self, request: Request) -> Any:
        """The reply to a request; its error is raised. Rate limits are waited out."""
        deadline = self.deadline(request)
        patience = self._shared.micros(self._settings.rate_limit_seconds)
        while True:
            try:
                with self.line(request.finishes) as line:
                    return line.ask(request, deadline)
            except RateLimited as error:
                if self._shared.left(min(deadline, patience)) < error.retry_after_seconds:
                    raise
                if self._shared.closing.wait(error.retry_after_seconds):
                    raise Closed("this Penstock is closed") from None
                request.renew()

    # messages

    def push_bytes(self, queue: str, payload: bytes) -> MessageId:
        """Push one message without options."""
        if len(payload) > limits.payload_bytes_max:
            encode_one(payload)  # refuses it
        if self._gatherer is not None:
            return self._gatherer.push(queue, payload)
        id: MessageId = self.ask(asking.push_one(queue, payload))
        return id

    def _push_payloads(self, queue: str, payloads: list[bytes]) -> Sequence[MessageId]:
        if len(payloads) == 1:
            return [self.ask(asking.push_one(queue, payloads[0]))]
        reply: PushReply = self.ask(asking.push(queue, Batch.build(payloads), None, None))
        return reply.ids()

    def pipeline(self) -> Pipeline:
        return Pipeline(self)


class Pipeline:
    """Settles on a line of their own, whose answers are read when they are many, and at the end."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._line: Line | None = None
        self._failure: PenstockError | None = None

    def settle(self, receipts: Sequence[Receipt], how: Settling) -> None:
        self._send(asking.settle(receipts, 0, how))

    def confirm(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            try:
                line.drain(self._session.deadline(asking.extend(0, 0)))
            finally:
                self._session.give(line)
        if self._failure is not None:
            raise self._failure

    def _send(self, request: Request) -> None:
        request.told = self._note
        deadline = self._session.deadline(request)
        if self._line is None:
            self._line = self._session.take(finishes=True)
        self._line.send(request, deadline)
        if len(self._line.exchange.pending) >= UNANSWERED_MAX:
            self._line.drain(deadline)

    def _note(self, request: Request, answer: Any) -> None:
        if isinstance(answer, PenstockError) and not isinstance(answer, LeaseLost):
            self._failure = self._failure or answer
