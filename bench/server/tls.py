"""What TLS costs the broker: CPU of its process per push and per handshake, beside the same without TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

import penstock
from bench.compare_work import cpu_of
from bench.measure import Row, Scale, directory, interleaved
from bench.server.load import CONNECTIONS
from bench.server.process import Running, broker
from bench.workload import lists
from penstock.access.certificates import CA, Maker, certificate_pem
from penstock.clock import SystemClock

PAYLOAD = lists()[0][0]
HANDSHAKE_MS_MAX = 1.5
PUSH_RATIO_MAX = 1.05
SINGLE_US_MAX = 20.0
ROUNDS = 9
Push = Callable[[bytes], Awaitable[object]]


def costs(scale: Scale) -> list[Row]:
    """Two brokers, one with TLS, measured in turns."""
    with directory() as folder, broker() as plain, broker(*tls_options(folder)) as secure:
        ca = str(folder / CA)
        rounds = 1 if scale.quick else ROUNDS
        pushes, connections = scale(100_000), scale(1_000)
        own, raw = _interleaved(plain, secure, ca, lambda push: _at_a_time(push, pushes), pushes, rounds)
        alone, alone_raw = _interleaved(
            plain, secure, ca, lambda push: _one_by_one(push, pushes // 10), pushes // 10, rounds
        )
        shaken, connected = interleaved(
            lambda: _cpu_ms(secure, lambda: _handshakes(secure, ca, connections), connections),
            lambda: _cpu_ms(plain, lambda: _connections(plain, connections), connections),
            rounds=rounds,
        )
    return [
        Row(
            *("TLS: handshake, CPU of the broker", shaken, "ms", connected, "a connection without TLS"),
            *(HANDSHAKE_MS_MAX, "1.5 ms", True),
        ),
        Row(
            *("TLS: 64 pushes at a time, CPU of the broker each", own, "µs", raw, "without TLS"),
            *(PUSH_RATIO_MAX * raw, "105 % of plain", True),
        ),
        Row(
            *("TLS: one push at a time, CPU of the broker each", alone, "µs", alone_raw, "without TLS"),
            *(alone_raw + SINGLE_US_MAX, "20 µs more", True),
        ),
    ]


def tls_options(folder: Path) -> list[str]:
    """Flags of a broker with a certificate of its own, made in the folder with its authority."""
    maker = Maker(SystemClock())
    authority = maker.authority("Authority of a benchmark")
    certificate, key = maker.signed(authority, ["127.0.0.1"], 1)
    for name, data in ((CA, certificate_pem(authority.certificate)), ("server.pem", certificate), ("server.key", key)):
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o600)
    return ["--tls-certificate", str(folder / "server.pem"), "--tls-key", str(folder / "server.key")]


def _interleaved(
    plain: Running, secure: Running, ca: str, work: Callable[[Push], Awaitable[None]], count: int, rounds: int
) -> list[float]:
    """CPU of each broker per push, µs."""

    def measure(served: Running, url: str, tls_ca: str | None) -> float:
        async def run() -> float:
            async with penstock.aio.connect(url, tls_ca=tls_ca) as ps:
                push = ps.queue("bench").push
                await push(PAYLOAD)
                began = cpu_of(served.pid)
                await work(push)
                return (cpu_of(served.pid) - began) / count * 1e6

        return uvloop.run(run())

    secure_url = f"penstocks://127.0.0.1:{secure.port('tcp')}"
    return interleaved(lambda: measure(secure, secure_url, ca), lambda: measure(plain, plain.url, None), rounds=rounds)


async def _at_a_time(push: Push, count: int) -> None:
    async def some() -> None:
        for _ in range(count // CONNECTIONS):
            await push(PAYLOAD)

    await asyncio.gather(*(some() for _ in range(CONNECTIONS)))


async def _one_by_one(push: Push, count: int) -> None:
    for _ in range(count):
        await push(PAYLOAD)


def _cpu_ms(served: Running, work: Callable[[], object], count: int) -> float:
    began = cpu_of(served.pid)
    work()
    return (cpu_of(served.pid) - began) / count * 1e3


@contextmanager
def _connection(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        yield connection


def _handshakes(served: Running, ca: str, count: int) -> None:
    context = ssl.create_default_context(cafile=ca)
    for _ in range(count):
        with _connection(served.port("tcp")) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1"):
            pass


def _connections(served: Running, count: int) -> None:
    for _ in range(count):
        with _connection(served.port("tcp")):
            pass
