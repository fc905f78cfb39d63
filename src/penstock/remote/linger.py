"""Pushes of many threads, gathered into batches.

Who comes first leads: it sends what has gathered and brings everybody their ids. Those who come while enough leaders
are under way wait for one of them to be back, which then promotes the first in line, or until they have lingered long
enough, and lead themselves. So nobody waits for company that does not come, and a batch is as large as the load is.

A batch that is refused is pushed again one message at a time: nobody fails for another's message.

Pushes of many tasks, gathered into batches.

What comes in one turn of the loop leaves together at its end (`AsyncTurn`). With a linger, the next batch waits while
enough batches of the queue are under way: for an answer to come in, for a full batch, or until it has lingered long
enough. So nobody waits for company that does not come, and a batch is as large as the load is. A call costs one future
and no task.

A batch that is refused is pushed again one message at a time: nobody fails for another's message.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from penstock import limits
from penstock.batch import Batch, encode_plain
from penstock.errors import Closed, OutcomeUnknown, PenstockError, ServerError
from penstock.model import ContentType, MessageId
from penstock.remote import request as asking
from penstock.remote.request import Request
from penstock.remote.settings import Settings
from penstock.replies import PushReply

LEADERS_MAX: Final = 2  # of one queue: one under way while the other fills
BYTES_MAX: Final = limits.batch_bytes_max // 2
PushPayloads = Callable[[str, list[bytes]], Sequence[MessageId]]


class LingerEntry:
    """One message on its way. Its lock is released when it is answered, or shall lead."""

    __slots__ = ("answer", "payload", "turn")

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.answer: MessageId | PenstockError | None = None
        self.turn = threading.Lock()
        self.turn.acquire()


class LingerBuffer:
    """What has gathered for one queue."""

    __slots__ = ("entries", "leaders")

    def __init__(self) -> None:
        self.entries: list[LingerEntry] = []
        self.leaders = 0


class Linger:
    """Gathers pushes of threads into batches."""

    def __init__(self, settings: Settings, push: PushPayloads) -> None:
        self._linger = settings.linger_seconds or 0.0
        self._batch_max = settings.batch_max
        self._push = push
        self._changed = threading.Condition()
        self._baskets: dict[str, LingerBuffer] = {}
        self._under_way = 0
        self._is_closed = False

    def push(self, queue: str, payload: bytes) -> MessageId:
        """Push with others; the id once it is durable."""
        entry = LingerEntry(payload)
        with self._changed:
            if self._is_closed:
                raise Closed("this Penstock is closed")
            buffer = self._baskets.setdefault(queue, LingerBuffer())
            leads = buffer.leaders < LEADERS_MAX
            if leads:
                buffer.leaders += 1
            else:
                buffer.entries.append(entry)
            self._under_way += 1
        try:
            if not leads:
                self._wait(buffer, entry)
            if entry.answer is None:
                self._lead(queue, buffer, entry)
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()
        if isinstance(entry.answer, PenstockError):
            raise entry.answer
        assert entry.answer is not None
        return entry.answer

    def close(self) -> None:
        """Take no more, and wait for what is under way."""
        with self._changed:
            self._is_closed = True
            while self._under_way:
                self._changed.wait()

    def _wait(self, buffer: LingerBuffer, entry: LingerEntry) -> None:
        """Until it is answered, promoted, or has lingered long enough."""
        if entry.turn.acquire(timeout=self._linger):
            return
        with self._changed:
            if entry in buffer.entries:
                buffer.entries.remove(entry)
                buffer.leaders += 1
                return
        entry.turn.acquire()  # somebody has just taken it along

    def _lead(self, queue: str, buffer: LingerBuffer, own: LingerEntry) -> None:
        """A leader is in no buffer any more: nobody else can take it along."""
        with self._changed:
            taken = self._take(buffer, own)
        try:
            self._send(queue, taken)
        finally:
            with self._changed:
                buffer.leaders -= 1
                if buffer.entries and buffer.leaders < LEADERS_MAX:
                    buffer.leaders += 1
                    buffer.entries.pop(0).turn.release()
            for entry in taken[1:]:
                entry.turn.release()

    def _take(self, buffer: LingerBuffer, own: LingerEntry) -> list[LingerEntry]:
        """Its own message, and as many of the others as fit, in the order they came."""
        taken, size = [own], len(own.payload)
        while buffer.entries and len(taken) < self._batch_max and size < BYTES_MAX:
            entry = buffer.entries.pop(0)
            size += len(entry.payload)
            taken.append(entry)
        return taken

    def _send(self, queue: str, taken: list[LingerEntry]) -> None:
        try:
            ids = self._push(queue, [entry.payload for entry in taken])
            for entry, id in zip(taken, ids, strict=True):
                entry.answer = id
        except PenstockError as error:
            if len(taken) == 1 or isinstance(error, ServerError | Closed):
                for entry in taken:
                    entry.answer = error
            else:
                for entry in taken:
                    self._send(queue, [entry])
        except BaseException:
            # Ctrl-C in the leader: the others must not wait for ever.
            for entry in taken:
                entry.answer = entry.answer or Closed("the thread that pushed for this one was interrupted")
            raise


UNDER_WAY_MAX: Final = 2  # batches of one queue: one under way while the other fills
BUFFER_MAX: Final = 20_000  # messages that may wait to be sent

IdFuture = asyncio.Future[MessageId]


class Sender(Protocol):
    """What a gatherer needs of a session."""

    loop: Any

    def submit(self, request: Request) -> None: ...

    async def answered(self) -> None: ...

    async def room(self) -> None: ...


class AsyncBatches:
    """Sends pushes of several tasks as one batch; each task gets the answer to its own."""

    def __init__(self, session: Sender) -> None:
        self._session = session
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_repeating(self) -> bool:
        """Whether the messages of a refused batch are being pushed one by one."""
        return bool(self._tasks)

    def send(
        self,
        queue: str,
        payloads: list[bytes],
        futures: list[IdFuture],
        content: ContentType = ContentType.BYTES,
        on_reply: Callable[[], object] | None = None,
    ) -> None:
        """Send a batch; `on_reply` is called before the tasks get their answers."""

        def answered(request: Request, answer: Any) -> None:
            if on_reply is not None:
                on_reply()
            if isinstance(answer, PushReply):
                for future, id in zip(futures, answer.ids(), strict=True):
                    if not future.done():
                        future.set_result(id)
            elif len(futures) == 1 or isinstance(answer, ServerError | Closed | OutcomeUnknown):
                for future in futures:
                    _fail(future, answer)
            else:
                self._repeat(queue, payloads, futures, content, request.deadline)

        request = asking.push(queue, Batch(encode_plain(payloads, content)), None, None)
        request.is_gathered, request.then = True, answered
        self._session.submit(request)

    def send_one(self, queue: str, payload: bytes, future: IdFuture, content: ContentType, deadline: float = 0) -> None:
        """Send one message by itself."""
        request = asking.push_typed(queue, payload, content) if content else asking.push_one(queue, payload)
        request.future, request.deadline = future, deadline
        self._session.submit(request)

    def _repeat(
        self, queue: str, payloads: list[bytes], futures: list[IdFuture], content: ContentType, deadline: float
    ) -> None:
        async def push() -> None:
            for payload, future in zip(payloads, futures, strict=True):
                await self._session.room()
                self.send_one(queue, payload, future, content, deadline)

        task = self._session.loop.create_task(push())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Turn:
    """What one turn of the loop pushes to one queue."""

    __slots__ = ("bytes", "content", "futures", "payloads")

    def __init__(self, content: ContentType) -> None:
        self.content = content  # of all of them
        self.payloads: list[bytes] = []
        self.futures: list[IdFuture] = []
        self.bytes = 0


class AsyncTurn:
    """Gathers what tasks push in one turn of the loop; its owner flushes it at the end of the turn.

    A message that comes alone is sent by itself. Messages of a queue keep their order.
    """

    def __init__(self, session: Sender, batch_max: int) -> None:
        self.has_any = False
        self._batches = AsyncBatches(session)
        self._batch_max = batch_max
        self._queues: dict[str, _Turn] = {}

    @property
    def is_repeating(self) -> bool:
        """Whether the messages of a refused batch are being pushed one by one."""
        return self._batches.is_repeating

    def add(self, queue: str, payload: bytes, content: ContentType, future: IdFuture) -> None:
        """One message more."""
        turn = self._queues.get(queue)
        if turn is None or turn.content != content:
            if turn is not None:
                self.flush()
            turn = self._queues[queue] = _Turn(content)
        self.has_any = True
        turn.payloads.append(payload)
        turn.futures.append(future)
        turn.bytes += len(payload)
        if len(turn.payloads) >= self._batch_max or turn.bytes >= BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Send what has gathered."""
        queues, self._queues, self.has_any = self._queues, {}, False
        for queue, turn in queues.items():
            if len(turn.payloads) == 1:
                self._batches.send_one(queue, turn.payloads[0], turn.futures[0], turn.content)
            else:
                self._batches.send(queue, turn.payloads, turn.futures, turn.content)


class AsyncLingerBuffer:
    """What has gathered for one queue."""

    __slots__ = ("bytes", "futures", "payloads", "queue", "timer", "under_way")

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.payloads: list[bytes] = []
        self.futures: list[IdFuture] = []
        self.bytes = 0
        self.timer: asyncio.Handle | None = None
        self.under_way = 0


class AsyncLinger:
    """Gathers pushes of tasks into batches that may wait."""

    def __init__(self, session: Sender, linger_seconds: float, batch_max: int) -> None:
        self._session = session
        self._batches = AsyncBatches(session)
        self._linger = linger_seconds
        self._batch_max = batch_max
        self._baskets: dict[str, AsyncLingerBuffer] = {}
        self._buffered = 0

    def push(self, queue: str, payload: bytes, loop: asyncio.AbstractEventLoop) -> Awaitable[MessageId]:
        """Push with others; the id once it is durable."""
        if self._buffered >= BUFFER_MAX:
            return self._push_later(queue, payload, loop)
        buffer = self._baskets.get(queue)
        if buffer is None:
            buffer = self._baskets[queue] = AsyncLingerBuffer(queue)
        future: IdFuture = loop.create_future()
        buffer.payloads.append(payload)
        buffer.futures.append(future)
        buffer.bytes += len(payload)
        self._buffered += 1
        if buffer.timer is None:
            self._schedule(buffer, loop)
        if len(buffer.payloads) >= self._batch_max or buffer.bytes >= BYTES_MAX:
            self._flush(buffer)
        return future

    async def _push_later(self, queue: str, payload: bytes, loop: asyncio.AbstractEventLoop) -> MessageId:
        while self._buffered >= BUFFER_MAX:
            await self._session.answered()
        return await self.push(queue, payload, loop)

    def _schedule(self, buffer: AsyncLingerBuffer, loop: asyncio.AbstractEventLoop) -> None:
        if buffer.under_way < UNDER_WAY_MAX:
            buffer.timer = loop.call_soon(self._flush, buffer)
        else:
            buffer.timer = loop.call_later(self._linger, self._flush, buffer)

    def flush(self) -> None:
        """Send everything that has gathered."""
        for buffer in list(self._baskets.values()):
            self._flush(buffer)

    async def close(self) -> None:
        """Send everything, and wait until it is answered."""
        self.flush()
        while self._batches.is_repeating or any(buffer.under_way for buffer in self._baskets.values()):
            await self._session.answered()

    def _flush(self, buffer: AsyncLingerBuffer) -> None:
        if buffer.timer is not None:
            buffer.timer.cancel()
            buffer.timer = None
        payloads, futures = buffer.payloads, buffer.futures
        if not payloads:
            return
        buffer.payloads, buffer.futures, buffer.bytes = [], [], 0
        buffer.under_way += 1
        self._buffered -= len(payloads)
        self._batches.send(buffer.queue, payloads, futures, on_reply=lambda: self._on_reply(buffer))

    def _on_reply(self, buffer: AsyncLingerBuffer) -> None:
        buffer.under_way -= 1
        if buffer.timer is not None and buffer.under_way < UNDER_WAY_MAX:
            buffer.timer.cancel()
            buffer.timer = self._session.loop.call_soon(self._flush, buffer)


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
