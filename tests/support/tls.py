"""Certificates for tests, and a broker that speaks TLS on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

import uvloop

from penstock.access.certificates import Maker, certificate_pem
from penstock.clock import Clock, SystemClock
from penstock.config import Settings
from penstock.server.serve import Server

T = TypeVar("T")
SECONDS = 60  # nothing here takes that long


class Certificates:
    """An authority in a directory, and what it signs."""

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._maker = Maker(clock or SystemClock())
        self._authority = self._maker.authority("Authority of tests")
        self.ca = self._write("ca.pem", certificate_pem(self._authority.certificate))

    def server(self, *names: str, days: int = 30, file: str = "server") -> dict[str, str]:
        """The settings of a broker with a certificate for these names."""
        certificate, key = self._signed(names or ("localhost", "127.0.0.1"), days, file, is_client=False)
        return {"tls_certificate": certificate, "tls_key": key}

    def client(self, *names: str, file: str = "client") -> dict[str, str]:
        """The options of a client with a certificate for these names."""
        certificate, key = self._signed(names or ("billing",), 30, file, is_client=True)
        return {"tls_ca": self.ca, "tls_certificate": certificate, "tls_key": key}

    def _signed(self, names: tuple[str, ...], days: int, file: str, *, is_client: bool) -> tuple[str, str]:
        certificate, key = self._maker.signed(self._authority, names, days, is_client=is_client)
        return self._write(f"{file}.pem", certificate), self._write(f"{file}.key", key)

    def _write(self, name: str, data: bytes) -> str:
        path = self.folder / name
        draft = path.with_suffix(".new")
        draft.write_bytes(data)
        draft.chmod(0o600)
        draft.replace(path)
        return str(path)


class TlsBroker:
    """A broker with the given settings; `with` ends it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="broker", daemon=True)
        self._thread.start()
        given: dict[str, Any] = {
            "data": str(folder / "data"),
            "auth": "off",
            "tcp_port": 0,
            "http_port": 0,
            "grpc_port": "off",
            "durability": "os",
        }
        try:
            self.server = self.run(self._make(Settings(**given | settings)))
            self.started = self.run(self.server.start())
        except BaseException:
            self._end()
            raise

    async def _make(self, settings: Settings) -> Server:
        return Server(settings)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """A coroutine, on the broker's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(SECONDS)

    def port(self, protocol: str) -> int:
        return next(address.port for address in self.started.addresses if address.protocol == protocol)

    def url(self, protocol: str, host: str = "127.0.0.1") -> str:
        scheme = {"tcp": "penstocks", "http": "https"}[protocol]
        return f"{scheme}://{host}:{self.port(protocol)}"

    def _end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(SECONDS)
        self.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.server.stop(drain=False))
        self._end()


def handshake(port: int, ca: str, **limits: ssl.TLSVersion) -> tuple[str, dict[str, Any]]:
    """The version of TLS and the certificate that a port answers with."""
    context = ssl.create_default_context(cafile=ca)
    for name, version in limits.items():
        setattr(context, name, version)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as wrapped,
    ):
        return wrapped.version() or "", dict(wrapped.getpeercert() or {})
