"""Accepting connections with TLS.

The first bytes say whether the client speaks TLS. One that does not gets an error in clear, in the protocol that
it probably speaks, instead of being cut off. Each connection takes the context that the broker has at that moment, so a
new certificate counts from the next connection on.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from penstock.access.tls import HANDSHAKE_SECONDS, ServerTls
from penstock.broker.seats import AddressBudget

logger: Final = logging.getLogger("penstock.tls")
BACKLOG: Final = 4096  # connections that may come at once
ACCEPTS_MAX: Final = 64  # in one turn of the event loop
PAUSE_SECONDS: Final = 1.0  # when the process has no descriptors left
CLOSE_SECONDS: Final = 2.0  # for a client to take its leave
_HANDSHAKE: Final = b"\x16\x03"  # what every TLS connection begins with
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class TlsListener:
    """Listens, and makes a protocol for each client whose handshake succeeds. Has what is used of `asyncio.Server`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tls: ServerTls,
        factory: Callable[[], asyncio.Protocol],
        connections_max: int,
        plaintext_answer: bytes,
    ) -> None:
        self.sockets: list[socket.socket] = []
        self._loop = loop
        self._tls = tls
        self._factory = factory
        # Shared, so that one machine that begins handshakes and finishes none keeps no other out.
        self._budget = AddressBudget(connections_max)
        self._plaintext_answer = plaintext_answer
        self._handshakes: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int) -> None:
        """Raises `OSError` when the address is taken."""
        try:
            for family, kind, proto, _, address in await self._loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            ):
                self.sockets.append(_bound(socket.socket(family, kind, proto), address))
        except OSError:
            self.close()
            raise
        for listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def close(self) -> None:
        """Accept no more; handshakes that are under way go on."""
        sockets, self.sockets = self.sockets, []
        for listening in sockets:
            self._loop.remove_reader(listening)
            listening.close()

    async def wait_closed(self) -> None:
        """Return when no handshake is under way."""
        if self._handshakes:
            await asyncio.wait(self._handshakes)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                connection, (address, *_) = listening.accept()
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    logger.error("no connection can be accepted: %s", error.strerror)  # noqa: TRY400
                    self._loop.remove_reader(listening)
                    self._loop.call_later(PAUSE_SECONDS, self._go_on, listening)
                return
            if not self._budget.take(address, 1):
                connection.close()
                continue
            connection.setblocking(False)
            task = self._loop.create_task(self._begin(connection))
            self._handshakes.add(task)
            task.add_done_callback(partial(self._ended, address))

    def _ended(self, address: str, task: asyncio.Task[None]) -> None:
        self._handshakes.discard(task)
        self._budget.give_back(address, 1)

    def _go_on(self, listening: socket.socket) -> None:
        if listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)

    async def _begin(self, connection: socket.socket) -> None:
        is_taken = False
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                first = await self._peek(connection)
            if first and _HANDSHAKE.startswith(first):
                await self._shake_hands(connection)
                is_taken = True
            elif first:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._answer_in_clear(connection)
        except (OSError, TimeoutError) as error:  # errors of TLS are among them
            logger.debug("a TLS handshake failed", extra={"reason": str(error) or type(error).__name__})
        finally:
            if not is_taken:
                connection.close()

    async def _shake_hands(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await self._loop.connect_accepted_socket(
            self._factory,
            connection,
            ssl=self._tls.context,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=CLOSE_SECONDS,
        )

    async def _peek(self, connection: socket.socket) -> bytes:
        """The first bytes, which stay unread; none when there are none to come."""
        readable: asyncio.Future[None] = self._loop.create_future()

        def on_readable() -> None:
            if not readable.done():
                readable.set_result(None)

        self._loop.add_reader(connection, on_readable)
        try:
            await readable
        finally:
            self._loop.remove_reader(connection)
        return connection.recv(len(_HANDSHAKE), socket.MSG_PEEK)

    async def _answer_in_clear(self, connection: socket.socket) -> None:
        await self._loop.sock_sendall(connection, self._plaintext_answer)
        connection.shutdown(socket.SHUT_WR)
        while await self._loop.sock_recv(connection, 65_536):  # closed on unread bytes, it would lose the answer
            pass


async def listen(
    loop: asyncio.AbstractEventLoop,
    factory: Callable[[], asyncio.Protocol],
    host: str,
    port: int,
    tls: ServerTls | None,
    connections_max: int,
    plaintext_answer: bytes,
) -> asyncio.Server | TlsListener:
    """Listen, with TLS or without. Raises `OSError` when the address is taken."""
    if tls is None:
        return await loop.create_server(factory, host, port, backlog=BACKLOG, reuse_address=True)
    listener = TlsListener(loop, tls, factory, connections_max, plaintext_answer)
    await listener.listen(host, port)
    return listener


def _bound(listening: socket.socket, address: object) -> socket.socket:
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listening.family == socket.AF_INET6:
            with suppress(OSError):
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setblocking(False)
        listening.bind(address)  # type: ignore[arg-type]
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
