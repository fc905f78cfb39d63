"""Making a connection on an event loop: every address in turn, with pauses, until a broker has said welcome."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any, Protocol, cast

from penstock import operations as ops
from penstock.errors import Moved, PenstockError, TlsFailed, Unavailable
from penstock.remote import request as asking
from penstock.remote.connection import check_protocol
from penstock.remote.credentials import current_token, login
from penstock.remote.producer import Producer
from penstock.remote.request import Request
from penstock.remote.route import Route
from penstock.remote.settings import retry_log
from penstock.remote.tls import ClientTls, explained, no_answer
from penstock.wire.frames import Buffer

if TYPE_CHECKING:
    from penstock.remote.asynchronous import AsyncSession
    from penstock.remote.settings import Address


class Transport(Protocol):
    """What takes frames to a broker: a connection over TCP, or those of a pool over HTTP."""

    def writelines(self, data: list[Buffer], /) -> None: ...

    def is_closing(self) -> bool: ...

    def close(self) -> None: ...


class TlsTransport:
    """Sends the frames of a call as one record, or a few: TLS would make a record of each."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.is_closing = transport.is_closing
        self.close = transport.close

    def writelines(self, data: list[Buffer], /) -> None:
        self._transport.write(b"".join(data))


class Wire(asyncio.Protocol):
    """One connection; passes on what comes."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self.transport: asyncio.Transport | None = None
        self.is_current = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.is_current:
            self._session.received(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.is_current:
            self.is_current = False
            self._session.lost(error)

    def pause_writing(self) -> None:
        self._session.set_full(True)

    def resume_writing(self) -> None:
        self._session.set_full(False)


class Connector:
    """Connects for a session."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._settings = session.settings
        self._route = Route(session.settings.addresses)
        self.tls = ClientTls(session.settings.tls)
        self._wire: Wire | None = None
        self.failure: PenstockError | None = None  # of the last try

    def descriptors(self) -> list[int]:
        """Of the connection."""
        transport = None if self._wire is None else self._wire.transport
        socket = None if transport is None else transport.get_extra_info("socket")
        return [] if socket is None or socket.fileno() < 0 else [socket.fileno()]

    @property
    def address(self) -> Address:
        return self._route.current

    async def connect(self, seconds: float) -> Transport:
        """A connection that has been greeted; `Unavailable` when there is none after so long."""
        loop = asyncio.get_running_loop()
        deadline, tries, self.failure = loop.time() + seconds, 0, None
        while True:
            transport = await self._try_all(deadline)
            if transport is not None:
                retry_log.connected()
                return transport
            pause = self._settings.backoff(tries)
            tries += 1
            if loop.time() + pause >= deadline:
                assert self.failure is not None
                raise self.failure
            if tries == 1 and self.failure is not None:
                retry_log.failed(self.failure, deadline - loop.time())
            await asyncio.sleep(pause)

    async def _try_all(self, deadline: float) -> Transport | None:
        loop = asyncio.get_running_loop()
        for _ in self._route.round():
            left = max(0.001, min(self._settings.connect_seconds, deadline - loop.time()))
            try:
                async with asyncio.timeout(left):
                    return await self._connect(loop)
            except TlsFailed:
                self.drop()
                raise
            except TimeoutError:  # the last try may have had hardly any time: the one before it tells more
                self.drop()
                self.failure = self.failure or Unavailable(f"no broker answers at {self.address}: timed out")
            except Moved as error:
                self.drop()
                self.failure = self._route.moved(error)
            except (OSError, Unavailable) as error:
                self.drop()
                self.failure = no_answer(self.address, error)
            except BaseException:
                self.drop()
                raise
        return None

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> Transport:
        self.drop()
        pool = self._session.pool
        if pool is not None:
            pool.use(self.address)
            self._session.exchange.connected()
            await self._greet(pool)
            return pool
        self._wire = wire = Wire(self._session)
        transport = await self._dial(loop, wire)
        self._session.exchange.connected()
        await self._greet(transport)
        return transport

    async def _dial(self, loop: asyncio.AbstractEventLoop, wire: Wire) -> Transport:
        address = self.address
        if not address.is_tls:
            await loop.create_connection(lambda: wire, address.host, address.port)
            assert wire.transport is not None
            return wire.transport
        try:
            await loop.create_connection(lambda: wire, address.host, address.port, ssl=self.tls.context())
        except ssl.SSLError as error:
            raise explained(error, address) from error
        assert wire.transport is not None
        return TlsTransport(wire.transport)

    async def _greet(self, transport: Transport) -> None:
        settings, exchange = self._settings, self._session.exchange
        await self._login(transport)
        if settings.producer and exchange.producer is None:
            id, epoch = await self._asked(transport, asking.execute(ops.InitProducer(settings.producer)))
            exchange.producer = Producer(id, epoch)
            await self._asked(transport, asking.hello(settings.client, exchange.producer))

    async def _login(self, transport: Transport) -> None:
        token = current_token(self._settings.token)
        if self._session.pool is not None:
            self._session.pool.head.authorise(token)
        producer, has_certificate = self._session.exchange.producer, bool(self._settings.tls.certificate)
        steps = login(self._settings.client, token, self.address, producer, has_certificate=has_certificate)
        try:
            request = next(steps)
            while True:
                welcome = await self._asked(transport, request)
                check_protocol(welcome)
                request = steps.send(welcome)
        except StopIteration as end:
            if self._session.pool is not None:
                self._session.pool.head.authorise(end.value)

    async def _asked(self, transport: Transport, request: Request) -> Any:
        """Ask on a connection that is not in use yet."""
        future = request.future = asyncio.get_running_loop().create_future()

        def on_reply(request: Request, answer: Any) -> None:
            if not future.done():
                future.set_exception(answer) if isinstance(answer, PenstockError) else future.set_result(answer)

        request.on_reply = on_reply
        request.deadline = float("inf")
        transport.writelines(self._session.exchange.put(request))
        return await future

    def drop(self) -> None:
        """Hang up."""
        if self._session.pool is not None:
            self._session.pool.drop()
        wire, self._wire = self._wire, None
        if wire is not None and wire.transport is not None:
            wire.is_current = False
            wire.transport.abort()
