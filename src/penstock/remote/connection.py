"""A connection for one thread at a time: it asks, reads until it has its answer, and reconnects when it must.

There is no thread in the background and no hop between threads: whoever asks sends and reads.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
from contextlib import suppress
from typing import Any, Final

from penstock import operations as ops
from penstock.errors import BadRequest, Closed, Moved, NotAuthenticated, PenstockError, TlsFailed, Unavailable
from penstock.forks import refuse_in_forks
from penstock.remote import request as asking
from penstock.remote.credentials import current_token, login
from penstock.remote.exchange import Exchange, Garbled, tell
from penstock.remote.http import Head, HttpSocket, Refused
from penstock.remote.producer import Producer, SharedProducer, nameless
from penstock.remote.request import PENDING, Request
from penstock.remote.route import Route
from penstock.remote.settings import Address, Settings, retry_log
from penstock.remote.tls import ClientTls, explained, no_answer, read_now, shutdown_both
from penstock.wire.frames import PROTOCOL_VERSION, Buffer

READ_BYTES: Final = 1 << 18


class Shared:
    """What the connections of a session have in common."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.closing = threading.Event()
        self.producer: Producer | None = None  # a named one; otherwise each connection has its own
        self.naming = threading.Lock()
        self.tls = ClientTls(settings.tls)
        self.route = Route(settings.addresses)

    def micros(self, seconds: float) -> int:
        """The instant `seconds` from now."""
        return self.settings.clock.monotonic() + round(seconds * 1_000_000)

    def left(self, deadline: int) -> float:
        return (deadline - self.settings.clock.monotonic()) / 1e6


class Connection:
    """One connection to a broker, used by one thread at a time."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._settings = shared.settings
        self._socket: socket.socket | HttpSocket | None = None
        self._poll = select.poll()
        own = shared.producer if self._settings.producer else nameless(self._settings.rng)
        self.exchange = Exchange(own)
        refuse_in_forks(self)

    def descriptors(self) -> list[int]:
        """For forks."""
        return [] if self._socket is None else [self._socket.fileno()]

    def ask(self, request: Request, deadline: int) -> Any:
        """The answer; its error, if it is one, is raised."""
        self.send(request, deadline)
        while request.answer is PENDING:
            self._turn(deadline)
        if isinstance(request.answer, PenstockError):
            raise request.answer
        return request.answer

    def send(self, request: Request, deadline: int) -> None:
        """Send without waiting for the answer; `drain` does."""
        if self.exchange.pending and isinstance(self._socket, HttpSocket):  # which has one request at a time
            self.drain(deadline)
            self.listen()
        if self._socket is None:
            self.open(deadline)
        self._write(self.exchange.put(request), deadline)

    def drain(self, deadline: int) -> None:
        """Read until everything that was sent is answered."""
        while self.exchange.pending:
            self._turn(deadline)

    def open(self, deadline: int) -> None:
        """Connect, trying every address in turn, with pauses in between, until the deadline."""
        tries, failure = 0, None
        while True:
            failure = self._try_all(deadline, failure)
            if failure is None:
                retry_log.connected()
                return
            pause = self._settings.backoff(tries)
            tries += 1
            left = self._shared.left(deadline)
            if left <= pause:
                raise failure
            if tries == 1:
                retry_log.failed(failure, left)
            if self._shared.closing.wait(pause):
                raise Closed("this Penstock is closed")

    def post(self, path: str, body: bytes) -> bytes:
        """The answer of another route than that of frames, over HTTP; its error is raised."""
        assert isinstance(self._socket, HttpSocket)
        return self._socket.post(path, body)

    def get_status(self, path: str) -> int:
        """The HTTP status of a GET of a page."""
        assert isinstance(self._socket, HttpSocket)
        return self._socket.get_status(path)

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def interrupt(self) -> None:
        """From another thread: end whatever this one waits for."""
        connection = self._socket
        if connection is not None:
            with suppress(OSError):
                shutdown_both(connection.plain if isinstance(connection, HttpSocket) else connection)

    @property
    def is_usable(self) -> bool:
        """Whether it is worth keeping."""
        return self._socket is not None and not self.exchange.pending

    @property
    def is_leaving(self) -> bool:
        """Whether the broker at the other end stops, and takes only what ends or keeps leases."""
        return self._socket is not None and self.exchange.is_leaving

    # connecting

    def _try_all(self, deadline: int, failure: PenstockError | None) -> PenstockError | None:
        """Why no address is of use; `failure` is what the last round ended with."""
        route = self._shared.route
        for address in route.round():
            left = self._shared.left(deadline)
            if left <= 0 and failure is not None:
                break
            try:
                self._connect(address, max(0.001, min(left, self._settings.connect_seconds)))
                self._greet(address, deadline)
            except TlsFailed:
                self.close()
                raise
            except ssl.SSLError as error:
                self.close()
                failure = self._tls_failure(error, address)
            except TimeoutError:  # the last try may have had hardly any time: the one before it tells more
                self.close()
                failure = failure or Unavailable(f"no broker answers at {address}: timed out")
            except (OSError, Garbled) as error:
                self.close()
                failure = no_answer(address, error)
            except (Unavailable, Moved) as error:
                self.close()
                failure = route.moved(error) if isinstance(error, Moved) else error
            except PenstockError:
                self.close()
                raise
            else:
                return None
        return failure

    def _connect(self, address: Address, seconds: float) -> None:
        def connect() -> socket.socket:
            made = socket.create_connection((address.host, address.port), seconds)
            try:
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                self._refuse_if_closing()
                return self._shared.tls.wrap(made, address) if address.is_tls else made
            except BaseException:
                made.close()
                raise

        if address.is_http:
            self._socket = HttpSocket(connect, Head(self._settings, address), self._settings.clock)
        else:
            self._socket = connect()
            self._poll = select.poll()
            self._poll.register(self._socket, select.POLLIN)
        self.exchange.pending.clear()  # a greeting that failed
        self.exchange.connected()
        self._refuse_if_closing()

    def _refuse_if_closing(self) -> None:
        """A session that was closed too early to interrupt this connection."""
        if self._shared.closing.is_set():
            raise Closed("this Penstock is closed")

    def _tls_failure(self, error: ssl.SSLError, address: Address) -> PenstockError:
        """Why TLS failed after the handshake, or was cut off within it."""
        failure = explained(error, address)
        if isinstance(failure, TlsFailed):
            raise failure from error
        return no_answer(address, failure)

    def _greet(self, address: Address, deadline: int) -> None:
        settings, shared = self._settings, self._shared
        if settings.producer:
            self.exchange.producer = shared.producer
        self._login(address, deadline)
        if settings.producer and shared.producer is None:
            with shared.naming:
                if shared.producer is None:
                    id, epoch = self._asked(asking.execute(ops.InitProducer(settings.producer)), deadline)
                    shared.producer = SharedProducer(id, epoch)
            self.exchange.producer = shared.producer
            self._asked(asking.hello(settings.client, shared.producer), deadline)

    def _login(self, address: Address, deadline: int) -> None:
        token = current_token(self._settings.token)
        if isinstance(self._socket, HttpSocket):
            self._socket.head.authorise(token)
        has_certificate = bool(self._settings.tls.certificate)
        steps = login(self._settings.client, token, address, self.exchange.producer, has_certificate=has_certificate)
        try:
            request = next(steps)
            while True:
                request = steps.send(self._asked(request, deadline))
        except StopIteration as end:
            if isinstance(self._socket, HttpSocket):
                self._socket.head.authorise(end.value)

    def _asked(self, request: Request, deadline: int) -> Any:
        """Ask while connecting: nothing is sent again, what is lost is an error."""
        assert self._socket is not None
        self._socket.settimeout(max(0.001, min(self._shared.left(deadline), self._settings.connect_seconds)))
        self._send(self.exchange.put(request))
        while request.answer is PENDING:
            try:
                data = self._socket.recv(READ_BYTES)
            except Refused as refused:
                raise refused.error from None
            if not data:
                self.exchange.pending.clear()
                self.exchange.turned_away.clear()
                raise self.exchange.refused or OSError("the connection was closed immediately")
            self.exchange.received(data)
        if isinstance(request.answer, PenstockError):
            raise request.answer
        check_protocol(request.answer)
        return request.answer

    # sending and reading

    def listen(self) -> None:
        """Find out whether the broker has hung up or said goodbye while nobody listened."""
        if isinstance(self._socket, HttpSocket):
            if not self._socket.is_reusable():
                self.close()
            return
        if self._socket is None or not self._poll.poll(0):
            return
        try:
            data = read_now(self._socket, READ_BYTES)
            if data is None:
                return
            self.exchange.received(data)
        except (OSError, Garbled):
            data = b""
        if not data:
            self.close()

    def _write(self, data: list[Buffer], deadline: int) -> None:
        assert self._socket is not None
        if not data:
            return
        try:
            self._socket.settimeout(max(0.001, self._shared.left(deadline)))
            self._send(data)
        except TimeoutError:
            self._give_up("the broker accepts no data")
        except OSError as error:
            self._lost(str(error), deadline)

    def _send(self, data: list[Buffer]) -> None:
        if isinstance(self._socket, HttpSocket):
            self._socket.producer = self.exchange.producer
        self._socket.sendall(data[0] if len(data) == 1 else b"".join(data))  # type: ignore[union-attr]

    def _turn(self, deadline: int) -> None:
        """Read once, and send again if that is what it takes."""
        assert self._socket is not None
        try:
            self._socket.settimeout(max(0.001, self._shared.left(deadline)))
            data = self._socket.recv(READ_BYTES)
            why = "the broker closed it"
        except TimeoutError:
            self._give_up("the broker does not answer")
            return
        except OSError as error:
            data, why = b"", str(error)
        except Refused as refused:
            self._refused(refused.error, deadline)
            return
        if not data:
            self._lost(why, deadline)
            return
        try:
            replies = self.exchange.received(data)
        except Garbled as error:
            self._fail(Unavailable(f"{self._address} does not speak the broker protocol: {error}", hint=error.hint))
        else:
            if self.exchange.turned_away and not self.exchange.pending:
                self._lost("the broker is stopping", deadline)
            elif replies:
                self._write(replies, deadline)

    def _lost(self, why: str, deadline: int, *, is_unsent: bool = False) -> None:
        self.close()
        unsent = list(self.exchange.pending) if is_unsent else []
        again = self.exchange.lost(f"the connection to {self._address} was lost: {why}", unsent=unsent)
        if not again:
            return
        try:
            if self._shared.closing.wait(self._pause(again, deadline)):
                raise Closed("this Penstock is closed")
            self.open(deadline)
        except PenstockError as error:
            for request in again:
                tell(request, error)
        else:
            self._write([part for request in again for part in self.exchange.put(request)], deadline)

    def _pause(self, again: list[Request], deadline: int) -> float:
        """How long to wait before requests are sent again: the more often that was in vain, the longer."""
        tries = max(request.sent for request in again)
        return 0.0 if tries < 2 else max(0.0, min(self._settings.backoff(tries - 2), self._shared.left(deadline)))

    def _refused(self, error: PenstockError, deadline: int) -> None:
        """Over HTTP: nothing of what was sent has happened."""
        if isinstance(error, Unavailable | NotAuthenticated):  # a token may have been replaced: log in again
            self._lost(error.message, deadline, is_unsent=True)
        else:
            self._fail(error)

    def _give_up(self, why: str) -> None:
        seconds = self._settings.timeout_seconds
        self._fail(Unavailable(f"{why}: {self._address}, in {seconds:g} s; the operation may or may not have happened"))

    def _fail(self, error: PenstockError) -> None:
        self.close()
        self.exchange.fail(error)

    @property
    def _address(self) -> str:
        return str(self._shared.route.current)


def check_protocol(welcome: Any) -> None:
    """Refuse a broker that speaks another version than it was asked for."""
    version = getattr(welcome, "protocol", PROTOCOL_VERSION)
    if version != PROTOCOL_VERSION:
        raise BadRequest(
            f"the broker speaks protocol {version}, this client {PROTOCOL_VERSION}",
            hint="install the Penstock version of the broker",
        )
