"""A primary and a real standby: what `replicated = true` refuses, waits for and believes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import penstock
from penstock import Penstock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import OutcomeUnknown, PenstockError, StoreRefused, Unavailable
from penstock.postgres.store import PostgresStore
from tests.postgres.test_nodes import until
from tests.postgres.test_refusals import prepare
from tests.support.nodes import NodeThread
from tests.support.postgres import PostgresServer

LEASE_SECONDS = 5.0


class Replicated:
    """A primary that waits for its standby, which is stopped at first."""

    def __init__(self) -> None:
        self.primary = PostgresServer(wal_level="replica", max_wal_senders="5", wal_sender_timeout="2s")
        self.primary.sql("CREATE DATABASE store")
        self.standby = PostgresServer.standby_of(self.primary, "standby1")
        self.url = self.primary.url("store")
        self.wait_for("standby1")

    def wait_for(self, names: str) -> None:
        """Have commits wait for these standbys from now on."""
        self.primary.sql(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        self.primary.sql("SELECT pg_reload_conf()")

    def close(self) -> None:
        self.standby.close()
        self.primary.close()

    def count(self, which: str) -> int:
        return int(self._ask(f"SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND {which}"))

    def is_synchronous(self) -> bool:
        return self.count("sync_state = 'sync'") == 1

    def waiting(self) -> list[int]:
        """Backends of the store that wait for the standby."""
        sql = "SELECT array_agg(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = 'store'"
        return self._ask(sql) or []

    def _ask(self, sql: str) -> Any:
        with psycopg.connect(self.primary.url("postgres"), autocommit=True) as connection:
            row = connection.execute(sql).fetchone()
            return None if row is None else row[0]

    def run(self, sql: str) -> None:
        self._ask(sql)

    def start_standby(self) -> None:
        self.standby.start()
        until(self.is_synchronous)

    def kill_standby(self) -> None:
        self.standby.kill()
        until(lambda: not self.is_synchronous())


@pytest.fixture(scope="module")
def pair() -> Iterator[Replicated]:
    made = Replicated()
    yield made
    made.close()


@pytest.fixture
def replicated(pair: Replicated) -> Replicated:
    if not pair.is_synchronous():
        pair.start_standby()
    return pair


def open_session(url: str, **options: Any) -> Session:
    return Session(None, store=PostgresStore(url, node="test", replicated=True), **options)


def test_a_start_is_refused_until_a_standby_is_synchronous(replicated, tmp_path):
    replicated.kill_standby()
    with pytest.raises(StoreRefused) as refused:
        NodeThread(replicated.url, "a", tmp_path, replicated=True)
    assert refused.value.message == "replicated: no standby is synchronous, so a commit would be on one machine only"
    assert "synchronous_standby_names" in refused.value.hint

    replicated.start_standby()
    node = NodeThread(replicated.url, "a", tmp_path, replicated=True)
    try:
        with penstock.connect(node.url()) as ps:
            ps.queue("started").push(b"1")
    finally:
        node.close()
    with psycopg.connect(replicated.standby.url("store")) as standby:  # what was confirmed is there
        assert standby.execute("SELECT count(*) FROM penstock.journal_files").fetchone() == (1,)


def test_a_standby_that_is_not_synchronous_does_not_count(replicated):
    replicated.kill_standby()
    replicated.standby.follow(replicated.primary, "another")
    replicated.standby.start()
    try:
        until(lambda: replicated.count("sync_state = 'async'") == 1)
        with pytest.raises(StoreRefused, match="no standby is synchronous"):
            prepare(replicated.url, replicated=True)
    finally:
        replicated.standby.kill()
        replicated.standby.follow(replicated.primary, "standby1")


def test_a_quorum_of_standbys_is_accepted_with_a_warning(replicated, caplog):
    prepare(replicated.url, replicated=True)
    assert "as a quorum" not in caplog.text
    replicated.wait_for("ANY 1 (standby1)")
    try:
        until(lambda: replicated.count("sync_state = 'quorum'") == 1)
        prepare(replicated.url, replicated=True)
        assert "as a quorum" in caplog.text
    finally:
        replicated.wait_for("standby1")
        until(replicated.is_synchronous)


def test_pushes_wait_for_a_standby_that_died_and_no_attempt_is_lost(replicated, tmp_path):
    node = NodeThread(replicated.url, "a", tmp_path, replicated=True)
    pushed: list[bytes] = []
    over = threading.Event()
    try:
        with penstock.connect(node.url(), timeout=60) as ps, penstock.connect(node.url(), timeout=1) as hasty:
            queue = ps.create_queue("jobs", exist_ok=True, max_attempts=2)
            queue.push(b"held")
            held = queue.lease(lease_seconds=LEASE_SECONDS)[0]

            def push() -> None:
                while not over.is_set():
                    payload = b"%d" % len(pushed)
                    queue.push(payload)
                    pushed.append(payload)

            pushing = threading.Thread(target=push)
            pushing.start()
            until(lambda: len(pushed) > 5)
            replicated.kill_standby()
            with pytest.raises((Unavailable, OutcomeUnknown)):  # nobody says that it is stored, nor that it is not
                hasty.queue("jobs").push(b"hasty")
            confirmed = len(pushed)
            threading.Event().wait(LEASE_SECONDS)  # it would be over by now
            assert len(pushed) == confirmed
            replicated.start_standby()
            until(lambda: len(pushed) > confirmed)
            over.set()
            pushing.join()

            held.ack()  # the outage cost it nothing
            stored = [message.payload for message in queue.read(limit=10_000)]
            assert [payload for payload in stored if payload not in (b"held", b"hasty")] == pushed
            assert stored.count(b"hasty") <= 1
            left = queue.lease(max=10_000)
            assert {delivery.attempt for delivery in left} == {1}
            left.ack()
    finally:
        over.set()
        node.close()


def test_a_wait_for_the_standby_that_somebody_cancels_is_no_success(replicated):
    session = open_session(replicated.url, background=False)
    ps = Penstock(BlockingSession(session))
    ps.queue("q").push(b"1")
    replicated.kill_standby()
    pushed: list[Any] = []
    pushing = threading.Thread(target=lambda: pushed.append(ps.queue("q").push(b"2")))
    pushing.start()
    until(replicated.waiting)
    for pid in replicated.waiting():
        replicated.run(f"SELECT pg_cancel_backend({pid})")  # PostgreSQL says that it is committed, with warning 01000
    # It is looked up, and made sure of by a commit of its own, which waits for the standby as well.
    until(replicated.waiting)
    assert not pushed
    replicated.start_standby()
    pushing.join()
    assert pushed
    assert [message.payload for message in ps.queue("q").read()].count(b"2") == 1
    session.close()


def test_a_backend_that_is_ended_while_it_waits_for_the_standby_loses_and_doubles_nothing(replicated):
    session = open_session(replicated.url, background=False)
    ps = Penstock(BlockingSession(session))
    before = ps.queue("q").stats().messages if "q" in ps.queues() else 0
    replicated.kill_standby()
    pushed: list[Any] = []
    pushing = threading.Thread(target=lambda: pushed.append(ps.queue("q").push(b"3")))
    pushing.start()
    until(replicated.waiting)
    for pid in replicated.waiting():
        replicated.run(f"SELECT pg_terminate_backend({pid})")
    until(replicated.waiting)  # another one, for the same row
    assert not pushed
    replicated.start_standby()
    pushing.join()
    assert ps.queue("q").stats().messages == before + 1
    session.close()


def test_a_push_whose_standby_never_returns_is_unknown_when_the_node_stops(replicated):
    session = open_session(replicated.url, background=False)
    ps = Penstock(BlockingSession(session))
    replicated.kill_standby()
    errors: list[PenstockError] = []

    def push() -> None:
        try:
            ps.queue("unknown").push(b"1")
        except PenstockError as error:
            errors.append(error)

    pushing = threading.Thread(target=push)
    pushing.start()
    until(replicated.waiting)
    session.close()
    pushing.join()
    assert isinstance(errors[0], OutcomeUnknown)
