"""Commits whose outcome nobody knows: looked up, believed only after a commit of one's own, never cancelled."""

from __future__ import annotations

import random
import threading
from typing import Any

import msgspec
import psycopg
import pytest

from penstock import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import Damaged, OutcomeUnknown, Unavailable
from penstock.journal import as_it_is
from penstock.postgres.clock import STALE_US, STALL_US, Stalls
from penstock.postgres.journal import PostgresJournal
from penstock.postgres.schema import journal_table
from penstock.postgres.store import PostgresStore
from penstock.validation import lease_of
from tests.behaviour.accounts import check_accounts
from tests.postgres.faulty import KINDS, faulty_store
from tests.support.dose import dose

TABLE = journal_table(0, 1)


def opened(store: PostgresStore, clock: ManualClock | None = None):
    shard_id = store.open()
    store.clock(clock)
    return store.open_journal(shard_id, 0, as_it_is)


def asked(url: str, sql: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(sql).fetchall()


def rows_of(url: str) -> list[tuple[int, int]]:
    return asked(url, f"SELECT sequence, end_sequence FROM {TABLE} ORDER BY position")


def renewals(url: str) -> int:
    return int(asked(url, "SELECT renewals FROM penstock.shards")[0][0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_whose_answer_is_lost_is_stored_once(url, kind):
    store, links = faulty_store(url)
    journal = opened(store)
    journal.append(bytes(64))
    journal.sync()
    links.plan = [kind]
    journal.append(bytes(64))
    journal.append(bytes(64))
    journal.sync()
    journal.append(bytes(64))
    journal.sync()
    assert journal.durable_sequence == 4
    assert rows_of(url) == [(1, 2), (2, 4), (4, 5)]
    journal.close()
    store.close()


def test_a_row_that_was_read_back_is_believed_only_after_a_synchronous_commit(url):
    store, links = faulty_store(url)
    journal = opened(store)
    links.plan = ["unanswered"]
    journal.append(bytes(64))
    links.statements.clear()
    before = renewals(url)
    journal.sync()
    read = next(index for index, sql in enumerate(links.statements) if "octet_length(data)" in sql)
    assert any("renewals" in sql for sql in links.statements[read:])
    assert renewals(url) == before + 1
    journal.close()
    store.close()


def test_a_warning_that_a_commit_was_not_replicated_is_no_success(url):
    store = PostgresStore(url, node="test")
    journal = opened(store)
    asked_none(
        url,
        "CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE WARNING 'canceling wait for synchronous replication' USING ERRCODE = '01000';"
        " RETURN NEW; END $$",
    )
    asked_none(url, f"CREATE TRIGGER warn BEFORE INSERT ON {TABLE} FOR EACH ROW EXECUTE FUNCTION warn()")
    before = renewals(url)
    journal.append(bytes(64))
    journal.sync()
    assert rows_of(url) == [(1, 2)]
    assert renewals(url) == before + 1  # it was looked up, and made sure of
    journal.close()
    store.close()


def asked_none(url: str, sql: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql)


def test_a_commit_that_takes_too_long_is_given_up_and_never_cancelled(url, monkeypatch):
    monkeypatch.setattr("penstock.postgres.link.STATEMENT_SECONDS", 0.3)
    store = PostgresStore(url, node="test")
    journal = opened(store)
    journal._connected()._seconds = 0.3
    with psycopg.connect(url) as blocker:
        blocker.execute("SELECT 1 FROM penstock.shards FOR UPDATE")
        journal.append(bytes(64))
        syncing = threading.Thread(target=journal.sync)
        syncing.start()
        turn = threading.Event()
        active = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid()"
        sql = f"{active} AND query LIKE '%INSERT INTO penstock.journal%'"
        # The first append waits for the lock for longer than its deadline, and others come after it.
        for _ in range(200):
            if (
                asked(url, "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND wait_event_type = 'Lock'")[
                    0
                ][0]
                >= 2
            ):
                break
            turn.wait(0.05)
        assert asked(url, sql)[0][0] >= 1  # the backend still works at it
        blocker.rollback()
    syncing.join()
    assert rows_of(url) == [(1, 2)]
    journal.close()
    store.close()


def test_a_store_that_has_less_than_was_confirmed_stops_the_journal(url):
    store, links = faulty_store(url)
    journal = opened(store)
    for _ in range(2):
        journal.append(bytes(64))
        journal.sync()
    asked_none(url, f"DELETE FROM {TABLE} WHERE sequence = 2")  # as a standby that was promoted too early
    links.plan = ["unsent"]
    journal.append(bytes(64))
    with pytest.raises(OutcomeUnknown, match="2 was confirmed"):
        journal.sync()
    assert isinstance(journal.failed, Damaged)
    store.close()


def test_a_node_that_has_confirmed_more_refuses_to_open_the_store(url, tmp_path):
    def open_session() -> Session:
        return Session(None, store=PostgresStore(url, node="test", directory=tmp_path), background=False)

    session = open_session()
    BlockingSession(session).push_bytes("q", b"1")
    session.shard.journal.mark()
    last = session.shard.journal.durable_sequence
    session.shard.is_closed = True
    store: Any = session._store
    store.links.close()
    asked_none(url, f"DELETE FROM {TABLE} WHERE end_sequence > {last}")
    with pytest.raises(Damaged, match=f"{last} was confirmed"):
        open_session()


@pytest.mark.parametrize("seed", range(dose(3, 200)))
def test_whatever_connections_do_nothing_confirmed_is_lost_or_doubled(url, seed):
    store, links = faulty_store(url, seed, rate=0.0, file_bytes=1 << 14)
    session = Session(None, store=store, background=False, rng=random.Random(seed))
    ps, rng = Penstock(BlockingSession(session)), random.Random(seed)
    links.rate = 0.15
    keeper: Any = session.keeper
    queue, confirmed, acked = ps.queue("q"), set(), set()
    for number in range(80):
        payload = b"%d" % number
        queue.push(payload)
        confirmed.add(payload)
        if rng.random() < 0.4:
            for delivery in queue.lease(max=rng.randrange(1, 4)):
                if rng.random() < 0.8:
                    delivery.ack()
                    acked.add(delivery.payload)
                else:
                    delivery.release()
        if rng.random() < 0.1:
            keeper.tick()
    links.rate = 0.0
    check_accounts(session)
    session.close()

    reopened = Session(None, store=PostgresStore(url, node="test"), background=False)
    ps = Penstock(BlockingSession(reopened))
    left = [delivery.payload for delivery in ps.queue("q").lease(max=1000)]
    assert sorted(left) == sorted(confirmed - acked)
    assert ps.queue("q").stats().messages == len(confirmed)
    reopened.close()


def test_a_lease_waits_for_its_own_frame_and_its_time_starts_with_the_reply(url):
    clock = ManualClock()
    session = Session(None, store=PostgresStore(url, node="test"), background=False, clock=clock)
    blocking = BlockingSession(session)
    blocking.push_bytes("q", b"1")
    request = msgspec.structs.replace(lease_of(1), lease_seconds=30.0)
    _, ticket = session.lease("q", "default", request)
    assert ticket > session.shard.journal.durable_sequence  # nobody is told before it is durable
    clock.advance(20)
    session.confirm(ticket)
    clock.advance(29)
    session.timekeeper.tick()
    assert session.shard.leased_count() == 1
    clock.advance(2)
    session.timekeeper.tick()
    assert session.shard.leased_count() == 0
    session.close()


def stalls_of(session: Session) -> Stalls:
    assert isinstance(session.shard.journal, PostgresJournal)
    return session.shard.journal.stalls


def test_a_lease_runs_out_after_a_rotation_though_nothing_else_is_committed(url):
    clock = ManualClock()
    session = Session(None, store=PostgresStore(url, node="test"), background=False, clock=clock)
    ps = Penstock(BlockingSession(session))
    ps.queue("q").push(b"1")
    ps.queue("q").lease(lease_seconds=30)
    session.shard.journal.rotate()
    clock.advance(31)
    session.timekeeper.tick()
    assert session.shard.leased_count() == 0
    session.close()


def test_no_lease_runs_out_while_a_commit_stalls(url):
    clock = ManualClock()
    session = Session(None, store=PostgresStore(url, node="test"), background=False, clock=clock)
    ps = Penstock(BlockingSession(session))
    ps.queue("q").push(b"1")
    delivery = ps.queue("q").lease(lease_seconds=30)[0]
    stalls = stalls_of(session)
    stalls.commit_waits()
    clock.advance(3600)
    session.timekeeper.tick()
    assert session.shard.leased_count() == 1
    stalls.commit_answered()
    assert stalls.stalled_us() == 3600 * 1_000_000 - STALL_US
    delivery.ack()
    session.close()


def test_no_lease_runs_out_while_nothing_is_heard_of_the_store(url):
    clock = ManualClock()
    session = Session(None, store=PostgresStore(url, node="test"), background=False, clock=clock)
    ps = Penstock(BlockingSession(session))
    ps.queue("q").push(b"1")
    delivery = ps.queue("q").lease(lease_seconds=30)[0]
    stalls = stalls_of(session)
    stalls.is_watched = True
    stalls.alive()
    clock.advance(3600)  # no heartbeat comes back, and nobody pushes
    session.timekeeper.tick()
    assert stalls.stalled_us() == 3600 * 1_000_000 - STALE_US
    stalls.alive()  # it is back
    for _ in range(4):
        clock.advance(1)
        stalls.alive()
    assert stalls.stalled_us() == 3600 * 1_000_000 - STALE_US
    delivery.ack()
    session.close()


def test_an_owner_that_heard_nothing_of_the_store_answers_nothing_and_takes_no_pushes(url):
    clock = ManualClock()
    session = Session(None, store=PostgresStore(url, node="test"), background=False, clock=clock)
    ps = Penstock(BlockingSession(session))
    ps.queue("q").push(b"1")
    stalls = stalls_of(session)
    stalls.is_watched = True
    clock.advance(STALE_US / 1e6 + 0.1)
    for call in (
        lambda: ps.queue("q").stats(),
        lambda: ps.queue("q").lease(),
        lambda: ps.queue("q").push(b"2"),
    ):
        with pytest.raises(Unavailable, match="does not answer") as refused:
            call()
        assert refused.value.retry_after_seconds
    stalls.alive()
    assert ps.queue("q").stats().messages == 1
    session.close()


def test_what_was_handed_to_a_store_that_never_comes_back_is_unknown_and_closing_ends(url, postgres, monkeypatch):
    monkeypatch.setattr("penstock.postgres.links.HURRY_SECONDS", 0.3)
    store, links = faulty_store(url)
    session = Session(None, store=store, background=False)
    blocking = BlockingSession(session)
    blocking.push_bytes("q", b"1")
    links.rate, links.only = 1.0, ("",)
    errors: list[Exception] = []

    def push() -> None:
        try:
            blocking.push_bytes("q", b"2")
        except Exception as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    thread = threading.Thread(target=push)
    thread.start()
    journal: Any = session.shard.journal
    while journal._in_flight is None and thread.is_alive():
        threading.Event().wait(0.01)
    session.close()
    thread.join()
    assert isinstance(errors[0], OutcomeUnknown)
