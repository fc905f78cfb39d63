"""Where a broker listens: looking whether the ports are free, and starting each protocol.

A port that is taken is a mistake of whoever starts the broker, so all of them are looked at before anything is opened,
and told together. What cannot be imported because its extra is not installed is left out, and said.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from penstock.broker import Broker
from penstock.config import Port, Settings
from penstock.errors import BadSettings, InvalidField
from penstock.telemetry import Metrics

logger: Final = logging.getLogger("penstock.server")
GRPC_GRACE_SECONDS: Final = 1.0


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

    @property
    def url(self) -> str:
        scheme = {"tcp": "penstock://", "http": "http://"}.get(self.protocol, "")
        # An address for all interfaces cannot be connected to everywhere; the loopback is always among them.
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - compared, not bound
        return f"{scheme}[{host}]:{self.port}" if ":" in host else f"{scheme}{host}:{self.port}"


def ports_of(settings: Settings) -> dict[str, Port]:
    """The port of each protocol."""
    return {"tcp": settings.tcp_port, "http": settings.http_port, "grpc": settings.grpc_port}


def check_ports(settings: Settings) -> None:
    """Refuse, all at once, what could not be listened on."""
    problems = [*_problems(settings)]
    if problems:
        raise BadSettings("\n".join(problems), hint="stop what listens there, or choose another port or address")


def _problems(settings: Settings) -> Iterator[str]:
    for protocol, port in ports_of(settings).items():
        if port == "off":
            continue
        try:
            family, kind, proto, _, address = socket.getaddrinfo(
                settings.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind, proto) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            yield f"{protocol}_port: {_explained(error, settings.host, port)}"


def _explained(error: OSError, host: str, port: Port) -> str:
    where = f"{host}:{port}"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"{host!r} is not an address of this machine"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is in use by another program"
    if error.errno == errno.EACCES:
        return f"{where} may not be used by this user"
    return f"{where} cannot be used: {error.strerror or error}"


async def start(protocol: str, broker: Broker, settings: Settings, metrics: Metrics) -> Listener | None:
    """Start one protocol; None when it is off, or when its extra is missing and nobody asked for it."""
    port = ports_of(settings)[protocol]
    if port == "off":
        return None
    try:
        if protocol == "tcp":
            return await _start_tcp(broker, settings, port)
        if protocol == "http":
            return await _start_http(broker, settings, port, metrics)
        return await _start_grpc(broker, settings, port)
    except OSError as error:
        raise BadSettings(f"{protocol}_port: {_explained(error, settings.host, port)}") from error


async def _start_tcp(broker: Broker, settings: Settings, port: int) -> Listener:
    from penstock.server.tcp import start_tcp

    server = await start_tcp(
        broker,
        settings.host,
        port,
        frame_bytes_max=settings.frame_bytes_max,
        connections_max=settings.connections_max,
    )
    return Listener(server.port, server.stop_accepting, server.close)


async def _start_http(broker: Broker, settings: Settings, port: int, metrics: Metrics) -> Listener:
    from penstock.server.http.serve import start_http
    from penstock.server.http.site import HttpSettings
    from penstock.server.websocket import WebSockets

    wanted = HttpSettings(
        host=settings.host,
        port=port,
        hosts=settings.hosts,
        trusted_proxies=settings.trusted_proxies,
        cors_origins=settings.cors_origins,
        request_bytes_max=settings.request_bytes_max,
        connections_max=settings.connections_max,
        slow_request_seconds=settings.slow_request_ms / 1000,
        profile=settings.profile,
    )
    sockets = WebSockets(broker)
    server = await start_http(broker, wanted, metrics=metrics, stream=sockets.serve)

    async def close() -> None:
        try:
            await sockets.close()
            await server.drain(settings.drain_seconds)
        finally:
            await server.close()

    # Over HTTP a lease outlives the connection that it came by. So this port stays open for those who settle; the
    # broker refuses everything else meanwhile.
    return Listener(server.port, sockets.goodbye, close)


async def _start_grpc(broker: Broker, settings: Settings, port: int) -> Listener | None:
    from penstock.server.grpc import start_grpc

    try:
        server = await start_grpc(
            broker,
            settings.host,
            port,
            request_bytes_max=settings.request_bytes_max,
            connections_max=settings.connections_max,
        )
    except InvalidField as error:
        if port != Settings().grpc_port:
            raise
        logger.info("gRPC is off", extra={"reason": str(error)})
        return None
    return Listener(server.port, server.stop_accepting, lambda: server.close(GRPC_GRACE_SECONDS))
