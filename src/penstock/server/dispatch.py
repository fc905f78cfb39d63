"""The requests of one peer: frames in, answers out as frames, over a TCP connection or in the body of an HTTP request.

Requests are answered as soon as they can be, in any order; the correlation says which answer is whose. Answers of one
turn of the event loop leave together. What the peer is sent, and when it is read from, is the transport's business:
`TcpConnection` and `FrameExchange`.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, ClassVar, Final

from penstock import limits, validation
from penstock import operations as ops
from penstock.access.discovery import place_of
from penstock.batch import Batch, alike_of
from penstock.broker.access import NOBODY, Client, Principal
from penstock.broker.broker import Broker
from penstock.broker.callbacks import answer_of, awaited_answer_of
from penstock.broker.leases import Pending
from penstock.broker.push_coalescing import Producer
from penstock.broker.tasks import BEGUN, Wait
from penstock.errors import BadRequest, NotAuthenticated, PenstockError, RateLimited, Unavailable
from penstock.model import ContentType, check_name
from penstock.replies import LeaseReplies, LeaseReply
from penstock.version import VERSION
from penstock.wire import answers, requests
from penstock.wire.errors import to_reply
from penstock.wire.frames import PROTOCOL_VERSION, Cut, Type, frame, frame_head

WAITS_MAX: Final = 32_768  # of one connection that may wait for tasks without keeping it from being read
CALLS_MAX: Final = 4  # of one connection that run at a time: their answers may be large
PUSH_TYPED: Final = int(Type.PUSH_TYPED)  # looking an enumeration up costs more than all else about it
SINGLES: Final = (int(Type.PUSH_ONE), PUSH_TYPED)
LARGE: Final = (Type.LEASE, Type.LEASE_QUEUES, Type.CALL)  # requests whose answers may be large
REFUSALS: Final = (BadRequest, NotAuthenticated, RateLimited, Unavailable)  # that end a connection
TURN_FRAMES: Final = 64  # of one connection that are taken in one turn of the loop
SMALL_BATCH_BYTES: Final = 4096  # smaller batches are copied out of what was read, so as not to keep all of that

Handler = Callable[[Any, int, memoryview], None]
StartTask = Callable[[Coroutine[Any, Any, None]], object]


class Dispatch:
    """What a peer has under way, and what it is answered."""

    handlers: ClassVar[dict[int, Handler]] = {}
    _transport: asyncio.Transport

    def __init__(
        self,
        broker: Broker,
        client: Client,
        start_task: StartTask,
        flush_soon: Callable[[Any], object],
        frame_bytes_max: int,
    ) -> None:
        self._broker = broker
        self._client = client
        self._start_task = start_task
        self._flush_soon = flush_soon
        self._frame_bytes_max = frame_bytes_max
        self._producer: tuple[int, int] | None = None
        self.is_greeted = False  # it is known who asks
        self._unanswered = 0
        self._held_bytes = 0
        self._is_reading = True
        self._is_full = False  # the peer does not read its answers
        self._is_lost = False
        self._calls = 0  # that run
        self._later: deque[tuple[int, int, bytes]] = deque()  # requests with large answers that must wait
        self._names: dict[bytes, str] = {}  # of queues, decoded and checked
        self._backlog: deque[tuple[bytes, Cut]] = deque()  # frames that wait for their turn
        self._pending: dict[int, Pending | Wait] = {}  # what waits, by the correlation of its request
        self._waits: dict[int, Wait] = {}  # the same of those that are not counted as unanswered
        self._out: list[bytes | memoryview] = []  # answers of this turn of the loop

    @abstractmethod
    def flush(self) -> None:
        """Let the answers of this turn leave."""

    @abstractmethod
    def refuse(self, error: PenstockError) -> None:
        """Say why nothing more is taken, and close."""

    @abstractmethod
    def _set_reading(self) -> None:
        """Read from the peer, or not: what is under way has changed."""

    @abstractmethod
    def _is_dealt_with(self, kind: int, data: bytes, start: int, stop: int) -> bool:
        """A frame that has no handler, or comes before it is known who asks; `BadRequest` when it may not."""

    def _cancel_all(self) -> None:
        """The peer has gone: what waits ends, and what was leased for it is given back."""
        self._is_lost = True
        self._backlog.clear()
        self._later.clear()
        for pending in (*self._pending.values(), *self._waits.values()):
            pending.cancel()

    # requests

    def _take_turn(self) -> None:
        """Some of the frames that came together; the others when everybody else has had a turn."""
        if self._is_lost or self._transport.is_closing():
            self._backlog.clear()
            return
        try:
            for _ in range(min(TURN_FRAMES, len(self._backlog))):
                whole, (kind, correlation, start, stop) = self._backlog.popleft()
                self._request(kind, correlation, whole, start, stop)
        except REFUSALS as error:
            self._backlog.clear()
            self.refuse(error)
            return
        if self._backlog:
            self._broker.loop.call_soon(self._take_turn)
        self._set_reading()

    def _request(self, kind: int, correlation: int, data: bytes, start: int, stop: int) -> None:
        if kind in SINGLES and self.is_greeted:
            self._push_one(kind, correlation, data, start, stop)
            return
        known = self.is_greeted and kind in self.handlers
        if not known and self._is_dealt_with(kind, data, start, stop):
            return
        self._unanswered += 1
        if kind in LARGE and (self._later or self._must_wait(kind)):
            self._held_bytes += stop - start
            self._later.append((kind, correlation, data[start:stop]))
        else:
            self._handle(kind, correlation, memoryview(data)[start:stop])

    def _handle(self, kind: int, correlation: int, body: memoryview) -> None:
        refused = answer_of(lambda: self.handlers[kind](self, correlation, body))
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
        check_protocol(hello.protocol)
        welcome = requests.Welcome(PROTOCOL_VERSION, f"penstock/{VERSION}", self._frame_bytes_max)
        principal = self._login(hello, welcome)
        if principal is not NOBODY:
            self._greeted(principal, hello)
            if self._broker.elsewhere is not None:
                raise self._broker.elsewhere(self._client)
        self._answer(Type.OK, correlation, requests.encode(welcome))

    def _login(self, hello: requests.Hello, welcome: requests.Welcome) -> Principal:
        """Who says hello, `NOBODY` while the run's key is still to be proved; raises `NotAuthenticated`."""
        logins, principal = self._broker.logins, self._client.principal
        if hello.challenge:
            welcome.challenge, welcome.proof = logins.challenge(hello.challenge, self._place())
        elif hello.proof:
            proved = (hello.answered, hello.proof, self._place())
            principal, welcome.token = logins.by_proof(*proved, self._client.address, self._client.protocol)
        elif hello.token or principal is NOBODY:
            principal = logins.by_token(hello.token, self._client.address, self._client.protocol)
        return principal

    def _greeted(self, principal: Principal, hello: requests.Hello) -> None:
        """It is known who says hello. A request over HTTP stands alone, so that changes nothing."""

    def _place(self) -> str:
        """The address at which the connection was accepted."""
        return place_of(*self._transport.get_extra_info("sockname")[:2])

    def _push_one(self, kind: int, correlation: int, data: bytes, start: int, stop: int) -> None:
        self._unanswered += 1
        self._held_bytes += stop - start
        on_reply = partial(self._placed, correlation, stop - start)
        try:
            content_type = ContentType.BYTES
            if kind == PUSH_TYPED:
                content_type = requests.content_type_of(data, start, stop)
                start += 1
            sequence, name, payload = requests.decode_push_one(data, start, stop)
            queue = self._names.get(name) or self._name(name)
            if len(payload) > limits.payload_bytes_max:
                with self._broker.counting(queue):
                    payload = bytes(Batch.build([payload]).data)  # refuses, in the words of a batch
        except PenstockError as error:
            on_reply(error)
            return
        producer = (*self._producer, sequence) if sequence and self._producer else None
        self._broker.push_one(self._client, queue, payload, producer, on_reply, content_type)

    def _name(self, name: bytes) -> str:
        try:
            checked = check_name(name.decode())
        except UnicodeDecodeError:
            raise BadRequest(f"queue: {name!r} is not UTF-8") from None
        if len(self._names) < 1024:
            self._names[name] = checked
        return checked

    def _push(self, correlation: int, body: memoryview) -> None:
        head, data = requests.decode_push(body)
        self._held_bytes += len(data)
        on_reply = partial(self._pushed, correlation, len(data), answers.encode_pushed)
        try:
            queue = check_name(head.queue)
            with self._broker.counting(queue):
                batch = Batch.parse(bytes(data) if len(data) < SMALL_BATCH_BYTES else data, validate=True)
        except PenstockError as error:
            on_reply(error)
            return
        producer = self._numbered(head.sequence)
        is_single = batch.count == 1 and head.partition is head.durability is None and not head.skips
        alike = alike_of(batch.data) if is_single else None
        if alike is not None:  # it may share a frame with others that have the same options
            on_reply = partial(self._pushed, correlation, len(data), answers.encode_pushed_one)
            self._broker.push_one(self._client, queue, batch.payload(0), producer, on_reply, alike)
            return
        where, level = head.partition, head.durability
        self._broker.push(self._client, queue, batch, where, level, producer, on_reply, skips=head.skips)

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
            given.task_types,
        )
        wait = validation.wait_seconds(given.wait_seconds)
        queue, group = check_name(given.queue), check_name(given.group, "group")
        on_reply = partial(self._leased, correlation)
        self._await(correlation, self._broker.lease(self._client, queue, group, request, wait, on_reply))

    def _lease_queues(self, correlation: int, body: memoryview) -> None:
        given = requests.decode(body, requests.LeaseQueues)
        choice = validation.queue_choice(given.queues, given.order)
        about = (given.count_max, given.lease_seconds, given.consumer, None, given.auto_ack)
        request = validation.lease_request(*about, start=given.start, types=given.task_types)
        wait = validation.wait_seconds(given.wait_seconds)
        group = check_name(given.group, "group")
        on_reply = partial(self._leased, correlation)
        self._await(correlation, self._broker.lease_queues(self._client, choice, group, request, wait, on_reply))

    def _await(self, correlation: int, pending: Pending) -> None:
        if not pending.is_over:
            self._pending[correlation] = pending

    def _settle(self, correlation: int, body: memoryview) -> None:
        settle = requests.decode(body, requests.Settle)
        how = validation.wire_settling(settle.outcome, settle.delay_seconds, settle.error)
        on_reply = partial(self._reply, correlation)
        if settle.lease:
            self._broker.settle_lease(self._client, settle.lease, how, on_reply)
        elif settle.leases:
            self._broker.settle_leases(self._client, settle.leases, how, on_reply)
        else:
            self._broker.settle(self._client, settle.receipts, how, on_reply)

    def _extend(self, correlation: int, body: memoryview) -> None:
        extend = requests.decode(body, requests.Extend)
        seconds = validation.extension(extend.seconds)
        self._broker.extend(self._client, extend.lease, seconds, partial(self._reply, correlation))

    def _call(self, correlation: int, body: memoryview) -> None:
        call = requests.decode(body, requests.Call)
        arguments = bytes(call.arguments)
        if call.name == "transact":
            with self._broker.counting(""):
                transaction = requests.decode(arguments, requests.Transact)
            self._spawn(correlation, self._transact(transaction))
            return
        with self._broker.counting(""):
            operation = requests.decode_operation(arguments, ops.named(call.name))
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
        self._start_task(self._reply_with(correlation, work))

    async def _reply_with(self, correlation: int, work: Awaitable[Any]) -> None:
        self._reply(correlation, await awaited_answer_of(work))
        self.flush()  # so that the transport says when it is full
        self._calls -= 1
        self._go_on()

    def _ping(self, correlation: int, body: memoryview) -> None:
        self._answer(Type.PONG, correlation)

    # answers

    def _placed(self, correlation: int, held: int, answer: Any) -> None:
        self._held_bytes -= held
        if isinstance(answer, PenstockError):
            self._fail(correlation, answer)
        else:
            partition, offset = answer
            self._answer_with(answers.placed_frame(correlation, partition.encode(), offset))

    def _pushed(self, correlation: int, held: int, encode: Callable[[Any], bytes], answer: Any) -> None:
        self._held_bytes -= held
        if isinstance(answer, PenstockError):
            self._fail(correlation, answer)
        else:
            self._answer(Type.PUSHED, correlation, encode(answer))

    def _leased(self, correlation: int, answer: LeaseReply | LeaseReplies | PenstockError) -> None:
        self._pending.pop(correlation, None)
        if isinstance(answer, PenstockError):
            self._fail(correlation, answer)
        else:
            self._unanswered -= 1
            self._send_leased(correlation, answer)
            if not self._is_reading:
                self._set_reading()

    def _send_leased(self, correlation: int, reply: LeaseReply | LeaseReplies) -> None:
        if isinstance(reply, LeaseReply):
            kind, body = Type.LEASED, answers.encode_leased(reply)
        else:
            kind, body = Type.LEASED_QUEUES, answers.encode_leased_queues(reply)
        first = body[0] if body else b""
        self._send(frame_head(kind, correlation, sum(map(len, body))) + first, *body[1:])
        self.flush()  # so that the transport says when it is full

    def _reply(self, correlation: int, answer: Any) -> None:
        if isinstance(answer, PenstockError):
            self._fail(correlation, answer)
        else:
            self._answer(Type.OK, correlation, answers.encode_reply(answer))

    def _fail(self, correlation: int, error: PenstockError) -> None:
        self._broker.count_rest(error)
        self._answer(Type.ERROR, correlation, requests.encode(to_reply(error)))

    def _answer(self, kind: int, correlation: int, body: bytes = b"") -> None:
        self._answer_with(frame(kind, correlation, body))

    def _answer_with(self, answer: bytes) -> None:
        self._unanswered -= 1
        self._send(answer)
        if not self._is_reading:
            self._set_reading()

    def _send(self, *data: bytes | memoryview) -> None:
        """Answers of one turn of the loop leave together: one system call for all of them."""
        if not self._out and not self._is_lost:
            self._flush_soon(self)
        self._out += data

    def _watch(self, correlation: int, wait: Wait) -> None:
        """Somebody waits for the end of a task. Thousands may; all else must be read and answered meanwhile."""
        if len(self._waits) < WAITS_MAX:
            self._waits[correlation] = wait
            self._unanswered -= 1
        else:
            self._pending[correlation] = wait

    def _begun(self, correlation: int, answer: Any) -> None:
        if self._waits.pop(correlation, None) is not None:
            self._unanswered += 1
        else:
            self._pending.pop(correlation, None)
        self._reply(correlation, answer)


def is_heavy(cuts: list[Cut]) -> bool:
    """Whether there are others among these than single pushes, which are gathered first and take little each."""
    return not {cut[0] for cut in cuts}.issubset(SINGLES)


def check_protocol(version: int) -> None:
    """Refuse a client that speaks another version of the protocol."""
    if version != PROTOCOL_VERSION:
        raise BadRequest(
            f"protocol {version} is not supported; the broker speaks {PROTOCOL_VERSION}",
            hint="install the Penstock version of the broker",
        )


# What both transports know; TCP has more.
HANDLERS: Final[dict[int, Handler]] = {
    Type.HELLO: Dispatch._hello,
    Type.PUSH: Dispatch._push,
    Type.LEASE: Dispatch._lease,
    Type.LEASE_QUEUES: Dispatch._lease_queues,
    Type.SETTLE: Dispatch._settle,
    Type.EXTEND: Dispatch._extend,
    Type.CALL: Dispatch._call,
    Type.PING: Dispatch._ping,
}
