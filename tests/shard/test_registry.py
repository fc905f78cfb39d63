"""Workers come, tell of themselves, die and are forgotten; news reaches them."""

from __future__ import annotations

import pytest

from penstock import limits
from penstock.errors import InvalidField
from penstock.model_tasks import WorkerInfo, WorkerNews
from penstock.shard.worker_registry import NEVER, Registry

SECOND = 1_000_000
START = 1_750_000_000 * SECOND


class Hands:
    """A registry, and the two hands of its clock, which differ as real ones do."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.monotonic = 7 * SECOND

    def advance(self, seconds: float) -> list[str]:
        self.monotonic += round(seconds * SECOND)
        return self.registry.overdue(self.monotonic)

    def heartbeat(self, worker_id: str, **reported) -> WorkerNews:
        info = WorkerInfo(worker_id=worker_id, **reported)
        return self.registry.heartbeat(info, START + self.monotonic, self.monotonic)

    def cancel(self, worker_id: str, task_id: str) -> None:
        self.registry.cancelled(worker_id, task_id, self.monotonic)

    def states(self) -> dict[str, str]:
        return {view.info.worker_id: view.state for view in self.registry.workers()}


@pytest.fixture
def hands():
    return Hands()


def test_a_worker_is_shown_as_it_last_reported_itself(hands):
    hands.heartbeat("w1", running=1)
    hands.advance(15)
    hands.heartbeat("w1", running=3, host="box")
    hands.heartbeat("w2", is_stopping=True)

    first, second = hands.registry.workers()

    assert (first.info.running, first.info.host, first.state) == (3, "box", "alive")
    assert (first.last_heartbeat_at - first.first_seen_at).total_seconds() == 15
    assert second.state == "stopping"


def test_a_silent_worker_dies_once_and_is_forgotten_later(hands):
    hands.heartbeat("w1")

    assert hands.advance(29.9) == []
    assert hands.advance(0.1) == ["w1"]
    assert hands.advance(1) == []
    assert hands.states() == {"w1": "dead"}
    assert hands.advance(limits.worker_shown_seconds) == []
    assert hands.states() == {}
    assert hands.registry.look_at == NEVER


def test_a_worker_that_nobody_watched_for_long_has_died_all_the_same(hands):
    hands.heartbeat("w1")

    assert hands.advance(10_000) == ["w1"]
    assert hands.states() == {}


def test_heartbeats_keep_a_worker_alive_and_a_late_one_revives_it(hands):
    hands.heartbeat("w1")
    for _ in range(5):
        assert hands.advance(20) == []
        hands.heartbeat("w1")
    assert hands.advance(30) == ["w1"]

    hands.heartbeat("w1")

    assert hands.states() == {"w1": "alive"}
    assert hands.advance(30) == ["w1"]


def test_there_is_always_a_time_to_look_again(hands):
    hands.heartbeat("w1")
    hands.advance(10)
    hands.heartbeat("w2")

    assert hands.registry.look_at <= hands.monotonic + 20 * SECOND
    assert hands.advance(20) == ["w1"]
    assert hands.registry.look_at == hands.monotonic + 10 * SECOND


def test_a_goodbye_leaves_nothing(hands):
    hands.heartbeat("w1")
    hands.cancel("w1", "a")

    hands.registry.forget("w1")
    hands.registry.forget("nobody")

    assert hands.states() == {}
    assert hands.heartbeat("w1") == WorkerNews()


def test_waiting_for_news_hears_each_once_and_heartbeats_hear_it_again_for_a_while(hands):
    hands.heartbeat("w1")
    hands.cancel("w1", "a")
    hands.cancel("w1", "b")
    hands.cancel("w2", "c")

    assert hands.registry.news("w1") == WorkerNews(("a", "b"))
    assert hands.registry.news("w1") == WorkerNews()
    assert hands.heartbeat("w1") == WorkerNews(("a", "b"))
    hands.cancel("w1", "d")
    assert hands.heartbeat("w1") == WorkerNews(("a", "b", "d"))
    assert hands.registry.news("w1") == WorkerNews()
    hands.advance(limits.worker_news_seconds)
    assert hands.heartbeat("w1") == WorkerNews()


def test_a_task_that_may_run_again_is_no_news(hands):
    hands.cancel("w1", "a")
    hands.cancel("w1", "b")

    hands.registry.revived("a")

    assert hands.registry.news("w1") == WorkerNews(("b",))
    assert hands.heartbeat("w1") == WorkerNews(("b",))


def test_listeners_are_woken_by_their_own_news(hands):
    woken: list[str] = []

    def first():
        woken.append("first")

    def other():
        woken.append("other")

    hands.registry.listen("w1", first)
    hands.registry.listen("w2", other)

    hands.cancel("w1", "a")
    assert woken == ["first"]
    hands.registry.wake_all()
    assert woken == ["first", "first", "other"]
    hands.registry.unlisten("w1", first)
    hands.registry.unlisten("w2", other)
    hands.cancel("w1", "b")
    hands.registry.wake_all()
    assert woken == ["first", "first", "other"]


def test_mail_of_workers_that_never_came_is_not_kept_for_ever(hands):
    hands.cancel("stranger", "a")

    hands.advance(limits.worker_news_seconds)

    assert hands.registry._mail == {}
    assert hands.registry.look_at == NEVER


def test_ids_without_end_are_refused(hands, monkeypatch):
    monkeypatch.setattr(limits, "workers_max", 2)
    hands.heartbeat("w1")
    hands.heartbeat("w2")

    with pytest.raises(InvalidField, match="worker_id"):
        hands.heartbeat("w3")
    hands.heartbeat("w2")
