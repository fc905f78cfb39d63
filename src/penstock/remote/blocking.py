"""The session of the blocking face over TCP: a connection per concurrent caller.

A caller takes a connection that is free, or a new one, and gives it back. What waits long, such as a lease, holds its
connection and nobody else's. Connections to a broker that is stopping are kept for settling what it has handed out.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from penstock import limits
from penstock.batch import Batch, encode_one
from penstock.errors import Closed, LeaseLost, PenstockError, RateLimited, Unavailable
from penstock.forks import refuse_in_forks
from penstock.model import MessageId, Receipt
from penstock.remote import request as asking
from penstock.remote.connection import Connection, Shared
from penstock.remote.exchange import given_up
from penstock.remote.linger import Linger
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
        self._idle: list[Connection] = []
        self._leaving: list[Connection] = []  # free too; their broker has said goodbye
        self._busy: set[Connection] = set()
        self._linger = None if settings.linger_seconds is None else Linger(settings, self._push_payloads)
        refuse_in_forks(self)
        with self.connection() as connection:
            connection.open(self._shared.micros(settings.connect_seconds))

    def close(self) -> None:
        """Wait for pushes that are gathered, then hang up; calls that wait end with `Closed`."""
        if self._linger is not None:
            self._linger.close()
        self._shared.closing.set()
        with self._lock:
            idle, self._idle, self._leaving = self._idle + self._leaving, [], []
            busy = list(self._busy)
        for connection in idle:
            connection.close()
        for connection in busy:
            connection.interrupt()

    # connections

    @contextmanager
    def connection(self, finishes: bool = False) -> Iterator[Connection]:
        """A connection for the block."""
        connection = self.take(finishes)
        try:
            yield connection
        finally:
            self.give(connection)

    def take(self, finishes: bool = False) -> Connection:
        """A connection; with `finishes` one to the broker that the leases are from, as long as that listens."""
        while True:
            if self._shared.closing.is_set():
                raise Closed("this Penstock is closed", hint="connect again with penstock.connect()")
            with self._lock:
                free = self._leaving if finishes and self._leaving else self._idle
                connection = free.pop() if free else Connection(self._shared)
                self._busy.add(connection)
            connection.listen()
            if finishes or not connection.is_leaving:
                return connection
            self.give(connection)

    def give(self, connection: Connection) -> None:
        with self._lock:
            self._busy.discard(connection)
            free = self._leaving if connection.is_leaving else self._idle
            if connection.is_usable and len(free) < IDLE_MAX and not self._shared.closing.is_set():
                free.append(connection)
                return
        connection.close()

    def deadline(self, request: Request) -> int:
        return self._shared.micros(self._settings.timeout_seconds + request.wait_seconds)

    def ask(self, request: Request) -> Any:
        """The reply to a request; its error is raised. What says when to try again is waited out."""
        deadline = self.deadline(request)
        started = self._shared.micros(0)
        while True:
            with self.connection(request.finishes) as connection:
                while True:
                    try:
                        return connection.ask(request, deadline)
                    except (RateLimited, Unavailable) as error:
                        self._wait_out(request, error, deadline, started)
                    if not request.sequence:
                        break  # others may use the connection; a sequence counts for its producer alone

    def _wait_out(self, request: Request, error: RateLimited | Unavailable, deadline: int, started: int) -> None:
        """Wait as long as a refusal says; raises when there is no time for that."""
        patience = started + round(self._settings.patience(error) * 1_000_000)
        left = self._shared.left(min(deadline, patience))
        seconds = error.retry_after_seconds
        if not seconds or left < seconds:
            is_unsure = request.is_unsure(error)
            request.release()
            raise given_up(error) if is_unsure else error
        if self._shared.closing.wait(seconds):
            request.release()
            raise Closed("this Penstock is closed") from None
        request.renew()

    # messages

    def push_bytes(self, queue: str, payload: bytes) -> MessageId:
        """Push one message without options."""
        if len(payload) > limits.payload_bytes_max:
            encode_one(payload)  # refuses it
        if self._linger is not None:
            return self._linger.push(queue, payload)
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
    """Settles on a connection of their own, whose answers are read when they are many, and at the end."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._line: Connection | None = None
        self._failure: PenstockError | None = None

    def settle(self, receipts: Sequence[Receipt], how: Settling) -> None:
        self._send(asking.settle(receipts, 0, how))

    def confirm(self) -> None:
        connection, self._line = self._line, None
        if connection is not None:
            try:
                connection.drain(self._session.deadline(asking.extend(0, 0)))
            finally:
                self._session.give(connection)
        if self._failure is not None:
            raise self._failure

    def _send(self, request: Request) -> None:
        request.on_reply = self._note
        deadline = self._session.deadline(request)
        if self._line is None:
            self._line = self._session.take(finishes=True)
        self._line.send(request, deadline)
        if len(self._line.exchange.pending) >= UNANSWERED_MAX:
            self._line.drain(deadline)

    def _note(self, request: Request, answer: Any) -> None:
        if isinstance(answer, PenstockError) and not isinstance(answer, LeaseLost):
            self._failure = self._failure or answer
