"""Pushes of a transaction that are joined into one batch do what they would do one after the other."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Message
from penstock import operations as ops
from penstock.batch import Batch
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import PenstockError
from penstock.model import GroupStats
from penstock.requests import PartitionChoice, PushOperation
from penstock.shard.transactions import JOINED_BYTES_MAX, joined
from tests.support.operations import run_operation

QUEUES: dict[str, dict[str, Any]] = {
    "one": {"ttl_seconds": 60},
    "three": {"partitions": 3},
    "named": {"partitions": "named"},
    "ordered": {"partitions": 3, "ordering": "key"},
    "short": {"partitions": 2, "max_length": 4, "overflow": "drop_oldest"},
    "full": {"max_length": 5, "overflow": "reject_new"},
    "limited": {"key_push_per_second": 1, "key_push_burst": 3},
}
messages = st.builds(
    Message,
    payload=st.binary(max_size=3),
    key=st.sampled_from([None, "k", "l"]),
    priority=st.sampled_from([128, 128, 128, 255]),
    delay=st.sampled_from([0.0, 0.0, 1.5]),
    ttl=st.sampled_from([None, 30.0]),
    headers=st.sampled_from([None, {"a": "b"}]),
    dedup_key=st.sampled_from([None, None, "d", "e", "f"]),
)
SPREAD = ("three", "ordered", "short")  # where a push without a new message would take a turn only in a transaction


@st.composite
def pushes(draw: st.DrawFn) -> PushOperation:
    queue = draw(st.sampled_from([*QUEUES, "new"]))
    items = draw(st.lists(messages, min_size=queue in SPREAD, max_size=4))
    if queue in SPREAD:
        items = [dataclasses.replace(each, dedup_key=None) for each in items]
    batch = Batch.build(items, compress=draw(st.booleans()))
    choices: list[PartitionChoice] = [None, 0, "1"]
    if batch.count:
        choices.append(draw(st.lists(st.sampled_from([None, 0, "1"]), min_size=batch.count, max_size=batch.count)))
    return PushOperation(queue, batch, draw(st.sampled_from([*choices, None, None])))


def opened(clock: ManualClock | None = None) -> Session:
    session = Session(None, clock=clock or ManualClock(), rng=random.Random(1), background=False)
    for name, options in QUEUES.items():
        run_operation(session, ops.CreateQueue(name, options, exist_ok=False))
    return session


def counts_of(group: GroupStats) -> Any:
    return (group.ready, group.waiting, group.dropped, group.lag)


def state_of(session: Session) -> Any:
    ps = Penstock(BlockingSession(session))
    stats = {name: counts_of(ps.queue(name).stats().groups["default"]) for name in ps.queues()}
    held = [
        sorted((str(d.id), d.payload, d.key, d.priority, d.headers) for d in ps.queue(name).lease(1_000))
        for name in ps.queues()
    ]
    return stats, held


@given(st.lists(pushes(), min_size=1, max_size=12))
def test_a_transaction_of_pushes_does_what_they_would_do_one_after_the_other(operations):
    clock = ManualClock()
    apart, together = opened(clock), opened()
    refused = False
    ids = []
    for each in operations:
        try:
            ids.append(apart.shard.push(each.queue, each.batch, each.partition)[0].ids())
        except PenstockError:
            refused = True
            break
        clock.advance(seconds=0.000001)  # so that it is known which came first
    if refused:
        before = state_of(opened())
        with pytest.raises(PenstockError):
            together.transact(operations)
        assert state_of(together) == before
    else:
        assert together.transact(operations)[0] == ids
        assert state_of(together) == state_of(apart)
    apart.close()
    together.close()


def test_small_pushes_to_a_queue_are_one_batch_and_large_ones_keep_their_place():
    def push(queue: str, size: int) -> PushOperation:
        return PushOperation(queue, Batch.build([b"x" * size]), None)

    operations = [push("a", 1), push("b", 1), push("a", 2), push("a", 100_000), push("a", 3), push("b", 2)]

    assert [(each.queue, each.numbers) for each in joined(operations)] == [
        ("a", [0, 2]),
        ("b", [1, 5]),
        ("a", [3]),
        ("a", [4]),
    ]


def test_a_joined_batch_is_not_larger_than_a_part_of_what_a_batch_may_be():
    push = PushOperation("a", Batch.build([b"x" * 60_000]), None)

    found = joined([push] * 100)

    assert len(found) == 2
    assert max(each.batch.nbytes for each in found) <= JOINED_BYTES_MAX
    assert [number for each in found for number in each.numbers] == list(range(100))


def test_joined_pushes_without_a_key_take_turns_at_the_partitions():
    session = opened()
    operations = [PushOperation("three", Batch.build([b"a", b"b"]), None) for _ in range(4)]

    ids = session.transact(operations)[0]

    assert [[id.partition for id in some] for some in ids] == [["1", "1"], ["2", "2"], ["0", "0"], ["1", "1"]]
    session.close()


def test_where_the_oldest_is_dropped_the_first_push_of_a_transaction_is_the_oldest():
    session = opened()
    operations = [PushOperation("short", Batch.build([b"%d" % number]), number % 2) for number in (1, 0, 1, 0, 1, 0)]

    session.transact(operations)

    assert [id for id, *_ in state_of(session)[1][5]] == ["short/0/1", "short/0/2", "short/1/1", "short/1/2"]
    session.close()
