"""Sinks over the wire: the same promises when connections are cut and brokers are killed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import operations as ops
from penstock.broker.access import LOCAL, Client
from penstock.broker.broker import Broker
from penstock.clock import SystemClock
from penstock.embedded.session import Session
from penstock.errors import NotAuthorised, SinkConflict
from penstock.operations import Action
from penstock.remote.asynchronous import AsyncSession
from penstock.remote.blocking import Session as RemoteSession
from penstock.remote.settings import settings
from penstock.replies import SinkState
from penstock.shard import sink_commit
from penstock.storage.staging import name_for
from tests.support.broker_restarts import Restarting
from tests.support.brokers import BrokerThread
from tests.support.cut_proxy import EVERYTHING, CuttingProxy, NoPause
from tests.support.dose import dose
from tests.support.operations import run_operation
from tests.support.sinks import committed, payloads, staged, staged_files

SECONDS = 60
EXPECTED = Counter(b"%d" % number for number in range(5))


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    opened = Session(tmp_path / "data", durability="os", rng=random.Random(1))
    yield opened
    opened.close()


@pytest.fixture
def broker(session: Session) -> Iterator[BrokerThread]:
    running = BrokerThread(session)
    yield running
    running.stop()


def connected(url: str) -> RemoteSession:
    return RemoteSession(settings(url, rng=NoPause(7), timeout=SECONDS, connect_seconds=SECONDS))


def write_all(remote: Any) -> None:
    committed(remote, 1, staged(remote, *[[b"%d" % number] for number in range(5)]))


def test_batches_are_staged_and_committed_over_tcp(session, broker):
    remote = connected(broker.url)

    write_all(remote)
    write_all(remote)

    assert payloads(session) == EXPECTED
    assert remote.execute(ops.GetSinkState("q", "s")) == SinkState(1)
    assert staged_files(session) == []
    names = staged(remote, [b"x"])
    remote.execute(ops.DiscardStaged("q", [*names]))
    assert staged_files(session) == []
    with pytest.raises(SinkConflict, match="batch 0"):
        remote.execute(ops.CommitSink("q", "s", 0))
    remote.close()


def test_the_asyncio_session_does_the_same(session, broker):
    async def write() -> SinkState:
        remote = AsyncSession(settings(broker.url))
        name = name_for("q", "s", 0, SystemClock().now(), bytes(10))
        local = staged(session, [b"a"])
        await remote.execute(ops.Stage("q", name, 0, session._disk.read(f"staging/{local[0]}")))
        state: SinkState = await remote.execute(ops.CommitSink("q", "s", 3, (name,)))
        assert state == await remote.execute(ops.GetSinkState("q", "s"))
        await remote.execute(ops.DiscardStaged("q", [*local]))
        await remote.close()
        return state

    assert asyncio.run(asyncio.wait_for(write(), SECONDS)) == SinkState(3)
    assert payloads(session) == Counter([b"a"])
    assert staged_files(session) == []


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_wire_that_is_cut_anywhere_leaves_neither_gap_nor_duplicate(session, broker, monkeypatch, way):
    monkeypatch.setattr(sink_commit, "ROOM_BYTES", 200)  # two files in a frame
    for cut in range(0, 1800 if way == "up" else 240, dose(97, 7) if way == "up" else dose(13, 1)):
        limits = [(cut, EVERYTHING) if way == "up" else (EVERYTHING, cut)] * 3
        proxy = CuttingProxy(broker.server.port, limits)
        remote = connected(proxy.url)

        write_all(remote)

        assert payloads(session) == EXPECTED, f"cut after {cut} bytes {way}"
        remote.close()
        proxy.close()
        run_operation(session, ops.DeleteQueue("q"))
        session.shard.core.sinks.known.clear()


def test_who_may_not_push_to_the_queue_may_do_nothing_here(session):
    def authorise(principal: Any, action: Action, queue: str) -> None:
        if (action, queue) != (Action.PUSH, "mine"):
            raise NotAuthorised(f"{action} {queue}")

    async def attempt() -> None:
        broker = Broker(session, authorise=authorise)
        client = Client(LOCAL, "test", "nowhere", "tcp")
        name = name_for("q", "s", 0, 0, bytes(10))
        asked = [
            ops.Stage("q", name, 0, b""),
            ops.DiscardStaged("q", [name]),
            ops.CommitSink("q", "s", 0),
            ops.GetSinkState("q", "s"),
        ]
        for each in asked:
            with pytest.raises(NotAuthorised, match="push q"):
                await broker.execute(client, each)
            run_operation(session, ops.CreateQueue("mine", {}, exist_ok=True))
            msgspec.structs.force_setattr(each, "queue", "mine")
            await broker.execute(client, each)
        broker.close()

    asyncio.run(attempt())


def test_a_sink_works_over_http_too(session):
    running = BrokerThread(session, protocol="http")
    remote = connected(running.url)

    write_all(remote)

    assert payloads(session) == EXPECTED
    remote.close()
    running.stop()


def test_a_broker_that_is_killed_between_the_steps_goes_on_where_it_was(tmp_path):
    large = [[bytes([number]) * (7 << 20)] for number in range(5)]  # five files of 7 MiB: two frames
    with Restarting(tmp_path, random.Random(3)) as broker:
        remote = connected(broker.url)
        first = staged(remote, *large)
        state = remote.execute(ops.CommitSink("q", "s", 0, first))
        assert 0 < state.done < state.count
        broker.kill()
        broker.start()

        committed(remote, 0, staged(remote, *large[::-1]))

        remote.close()
        assert broker.stop() == 0
    session = Session(tmp_path / "data", background=False)
    assert payloads(session) == Counter(each[0] for each in large)
    assert staged_files(session) == []
    session.close()
