"""Where a broker listens: looking whether the ports are free, and starting each protocol.

A port that is taken is a mistake of whoever starts the broker, so all of them are looked at before anything is opened,
and told together. What cannot be imported because its extra is not installed is left out, and said.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Iterator
from typing import Any, Final, Protocol

import msgspec

from penstock.broker import Broker
from penstock.config import Port, Settings
from penstock.errors import BadSettings
from penstock.telemetry import Metrics

logger: Final = logging.getLogger("penstock.server")


class Listener(Protocol):
    """One protocol, listening."""

    port: int

    def stop_accepting(self) -> None:
        """Take no new connections, and tell the clients that it ends."""

    async def close(self) -> None:
        """Answer what was begun, then close every connection."""


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
    """Start one protocol; None when it is off or its extra is not installed."""
    port = ports_of(settings)[protocol]
    if port == "off":
        return None
    try:
        return await _STARTERS[protocol](broker, settings, port, metrics)
    except OSError as error:
        raise BadSettings(f"{protocol}_port: {_explained(error, settings.host, port)}") from error


async def _start_tcp(broker: Broker, settings: Settings, port: int, metrics: Metrics) -> Listener:
    from penstock.server.tcp import start_tcp

    return await start_tcp(broker, settings.host, port, frame_bytes_max=settings.frame_bytes_max)


_STARTERS: Final[dict[str, Any]] = {"tcp": _start_tcp}
