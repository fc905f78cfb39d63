"""The connections of an asyncio session over HTTP; to the session they look like one, on which frames travel.

    frames of a turn ──▶ pushes: one POST at a time, so that they stay in order ──────▶ a connection
                    ──▶ everything else: a few at a time ────────────────────────────▶ each
                    ──▶ what waits for something to happen: a POST of its own, at once ─▶

What comes while its lane is busy leaves together with the next POST: under load requests are gathered by themselves.
A POST that nobody waits for any more is half-closed: the broker takes back what it would have leased, and an answer
that was sent before is still read, so that the session can give back what it holds.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from penstock import limits
from penstock.errors import InvalidField, NotAuthenticated, PenstockError, TlsFailed, Unavailable
from penstock.remote.exchange import tell
from penstock.remote.http import IDLE_SECONDS_MAX, Head, Refused, Responses
from penstock.remote.tls import ClientTls, explained
from penstock.wire.frames import HEAD, HEAD_BYTES, Buffer, Splitter

if TYPE_CHECKING:
    from penstock.remote.asynchronous import AsyncSession
    from penstock.remote.settings import Address

AT_ONCE_MAX: Final = 8  # POSTs that neither push nor wait
POST_BYTES_MAX: Final = 1 << 20  # unless one frame is larger
POST_FRAMES_MAX: Final = 1024
IDLE_MAX: Final = 16  # connections kept for the next POST
QUEUED_BYTES_MAX: Final = 1 << 20  # of frames that wait for their lane; then the session is notified
END_SECONDS: Final = 5.0  # for the other end of a half-closed connection to close it too


class Lane:
    """Frames that wait for a POST, of which a limited number may be under way."""

    def __init__(self, posts_max: int) -> None:
        self.posts_max = posts_max
        self.under_way = 0
        self.queue: deque[tuple[int, bytes]] = deque()  # (correlation, frame)


class Post:
    """Requests on their way."""

    __slots__ = ("body", "connection", "correlations", "lane")

    def __init__(self, lane: Lane | None, correlations: list[int], body: bytes) -> None:
        self.lane = lane
        self.correlations = correlations
        self.body = body
        self.connection: HttpConnection | None = None


class HttpConnection(asyncio.Protocol):
    """One connection, with at most one POST under way."""

    def __init__(self, pool: HttpPool) -> None:
        self._pool = pool
        self._responses = Responses()
        self._splitter = Splitter(2 * limits.frame_bytes_max)
        self.transport: asyncio.Transport
        self.post: Post | None = None
        self.idle_since = 0.0
        self.is_usable = True  # for another POST

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def send(self, post: Post, head: bytes) -> None:
        """Send a request; the last response is over."""
        self.post, post.connection = post, self
        self._responses.begin()
        self.transport.write(head + post.body)

    def data_received(self, data: bytes) -> None:
        post = self.post
        if post is None:  # nothing was asked
            self.transport.abort()
            return
        try:
            body = self._responses.feed(data)
        except Refused as refused:
            self._over()
            self._pool.refused(post, refused.error)
            return
        except OSError as error:
            self._over()
            self._pool.lost(post, str(error))
            return
        if body:
            self._pool.received(body, self._splitter)
        if self._responses.is_complete and self.post is post:
            self.post = None
            self.is_usable = self.is_usable and self._responses.keep_alive and not self.transport.is_closing()
            self._pool.answered(post, self)

    def connection_lost(self, error: Exception | None) -> None:
        post, self.post = self.post, None
        if post is None:
            self._pool.gone(self)
            return
        try:
            if error is not None:
                raise error
            self._responses.end()
        except Refused as refused:
            self._pool.refused(post, refused.error)
        except OSError as lost:
            self._pool.lost(post, str(lost))

    def _over(self) -> None:
        self.post = None
        self.transport.abort()

    def half_close(self) -> None:
        """Nobody waits for the answer any more; what has been sent is still read."""
        self.is_usable = False
        if self.transport.can_write_eof():  # TLS has no half-closed connections: there it ends when the time is over
            with suppress(OSError, RuntimeError):  # the connection is gone
                self.transport.write_eof()


class HttpPool:
    """Has the methods of a transport that a session uses."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._exchange = session.exchange
        self._settings = session.settings
        self._tls = ClientTls(session.settings.tls)
        self._address = session.settings.addresses[0]
        self.head = Head(self._settings, self._address)
        self._idle: list[HttpConnection] = []
        self._posts: dict[int, Post] = {}  # by the correlations of their requests
        self._pushes = Lane(1)
        self._others = Lane(AT_ONCE_MAX)
        self._dialling: set[asyncio.Task[None]] = set()
        self._is_full = False
        self._is_closed = False

    def descriptors(self) -> list[int]:
        """For forks."""
        connections = {post.connection for post in self._posts.values() if post.connection is not None}
        sockets = [connection.transport.get_extra_info("socket") for connection in (*self._idle, *connections)]
        return [socket.fileno() for socket in sockets if socket is not None and socket.fileno() >= 0]

    def use(self, address: Address) -> None:
        """Send what comes to this address; what is under way elsewhere goes on."""
        if address != self._address:
            self._address = address
            self.head = Head(self._settings, address)
            self._drop_idle()

    def _drop_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.transport.abort()

    # what a transport does

    def writelines(self, data: Sequence[Buffer]) -> None:
        """Send frames, whole ones."""
        frames = b"".join(data)
        position = 0
        while position < len(frames):
            length, _, correlation = HEAD.unpack_from(frames, position)
            stop = position + HEAD_BYTES - 5 + length
            request = self._exchange.pending.get(correlation)
            if request is not None:  # otherwise nobody waits for it any more; CANCEL is for TCP
                frame = frames[position:stop]
                if request.wait_seconds:
                    self._post(Post(None, [correlation], frame))
                else:
                    (self._pushes if request.is_numbered else self._others).queue.append((correlation, frame))
            position = stop
        self._pump(self._pushes)
        self._pump(self._others)

    def is_closing(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """Hang up; what waits at the broker ends with its connection."""
        self._is_closed = True
        posts, self._posts = {id(post): post for post in self._posts.values()}, {}
        for task in self._dialling:
            task.cancel()
        for post in posts.values():
            if post.connection is not None:
                post.connection.post = None
                post.connection.transport.close()
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.transport.close()

    def abandon(self, correlation: int) -> None:
        """Nobody waits for a request any more. Its POST ends if it was the last of it."""
        post = self._posts.get(correlation)
        if post is None or any(other in self._exchange.pending for other in post.correlations):
            return
        if post.connection is None:
            self._forget(post)
            return
        post.connection.half_close()
        self._session.loop.call_later(END_SECONDS, self._end, post)

    def _end(self, post: Post) -> None:
        if post.connection is not None and post.connection.post is post:
            post.connection.transport.abort()

    def drop(self) -> None:
        """Give up greeting, and connections that nobody uses."""
        self._drop_idle()
        for post in list(self._posts.values()):
            if self._is_greeting(post):
                for correlation in post.correlations:
                    self._exchange.pending.pop(correlation, None)
                self._forget(post)
                if post.connection is not None:
                    post.connection.post = None
                    post.connection.transport.abort()

    def _is_greeting(self, post: Post) -> bool:
        pending = self._exchange.pending
        return any(
            correlation in pending and pending[correlation].deadline == float("inf")
            for correlation in post.correlations
        )

    # sending

    def _pump(self, lane: Lane) -> None:
        """Send what waits in a lane, as far as it may be sent."""
        while lane.queue and lane.under_way < lane.posts_max:
            correlations: list[int] = []
            frames: list[bytes] = []
            size = 0
            while lane.queue and len(frames) < POST_FRAMES_MAX:
                correlation, frame = lane.queue[0]
                if frames and size + len(frame) > POST_BYTES_MAX:
                    break
                lane.queue.popleft()
                if correlation in self._exchange.pending:
                    correlations.append(correlation)
                    frames.append(frame)
                    size += len(frame)
            if frames:
                lane.under_way += 1
                self._post(Post(lane, correlations, frames[0] if len(frames) == 1 else b"".join(frames)))
        self._set_full()

    def _set_full(self) -> None:
        is_full = sum(len(frame) for _, frame in self._pushes.queue) > QUEUED_BYTES_MAX
        if is_full != self._is_full:
            self._is_full = is_full
            self._session.set_full(is_full)

    def _post(self, post: Post) -> None:
        for correlation in post.correlations:
            self._posts[correlation] = post
        now = self._session.loop.time()
        while self._idle:
            connection = self._idle.pop()
            if now - connection.idle_since < IDLE_SECONDS_MAX and not connection.transport.is_closing():
                self._send(post, connection)
                return
            connection.transport.abort()
        task = self._session.loop.create_task(self._dial(post))
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    async def _dial(self, post: Post) -> None:
        address = self._address
        try:
            async with asyncio.timeout(self._settings.connect_seconds):
                _, connection = await self._session.loop.create_connection(
                    lambda: HttpConnection(self),
                    address.host,
                    address.port,
                    ssl=self._tls.context() if address.is_tls else None,
                )
        except InvalidField as error:
            self._tell(post, error)
            return
        except ssl.SSLError as error:
            self._untrusted(post, explained(error, address))
            return
        except (OSError, TimeoutError) as error:
            self.lost(post, str(error) or type(error).__name__, is_unsent=True)
            return
        if self._posts.get(post.correlations[0]) is post:
            self._send(post, connection)
        else:  # it was given up meanwhile
            connection.transport.abort()

    def _untrusted(self, post: Post, failure: Exception) -> None:
        if isinstance(failure, TlsFailed) and self._is_greeting(post):
            self._tell(post, failure)
        else:
            self.lost(post, str(failure), is_unsent=True)

    def _send(self, post: Post, connection: HttpConnection) -> None:
        connection.send(post, self.head.of(len(post.body), self._exchange.producer))

    # what comes of it

    def received(self, data: bytes, splitter: Splitter) -> None:
        self._session.received(data, splitter)

    def answered(self, post: Post, connection: HttpConnection) -> None:
        """A response is over."""
        if connection.is_usable and len(self._idle) < IDLE_MAX and not self._is_closed:
            connection.idle_since = self._session.loop.time()
            self._idle.append(connection)
        else:
            connection.transport.close()
        if any(correlation in self._exchange.pending for correlation in post.correlations):
            self.lost(post, "the reply ended early")
            return
        self._forget(post)
        if self._exchange.is_leaving:
            self._session.undelivered("the broker is stopping", (), ())

    def lost(self, post: Post, why: str, *, is_unsent: bool = False) -> None:
        """A POST has failed. What waits behind it in its lane is the session's again too, so that order is kept."""
        if self._is_closed:
            return
        if self._is_greeting(post):
            self._tell(post, self._exchange.refused or Unavailable(why))
            return
        self._session.flush()
        pending = self._exchange.pending
        posted = [correlation for correlation in post.correlations if correlation in pending]
        queued: list[int] = []
        if post.lane is not None and posted:
            queued = [correlation for correlation, _ in post.lane.queue if correlation in pending]
            post.lane.queue.clear()
        self._forget(post)
        if posted:
            sent, unsent = ([], posted + queued) if is_unsent else (posted, queued)
            self._session.undelivered(f"the connection to {self._address} was lost: {why}", sent, unsent)

    def refused(self, post: Post, error: PenstockError) -> None:
        """A POST was refused: nothing of it has happened."""
        if isinstance(error, Unavailable | NotAuthenticated) and not self._is_greeting(post):
            self.lost(post, error.message, is_unsent=True)
        else:
            self._tell(post, error)

    def _tell(self, post: Post, error: PenstockError) -> None:
        for correlation in post.correlations:
            request = self._exchange.pending.pop(correlation, None)
            if request is not None:
                tell(request, self._exchange.explained(request, error))
        self._forget(post)

    def _forget(self, post: Post) -> None:
        known = False
        for correlation in post.correlations:
            known = self._posts.pop(correlation, None) is not None or known
        if known and post.lane is not None:
            post.lane.under_way -= 1
            self._pump(post.lane)

    def gone(self, connection: HttpConnection) -> None:
        """An idle connection was closed."""
        if connection in self._idle:
            self._idle.remove(connection)
