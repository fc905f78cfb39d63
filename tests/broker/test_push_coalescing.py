"""Single pushes that came together: one batch, one answer for each."""

from __future__ import annotations

import pytest

from penstock import operations as ops
from penstock.errors import InvalidField, QueueFull
from penstock.requests import Producer
from tests.support.operations import run_operation
from tests.support.producers import ME, System


@pytest.fixture
def system():
    return System()


def test_duplicates_within_a_fold_are_left_out(system):
    producers: list[Producer | None] = [(ME, 0, 0), (ME, 0, 1), (ME, 0, 0), None, None, (8, 0, 0)]

    assert system.fold([b"a", b"b", b"a", b"n", b"n", b"c"], producers) == [0, 1, 0, 2, 3, 4]
    assert system.fold([b"a", b"d", b"b"], [(ME, 0, 0), (ME, 0, 2), (ME, 0, 1)]) == [0, 5, 1]
    assert system.lease() == [b"a", b"b", b"n", b"n", b"c", b"d"]


def test_a_fold_and_a_batch_of_one_are_the_same_push(system):
    system.fold([b"a"], [(ME, 0, 0)])
    system.push([b"b"], (ME, 0, 1))

    assert system.push([b"a"], (ME, 0, 0))[0].offset == 0
    assert system.fold([b"b"], [(ME, 0, 1)]) == [1]


def test_a_fold_makes_its_queue_and_wakes_who_waits(system):
    run_operation(system.session, ops.CreateQueue("mail", {}, exist_ok=False))
    woken: list[int] = []
    system.session.watch("mail", lambda: woken.append(1))

    assert system.fold([b"a", b"b"], [None, None]) == [0, 1]
    assert system.fold([b"a"], [None], queue="other") == [0]
    assert woken == [1]


def test_a_fold_over_max_length_is_refused_whole(system):
    run_operation(system.session, ops.CreateQueue("mail", {"max_length": 3}, exist_ok=False))
    system.fold([b"a", b"b"], [(ME, 0, 0), (ME, 0, 1)])

    with pytest.raises(QueueFull):
        system.fold([b"c", b"d"], [(ME, 0, 2), (ME, 0, 3)])

    # Those that are known take no room.
    assert system.fold([b"a", b"b", b"c"], [(ME, 0, 0), (ME, 0, 1), (ME, 0, 2)]) == [0, 1, 2]


def test_a_fold_drops_the_oldest_where_the_queue_says_so(system):
    run_operation(system.session, ops.CreateQueue("mail", {"max_length": 2, "overflow": "drop_oldest"}, exist_ok=False))
    system.fold([b"a", b"b", b"c"], [(ME, 0, 0), None, (ME, 0, 1)])

    assert system.lease() == [b"b", b"c"]


def test_a_fold_with_a_row_that_is_known_from_another_partition_is_refused(system):
    run_operation(system.session, ops.CreateQueue("spread", {"partitions": 4}, exist_ok=False))
    (first, _), _ = system.session.shard.push_folded("spread", [b"a"], [(ME, 0, 0)])

    with pytest.raises(InvalidField, match="other partitions"):
        system.session.shard.push_folded("spread", [b"a", b"b"], [(ME, 0, 0), (ME, 0, 1)])
    assert system.session.shard.push_folded("spread", [b"a"], [(ME, 0, 0)])[0] == (first, [0])


def test_a_fold_on_a_queue_with_options_goes_the_long_way(system):
    run_operation(system.session, ops.CreateQueue("mail", {"ttl_seconds": 1.0, "delay_seconds": 0.5}, exist_ok=False))
    system.fold([b"a", b"b"], [None, (ME, 0, 0)])

    assert system.lease() == []
    system.clock.advance(0.6)
    assert system.lease() == [b"a", b"b"]
