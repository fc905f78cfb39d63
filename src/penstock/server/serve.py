"""A broker from start to end: open the directory, listen, work, drain, close.

Nothing is half started: ports are checked first, all of them, and what is wrong with them is reported together. Then
the directory is opened, and whatever fails after that closes what was opened before. A protocol that cannot be imported
because its extra is not installed is left out, and logged. The end comes by a signal, and then what was begun is
finished; or because the journal failed, and then nothing that is in memory may be reported any more, so the process
leaves and is started again.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penstock.access import discovery
from penstock.access.authenticator import OWNER_NAME
from penstock.access.sessions import link_of
from penstock.access.tls import RELOAD_SECONDS, Files, ServerTls
from penstock.broker.access import Client
from penstock.broker.broker import Broker
from penstock.broker.history_queries import HistoryQueries
from penstock.clock import SystemClock
from penstock.config import Port, Settings
from penstock.embedded.session import Session, segments_at, upkeep_of
from penstock.errors import BadSettings, InvalidField, PenstockError
from penstock.journal import outcome_unknown
from penstock.server.identity import Identity
from penstock.server.public_bind import PLAINTEXT, check_public_bind, is_plaintext, reachable_host
from penstock.telemetry.meter import Meter
from penstock.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from penstock.server.node import Node

logger: Final = logging.getLogger("penstock.server")
GRPC_GRACE_SECONDS: Final = 1.0


SCHEMES: Final = {
    ("tcp", False): "penstock://",
    ("tcp", True): "penstocks://",
    ("http", False): "http://",
    ("http", True): "https://",
    ("admin", False): "http://",
    ("admin", True): "https://",
}


class Listener(NamedTuple):
    """One protocol, listening."""

    port: int
    stop_accepting: Callable[[], object]  # take no new connections, and tell the clients that it ends
    close: Callable[[], Awaitable[object]]  # answer what was begun, then close every connection


class Address(msgspec.Struct, frozen=True):
    """Where one protocol can be reached."""

    protocol: str
    host: str
    port: int

    tls: bool = False
    names: tuple[str, ...] = ()  # by which clients may call it, when the host stands for all interfaces

    @property
    def url(self) -> str:
        scheme = SCHEMES.get((self.protocol, self.tls), "")
        host = reachable_host(self.host, self.names)
        return f"{scheme}[{host}]:{self.port}" if ":" in host else f"{scheme}{host}:{self.port}"


def ports_of(settings: Settings) -> dict[str, Port]:
    """The port of each protocol."""
    return {
        "tcp": settings.tcp_port,
        "http": settings.http_port,
        "grpc": settings.grpc_port,
        "admin": settings.admin_port,
    }


def host_of(settings: Settings, protocol: str) -> str:
    """The address that a protocol listens on."""
    return settings.admin_host or settings.host if protocol == "admin" else settings.host


def check_ports(settings: Settings) -> None:
    """Refuse, all at once, what could not be listened on."""
    problems = [*_problems(settings)]
    if problems:
        raise BadSettings(
            "\n".join(problems), hint="stop the program that listens there, or choose another port or address"
        )


def _problems(settings: Settings) -> Iterator[str]:
    for protocol, port in ports_of(settings).items():
        if port == "off":
            continue
        try:
            family, kind, proto, _, address = socket.getaddrinfo(
                host_of(settings, protocol), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind, proto) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            yield f"{protocol}_port: {_explained(error, host_of(settings, protocol), port)}"


def _explained(error: OSError, host: str, port: Port) -> str:
    where = f"{host}:{port}"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"{host!r} is not an address of this machine"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is in use by another program"
    if error.errno == errno.EACCES:
        return f"{where} is not allowed for this user"
    return f"{where} cannot be used: {error.strerror or error}"


async def start(
    protocol: str, broker: Broker, settings: Settings, metrics: Metrics, tls: ServerTls | None = None
) -> Listener | None:
    """Start one protocol; None when it is off, or when its extra is missing and nobody asked for it."""
    port = ports_of(settings)[protocol]
    if port == "off":
        return None
    try:
        if protocol == "tcp":
            return await _start_tcp(broker, settings, port, tls)
        if protocol in ("http", "admin"):
            return await _start_http(broker, settings, protocol, port, metrics, tls)
        return await _start_grpc(broker, settings, port, tls)
    except OSError as error:
        raise BadSettings(f"{protocol}_port: {_explained(error, host_of(settings, protocol), port)}") from error


async def _start_tcp(broker: Broker, settings: Settings, port: int, tls: ServerTls | None) -> Listener:
    from penstock.server.tcp.listener import start_tcp

    server = await start_tcp(
        broker,
        settings.host,
        port,
        frame_bytes_max=settings.frame_bytes_max,
        connections_max=settings.connections_max,
        tls=tls,
    )
    return Listener(server.port, server.stop_accepting, server.close)


async def _start_http(
    broker: Broker, settings: Settings, protocol: str, port: int, metrics: Metrics, tls: ServerTls | None
) -> Listener:
    from penstock.dashboard.files import Banner
    from penstock.server.http.serve import start_http
    from penstock.server.http.site import HttpSettings
    from penstock.server.websocket.conversation import WebSockets

    http_settings = HttpSettings(
        host=host_of(settings, protocol),
        port=port,
        serves="admin" if protocol == "admin" else "all" if settings.admin_port == "off" else "public",
        hosts=settings.hosts,
        trusted_proxies=settings.trusted_proxies,
        cors_origins=settings.cors_origins,
        prefix=settings.http_prefix,
        banner=Banner(settings.dashboard_environment, settings.dashboard_color, settings.dashboard_read_only),
        scheme="https" if settings.is_seen_with_tls else "http",
        request_bytes_max=settings.request_bytes_max,
        connections_max=settings.connections_max,
        slow_request_seconds=settings.slow_request_ms / 1000,
        profile=settings.profile,
    )
    sockets = WebSockets(broker)
    server = await start_http(broker, http_settings, metrics=metrics, stream=sockets.serve, tls=tls)

    async def close() -> None:
        try:
            await sockets.close()
            await server.drain(settings.drain_seconds)
        finally:
            await server.close()

    # Over HTTP a lease outlives the connection that it came by. So this port stays open for those who settle; the
    # broker refuses everything else meanwhile.
    return Listener(server.port, sockets.goodbye, close)


async def _start_grpc(broker: Broker, settings: Settings, port: int, tls: ServerTls | None) -> Listener | None:
    from penstock.server.grpc import start_grpc

    try:
        server = await start_grpc(
            broker,
            settings.host,
            port,
            request_bytes_max=settings.request_bytes_max,
            connections_max=settings.connections_max,
            tls=tls,
        )
    except InvalidField as error:
        if port != Settings().grpc_port:
            raise
        logger.info("gRPC is off", extra={"reason": str(error)})
        return None
    return Listener(server.port, server.stop_accepting, lambda: server.close(GRPC_GRACE_SECONDS))


SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
LOOK_SECONDS: Final = 0.05  # between two looks at what is still under way, while draining
CLOSE_SECONDS: Final = 5.0  # for a listener to close its connections


class Started(msgspec.Struct, frozen=True):
    """What there is to say when a broker is ready."""

    data: str
    durability: str
    queues: int
    addresses: list[Address]
    header_file: str = ""  # with what curl needs to be let in; empty without access control
    role: str = ""  # of a node of a store: owner or spare
    node: str = ""  # its name


class Server:
    """One broker and its listeners. `start`, then `wait`, then `stop`."""

    def __init__(
        self,
        settings: Settings,
        session: Session | None = None,
        elsewhere: Callable[[Client], PenstockError] | None = None,
    ) -> None:
        self._settings = settings
        self._elsewhere = elsewhere  # of a spare node: what whoever asks is answered
        self._listeners: list[Listener] = []
        self._session = session  # None: it opens one
        self._upkeep: asyncio.Task[None] | None = None
        self.tls: ServerTls | None = None  # once it is started, with TLS
        self._announcement = discovery.Announcement(None, os.environ)  # to the owner's own programs
        self._identity: Identity | None = None  # None without access control
        self.broker: Broker | None = None  # once it is started
        self.over = asyncio.Event()  # somebody wants it to end, or the journal failed

    async def start(self) -> Started:
        """Open and listen; on failure nothing is left open."""
        settings = self._settings
        check_ports(settings)
        check_public_bind(settings)
        self.tls = server_tls(settings)
        if self._session is None:
            logger.info("opening", extra={"data": settings.data})  # after a crash this may take a while
            self._session = await asyncio.to_thread(open_session, settings)
        try:
            self.broker = self._make_broker(self._session)
            self.broker.elsewhere = self._elsewhere
            self.broker.is_admin_apart = settings.admin_port != "off"
            self._watch_journal(self._session)
            self._watch_transport(self.broker)
            addresses = await self._listen()
            self._announcement.write_header()
            queues = self._session.shard.queue_count
            return Started(settings.data, settings.durability, queues, addresses, self.header_file)
        except BaseException:
            await self.stop(drain=False)
            raise

    @property
    def header_file(self) -> str:
        """With what curl needs to be let in; empty without access control."""
        return str(self._announcement.header_file or "")

    async def _listen(self) -> list[Address]:
        assert self.broker is not None
        metrics = Metrics(self.broker.session, self.broker.meter)
        addresses = []
        for protocol in ports_of(self._settings):
            listener = await start(protocol, self.broker, self._settings, metrics, self.tls)
            if listener is not None:
                host = host_of(self._settings, protocol)
                if protocol != "grpc":  # whose clients send a key
                    hosts = _loopbacks(host)
                    self._announcement.add(discovery.place_of(name, listener.port) for name in hosts)
                self._listeners.append(listener)
                addresses.append(Address(protocol, host, listener.port, self.tls is not None, self._settings.hosts))
        return addresses

    def _watch_transport(self, broker: Broker) -> None:
        """Have certificates reloaded, and what is wrong with them shown by readyz."""
        if self.tls is not None:
            broker.meter.certificate_expires_at = self.tls.expires_at
            broker.notices.append(self.tls.problems)
            self._upkeep = asyncio.create_task(self._reload_certificates(self.tls))
        elif is_plaintext(self._settings):
            logger.warning(PLAINTEXT)
            broker.notices.append(lambda: (PLAINTEXT,))

    async def _reload_certificates(self, tls: ServerTls) -> None:
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            if await asyncio.to_thread(tls.reload_if_changed):
                self._certificate_changed(tls)

    def _certificate_changed(self, tls: ServerTls) -> None:
        if self.broker is not None:
            self.broker.meter.certificate_expires_at = tls.expires_at

    def reload(self) -> None:
        """SIGHUP: read the certificates again."""
        if self.tls is not None and self.tls.reload():
            self._certificate_changed(self.tls)

    def _make_broker(self, session: Session) -> Broker:
        broker = self._broker_of(session)
        settings = self._settings
        secrets = {"PENSTOCK_MASTER_KEY": settings.master_key, "PENSTOCK_KMS_COMMAND": settings.kms_command}
        environment = {name: value for name, value in secrets.items() if value}
        location = settings.store or os.path.abspath(settings.data)
        broker.history_queries = HistoryQueries(location, environment)
        return broker

    def _broker_of(self, session: Session) -> Broker:
        meter = Meter(session.shard.clock.now())
        if self._settings.auth == "off":
            return Broker(session, meter=meter)
        entry = discovery.new_entry()
        self._announcement = discovery.Announcement(entry, os.environ)
        identity = self._identity = Identity(self._settings, session.access, session.clock, entry)
        broker = Broker(session, authenticator=identity.authenticator, sign_in=identity.sign_in, meter=meter)
        broker.notices.append(identity.problems)
        meter.key_source = identity.key_source
        identity.start()
        return broker

    def _watch_journal(self, session: Session) -> None:
        loop = asyncio.get_running_loop()

        def failed() -> None:
            """Called by whichever thread wrote, with locks held."""
            with suppress(RuntimeError):  # the loop is closed: it is over anyway
                loop.call_soon_threadsafe(self.over.set)

        session.shard.on_fail.append(failed)

    def new_link(self, started: Started) -> str:
        """A one-time link that signs in as the owner; empty where browsers cannot sign in."""
        place = "http" if self._settings.admin_port == "off" else "admin"
        urls = [address.url for address in started.addresses if address.protocol == place]
        if self._identity is None or not urls or is_plaintext(self._settings):
            return ""
        owner = self._identity.authenticator.by_user(OWNER_NAME)
        assert owner is not None
        return link_of(urls[0], self._identity.sign_in.sessions.new_code(owner))

    async def wait(self) -> None:
        """Until it is over; raises when the journal failed."""
        await self.over.wait()
        assert self._session is not None
        failed = self._session.shard.journal.failed
        if failed is not None:
            raise outcome_unknown(failed)

    async def stop(self, *, drain: bool = True) -> None:
        """Finish what was begun, if there is time for it; close everything."""
        if self.broker is not None and drain:
            await self._drain(self.broker)
        if self._upkeep is not None:
            self._upkeep.cancel()
        self._announcement.remove()
        if self._identity is not None:
            self._identity.close()
        for listener in self._listeners:
            with suppress(TimeoutError):
                await asyncio.wait_for(listener.close(), CLOSE_SECONDS)
        self._listeners.clear()
        if self.broker is not None:
            if self.broker.history_queries is not None:
                await self.broker.history_queries.close()
            await asyncio.to_thread(self.broker.shard.journal.finish)
            await asyncio.to_thread(self.broker.confirmer.finish)
            self.broker.close()  # here: those whom it tells are on this loop
        if self._session is not None:
            await asyncio.to_thread(self._session.close)

    async def _drain(self, broker: Broker) -> None:
        for listener in self._listeners:
            listener.stop_accepting()
        try:
            async with asyncio.timeout(self._settings.drain_seconds):
                await broker.drain()
                # Whoever holds messages may still settle them.
                while broker.meter.connections_open and broker.shard.leased_count():  # noqa: ASYNC110 - both must be looked at
                    await asyncio.sleep(LOOK_SECONDS)
                await broker.drain()  # what was settled meanwhile is answered when it is durable
                await asyncio.sleep(0)  # and leaves with this turn of the loop
        except TimeoutError:
            held = broker.shard.leased_count()
            logger.warning("drain_seconds have passed; messages to be delivered again: %d", held)
        except PenstockError as error:
            logger.warning("requests in flight could not be finished: %s", error)


def server_tls(settings: Settings) -> ServerTls | None:
    """The TLS of the ports; None without. Raises `BadSettings` when the files cannot be used."""
    if not settings.speaks_tls:
        return None
    files = Files(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
    return ServerTls(files, SystemClock(), client=settings.tls_client, minimum=settings.tls_minimum)


def _loopbacks(host: str) -> list[str]:
    """The addresses by which this machine reaches a broker that listens at `host`."""
    if host in ("0.0.0.0", ""):  # noqa: S104 - compared, not bound
        return ["127.0.0.1"]
    if host == "::":
        return ["127.0.0.1", "::1"]
    found = {info[4][0] for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    return sorted(address for address in map(str, found) if discovery.is_loopback(address))


def open_session(settings: Settings) -> Session:
    """The shard of a broker. Blocks while it recovers."""
    return open_with(settings, settings.data, data_mode=settings.data_mode)


def open_with(settings: Settings, path: str | None, **options: Any) -> Session:
    """A session as the settings say, wherever it is stored."""
    session = Session(
        path,
        durability=settings.durability,
        sync_seconds=settings.sync_ms / 1000,
        journal_file_bytes=settings.journal_file_bytes,
        upkeep=upkeep_of(
            settings.journal_file_frames,
            settings.journal_file_seconds or None,
            settings.compaction_seconds,
            settings.sealing,
        ),
        task_retention_seconds=settings.task_retention_seconds,
        task_result_bytes_max=settings.task_result_bytes_max,
        audit=settings.audit == "on" or (settings.audit == "auto" and settings.auth == "on"),
        master_key=settings.master_key or None,
        kms_command=settings.kms_command or None,
        segments=segments_at(settings.segments or None, settings.segments_cache_bytes),
        history=settings.history,
        **options,
    )
    session.backups.allowed = settings.backups
    session.takes_profiles = settings.profile
    return session


def make_server(settings: Settings) -> Server | Node:
    """A broker on a directory, or a node of a store."""
    if not settings.store:
        return Server(settings)
    from penstock.server.node import Node

    return Node(settings)


async def serve(
    settings: Settings,
    ready: Callable[[Started], object] = lambda started: None,
    reload: Callable[[], object] = lambda: None,
    show_link: Callable[[str], object] | None = None,
) -> None:
    """Run a broker until SIGTERM or SIGINT; a second one leaves at once.

    SIGHUP reads the certificates again, and calls `reload`. `show_link` is called with a one-time link to the
    dashboard, where browsers can sign in: it is for a terminal, and for nothing that is kept.
    """
    server = make_server(settings)
    _on_signals(server, reload)
    started = await server.start()
    logger.info("ready", extra={"data": started.data, **{a.protocol: a.url for a in started.addresses}})
    ready(started)
    link = "" if show_link is None else server.new_link(started)
    if show_link is not None and link:
        show_link(link)
    gc.collect()
    gc.freeze()  # what is there now stays: looking through it again and again finds nothing
    try:
        await server.wait()
    except PenstockError:
        await server.stop(drain=False)
        raise
    logger.info("stopping", extra={"drain_seconds": settings.drain_seconds})
    await server.stop()
    logger.info("stopped")


def _on_signals(server: Server | Node, reload: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        if server.over.is_set():
            logger.warning("second signal: exiting at once")
            os._exit(128 + number)  # what was confirmed is durable; the next start recovers
        server.over.set()

    for number in SIGNALS:
        loop.add_signal_handler(number, stop, number)

    def reload_all() -> None:
        reload()
        server.reload()

    loop.add_signal_handler(signal.SIGHUP, reload_all)


def raise_file_limit() -> None:
    """As many open files as this user may have: every connection is one, and the usual limit is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems name a limit that they do not allow
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run(
    settings: Settings,
    ready: Callable[[Started], object] = lambda started: None,
    reload: Callable[[], object] = lambda: None,
    show_link: Callable[[str], object] | None = None,
) -> None:
    """`serve` on an event loop of its own: uvloop where there is one."""
    raise_file_limit()
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(settings, ready, reload, show_link))
