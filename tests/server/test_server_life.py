"""The life of a server in this process: what fails on the way up, and what ends it."""

from __future__ import annotations

import asyncio
import errno
import random
import socket
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.broker.broker import Broker
from penstock.broker.health import health, livez, readyz
from penstock.clock import ManualClock
from penstock.config import Settings
from penstock.embedded.session import Session
from penstock.errors import BadSettings, DirectoryInUse, OutcomeUnknown
from penstock.server import serve as serving
from penstock.server.serve import Address, check_ports
from penstock.telemetry.meter import Meter
from tests.support.broker_process import Caller
from tests.support.forgetful import ForgetfulDisk


def settings(folder: Path, **changes: object) -> Settings:
    given = {
        "data": str(folder / "data"),
        "auth": "off",
        "tcp_port": 0,
        "http_port": "off",
        "grpc_port": "off",
        **changes,
    }
    return Settings(**given)  # type: ignore[arg-type]


def test_a_journal_that_fails_ends_the_server_and_says_so(tmp_path, monkeypatch):
    disk = ForgetfulDisk(seed=1)
    monkeypatch.setattr(serving, "open_session", lambda _: Session(None, disk=disk))

    async def life() -> None:
        server = serving.Server(settings(tmp_path))
        started = await server.start()
        caller = await asyncio.to_thread(Caller, started.addresses[0].port)
        disk.fail_at(1, errno.EIO)
        with pytest.raises(AssertionError, match="outcome_unknown"):
            await asyncio.to_thread(caller.push, "mail", b"a")
        try:
            await server.wait()
        finally:
            await server.stop(drain=False)
            caller.close()

    with pytest.raises(OutcomeUnknown, match="the journal stopped"):
        asyncio.run(life())


def test_what_fails_on_the_way_up_closes_what_was_opened(tmp_path, monkeypatch):
    async def refuse(*_: object) -> None:
        raise BadSettings("tcp_port: taken in the last moment")

    monkeypatch.setattr(serving, "start", refuse)

    async def life() -> None:
        with pytest.raises(BadSettings, match="last moment"):
            await serving.Server(settings(tmp_path)).start()

    asyncio.run(life())
    Session(tmp_path / "data").close()  # the directory is free again


def test_a_broker_is_closed_on_its_loop_where_those_are_whom_it_tells(tmp_path, monkeypatch):
    closed: list[int] = []
    close = Broker.close

    def noted(broker: Broker) -> None:
        closed.append(threading.get_ident())
        close(broker)

    async def life() -> None:
        server = serving.Server(settings(tmp_path))
        await server.start()
        await server.stop()

    monkeypatch.setattr(Broker, "close", noted)
    asyncio.run(life())
    assert closed == [threading.get_ident()]


def test_a_directory_that_somebody_has_is_not_listened_for(tmp_path):
    async def life() -> None:
        with pytest.raises(DirectoryInUse):
            await serving.Server(settings(tmp_path)).start()

    held = Session(tmp_path / "data")
    asyncio.run(life())
    held.close()


def test_all_ports_are_looked_at_before_anything_is_opened(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports = [each.getsockname()[1] for each in (one, two)]
        with pytest.raises(BadSettings) as caught:
            check_ports(settings(tmp_path, tcp_port=ports[0], http_port=ports[1]))

    assert caught.value.message.split("\n") == [
        f"tcp_port: 127.0.0.1:{ports[0]} is in use by another program",
        f"http_port: 127.0.0.1:{ports[1]} is in use by another program",
    ]
    with pytest.raises(BadSettings, match="is not an address of this machine"):
        check_ports(settings(tmp_path, host="no-such-host.invalid"))


def test_addresses_are_ones_that_can_be_connected_to(monkeypatch):
    cards = {
        "lo": [SimpleNamespace(family=socket.AF_INET, address="127.0.0.1")],
        "eth0": [
            SimpleNamespace(family=socket.AF_INET6, address="fe80::1%eth0"),
            SimpleNamespace(family=socket.AF_INET, address="10.1.2.3"),
        ],
    }
    monkeypatch.setattr("psutil.net_if_addrs", lambda: cards)

    assert Address("tcp", "127.0.0.1", 7710).url == "penstock://127.0.0.1:7710"
    assert Address("http", "::1", 7711).url == "http://[::1]:7711"
    assert Address("tcp", "127.0.0.1", 7710, tls=True).url == "penstocks://127.0.0.1:7710"
    assert Address("http", "0.0.0.0", 7711, tls=True).url == "https://10.1.2.3:7711"
    assert Address("http", "0.0.0.0", 7711, names=("queue.example.org",)).url == "http://queue.example.org:7711"
    assert Address("grpc", "::", 7712).url == "[::1]:7712"  # there is no other


def test_health_says_what_is_wrong():
    clock, disk = ManualClock(), ForgetfulDisk(seed=1)

    async def look() -> None:
        session = Session(None, disk=disk, clock=clock, rng=random.Random(1), background=False)
        broker = Broker(session, meter=Meter(clock.now()))
        clock.advance(90)
        broker.meter.connected("tcp")

        found = health(broker)
        assert (found.status, found.uptime_seconds, found.connections, found.queues) == ("ok", 90, 1, 0)
        assert found.disk_free_bytes == disk.free_bytes()
        assert livez(broker)

        session.shard.journal.disk_full = True
        assert (readyz(broker).status, readyz(broker).is_ready) == ("degraded", True)
        assert "pushes are refused" in readyz(broker).problems[0]
        session.shard.journal.disk_full = False
        session.shard.throttle.clear()
        assert "pushes are slowed" in readyz(broker).problems[0]
        session.shard.throttle.set()

        await broker.drain()
        assert (readyz(broker).status, readyz(broker).is_ready, livez(broker)) == ("stopping", False, True)
        session.shard.journal.failed = OSError("gone")
        assert (readyz(broker).status, livez(broker)) == ("failed", False)
        session.shard.journal.failed = None
        broker.close()
        session.close()

    asyncio.run(look())
