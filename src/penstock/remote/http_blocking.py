"""The session of the blocking face over HTTP: a pool of connections, one for each request under way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import httpx

from penstock import limits
from penstock.batch import Batch, encode_one
from penstock.errors import Closed, LeaseLost, PenstockError
from penstock.forks import refuse_in_forks
from penstock.model import Durability, MessageId, Receipt
from penstock.remote import http_request as asking
from penstock.remote import http_tasks
from penstock.remote.gathering_threads import Gatherer
from penstock.remote.http_calls import call
from penstock.remote.http_exchange import Exchange, Failure, Pause, Reply, Send, Step
from penstock.remote.http_request import HttpRequest
from penstock.remote.http_transport import ARGUMENTS, failure, http_request
from penstock.remote.operations import Operations
from penstock.remote.producer import SharedProducer
from penstock.remote.settings import Settings
from penstock.remote.task_operations import Waits
from penstock.replies import PushReply
from penstock.requests import PartitionChoice, Settling
from penstock.wire import calls


class Session(Waits, Operations):
    """See the module's rules. Makes sure at once that a broker is there."""

    asking = asking
    asking_tasks = http_tasks

    def __init__(self, settings: Settings) -> None:
        self.clock = settings.clock
        self._exchange = Exchange(settings)
        self._http = httpx.HTTPTransport(**ARGUMENTS)
        self._headers = self._exchange.headers()
        self._closing = threading.Event()
        self._streams: WeakSet[Any] = WeakSet()  # connections, to be woken when the session is closed
        self._sending = 0  # requests under way
        self._noting = threading.Lock()
        self._gatherer = None if settings.linger_seconds is None else Gatherer(settings, self._push_payloads)
        refuse_in_forks(self)
        try:
            self.ask(call(calls.Info()), settings.connect_seconds)
            self._exchange.producer = self._producer(settings)
        except BaseException:
            self._http.close()
            raise

    def _producer(self, settings: Settings) -> SharedProducer:
        if not settings.producer:
            return SharedProducer(settings.rng.getrandbits(62) + 1, 1)
        return SharedProducer(*self.ask(call(calls.InitProducer(settings.producer))))

    def descriptors(self) -> list[int]:
        """For forks."""
        found = [stream.get_extra_info("socket") for stream in list(self._streams)]
        return [each.fileno() for each in found if each is not None and each.fileno() >= 0]

    def confirm(self, ticket: int) -> None:
        """What a broker answers is confirmed already."""

    def close(self) -> None:
        """Wait for pushes that are gathered, then hang up; calls that wait end with `Closed`."""
        if self._gatherer is not None:
            self._gatherer.close()
        self._closing.set()
        with self._noting:
            streams = list(self._streams)
            is_idle = not self._sending
        for stream in streams:
            _interrupt(stream)
        if is_idle:
            self._http.close()  # otherwise the last one does: nobody may be left who reads from what is closed

    # requests

    def ask(self, request: HttpRequest, seconds: float | None = None) -> Any:
        """The answer; its error, if it is one, is raised."""
        steps = self._exchange.conversation(request, seconds)
        heard: Reply | Failure | None = None
        try:
            while True:
                heard = self._do(steps.send(heard))
        except StopIteration as end:
            return end.value
        finally:
            steps.close()

    def _do(self, step: Step) -> Reply | Failure | None:
        if self._closing.is_set():
            raise Closed("this Penstock is closed", hint="connect again with penstock.connect()")
        if isinstance(step, Send):
            return self._send(step)
        if isinstance(step, Pause) and self._closing.wait(step.seconds):
            raise Closed("this Penstock is closed")
        return None

    def _send(self, step: Send) -> Reply | Failure:
        with self._noting:
            self._sending += 1
        try:
            response = self._http.handle_request(http_request(step, self._headers, trace=self._note))
            body = response.read()
        except httpx.TransportError as error:
            self._check_open()
            return failure(error)
        finally:
            with self._noting:
                self._sending -= 1
                is_last = not self._sending and self._closing.is_set()
            if is_last:
                self._http.close()
        return Reply(response.status_code, body)

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise Closed("this Penstock is closed")

    def _note(self, event: str, about: dict[str, Any]) -> None:
        """Called by httpx as a request goes on."""
        if event == "connection.connect_tcp.complete":
            with self._noting:
                self._streams.add(about["return_value"])
            if self._closing.is_set():  # whoever closed the session may have been too early to see it
                _interrupt(about["return_value"])

    def _call(self, arguments: calls.Arguments) -> HttpRequest:
        return call(arguments)

    def _told(self, request: Any) -> tuple[Any, int]:
        return self.ask(request), 0

    def _done(self, request: Any) -> int:
        self.ask(request)
        return 0

    def _plainly(self, request: Any) -> Any:
        return self.ask(request)

    # messages

    def push_bytes(self, queue: str, payload: bytes) -> tuple[MessageId, int]:
        if len(payload) > limits.payload_bytes_max:
            encode_one(payload)  # refuses it
        if self._gatherer is not None:
            return self._gatherer.push(queue, payload), 0
        return self.ask(asking.push_one(queue, payload)), 0

    def push_one(self, queue: str, data: bytes, durability: Durability | None) -> tuple[MessageId, int]:
        reply: PushReply = self.ask(asking.push(queue, Batch(data), None, durability))
        return reply.ids()[0], 0

    def push(
        self, queue: str, batch: Batch, partition: PartitionChoice, durability: Durability | None
    ) -> tuple[PushReply, int]:
        return self._told(asking.push(queue, batch, partition, durability))

    def _push_payloads(self, queue: str, payloads: list[bytes]) -> Sequence[MessageId]:
        reply: PushReply = self.ask(asking.push(queue, Batch.build(payloads), None, None))
        return reply.ids()

    lease_waiting = Operations.lease

    def pipeline(self) -> Pipeline:
        return Pipeline(self)


def _interrupt(stream: Any) -> None:
    """From any thread: end whatever is waited for on a connection."""
    with suppress(OSError, AttributeError):
        stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


class Pipeline:
    """Settles, each sent and answered before the next: HTTP has nothing better for one thread."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._failure: PenstockError | None = None

    def settle(self, receipts: Sequence[Receipt], how: Settling) -> None:
        try:
            self._session.ask(asking.settle_each(receipts, how))
        except LeaseLost:
            pass
        except PenstockError as error:
            self._failure = self._failure or error

    def confirm(self) -> None:
        if self._failure is not None:
            raise self._failure
