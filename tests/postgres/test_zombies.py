"""A former owner that does not know: whatever it tries, nothing changes; and what a new owner writes down first."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import Any

import psycopg
import pytest

import penstock
from penstock import operations as ops
from penstock.batch import Batch
from penstock.clock import ManualClock
from penstock.delivery.entries import Closing, Leased, decode
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import Deposed, OutcomeUnknown, PenstockError
from penstock.postgres.store import PostgresStore
from penstock.storage.staging import encode_staged, name_for
from tests.postgres.test_nodes import until
from tests.support.dose import dose
from tests.support.operations import run_operation


def open_session(url: str, **options: Any) -> Session:
    store = PostgresStore(url, node="test", file_bytes=1 << 14)
    return Session(None, store=store, background=False, **options)


def close_fenced(zombie: Session) -> None:
    """Its last checkpoint is refused too."""
    with suppress(Deposed):
        zombie.close()


def push(session: Session, count: int = 200, queue: str = "q") -> None:
    session.confirm(session.push(queue, Batch.build([b"x" * 100] * count), None, None)[1])


def files_of(url: str) -> list[tuple[str, int, int]]:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT name, file, term FROM penstock.files ORDER BY name").fetchall()


def append(zombie: Any) -> None:
    push(zombie)


def manifest(zombie: Any) -> None:
    zombie.shard.store.seal(iter(()), 10_000, zombie.keeper._names(), zombie.keeper._start)


def checkpoint(zombie: Any) -> None:
    zombie.keeper._checkpointer._store.save(1, {"shard": b"old"})


def sweep(zombie: Any) -> None:
    zombie._disk.remove(next(name for name, _, _ in files_of(zombie.test_url) if name.endswith(".parquet")))


def staging(zombie: Any) -> None:
    data = b"".join(bytes(part) for part in encode_staged(Batch.build([b"1"])))
    zombie.staging.write(name_for("q", "sink", 1, zombie.clock.now(), os.urandom(10)), 0, data)


def journal_file(zombie: Any) -> None:
    zombie.shard.journal._start(10_000)


def access(zombie: Any) -> None:
    zombie.access.create_key("shop", ["producer:q"])


@pytest.mark.parametrize("attempt", [append, manifest, checkpoint, sweep, staging, journal_file, access])
def test_a_former_owner_changes_nothing(url, attempt):
    zombie: Any = open_session(url)
    zombie.test_url = url
    push(zombie)
    run_operation(zombie, ops.Seal())
    owner = open_session(url)  # takes over; the zombie does not know
    push(owner)
    before, end = files_of(url), owner.shard.journal.durable_sequence
    with pytest.raises((Deposed, OutcomeUnknown)):
        attempt(zombie)
    assert files_of(url) == before
    assert isinstance(zombie.shard.journal.failed, Deposed)
    owner.close()

    again = open_session(url)
    assert next(again.shard.journal.replay(end), None) is not None
    assert again.shard.core.by_name["q"].partitions[0].end == 400
    again.close()
    close_fenced(zombie)


def test_a_former_owner_appends_nothing_from_the_moment_of_the_takeover(url):
    zombie = open_session(url)
    push(zombie, 1)
    next_owner = PostgresStore(url, node="test")
    next_owner.open()  # it has the term, and has not read the journal yet
    with pytest.raises(OutcomeUnknown):
        push(zombie, 1)
    next_owner.close()
    close_fenced(zombie)
    again = open_session(url)
    assert again.shard.core.by_name["q"].partitions[0].end == 1
    again.close()


def test_a_sealed_file_carries_the_term_of_who_wrote_it(url):
    for _ in range(2):
        session = open_session(url)
        push(session)
        run_operation(session, ops.Seal())
        session.close()
    names = {name: term for name, _, term in files_of(url) if name.endswith(".parquet")}
    assert set(names.values()) == {1, 2}
    assert all(name.endswith(f"-{term}.parquet") for name, term in names.items())


def test_a_new_owner_has_said_so_durably_before_it_serves(url):
    first = open_session(url)
    push(first)
    second = open_session(url)
    journal = second.shard.journal
    frames = [entry for _, data in journal.replay(0) for entry in decode(data)]
    opened = [entry for entry in frames if isinstance(entry, Closing) and entry.term]
    assert [(entry.term, entry.node) for entry in opened] == [(1, "test"), (2, "test")]
    assert journal.durable_sequence == journal.sequence
    assert second.clock.now() >= opened[-1].at
    second.close()
    close_fenced(first)


def test_a_lease_is_known_to_the_next_owner_and_its_attempt_counts(url):
    first = open_session(url)
    push(first, 1)
    assert penstock.Penstock(BlockingSession(first)).queue("q").lease()[0].attempt == 1
    second = open_session(url)
    events = [entry for _, data in second.shard.journal.replay(0) for entry in decode(data)]
    assert any(isinstance(entry, Leased) for entry in events)
    assert penstock.Penstock(BlockingSession(second)).queue("q").lease(wait=30)[0].attempt == 2
    second.close()
    close_fenced(first)


def test_frames_stay_until_a_checkpoint_covers_them(url, monkeypatch):
    session = open_session(url)
    push(session)
    keeper: Any = session.keeper
    monkeypatch.setattr(keeper._checkpointer, "save", lambda: (_ for _ in ()).throw(PenstockError("no checkpoint")))
    session.shard.journal.rotate()
    with pytest.raises(PenstockError, match="no checkpoint"):
        keeper.seal()
    assert session.shard.journal.full_files()
    monkeypatch.undo()
    again = open_session(url)
    assert again.shard.core.by_name["q"].partitions[0].end == 200
    again.close()
    close_fenced(session)


def test_stopped_owners_that_wake_up_are_fenced_each_time(start_node):
    nodes = [start_node("a"), start_node("b")]
    rounds, confirmed = dose(2, 50), 0
    with penstock.connect([node.url() for node in nodes], timeout=60) as ps:
        queue = ps.queue("orders")
        for _ in range(rounds):
            owner = next(node for node in nodes if node.status() == "ok")
            other = next(node for node in nodes if node is not owner)
            stop = threading.Event()
            counts = [0]

            def load(stop=stop, counts=counts) -> None:
                while not stop.is_set():
                    queue.push(b"x")
                    counts[0] += 1

            thread = threading.Thread(target=load)
            thread.start()
            until(lambda counts=counts: counts[0] > 5)
            owner.signal(signal.SIGSTOP)
            until(lambda other=other: other.status() == "ok")
            owner.signal(signal.SIGCONT)
            until(lambda owner=owner: owner.status() == "spare")
            stop.set()
            thread.join()
            confirmed += counts[0]
            assert queue.stats().messages == confirmed


def test_the_time_of_a_new_owner_is_never_before_the_newest_message(url):
    clock = ManualClock()
    session = open_session(url, clock=clock)
    clock.advance(3600)
    push(session, 1)
    session.close()

    behind = open_session(url, clock=ManualClock())  # of a server that was promoted, say
    push(behind, 1)
    first, second = (message.pushed_at for message in BlockingSession(behind).execute(ops.Read("q")))

    assert first is not None and second is not None and second >= first  # noqa: PT018
    behind.close()
