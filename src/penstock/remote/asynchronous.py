"""The session of the asyncio face over TCP: one connection, on which everything is pipelined.

    no connection ──request──▶ connecting ──▶ connected ──lost, with requests left──▶ connecting
                                   │
                          nobody waits any more, or refused: no connection

Requests that cannot be sent yet wait in order; so do pushes while too many are under way. Frames of one turn of the
loop leave together. A request that is not answered in time fails; nothing else does. A broker that is stopping is left
at once when there is another to go to; otherwise it closes, when what it has handed out is settled.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, Final

from penstock import limits
from penstock.batch import encode_one, typed_one
from penstock.errors import Closed, LeaseLost, PenstockError, RateLimited, TlsFailed, Unavailable
from penstock.forks import refuse_in_forks
from penstock.model import ContentType, Durability, MessageId, Outcome, Receipt
from penstock.remote import request as asking
from penstock.remote.connector import Connector, Transport
from penstock.remote.exchange import Exchange, Garbled, given_up, tell
from penstock.remote.http_pool import HttpPool
from penstock.remote.linger import AsyncLinger, AsyncTurn, resolve
from penstock.remote.producer import nameless
from penstock.remote.request import Request
from penstock.remote.session import RemoteSession
from penstock.remote.settings import Settings
from penstock.remote.tls import explained
from penstock.replies import leases_of
from penstock.requests import Settling
from penstock.wire.frames import Buffer, Splitter

OVERDUE_CHECK_SECONDS: Final = 0.25
JOINED_MIN: Final = 8
RELEASE: Final = Settling(Outcome.RELEASED)


class AsyncSession(RemoteSession):
    """A session over TCP, for an event loop. Belongs to the loop on which it is first used."""

    def __init__(self, settings: Settings) -> None:
        self.clock = settings.clock
        self.settings = settings
        self.exchange = Exchange(None if settings.producer else nameless(settings.rng))
        self.loop: Any = None  # an event loop, from the first use on
        self._hook = self._tell
        self.pool = HttpPool(self) if settings.addresses[0].is_http else None
        self._transport: Transport | None = None
        self._waiting: deque[Request] = deque()  # for a connection, or for room among the pushes
        self._connecting: asyncio.Task[None] | None = None
        self._out: list[Buffer] = []
        self._turn = AsyncTurn(self, settings.batch_max)
        self._is_flushing = False  # what was pushed and written in this turn of the loop is sent at its end
        self._is_full = False  # the broker does not read
        self._is_closed = False
        self._is_checking = False
        self._answered: asyncio.Future[None] | None = None
        self._room: deque[asyncio.Future[None]] = deque()  # pushes that wait until they may be sent, each for itself
        self._granted = 0  # of them: woken, and not sent yet
        self._connector = Connector(self)
        linger = settings.linger_seconds
        self._linger = None if linger is None else AsyncLinger(self, linger, settings.batch_max)
        refuse_in_forks(self)

    def descriptors(self) -> list[int]:
        """For forks."""
        return self._connector.descriptors() if self.pool is None else self.pool.descriptors()

    async def start(self) -> None:
        """Connect, or say why not."""
        self.loop = asyncio.get_running_loop()
        while self._transport is None:
            self._made(await self._connector.connect(self.settings.connect_seconds))

    async def close(self) -> None:
        """Send what has gathered, wait until every push is answered, and hang up; calls that wait end with `Closed`."""
        if self._is_closed:
            return
        if self.loop is not None:
            if self._linger is not None:
                await self._linger.close()
            self._turn.flush()
            while self._turn.is_repeating or any(
                request.is_numbered for request in (*self.exchange.unanswered(), *self._waiting)
            ):
                await self.answered()
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        self.flush()
        if self._transport is not None:
            self._transport.close()
        if self.pool is not None:
            self.pool.close()
        self._fail_all(Closed("this Penstock is closed"))

    # requests

    def submit(self, request: Request) -> None:
        """Have a request sent as soon as it can be; `on_reply` is called on the loop."""
        loop = self.loop or self._loop()
        if self._turn.has_any:
            self._turn.flush()
        request.on_reply = self._hook
        if self._is_closed:
            tell(request, Closed("this Penstock is closed", hint="connect again with penstock.aio.connect()"))
            return
        if not request.deadline:
            request.deadline = loop.time() + self.settings.timeout_seconds + request.wait_seconds
            if not self._is_checking:
                self._is_checking = True
                loop.call_later(OVERDUE_CHECK_SECONDS, self._check_overdue)
        is_first = request.finishes or not self._waiting
        if self._transport is None or not is_first or not self._may_send(request):
            self._waiting.append(request)
            self._go_on()
        else:
            self._write(self.exchange.put(request))

    async def ask(self, request: Request) -> Any:
        """The answer; its error, if it is one, is raised."""
        request.future = (self.loop or self._loop()).create_future()
        self.submit(request)
        try:
            return await request.future
        except asyncio.CancelledError:
            if request.future.cancelled():
                self._abandon(request)
            elif request.future.exception() is None:  # the answer came in the same turn of the loop
                self._give_back(request.future.result())
            raise

    def _loop(self) -> asyncio.AbstractEventLoop:
        self.loop = loop = asyncio.get_running_loop()
        return loop

    def _may_send(self, request: Request) -> bool:
        if self.exchange.is_leaving and not request.finishes:
            return False
        producer = self.exchange.producer
        return producer is None or not request.is_numbered or request.sequence > 0 or producer.has_room()

    def _tell(self, request: Request, answer: Any) -> None:
        is_for_each = request.is_gathered and request.sent <= 1 and isinstance(answer, RateLimited)
        if isinstance(answer, RateLimited | Unavailable) and answer.retry_after_seconds and not is_for_each:
            wait = answer.retry_after_seconds
            # As much of its time has passed as is not left until its deadline.
            passed = self.settings.timeout_seconds + request.wait_seconds - (request.deadline - self.loop.time())
            if passed + wait < self.settings.patience(answer):
                request.renew()
                self.loop.call_later(wait, self._submit_again, request)
                return
            if request.is_unsure(answer):
                answer = given_up(answer)
                request.release()
        (request.then or self._resolve)(request, answer)
        if self._answered is not None:
            self._wake()
        if self._waiting:
            self._go_on()
        if self._room:
            self._grant()

    def _submit_again(self, request: Request) -> None:
        if request.future is None or not request.future.cancelled():
            self.submit(request)
        else:
            request.release()

    def _resolve(self, request: Request, answer: Any) -> None:
        if request.future.done():  # cancelled, and the task has not run since
            self._give_back(answer)
        else:
            resolve(request, answer)

    def _give_back(self, answer: Any) -> None:
        """Release the messages of an answer that nobody takes."""
        for lease in leases_of(answer):
            if lease.nonce:
                request = asking.settle((), lease.nonce, RELEASE)
                request.then = _ignore
                self.submit(request)

    def _wake(self) -> None:
        if self._answered is not None:
            self._answered.set_result(None)
            self._answered = None

    def _go_on(self) -> None:
        """Send what waits, as far as it may be sent."""
        if self._transport is None:
            if self._connecting is None and self._waiting:
                self._connecting = self.loop.create_task(self._reconnect())
            return
        while self._waiting and self._may_send(self._waiting[0]):
            self._write(self.exchange.put(self._waiting.popleft()))

    async def answered(self) -> None:
        """Return when something has been answered."""
        if self._answered is None:
            self._answered = (self.loop or self._loop()).create_future()
        await asyncio.shield(self._answered)

    async def room(self) -> None:
        """Return when a push would be sent at once. Whoever came first is woken first, and no more than may be sent."""
        while self._waiting or self._is_full:
            turn: asyncio.Future[None] = (self.loop or self._loop()).create_future()
            self._room.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._granted -= 1
                    self._grant()
                raise
            self._granted -= 1

    def _grant(self) -> None:
        """Wake as many pushes as may be sent now."""
        if self._waiting or self._is_full:
            return
        producer = self.exchange.producer
        free = (len(self._room) if producer is None else producer.room_left()) - self._granted
        while free > 0 and self._room:
            turn = self._room.popleft()
            if not turn.done():
                turn.set_result(None)
                self._granted += 1
                free -= 1

    def _abandon(self, request: Request) -> None:
        self._write(self.exchange.abandon(request))
        if self.pool is not None:
            self.pool.abandon(request.correlation)
        if request in self._waiting:
            self._waiting.remove(request)
            request.release()

    def _check_overdue(self) -> None:
        now = self.loop.time()
        # What is given back has no deadline: nobody waits for that.
        late = [request for request in (*self.exchange.unanswered(), *self._waiting) if 0 < request.deadline < now]
        for request in late:
            self._abandon(request)
            error = self._connector.failure if self._transport is None else None
            tell(request, error or Unavailable(f"the broker does not answer: {self._connector.address}"))
        self._is_checking = bool(self.exchange.unanswered() or self._waiting)
        if self._is_checking:
            self.loop.call_later(OVERDUE_CHECK_SECONDS, self._check_overdue)

    # the connection

    async def _reconnect(self) -> None:
        try:
            while self._waiting and self._transport is None and not self._is_closed:
                tries = max(request.sent for request in self._waiting)
                if tries > 1:  # the more often it was in vain, the longer the pause
                    await asyncio.sleep(self.settings.backoff(tries - 2))
                longest = max(request.deadline for request in self._waiting) - self.loop.time()
                try:
                    self._made(await self._connector.connect(max(0.0, longest)))
                except PenstockError as error:
                    self._fail_all(error)
        finally:
            self._connecting = None

    def _made(self, transport: Transport) -> None:
        if transport.is_closing():
            return  # lost as soon as it was made
        self._transport = transport
        self._is_full = False
        self._go_on()

    def received(self, data: bytes, splitter: Splitter | None = None) -> None:
        """Bytes from the broker."""
        try:
            replies = self.exchange.received(data, splitter)
        except Garbled as error:
            place = self._connector.address
            self._hang_up(Unavailable(f"{place} does not speak the broker protocol: {error}", hint=error.hint))
            return
        self._write(replies)
        is_over = self.exchange.is_leaving and not self.exchange.pending
        is_elsewhere = self.exchange.is_moved or len(self.settings.addresses) > 1
        if is_over and self._transport is not None and is_elsewhere:
            self._connector.drop()
            self.lost(None)

    def _hang_up(self, error: PenstockError) -> None:
        if self._transport is None:
            self.exchange.fail(error)  # only the greeting: another address may do better
            return
        self._connector.drop()
        self._transport = None
        self._fail_all(error)

    def lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        why = f"the connection to {self._connector.address} was lost: {error or 'the broker closed it'}"
        if self._transport is None:
            failure = explained(error, self._connector.address) if isinstance(error, ssl.SSLError) else None
            error = failure if isinstance(failure, TlsFailed) else Unavailable(why)
            self.exchange.fail(self.exchange.refused or error)
            return
        self._transport = None
        self._out = []
        self._is_full = False
        if not self._is_closed:
            self._waiting.extendleft(reversed(self.exchange.lost(why)))
            self._go_on()
            self._grant()

    def undelivered(self, why: str, sent: Iterable[int], unsent: Iterable[int]) -> None:
        """Over HTTP: these requests are lost, or were not sent; no more are sent before a broker has been greeted."""
        self._transport = None
        if not self._is_closed:
            self._waiting.extendleft(reversed(self.exchange.lost(why, sent, unsent)))
            self._go_on()
            self._grant()

    def set_full(self, is_full: bool) -> None:
        """Whether the broker has stopped reading."""
        self._is_full = is_full
        self._wake()
        self._grant()

    def _fail_all(self, error: PenstockError) -> None:
        waiting, self._waiting = self._waiting, deque()
        self.exchange.fail(error)
        for request in waiting:
            tell(request, error)

    def _write(self, data: list[Buffer]) -> None:
        if data:
            self._flush_soon()
            self._out += data

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send the pushes and frames of this turn of the loop."""
        self._is_flushing = True
        if self._turn.has_any:
            self._turn.flush()
        self._is_flushing = False
        out, self._out = self._out, []
        if out and self._transport is not None:
            # Many small frames are cheaper to send as one; large ones are not copied.
            self._transport.writelines(out if len(out) < JOINED_MIN else [b"".join(out)])

    # messages

    def push_bytes(self, queue: str, payload: bytes) -> Awaitable[MessageId]:
        if len(payload) > limits.payload_bytes_max:
            encode_one(payload)  # refuses it
        if self._linger is not None and not self._is_closed:
            return self._linger.push(queue, payload, self.loop or self._loop())
        if self._waiting or self._is_full:
            return self.ask_push(asking.push_one(queue, payload))
        return self._push_with_others(queue, payload, ContentType.BYTES)

    def push_one(self, queue: str, data: bytes, durability: Durability | None) -> Awaitable[MessageId]:
        typed = typed_one(data) if durability is None else None
        if typed is None or self._waiting or self._is_full:
            return self.ask_push(asking.push_encoded(queue, data, durability))
        content, payload = typed
        return self._push_with_others(queue, payload, ContentType(content))

    def _push_with_others(self, queue: str, payload: bytes, content: ContentType) -> Awaitable[MessageId]:
        """Push with what else is pushed in this turn of the loop."""
        future: asyncio.Future[MessageId] = (self.loop or self._loop()).create_future()
        self._flush_soon()
        self._turn.add(queue, payload, content, future)
        return future

    async def ask_push(self, request: Request) -> Any:
        if self._transport is not None:
            await self.room()
        return await self.ask(request)

    def pipeline(self) -> AsyncPipeline:
        return AsyncPipeline(self)


def _ignore(request: Request, answer: Any) -> None:
    """Nobody waits for it."""


class AsyncPipeline:
    """Settles on their way; making one awaits nothing."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._unanswered = 0
        self._failure: PenstockError | None = None

    def settle(self, receipts: Sequence[Receipt], how: Settling) -> None:
        self._send(asking.settle(receipts, 0, how))

    async def confirm(self) -> None:
        while self._unanswered:
            await self._session.answered()
        if self._failure is not None:
            raise self._failure

    def _send(self, request: Request) -> None:
        request.then = self._note
        self._unanswered += 1
        self._session.submit(request)

    def _note(self, request: Request, answer: Any) -> None:
        self._unanswered -= 1
        if isinstance(answer, PenstockError) and not isinstance(answer, LeaseLost):
            self._failure = self._failure or answer
