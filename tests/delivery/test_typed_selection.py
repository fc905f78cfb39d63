"""Leases by task type: what another can run is left alone, found by who can, and looked at once."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from penstock import Message, validation
from penstock import operations as ops
from penstock.batch import Batch
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.delivery import typed_selection
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.envelopes import new_task_id, parse_envelope, tasks_batch
from penstock.model import ContentType, Outcome
from penstock.model_tasks import TaskSubmission
from penstock.requests import LeaseRequest, Settling
from tests.support.operations import run_operation


class Rig:
    def __init__(self, path=None, **options) -> None:
        self.clock = ManualClock()
        self.session = Session(path, clock=self.clock, rng=random.Random(1), background=False)
        self.ps = Penstock(BlockingSession(self.session))
        if "q" not in self.ps.queues():
            self.queue = self.ps.create_queue("q", backoff_base_seconds=0, backoff_jitter=0, **options)

    def push(self, *types: str, priority: int = 128, key: str | None = None) -> None:
        tasks = [
            TaskSubmission(task_id=new_task_id(self.clock.now()), task_type=name, queue="q", priority=priority, key=key)
            for name in types
        ]
        self.session.shard.push("q", tasks_batch(tasks))

    def lease(self, *types: str, count: int = 100, settle: Outcome | None = Outcome.ACKED) -> list[str]:
        request = LeaseRequest(count, task_types=frozenset(types) if types else None)
        reply, _ = self.session.shard.lease("q", "default", request)
        loaded = self.session.loaded(reply.pieces)
        names = [parse_envelope(payload).task_type for piece in loaded for payload in piece.payloads()]
        if reply.count and settle is not None:
            self.session.settle_lease(reply.nonce, Settling(settle, 0.0 if settle is Outcome.RETRIED else None))
        return names


def test_a_lease_takes_the_types_that_it_names_and_leaves_the_others_alone():
    rig = Rig()
    rig.push("a", "b", "a", "c", "b")

    assert rig.lease("a") == ["a", "a"]
    assert rig.lease("a") == []
    assert rig.lease("b", "c") == ["b", "b", "c"]
    assert rig.queue.stats().groups["default"].acked == 5


def test_a_lease_that_names_no_types_takes_what_was_passed_over_too():
    rig = Rig()
    rig.push("a", "b")
    assert rig.lease("c") == []
    rig.push("c")

    assert sorted(rig.lease()) == ["a", "b", "c"]


def test_what_was_passed_over_was_not_tried_and_comes_in_its_order():
    rig = Rig()
    rig.push("b", "a", "b", "b")
    rig.lease("a")
    reply, _ = rig.session.shard.lease("q", "default", LeaseRequest(2, task_types=frozenset({"b"})))

    assert [list(piece.offsets) for piece in reply.pieces] == [[0, 2]]
    assert {piece.attempt(0) for piece in reply.pieces} == {1}


def test_what_comes_back_is_sorted_by_type_again():
    rig = Rig()
    rig.push("a", "b", "a")

    assert rig.lease(settle=Outcome.RETRIED) == ["a", "b", "a"]
    assert rig.lease("b", settle=Outcome.RELEASED) == ["b"]
    assert rig.lease("a", count=1) == ["a"]
    assert rig.lease("b") == ["b"]
    assert rig.lease("a") == ["a"]


def test_higher_priorities_come_first_within_a_type():
    rig = Rig()
    rig.push("a", "b", priority=10)
    rig.push("a", "b", priority=200)
    rig.lease("c")

    reply, _ = rig.session.shard.lease("q", "default", LeaseRequest(10, task_types=frozenset({"b"})))

    assert [offset for piece in reply.pieces for offset in piece.offsets] == [3, 1]


def test_messages_that_are_no_tasks_are_left_alone_and_tasks_that_cannot_be_read_are_not():
    rig = Rig()
    rig.queue.push(b"plain")
    rig.queue.push({"json": 1})
    rig.session.shard.push("q", Batch.build([Message(payload=b"{broken", content_type=ContentType.TASK)]))

    reply, _ = rig.session.shard.lease("q", "default", LeaseRequest(10, task_types=frozenset({"a"})))

    assert [offset for piece in reply.pieces for offset in piece.offsets] == [2]
    assert rig.queue.lease(10).payloads() == [b"plain", b'{"json":1}']


@pytest.mark.parametrize("options", [{}, {"partitions": 3}, {"key_max_in_flight": 2}])
def test_every_task_reaches_exactly_one_of_those_who_can_run_it(options):
    rig = Rig(**options)
    chance = random.Random(5)
    pushed: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    request = {name: LeaseRequest(chance.randint(1, 4), task_types=frozenset(name)) for name in ("a", "bc", "d")}
    for step in range(600):
        if step < 400 and chance.random() < 0.5:
            names = [chance.choice("abcd") for _ in range(chance.randint(1, 5))]
            pushed.update(names)
            rig.push(*names, key=chance.choice(["x", "y", None]), priority=chance.choice([1, 128, 255]))
        reply, _ = rig.session.shard.lease("q", "default", request[chance.choice(["a", "bc", "d"])])
        for piece in reply.pieces:
            for index in range(len(piece.offsets)):
                partition = rig.session.shard.core.by_name["q"].by_name[piece.partition(index)]
                offset = piece.offsets[index]
                taken[typed_selection.type_of(partition.extent_at(offset), offset) or ""] += 1
        if reply.count:
            rig.session.settle_lease(reply.nonce, Settling(Outcome.ACKED))

    assert taken == pushed
    rig.session.close()


def test_after_a_restart_everything_is_found_again(tmp_path):
    rig = Rig(tmp_path)
    rig.push("a", "b", "c", "b")
    assert rig.lease("a") == ["a"]
    rig.session.close()
    rig = Rig(tmp_path)

    assert rig.lease("b") == ["b", "b"]
    assert rig.lease() == ["c"]
    rig.session.close()


def test_tasks_in_segments_are_selected_too(tmp_path):
    rig = Rig(tmp_path)
    rig.push("a", "b", "a", "b")
    run_operation(rig.session, ops.Seal())

    assert rig.lease("b") == ["b", "b"]
    assert rig.lease("a") == ["a", "a"]
    rig.session.close()


def test_a_lease_behind_many_tasks_of_others_is_cut_short_and_goes_on(monkeypatch):
    monkeypatch.setattr(typed_selection, "LOOKED_MAX", 50)
    for module in ("penstock.delivery.lease", "penstock.shard.shard"):
        monkeypatch.setattr(f"{module}.LOOKED_MAX", 50)
    rig = Rig()
    for _ in range(10):
        rig.push(*["b"] * 30)
    rig.push("a")

    assert rig.lease("a") == ["a"]
    assert rig.lease("a") == []
    reply = rig.session.lease_queues(
        validation.queue_choice("q"), "default", LeaseRequest(1000, task_types=frozenset({"b"}))
    )[0]
    assert reply.count == 300


def test_ordered_queues_have_no_selection_by_type():
    rig = Rig(ordering="partition")
    rig.push("b", "a")

    assert rig.lease("a") == ["b", "a"]


def test_a_purge_and_a_seek_leave_nothing_in_the_lines():
    rig = Rig()
    rig.push("b", "b")
    rig.lease("a")
    rig.queue.purge()
    assert rig.lease("b") == []
    rig.queue.seek("default", "earliest")

    assert rig.lease("b") == ["b", "b"]
