"""Pushes of many tasks, gathered into batches.

What comes in one turn of the loop leaves together at its end. While enough batches of the queue are under way, the next
one waits for an answer to come in, for a full batch, or until it has lingered long enough: so nobody waits for company
that does not come, and a batch is as large as the load is. A call costs one future and no task.

A batch that is refused is pushed again one message at a time: nobody fails for another's message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from penstock import limits
from penstock.batch import Batch
from penstock.errors import Closed, PenstockError, ServerError
from penstock.model import MessageId
from penstock.remote import request as asking
from penstock.remote.request import Request
from penstock.replies import PushReply

UNDER_WAY_MAX: Final = 2  # batches of one queue: one under way while the other fills
BYTES_MAX: Final = limits.batch_bytes_max // 2
BUFFER_MAX: Final = 20_000  # messages that may wait to be sent

IdFuture = asyncio.Future[MessageId]


class Sender(Protocol):
    """What a gatherer needs of a session."""

    loop: Any

    def submit(self, request: Request) -> None: ...

    async def answered(self) -> None: ...

    async def room(self) -> None: ...


class Basket:
    """What has gathered for one queue."""

    __slots__ = ("bytes", "futures", "payloads", "queue", "timer", "under_way")

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.payloads: list[bytes] = []
        self.futures: list[IdFuture] = []
        self.bytes = 0
        self.timer: asyncio.Handle | None = None
        self.under_way = 0


class Gatherer:
    """See the module's rules."""

    def __init__(
        self,
        session: Sender,
        linger_seconds: float,
        batch_max: int,
        push: Callable[..., Request] = asking.push,
        push_one: Callable[..., Request] = asking.push_one,
    ) -> None:
        self._session = session
        self._push_request = push
        self._push_one_request = push_one
        self._linger = linger_seconds
        self._batch_max = batch_max
        self._baskets: dict[str, Basket] = {}
        self._buffered = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def push(self, queue: str, payload: bytes, loop: asyncio.AbstractEventLoop) -> Awaitable[MessageId]:
        """Push with others; the id once it is durable."""
        if self._buffered >= BUFFER_MAX:
            return self._push_later(queue, payload, loop)
        basket = self._baskets.get(queue)
        if basket is None:
            basket = self._baskets[queue] = Basket(queue)
        future: IdFuture = loop.create_future()
        basket.payloads.append(payload)
        basket.futures.append(future)
        basket.bytes += len(payload)
        self._buffered += 1
        if basket.timer is None:
            self._schedule(basket, loop)
        if len(basket.payloads) >= self._batch_max or basket.bytes >= BYTES_MAX:
            self._flush(basket)
        return future

    async def _push_later(self, queue: str, payload: bytes, loop: asyncio.AbstractEventLoop) -> MessageId:
        while self._buffered >= BUFFER_MAX:
            await self._session.answered()
        return await self.push(queue, payload, loop)

    def _schedule(self, basket: Basket, loop: asyncio.AbstractEventLoop) -> None:
        if basket.under_way < UNDER_WAY_MAX:
            basket.timer = loop.call_soon(self._flush, basket)
        else:
            basket.timer = loop.call_later(self._linger, self._flush, basket)

    def flush(self) -> None:
        """Send everything that has gathered."""
        for basket in list(self._baskets.values()):
            self._flush(basket)

    async def close(self) -> None:
        """Send everything, and wait until it is answered."""
        self.flush()
        while self._tasks or any(basket.under_way for basket in self._baskets.values()):
            await self._session.answered()

    def _flush(self, basket: Basket) -> None:
        if basket.timer is not None:
            basket.timer.cancel()
            basket.timer = None
        payloads, futures = basket.payloads, basket.futures
        if not payloads:
            return
        basket.payloads, basket.futures, basket.bytes = [], [], 0
        basket.under_way += 1
        self._buffered -= len(payloads)
        request = self._push_request(basket.queue, Batch.build(payloads), None, None)
        request.then = lambda _, answer: self._told(basket, payloads, futures, answer)
        self._session.submit(request)

    def _told(self, basket: Basket, payloads: list[bytes], futures: list[IdFuture], answer: Any) -> None:
        basket.under_way -= 1
        if isinstance(answer, PushReply):
            for future, id in zip(futures, answer.ids(), strict=True):
                if not future.done():
                    future.set_result(id)
        elif len(futures) == 1 or isinstance(answer, ServerError | Closed):
            for future in futures:
                _fail(future, answer)
        else:
            self._singly(basket.queue, payloads, futures)
        if basket.timer is not None and basket.under_way < UNDER_WAY_MAX:
            basket.timer.cancel()
            basket.timer = self._session.loop.call_soon(self._flush, basket)

    def _singly(self, queue: str, payloads: list[bytes], futures: list[IdFuture]) -> None:
        async def push() -> None:
            for payload, future in zip(payloads, futures, strict=True):
                await self._session.room()
                request = self._push_one_request(queue, payload)
                request.future = future
                self._session.submit(request)

        task = self._session.loop.create_task(push())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _fail(future: asyncio.Future[Any], error: PenstockError) -> None:
    if not future.done():
        future.set_exception(error)


def resolve(request: Request, answer: Any) -> None:
    """Give a request's answer to the task that awaits it."""
    future: asyncio.Future[Any] = request.future
    if future.done():
        return
    if isinstance(answer, PenstockError):
        future.set_exception(answer)
    else:
        future.set_result(answer)
