"""A node that is stopped while the store is away ends by itself, soon, and says what became of everything."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

import penstock
from penstock.batch import Batch
from penstock.embedded.session import Session
from penstock.errors import OutcomeUnknown, PenstockError, StoreUnavailable, Unavailable
from penstock.postgres.links import Links
from penstock.postgres.store import PostgresStore
from penstock.postgres.target import parse_store_url
from tests.support.nodes import NodeProcess
from tests.support.postgres import PostgresServer

STOP_SECONDS = 30  # two to drain, five to give up, three to connect in vain; and a slow machine


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    made = PostgresServer()
    yield made
    with_all(made, psutil.Process.resume)
    made.close()


def with_all(server: PostgresServer, action: Callable[[psutil.Process], object]) -> None:
    try:
        postmaster = psutil.Process(server.pid())
        for process in (postmaster, *postmaster.children(recursive=True)):
            action(process)
    except (psutil.Error, OSError):
        pass  # it is gone


def kill(server: PostgresServer) -> None:
    server.kill()


def freeze(server: PostgresServer) -> None:
    with_all(server, psutil.Process.suspend)


@pytest.mark.parametrize("fault", [kill, freeze])
def test_sigterm_while_the_store_is_away_ends_the_node_in_bounded_time(server, tmp_path, fault):
    node = NodeProcess(server.new_database(), "a", tmp_path)
    answers: list[PenstockError] = []

    def push_on(ps: penstock.Penstock) -> None:
        try:
            while True:
                ps.queue("q").push(b"x")
        except PenstockError as error:
            answers.append(error)

    try:
        with penstock.connect(node.url(), timeout=10, connect_seconds=1) as ps:
            ps.queue("q").push(b"1")
            thread = threading.Thread(target=push_on, args=(ps,))
            thread.start()
            fault(server)
            node.signal(signal.SIGTERM)
            begun = time.monotonic()
            assert node.process.wait(STOP_SECONDS) == 0
            took = time.monotonic() - begun
            thread.join()
    finally:
        node.close()
    assert took < STOP_SECONDS
    assert isinstance(answers[0], Unavailable | OutcomeUnknown)
    log = (tmp_path / "a.log").read_text()
    assert '"event":"stopped"' in log
    assert "Traceback" not in log


def at_once(session: Session, server: PostgresServer) -> None:
    server.kill()


def after_the_last_checkpoint(session: Session, server: PostgresServer) -> None:
    keeper = session.keeper
    assert keeper is not None
    finish = keeper.finish

    def finish_and_kill() -> None:
        finish()
        server.kill()

    keeper.finish = finish_and_kill  # type: ignore[method-assign]


@pytest.mark.parametrize("goes_away", [at_once, after_the_last_checkpoint])
def test_a_store_that_goes_away_while_it_is_closed_is_no_error_and_nothing_confirmed_is_lost(server, caplog, goes_away):
    url = server.new_database()
    session = Session(None, store=PostgresStore(url, node="a"), background=False)
    session.confirm(session.push("q", Batch.build([b"1"]), None, None)[1])
    goes_away(session, server)

    session.close()  # with nothing under way, so that the last checkpoint or frame is the first to notice

    assert "could not be stored" in caplog.text or "before the last checkpoint" in caplog.text
    server.start()
    with penstock.open(url) as ps:
        assert [message.payload for message in ps.queue("q").read()] == [b"1"]


def test_what_fails_once_everything_is_being_closed_fails_at_once_afterwards():
    links = Links(parse_store_url("postgresql://penstock@127.0.0.1:1/db"), "test")
    links.hurry()
    begun = time.monotonic()
    for _ in range(20):  # the duties of housekeeping, one after the other
        with pytest.raises(PenstockError):
            links.ask(lambda link: link.one("SELECT 1"))
    assert time.monotonic() - begun < 15  # and not 20 times the patience of a question
    with pytest.raises(StoreUnavailable, match="is being closed"):
        links.new()
    links.close()
