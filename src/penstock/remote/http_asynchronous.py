"""The session of the asyncio face over HTTP: a pool of connections, one for each request under way.

A call that is cancelled closes its connection: the broker takes back what it would have leased. The answer to a lease
may be on its way by then: a cancelled lease reads on for a moment, and releases what comes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final
from weakref import WeakSet

import httpx

from penstock import limits
from penstock.batch import Batch, encode_one
from penstock.errors import Closed, LeaseLost, PenstockError
from penstock.forks import refuse_in_forks
from penstock.model import Durability, MessageId, Outcome, Receipt
from penstock.remote import http_request as asking
from penstock.remote import http_tasks
from penstock.remote.gathering import Gatherer, resolve
from penstock.remote.http_calls import call
from penstock.remote.http_exchange import Exchange, Failure, Pause, Reply, Send, Step
from penstock.remote.http_request import HttpRequest
from penstock.remote.http_transport import ARGUMENTS, failure, http_request
from penstock.remote.operations import Operations
from penstock.remote.producer import Producer, nameless
from penstock.remote.settings import Settings
from penstock.remote.task_operations import AsyncWaits
from penstock.replies import LeaseReply, PushReply
from penstock.requests import LeaseRequest, PartitionChoice, Settling
from penstock.wire import calls

AT_ONCE_MAX: Final = 8  # requests, of those that do not wait for messages to come: each takes a connection
GIVE_BACK_SECONDS: Final = 0.25  # how long a cancelled lease reads on: an answer that was sent has arrived by then
RELEASE: Final = Settling(Outcome.RELEASED)
TASKS_MAX: Final = 64  # requests under way that nobody awaits


class AsyncSession(AsyncWaits, Operations):
    """See the module's rules. Belongs to the loop on which it is first used."""

    asking = asking
    asking_tasks = http_tasks

    def __init__(self, settings: Settings) -> None:
        self.clock = settings.clock
        self.loop: Any = None  # an event loop, from the first use on
        self._settings = settings
        self._exchange = Exchange(settings)
        self._http = httpx.AsyncHTTPTransport(**ARGUMENTS)
        self._headers = self._exchange.headers()
        self._places = asyncio.Semaphore(AT_ONCE_MAX)
        self._starting = asyncio.Lock()
        self._closing = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()  # what must be over before the session is closed
        self._sending: set[asyncio.Task[Any]] = set()
        self._pushes = 0  # under way
        self._answered: asyncio.Future[None] | None = None
        self._streams: WeakSet[Any] = WeakSet()  # connections
        refuse_in_forks(self)
        linger = settings.linger_seconds
        self._gatherer = (
            None if linger is None else Gatherer(self, linger, settings.batch_max, asking.push, asking.push_one)
        )

    def descriptors(self) -> list[int]:
        """For forks."""
        found = [stream.get_extra_info("socket") for stream in list(self._streams)]
        return [each.fileno() for each in found if each is not None and each.fileno() >= 0]

    async def _note(self, event: str, about: dict[str, Any]) -> None:
        """Called by httpx as a request goes on."""
        if event == "connection.connect_tcp.complete":
            self._streams.add(about["return_value"])

    async def start(self) -> None:
        """Make sure that a broker is there, or say why not."""
        async with self._starting:
            if self._exchange.producer is None:
                self.loop = asyncio.get_running_loop()
                try:
                    await self._converse(call(calls.Info()), self._settings.connect_seconds)
                    self._exchange.producer = await self._producer()
                except BaseException:
                    await self._http.aclose()  # which may be used again
                    raise

    async def _producer(self) -> Producer:
        if not self._settings.producer:
            return nameless(self._settings.rng)
        return Producer(*await self._converse(call(calls.InitProducer(self._settings.producer))))

    async def close(self) -> None:
        """Send what has gathered, wait until every push is answered, and hang up; calls that wait end with `Closed`."""
        if self._closing.is_set():
            return
        if self._gatherer is not None:
            await self._gatherer.close()
        while self._pushes or self._tasks:
            await self.answered()
        self._closing.set()
        await self._http.aclose()
        for task in list(self._sending):  # those that had yet to connect
            task.cancel()

    # requests

    async def ask(self, request: HttpRequest) -> Any:
        """The answer; its error, if it is one, is raised."""
        self._pushes += request.is_numbered
        try:
            if self._exchange.producer is None:
                self._check_open()
                await self.start()
            if request.wait_seconds:
                return await self._converse(request)
            async with self._places:
                return await self._converse(request)
        finally:
            self._pushes -= request.is_numbered
            self._wake()

    async def _converse(self, request: HttpRequest, seconds: float | None = None) -> Any:
        steps = self._exchange.conversation(request, seconds)
        heard: Reply | Failure | None = None
        try:
            while True:
                heard = await self._do(steps.send(heard))
        except StopIteration as end:
            return end.value
        finally:
            steps.close()

    async def _do(self, step: Step) -> Reply | Failure | None:
        self._check_open()
        if isinstance(step, Send):
            return await self._send(step)
        if isinstance(step, Pause):
            with suppress(TimeoutError):
                async with asyncio.timeout(step.seconds):
                    await self._closing.wait()
        else:
            await self.answered()
        self._check_open()
        return None

    async def _send(self, step: Send) -> Reply | Failure:
        task = asyncio.current_task()
        assert task is not None
        self._sending.add(task)
        try:
            response = await self._http.handle_async_request(http_request(step, self._headers, trace=self._note))
            body = await response.aread()
        except httpx.TransportError as error:
            self._check_open()
            return failure(error)
        except asyncio.CancelledError:
            if self._closing.is_set() and not task.uncancel():  # by `close`, and by nobody else
                self._check_open()
            raise
        finally:
            self._sending.discard(task)
        return Reply(response.status_code, body)

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise Closed("this Penstock is closed", hint="connect again with penstock.aio.connect()")

    def submit(self, request: Any) -> None:
        """Have a request sent; `then`, or the task that awaits its future, gets the answer."""

        async def run() -> None:
            try:
                answer = await self.ask(request)
            except PenstockError as error:
                answer = error
            (request.then or resolve)(request, answer)

        self.spawn(run())

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have something done before the session is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._wake()

    async def answered(self) -> None:
        """Return when something has been answered."""
        if self._answered is None:
            self._answered = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._answered)

    def _wake(self) -> None:
        if self._answered is not None:
            self._answered.set_result(None)
            self._answered = None

    async def room(self) -> None:
        """Return when one more push may be submitted."""
        while len(self._tasks) > TASKS_MAX:
            await self.answered()

    def _call(self, arguments: calls.Arguments) -> HttpRequest:
        return call(arguments)

    def _told(self, request: Any) -> Any:
        return self.ask(request)

    _done = _plainly = _told

    # messages

    def push_bytes(self, queue: str, payload: bytes) -> Awaitable[MessageId]:
        if len(payload) > limits.payload_bytes_max:
            encode_one(payload)  # refuses it
        if self._gatherer is not None and not self._closing.is_set():
            self.loop = asyncio.get_running_loop()
            return self._gatherer.push(queue, payload, self.loop)
        return self.ask(asking.push_one(queue, payload))

    async def push_one(self, queue: str, data: bytes, durability: Durability | None) -> MessageId:
        reply: PushReply = await self.ask(asking.push(queue, Batch(data), None, durability))
        return reply.ids()[0]

    async def push(
        self, queue: str, batch: Batch, partition: PartitionChoice, durability: Durability | None
    ) -> PushReply:
        reply: PushReply = await self.ask(asking.push(queue, batch, partition, durability))
        return reply

    async def lease(self, queue: str, group: str, request: LeaseRequest, wait_seconds: float = 0.0) -> LeaseReply:
        leasing = asyncio.ensure_future(self.ask(asking.lease(queue, group, request, wait_seconds)))
        try:
            reply: LeaseReply = await asyncio.shield(leasing)
        except asyncio.CancelledError:
            if not leasing.cancelling():  # otherwise the loop is closing
                self.spawn(self._give_back(leasing))
            raise
        return reply

    async def _give_back(self, leasing: asyncio.Task[LeaseReply]) -> None:
        await asyncio.wait({leasing}, timeout=GIVE_BACK_SECONDS)
        leasing.cancel()
        with suppress(asyncio.CancelledError, PenstockError):
            reply = await leasing
            if reply.nonce:
                await self.ask(asking.settle((), reply.nonce, RELEASE))

    def pipeline(self) -> AsyncPipeline:
        return AsyncPipeline(self)


class AsyncPipeline:
    """Settles on their way; making one awaits nothing. What comes while a request is under way goes with the next."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._waiting: deque[tuple[Sequence[Receipt], Settling]] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._failure: PenstockError | None = None

    def settle(self, receipts: Sequence[Receipt], how: Settling) -> None:
        self._waiting.append((receipts, how))
        if self._sender is None:
            self._sender = self._session.spawn(self._run())

    async def confirm(self) -> None:
        while self._sender is not None:
            await self._session.answered()
        if self._failure is not None:
            raise self._failure

    async def _run(self) -> None:
        try:
            while self._waiting:
                try:
                    await self._session.ask(asking.settle_each(*self._next()))
                except LeaseLost:
                    pass
                except PenstockError as error:
                    self._failure = self._failure or error
        finally:
            self._sender = None

    def _next(self) -> tuple[Sequence[Receipt], Settling]:
        """All that wait and end alike, as far as one request takes them."""
        first, how = self._waiting.popleft()
        receipts = list(first)
        while self._waiting and self._waiting[0][1] == how:
            if len(receipts) + len(self._waiting[0][0]) > limits.lease_messages_max:
                break
            receipts += self._waiting.popleft()[0]
        return receipts, how
