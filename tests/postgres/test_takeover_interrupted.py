"""A spare loses its connections during a takeover: it tries again, or another node does; nothing is lost or doubled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest

import penstock
from penstock.delivery.entries import Closing, decode
from penstock.embedded.session import Session
from penstock.postgres.store import PostgresStore
from tests.cluster.rig import Line
from tests.postgres.faulty import KINDS, FaultyLinks
from tests.postgres.test_nodes import PATIENCE_SECONDS, until
from tests.support.dose import dose
from tests.support.nodes import NodeThread

# Statements of a takeover, in their order.
POINTS = {
    "before the term": "SELECT id, term, owner FROM penstock.shards",
    "with the term": "SET owner = $3, term = term + 1",
    "after the term": "SELECT name FROM penstock.files",
    "reading the journal": "SELECT substring(data FROM",
    "before it is opened": "INSERT INTO penstock.journal_0",
}
CUTS = dose(ci=("with the term", "before it is opened"), nightly=tuple(POINTS))
FAULTS = dose(
    ci=[("before the term", "unsent"), ("with the term", "unanswered"), ("before it is opened", "late")],
    nightly=list(product(POINTS, KINDS)),
)
CONFIRMED = [b"%d" % number for number in range(20)]


class Interruption:
    """What happens to node b at one point of its first takeover."""

    def __init__(self, words: str, fault: str, action: Callable[[], object] = lambda: None) -> None:
        self.words = words
        self.plan = [fault]
        self.action = action
        self.happened = threading.Event()

    def store(self, *arguments: Any, **options: Any) -> PostgresStore:
        store = PostgresStore(*arguments, **options)
        if store.node == "b":
            store.links = InterruptedLinks(store.links, self)
        return store


class InterruptedLinks(FaultyLinks):
    def __init__(self, links: Any, interruption: Interruption) -> None:
        super().__init__(links, only=(interruption.words,))
        self.plan = interruption.plan
        self._interruption = interruption

    def next(self, sql: str) -> str:
        is_planned = bool(self.plan)
        fault = super().next(sql)
        if is_planned and not self.plan:
            self._interruption.action()
            self._interruption.happened.set()
        return fault


def interrupt(monkeypatch: pytest.MonkeyPatch, *about: Any) -> Interruption:
    interruption = Interruption(*about)
    monkeypatch.setattr("penstock.server.node.PostgresStore", interruption.store)
    return interruption


def opened_terms(url: str) -> list[tuple[int, str]]:
    """Who has served, by term, as the journal says."""
    session = Session(None, store=PostgresStore(url, node="test"), background=False)
    frames = [entry for _, data in session.shard.journal.replay(0) for entry in decode(data)]
    session.close()
    return [(entry.term, entry.node) for entry in frames if isinstance(entry, Closing) and entry.term]


def check_messages(queue: Any) -> None:
    """All that was confirmed is there once; what the dead owner had leased counts an attempt, and no takeover more."""
    assert [message.payload for message in queue.read(limit=1_000)] == [*CONFIRMED, b"after"]
    deliveries = queue.lease(max=100, wait=30)
    while len(deliveries) < len(CONFIRMED):  # of those that were leased, after their backoff
        deliveries += queue.lease(max=100, wait=30)
    attempts = {delivery.payload: delivery.attempt for delivery in deliveries}
    held = {b"%d" % number: 2 for number in range(1, 5)}
    assert attempts == dict.fromkeys([*CONFIRMED[1:], b"after"], 1) | held


def push_and_lease(queue: Any) -> None:
    queue.push_many(CONFIRMED)
    queue.lease(max=5)[0].ack()


@pytest.mark.parametrize(("point", "fault"), FAULTS)
def test_a_spare_that_loses_a_connection_during_a_takeover_takes_over(
    start_node, run_node, url, monkeypatch, point, fault
):
    interruption = interrupt(monkeypatch, POINTS[point], fault)
    owner, spare = start_node("a"), run_node("b")
    with penstock.connect([owner.url(), spare.url()], timeout=PATIENCE_SECONDS) as ps:
        queue = ps.queue("orders")
        push_and_lease(queue)
        owner.kill()
        queue.push(b"after")
        assert interruption.happened.is_set()
        assert spare.status() == "ok"
        check_messages(queue)
    spare.close()
    terms = opened_terms(url)
    assert [node for _, node in terms] == ["a", "b", "test"]
    assert terms == sorted(set(terms))


@pytest.fixture
def line(postgres) -> Iterator[Line]:
    made = Line(postgres.port)
    yield made
    made.close()


@pytest.fixture
def cut_off(start_node, url, line, postgres, monkeypatch, tmp_path) -> Iterator[Callable[[str], Any]]:
    """Has node b take over from a killed owner, and cuts it off at a point; returns both."""
    nodes: list[NodeThread] = []

    def cut(point: str) -> tuple[Any, NodeThread]:
        interruption = interrupt(monkeypatch, POINTS[point], "", line.cut)
        owner = start_node("a")
        spare = NodeThread(url.replace(f":{postgres.port}/", f":{line.port}/"), "b", tmp_path)
        nodes.append(spare)
        with penstock.connect(owner.url()) as ps:
            push_and_lease(ps.queue("orders"))
        owner.kill()
        assert interruption.happened.wait(PATIENCE_SECONDS)
        return owner, spare

    yield cut
    line.mend()
    for node in nodes:
        node.close()


@pytest.mark.parametrize("point", CUTS)
def test_another_spare_takes_over_from_one_that_is_cut_off_during_its_takeover(cut_off, run_node, url, line, point):
    _, spare = cut_off(point)
    other = run_node("c")
    with penstock.connect(other.url(), timeout=PATIENCE_SECONDS) as ps:
        ps.queue("orders").push(b"after")
    line.mend()  # what the first had begun is fenced
    until(lambda: spare.status() == "spare")
    assert other.status() == "ok"
    other.close()
    with penstock.connect(spare.url(), timeout=PATIENCE_SECONDS) as ps:
        check_messages(ps.queue("orders"))
    spare.close()
    assert [node for _, node in opened_terms(url)] == ["a", "c", "b", "test"]


@pytest.mark.parametrize("point", CUTS)
def test_a_node_that_is_stopped_while_its_takeover_waits_for_the_store_ends(cut_off, url, line, point):
    _, spare = cut_off(point)
    stopping = threading.Thread(target=spare.close)
    stopping.start()
    stopping.join(PATIENCE_SECONDS)
    assert not stopping.is_alive()
    line.mend()
    with penstock.open(url) as ps:
        ps.queue("orders").push(b"after")
        check_messages(ps.queue("orders"))
