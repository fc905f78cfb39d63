"""An owner that is cut off in the middle of a statement: PostgreSQL waits for the rest, and the takeover does not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from penstock.batch import Batch
from penstock.embedded.session import Session
from penstock.errors import OutcomeUnknown, StoreUnavailable
from penstock.postgres.link import SETTINGS, Link
from penstock.postgres.store import PostgresStore
from tests.cluster.rig import Line
from tests.postgres.test_nodes import until

SYNC = b"S\x00\x00\x00\x04"  # the message that ends a statement
FENCE = b"FOR SHARE"
BODY = b"x" * 100_000

Part = Callable[[bytes], int | None]


class HalfLine(Line):
    """A wire that passes what `part` says of a piece of data, and from then on nothing; it never breaks."""

    def __init__(self, port: int) -> None:
        self.part: Part = lambda data: None  # how many bytes pass; None: all of them
        self.is_stuck = threading.Event()
        super().__init__(port)

    def pass_on(self, data: bytes, sink: socket.socket) -> None:
        length = self.part(data) if sink.getpeername()[1] == self._port else None
        if length is not None:
            sink.sendall(data[:length])
            self.part = lambda data: None
            self.cut()
            self.is_stuck.set()
        self._open.wait()
        sink.sendall(data)


def before_sync() -> Part:
    """The row is inserted, the shard is held, and the end of the statement is missing."""
    seen = bytearray()

    def part(data: bytes) -> int | None:
        seen.extend(data)
        return len(data) - len(SYNC) if data.endswith(SYNC) and BODY[:1000] in seen else None

    return part


def in_the_row() -> Part:
    return lambda data: len(data) // 2 if BODY[:1000] in data else None


def after_the_fence() -> Part:
    """A transaction that has begun, holds the shard, and then says nothing."""
    return lambda data: len(data) if FENCE in data and b"INSERT" not in data else None


def append(session: Any) -> None:
    session.confirm(session.push("q", Batch.build([BODY]), None, None)[1])


def checkpoint(session: Any) -> None:
    session.keeper._checkpointer._store.save(1, {"shard": b"half"})


@pytest.fixture
def line(postgres) -> Iterator[HalfLine]:
    made = HalfLine(postgres.port)
    yield made
    made.close()


def through(url: str, line: HalfLine, port: int) -> str:
    return url.replace(f":{port}/", f":{line.port}/")


def open_session(url: str, node: str) -> Session:
    return Session(None, store=PostgresStore(url, node=node), background=False)


@pytest.mark.parametrize(
    ("work", "part"),
    [(append, before_sync), (append, in_the_row), (checkpoint, after_the_fence)],
    ids=lambda f: f.__name__,
)
def test_a_takeover_does_not_wait_for_the_rest_of_a_statement(postgres, url, line, work, part):
    old: Any = open_session(through(url, line, postgres.port), "old")
    old.confirm(old.push("q", Batch.build([b"kept"]), None, None)[1])
    failures: list[BaseException] = []

    def do() -> None:
        try:
            work(old)
        except BaseException as error:  # noqa: BLE001 - looked at below
            failures.append(error)

    line.part = part()
    thread = threading.Thread(target=do)
    thread.start()
    assert line.is_stuck.wait(60)

    new = open_session(url, "new")  # within the time that any statement has

    assert new.shard.core.by_name["q"].partitions[0].end == 1
    append(new)
    line.mend()
    thread.join()
    assert isinstance(failures[0], OutcomeUnknown | StoreUnavailable) or "taken over" in str(failures[0])
    with suppress(Exception):
        old.close()
    assert new.shard.core.by_name["q"].partitions[0].end == 2
    new.close()
    again = open_session(url, "new")
    assert again.shard.core.by_name["q"].partitions[0].end == 2
    again.close()


def test_only_the_former_owner_is_put_out_of_the_way(url, caplog):
    open_session(url, "old").close()
    with psycopg.connect(url, application_name="somebody") as somebody:
        somebody.execute("SELECT 1 FROM penstock.shards FOR SHARE")
        opened: list[Session] = []
        thread = threading.Thread(target=lambda: opened.append(open_session(url, "new")))
        thread.start()
        until(lambda: "a foreign session" in caplog.text)
        assert not opened
        assert somebody.execute("SELECT 1").fetchone() == (1,)  # it was let alone
        somebody.rollback()
        thread.join()
    opened[0].close()


def test_a_session_that_stops_in_a_transaction_is_ended_by_the_server_and_the_work_done_again(url, monkeypatch):
    monkeypatch.setitem(SETTINGS, "idle_in_transaction_session_timeout", "100ms")
    store = PostgresStore(url, node="test")
    store.open()
    turns = []

    def slow(link: Link) -> int:
        turns.append(link)
        if len(turns) == 1:
            until(lambda: _is_gone(url))
        return link.execute("UPDATE penstock.shards SET renewals = renewals + 1")

    assert store.fenced.change(slow) == 1
    assert len(turns) == 2
    store.close()


def _is_gone(url: str) -> bool:
    sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'penstock test' AND state LIKE 'idle in tr%'"
    with psycopg.connect(url) as connection:
        return connection.execute(sql).fetchone() == (0,)


def test_the_server_watches_over_the_connections_of_a_store(url):
    store = PostgresStore(url)
    with store.links.borrowed() as link:
        found: dict[str, str] = dict(link.rows("SELECT name, setting FROM pg_settings WHERE name LIKE 'tcp_%'"))
    store.links.close()
    assert found == {
        "tcp_keepalives_idle": "5",
        "tcp_keepalives_interval": "2",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": "10000",
    }
