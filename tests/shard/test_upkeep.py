"""No background role stops for good: whatever a round meets, it is told of and tried again, and nobody waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import limits
from penstock import operations as ops
from penstock.broker.health import readyz
from penstock.client.handles import Penstock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.model import ContentType, Message
from penstock.shard.upkeep import RETRY_SECONDS_MAX, Sleeper
from penstock.storage.extents import Extent
from penstock.storage.segments import Prefetcher
from penstock.telemetry.meter import Meter
from penstock.telemetry.metrics import Metrics
from tests.support.broker_loop import SOMEONE, broker_on, on_uvloop, until
from tests.support.operations import run_operation

PATIENCE = 60.0


class Round:
    """A role's round that fails until it is told not to."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.failed, self.done = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, *given: object) -> float | None:
        if self.error is not None:
            self.failed.release()
            raise self.error
        self.done.release()
        return None


def sleeping(tick: Callable[[], float | None]) -> Sleeper:
    sleeper = Sleeper("tester", tick, lambda: False)
    sleeper.start()
    return sleeper


@pytest.mark.parametrize("error", [IndexError("list index out of range"), MemoryError(), RecursionError("deep")])
def test_an_unexpected_error_is_logged_counted_shown_and_tried_again(error, caplog):
    tick = Round(error)
    with caplog.at_level(logging.INFO, "penstock"):
        sleeper = sleeping(tick)
        for _ in range(3):
            assert tick.failed.acquire(timeout=PATIENCE)
        assert sleeper.is_running
        assert sleeper.failures >= 2
        assert sleeper.problem == f"{type(error).__name__}: {error}"
        tick.error = None
        assert tick.done.acquire(timeout=PATIENCE)
    sleeper.stop()

    assert sleeper.problem == ""
    reported = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(reported) == sleeper.failures
    assert [record.exc_info is not None for record in reported] == [True] + [False] * (len(reported) - 1)


def test_a_role_that_fails_waits_longer_each_time_and_is_not_hurried(monkeypatch):
    tick = Round(IndexError("no"))
    sleeper = Sleeper("tester", tick, lambda: False)
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        sleeper.wake()  # as calls do all the time
        if len(waited) == 12:
            tick.error = None
        return False

    monkeypatch.setattr(sleeper._stopping, "wait", wait)
    sleeper.start()
    assert tick.done.acquire(timeout=PATIENCE)
    sleeper.stop()

    assert waited == sorted(waited)
    assert waited[0] < 1.0
    assert waited[-1] == RETRY_SECONDS_MAX


def test_pushes_go_on_and_other_duties_are_done_while_sealing_fails(tmp_path, monkeypatch):
    session = Session(tmp_path / "data", durability="os", journal_file_bytes=1 << 16)
    with Penstock(BlockingSession(session)) as ps:
        keeper = session.keeper
        assert keeper is not None
        sealing, sweeping = Round(IndexError("list index out of range")), Round(None)
        with monkeypatch.context() as trouble:
            trouble.setattr(session.shard.store, "seal", sealing)
            trouble.setattr(keeper, "_refill_delays", Round(KeyError("delays")))
            trouble.setattr(keeper, "sweep_staged", sweeping)
            for _ in range(limits.journal_files_unsealed_max + 3):
                ps.queue("mail").push(b"x" * 40_000)
                ps.queue("mail").push(b"x" * 40_000)
            for _ in range(2):  # the second begins when the first has been told of
                assert sealing.failed.acquire(timeout=PATIENCE)
                assert sweeping.done.acquire(timeout=PATIENCE)
            assert keeper.sleeper.is_running
            assert keeper.sleeper.problem == "IndexError: list index out of range"
        keeper.seal()

        assert session.shard.journal.full_files() == []
        assert len(ps.queue("mail").read(0, offset=0, limit=1000)) == 2 * (limits.journal_files_unsealed_max + 3)


def test_what_else_time_brings_is_done_while_a_part_of_it_fails(tmp_path, monkeypatch):
    session = Session(tmp_path / "data", durability="interval")
    with Penstock(BlockingSession(session)) as ps:
        keeper, failing, role = session.timekeeper, Round(KeyError("time")), Round(None)
        monkeypatch.setattr(keeper, "_let_time_happen", failing)
        keeper.roles.append(role)  # type: ignore[arg-type] # which answers that it wants nothing more
        synced = session.shard.journal.durable_sequence
        ps.queue("mail").push(b"x")
        for _ in range(2):
            assert failing.failed.acquire(timeout=PATIENCE)
            assert role.done.acquire(timeout=PATIENCE)
        assert keeper.sleeper.problem == "KeyError: 'time'"
        session.confirm(session.shard.journal.sequence)
        assert session.shard.journal.durable_sequence > synced


def test_reading_ahead_goes_on_after_an_error_that_nobody_foresaw():
    looked = threading.Semaphore(0)

    class Store:
        def find(self, *place: int) -> None:
            looked.release()
            raise IndexError("no")

    prefetcher = Prefetcher(Store())  # type: ignore[arg-type]
    for number in range(3):
        prefetcher.after(Extent(1, number, 0, 1, 0, 0, "f", 0, 0, 0, 0, 0, 0))
        assert looked.acquire(timeout=PATIENCE)
    prefetcher.close()


@on_uvloop
async def test_pushes_are_answered_although_waiting_for_their_sync_failed_at_first(tmp_path, monkeypatch):
    async with broker_on(tmp_path) as broker:
        wait, failures = broker.shard.commit.wait, [MemoryError(), IndexError("no")]

        def failing(ticket: int) -> None:
            if failures:
                raise failures.pop()
            wait(ticket)

        monkeypatch.setattr(broker.shard.commit, "wait", failing)
        answers: list[object] = []
        broker.push_one(SOMEONE, "mail", b"a", None, answers.append)
        await until(lambda: answers)

        assert failures == []
        assert not isinstance(answers[0], Exception)


@on_uvloop
async def test_health_and_metrics_tell_of_a_role_that_fails(tmp_path):
    async with broker_on(tmp_path) as broker:
        session = broker.session
        metrics = Metrics(session, Meter())
        assert readyz(broker).status == "ok"
        session.timekeeper.sleeper.failures = 3
        session.timekeeper.sleeper.problem = "IndexError: no"

        assert readyz(broker).status == "degraded"
        assert readyz(broker).problems == ["the timekeeper fails and retries: IndexError: no"]
        assert 'penstock_upkeep_failures_total{role="timekeeper"} 3' in metrics.render()[0].decode()

        session.timekeeper.sleeper.stop()
        assert readyz(broker).problems == ["the timekeeper has ended: restart the broker"]


def test_tasks_that_are_none_beside_plain_messages_are_sealed(tmp_path: Path) -> None:
    session = Session(tmp_path / "data", durability="os", background=False)
    with Penstock(BlockingSession(session)) as ps:
        ids = ps.queue("mail").push_many([Message(payload=b"{}", content_type=ContentType.TASK)] * 2 + [b"plain"])

        assert run_operation(session, ops.Seal()) == 1
        assert len(ids) == 3
        assert [message.payload for message in ps.queue("mail").read(0, offset=0, limit=10)] == [b"{}", b"{}", b"plain"]


def test_a_session_without_threads_never_has_pushes_wait_for_them(tmp_path: Path) -> None:
    session = Session(tmp_path / "data", durability="os", background=False, journal_file_bytes=1 << 16)
    with Penstock(BlockingSession(session)) as ps:
        for _ in range(2 * limits.journal_files_unsealed_max):
            ps.queue("mail").push(b"x" * 60_000)
        assert run_operation(session, ops.Seal()) > limits.journal_files_unsealed_max
