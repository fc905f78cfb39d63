"""One TCP connection: frames in, answers out; docs/formats/tcp.md describes the frames.

Requests are answered as soon as they can be, in any order; the correlation says which answer is whose. A client that
does not read its answers, or has too much under way, is not read from until it has caught up: memory per connection is
bounded. Whatever cannot be a frame ends the connection, after an error that says why.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from penstock import limits, validation
from penstock import operations as ops
from penstock.batch import Batch, alike_of
from penstock.broker import Client, Principal, Stream, StreamRequest
from penstock.broker.callbacks import answer_of, awaited_answer_of
from penstock.broker.push_coalescing import Producer
from penstock.broker.tasks import BEGUN
from penstock.errors import BadRequest, PenstockError, Unavailable
from penstock.model import ContentType, check_name
from penstock.server.tcp.answering import Answering
from penstock.server.tcp.parting import part
from penstock.server.tcp.talk import Talk
from penstock.version import VERSION
from penstock.wire import requests
from penstock.wire.frames import BINARY_FROM, PROTOCOL_VERSION, Cut, JsonType, Splitter, Type, frame, json_frame
from penstock.wire.json_replies import error_body

if TYPE_CHECKING:
    from penstock.server.tcp.listener import TcpServer

UNANSWERED_MAX: Final = 4096  # requests of one connection that may be under way
HELD_BYTES_MAX: Final = 64 << 20  # of pushes of one connection that may be under way
WRITE_BUFFER_BYTES: Final = 1 << 20  # answers that may wait for the client to read them
CALLS_MAX: Final = 4  # of one connection that run at a time: their answers may be large
PUSH_TYPED: Final = int(Type.PUSH_TYPED)  # looking an enumeration up costs more than all else about it
SINGLES: Final = (int(Type.PUSH_ONE), PUSH_TYPED)
TURN_FRAMES: Final = 64  # of one connection that are taken in one turn of the loop
RESERVED_BYTES_MIN: Final = 64 * 1024
SMALL_BATCH_BYTES: Final = 4096  # smaller batches are copied out of what was read, so as not to keep all of that


class TcpConnection(Answering, asyncio.Protocol):
    """One client."""

    def __init__(self, server: TcpServer) -> None:
        super().__init__(server)
        self._broker = server.broker
        self._splitter = Splitter(server.frame_bytes_max)
        self._client = Client(Principal(), "", "", "tcp")
        self._producer: tuple[int, int] | None = None
        self.is_greeted = False
        self._is_full = False  # the client does not read its answers
        self._streams: dict[int, Stream] = {}
        self._calls = 0  # that run
        self._later: deque[tuple[int, int, bytes]] = deque()  # requests with large answers that must wait
        self._names: dict[bytes, str] = {}  # of queues, decoded and checked
        self._talk: Talk | None = None  # in JSON
        self._backlog: deque[tuple[bytes, Cut]] = deque()  # frames that wait for their turn
        self._reserved = 0  # of what all unread requests may take
        self._window_since: float | None = None  # in which a frame must grow
        self._window_bytes = 0
        self._full_since: float | None = None

    # the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class does not derive from it
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        peer = transport.get_extra_info("peername")
        address = peer[0] if isinstance(peer, tuple) else "local"
        self._client = Client(Principal(), "", address, "tcp")
        self._server.joined(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        self._broker.unread.give_back(self._client.address, self._reserved)
        self._reserved = 0
        self._server.left(self)
        for pending in (*self._pending.values(), *self._waits.values()):
            pending.cancel()
        for stream in list(self._streams.values()):
            stream.close()
        if self._talk is not None:
            self._talk.close()

    def data_received(self, data: bytes) -> None:
        self._window_bytes += len(data)
        try:
            whole, cuts = self._splitter.feed(data)
            if self._backlog or (len(cuts) > TURN_FRAMES and _is_heavy(cuts)):
                self._backlog.extend((whole, cut) for cut in cuts)
                if len(self._backlog) == len(cuts):
                    self._take_turn()
            else:
                for kind, correlation, start, stop in cuts:
                    self._request(kind, correlation, whole, start, stop)
        except BadRequest as error:
            self.refuse(error)
            return
        if not self._reserve():
            self.refuse(Unavailable("too many large requests are on their way", hint="send fewer of them at once"))
            return
        if self._unanswered > UNANSWERED_MAX or self._held_bytes > HELD_BYTES_MAX:
            self._set_reading()

    def _take_turn(self) -> None:
        """Some of the frames that came together; the others when everybody else has had a turn."""
        if self._is_lost or self._transport.is_closing():
            self._backlog.clear()
            return
        try:
            for _ in range(min(TURN_FRAMES, len(self._backlog))):
                whole, (kind, correlation, start, stop) = self._backlog.popleft()
                self._request(kind, correlation, whole, start, stop)
        except BadRequest as error:
            self._backlog.clear()
            self.refuse(error)
            return
        if self._backlog:
            self._broker.loop.call_soon(self._take_turn)
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
        for stream in self._streams.values():
            stream.pause()
        if self._talk is not None:
            self._talk.pause()

    def resume_writing(self) -> None:
        self._is_full = False
        self._set_reading()
        for stream in list(self._streams.values()):
            stream.resume()
        if self._talk is not None:
            self._talk.resume()
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

    def _request(self, kind: int, correlation: int, data: bytes, start: int, stop: int) -> None:
        if kind in SINGLES and self.is_greeted:
            self._push_one(kind, correlation, data, start, stop)
            return
        if kind < BINARY_FROM:
            self._json(kind, data[start:stop])
            return
        if kind not in _HANDLERS:
            raise BadRequest(f"type {kind} is no request", hint="see docs/formats/tcp.md; tasks have types 1 to 9")
        if not self.is_greeted and kind != Type.HELLO:
            raise BadRequest("the first frame of a connection must be HELLO")
        self._unanswered += 1
        if kind in _LARGE and (self._later or self._must_wait(kind)):
            self._held_bytes += stop - start
            self._later.append((kind, correlation, data[start:stop]))
        else:
            self._handle(kind, correlation, memoryview(data)[start:stop])

    def _json(self, kind: int, body: bytes) -> None:
        """A request of the JSON protocol, which has no HELLO."""
        if self._talk is None:
            self._talk = Talk(self._broker, self._client, self._answer_json, self._server.spawn)
            if self._is_full:
                self._talk.pause()
        self._unanswered += 1
        self._held_bytes += len(body)
        self._talk.take(kind, body)

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
        return self._talk is not None and not self.is_greeted

    def _handle(self, kind: int, correlation: int, body: memoryview) -> None:
        refused = answer_of(lambda: _HANDLERS[kind](self, correlation, body))
        if isinstance(refused, PenstockError):
            self._fail(correlation, refused)

    def _must_wait(self, kind: int) -> bool:
        return self._is_full or (kind == Type.CALL and self._calls >= CALLS_MAX)

    def _go_on(self) -> None:
        """Take up requests that had to wait."""
        while self._later and not self._must_wait(self._later[0][0]) and not self._is_lost:
            kind, correlation, body = self._later.popleft()
            self._held_bytes -= len(body)
            self._handle(kind, correlation, memoryview(body))

    def _hello(self, correlation: int, body: memoryview) -> None:
        hello = requests.decode(body, requests.Hello)
        if hello.protocol != PROTOCOL_VERSION:
            raise BadRequest(f"protocol {hello.protocol} is not spoken here, {PROTOCOL_VERSION} is")
        self._client = Client(Principal(), hello.client[: limits.name_length_max], self._client.address, "tcp")
        self._producer = (hello.producer, hello.epoch) if hello.producer else None
        self.is_greeted = True
        welcome = requests.Welcome(PROTOCOL_VERSION, f"penstock/{VERSION}", self._server.frame_bytes_max)
        self._answer(Type.OK, correlation, requests.encode(welcome))

    def _push_one(self, kind: int, correlation: int, data: bytes, start: int, stop: int) -> None:
        self._unanswered += 1
        self._held_bytes += stop - start
        told = partial(self._placed, correlation, stop - start)
        try:
            content_type = ContentType.BYTES
            if kind == PUSH_TYPED:
                content_type = requests.content_type_of(data, start, stop)
                start += 1
            sequence, name, payload = requests.decode_push_one(data, start, stop)
            queue = self._names.get(name) or self._name(name)
            if len(payload) > limits.payload_bytes_max:
                payload = bytes(Batch.build([payload]).data)  # refuses, in the words of a batch
        except PenstockError as error:
            told(error)
            return
        producer = (*self._producer, sequence) if sequence and self._producer else None
        self._broker.push_one(self._client, queue, payload, producer, told, content_type)

    def _name(self, name: bytes) -> str:
        try:
            found = check_name(name.decode())
        except UnicodeDecodeError:
            raise BadRequest(f"queue: {name!r} is not UTF-8") from None
        if len(self._names) < 1024:
            self._names[name] = found
        return found

    def _push(self, correlation: int, body: memoryview) -> None:
        head, data = requests.decode_push(body)
        self._held_bytes += len(data)
        told = partial(self._pushed, correlation, len(data))
        try:
            batch = Batch.parse(bytes(data) if len(data) < SMALL_BATCH_BYTES else data, validate=True)
            queue = check_name(head.queue)
        except PenstockError as error:
            told(error)
            return
        producer = self._numbered(head.sequence)
        alike = alike_of(batch.data) if batch.count == 1 and head.partition is head.durability is None else None
        if alike is not None:  # it may share a frame with others that have the same options
            told = partial(self._pushed_one, correlation, len(data))
            self._broker.push_one(self._client, queue, batch.payload(0), producer, told, alike)
            return
        self._broker.push(self._client, queue, batch, head.partition, head.durability, producer, told)

    def _numbered(self, sequence: int) -> Producer | None:
        return (*self._producer, sequence) if sequence and self._producer else None

    def _lease(self, correlation: int, body: memoryview) -> None:
        given = requests.decode(body, requests.Lease)
        request = validation.lease_request(
            given.count_max,
            given.lease_seconds,
            given.consumer,
            given.partitions,
            given.auto_ack,
            given.member,
            given.generation,
            given.start,
        )
        wait = validation.wait_seconds(given.wait_seconds)
        queue, group = check_name(given.queue), check_name(given.group, "group")
        pending = self._broker.lease(self._client, queue, group, request, wait, partial(self._leased, correlation))
        if not pending.is_over:
            self._pending[correlation] = pending

    def _settle(self, correlation: int, body: memoryview) -> None:
        given = requests.decode(body, requests.Settle)
        how = validation.wire_settling(given.outcome, given.delay_seconds, given.error)
        told = partial(self._told, correlation)
        if given.lease:
            self._broker.settle_lease(self._client, given.lease, how, told)
        else:
            self._broker.settle(self._client, given.receipts, how, told)

    def _extend(self, correlation: int, body: memoryview) -> None:
        given = requests.decode(body, requests.Extend)
        seconds = validation.extension(given.seconds)
        self._broker.extend(self._client, given.lease, seconds, partial(self._told, correlation))

    def _call(self, correlation: int, body: memoryview) -> None:
        call = requests.decode(body, requests.Call)
        arguments = bytes(call.arguments)
        if call.name == "transact":
            with self._broker.counting(""):
                transaction = requests.decode(arguments, requests.Transact)
            self._spawn(correlation, self._transact(transaction))
            return
        with self._broker.counting(""):
            operation = requests.decode(arguments, ops.named(call.name))
        if type(operation) in BEGUN:
            wait = self._broker.tasks.begin(self._client, operation, partial(self._begun, correlation))
            if wait is not None and not wait.is_over:
                self._watch(correlation, wait)
            return
        self._spawn(correlation, self._broker.execute(self._client, operation))

    async def _transact(self, transaction: requests.Transact) -> Any:
        with self._broker.counting(requests.pushed_to(transaction)):
            steps = requests.steps_of(transaction)
        return await self._broker.transact(self._client, steps, self._numbered(transaction.sequence))

    def _spawn(self, correlation: int, work: Awaitable[Any]) -> None:
        self._calls += 1
        self._server.spawn(self._reply_with(correlation, work))

    async def _reply_with(self, correlation: int, work: Awaitable[Any]) -> None:
        self._told(correlation, await awaited_answer_of(work))
        self.flush()  # so that the transport says when it is full
        self._calls -= 1
        self._go_on()

    def _ping(self, correlation: int, body: memoryview) -> None:
        self._answer(Type.PONG, correlation)

    # streams

    def _stream(self, correlation: int, body: memoryview) -> None:
        given = requests.decode(body, requests.OpenStream)
        partitions = None if given.partitions is None else tuple(given.partitions)
        request = StreamRequest(
            check_name(given.queue),
            check_name(given.group, "group"),
            given.batch,
            given.lease_seconds,
            given.consumer,
            partitions,
            given.auto_ack,
            given.start,
        )
        stream = self._broker.stream(
            self._client, request, partial(self._send_leased, correlation), partial(self._ended, correlation)
        )
        self._streams[correlation] = stream
        if self._is_full:
            stream.pause()
        if given.credit:
            stream.credit(given.credit)

    def _credit(self, correlation: int, body: memoryview) -> None:
        self._unanswered -= 1  # it has no answer
        given = requests.decode(body, requests.Credit)
        stream = self._streams.get(given.stream)
        if stream is not None:
            stream.credit(given.messages)

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
        stream = self._streams.pop(given.request, None)
        if stream is not None:
            stream.close()
            self._unanswered -= 1
        self._set_reading()

    def _ended(self, correlation: int, error: PenstockError | None) -> None:
        self._streams.pop(correlation, None)
        if error is None:
            self._answer(Type.END, correlation)
        else:
            self._fail(correlation, error)

    # the end

    def goodbye(self) -> None:
        """The broker stops: say so. What is under way is still answered."""
        if not self._is_lost and not self.is_json:
            self._send(frame(Type.GOODBYE, 0))

    def refuse(self, error: PenstockError) -> None:
        """Say why, and close."""
        if self.is_json:
            self._send(json_frame(JsonType.NACK, error_body(error)))
        else:
            self._fail(0, error)
        self.flush()
        if part(self._transport, self._broker.loop):
            self.connection_lost(None)

    def close(self) -> None:
        """Send what is ready and close."""
        self.flush()
        if not self._is_lost:
            self._transport.close()


def _is_heavy(cuts: list[Cut]) -> bool:
    """Whether there are others among these than single pushes, which are gathered first and take little each."""
    return not {cut[0] for cut in cuts}.issubset(SINGLES)


_LARGE: Final = (Type.LEASE, Type.CALL)  # requests whose answers may be large
_HANDLERS: Final[dict[int, Callable[[TcpConnection, int, memoryview], None]]] = {
    Type.HELLO: TcpConnection._hello,
    Type.PUSH: TcpConnection._push,
    Type.LEASE: TcpConnection._lease,
    Type.SETTLE: TcpConnection._settle,
    Type.EXTEND: TcpConnection._extend,
    Type.CALL: TcpConnection._call,
    Type.STREAM: TcpConnection._stream,
    Type.CREDIT: TcpConnection._credit,
    Type.PING: TcpConnection._ping,
    Type.CANCEL: TcpConnection._cancel,
}
