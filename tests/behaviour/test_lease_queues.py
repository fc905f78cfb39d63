"""Leasing from several queues with one request: by names and prefixes, fair or in the order of the list."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import islice

import pytest

from penstock.batch import encode_one
from penstock.errors import GroupNotFound, InvalidField, InvalidName, LeaseLost, QueueNotFound
from penstock.requests import ACK
from tests.behaviour.steps import TICK, numbered, refuse


def by_queue(leased) -> dict[str, int]:
    return {lease.queue: len(lease) for lease in leased.leases}


def fill(ps, **counts: int) -> None:
    for name, count in counts.items():
        ps.queue(name.replace("_", ".")).push_many(numbered(count, f"{name}-"))


def test_one_lease_takes_from_all_queues_that_a_name_or_a_prefix_matches(ps):
    fill(ps, mail=2, shop_a=3, shop_b=1, shopping=5)

    leased = ps.lease(["mail", "shop.*"], 100)

    assert by_queue(leased) == {"mail": 2, "shop.a": 3, "shop.b": 1}
    assert [delivery.payload for delivery in leased] == leased.payloads()
    assert leased[0].payload == leased.payloads()[0]
    assert leased[-1].payload == leased.payloads()[-1]
    assert len(leased[1:3]) == 2
    assert len(ps.lease("shop.*", 100)) == 0
    with pytest.raises(IndexError):
        leased[6]


def test_the_cap_is_one_for_all_queues_and_shared_fairly(ps):
    fill(ps, a=500, b=500, c=500, d=3)

    first = ps.lease("*", 120)

    assert by_queue(first) == {"a": 30, "b": 30, "c": 30, "d": 3} | by_queue(first)
    assert len(first) == 120
    taken = Counter({lease.queue: 0 for lease in first.leases})
    for leased in [first, *(ps.lease("*", 60) for _ in range(9))]:
        for lease in leased.leases:
            taken[lease.queue] += len(lease)
    assert taken["d"] == 3
    assert max(taken[name] for name in "abc") - min(taken[name] for name in "abc") <= 30


def test_single_messages_come_from_the_queues_in_turn(ps):
    fill(ps, a=3, b=3, c=3)

    order = [ps.lease("*", 1)[0].id.queue for _ in range(9)]

    assert [sorted(order[start : start + 3]) for start in (0, 3, 6)] == [["a", "b", "c"]] * 3


def test_in_listed_order_what_is_earlier_comes_first(ps):
    fill(ps, urgent=3, shop_a=2, shop_b=2, bulk=5)

    leased = ps.lease(["urgent", "shop.*", "*"], 100, order="listed")
    queues = [delivery.id.queue for delivery in leased]

    assert queues[:3] == ["urgent"] * 3
    assert sorted(queues[3:7]) == ["shop.a", "shop.a", "shop.b", "shop.b"]
    assert queues[7:] == ["bulk"] * 5

    fill(ps, urgent=2, bulk=9)
    assert [delivery.id.queue for delivery in ps.lease(["urgent", "bulk"], 3, order="listed")] == [
        "urgent",
        "urgent",
        "bulk",
    ]


def test_a_prefix_includes_neither_dead_letters_nor_the_brokers_own_queues(ps):
    ps.queue("mail").push(b"x")
    ps.queue("mail").lease()[0].reject("no")

    assert len(ps.lease("*", 10)) == 0
    assert by_queue(ps.lease("mail.dlq", 10)) == {"mail.dlq": 1}


def test_a_queue_that_is_created_later_joins(ps):
    assert len(ps.lease("shop.*", 10)) == 0

    fill(ps, shop_new=2)

    assert by_queue(ps.lease("shop.*", 10)) == {"shop.new": 2}


def test_who_waits_is_woken_by_any_queue_also_by_a_new_one(ps, way):
    fill(ps, shop_a=1)
    ps.lease("shop.*", 10).ack()
    for queue in ("shop.a", "shop.new"):
        leased: list[object] = []
        waiting = threading.Thread(target=lambda into: into.append(ps.lease("shop.*", 10, wait=30)), args=(leased,))
        waiting.start()
        while not len(way.session.shard.waiters):
            pass
        way.session.confirm(way.session.push_one(queue, encode_one(b"x"))[1])
        waiting.join(60)

        assert by_queue(leased[0]) == {queue: 1}


def test_what_comes_back_is_leased_again(ps, clock):
    ps.create_queue("a", backoff_base_seconds=5, backoff_jitter=0)
    ps.create_queue("b", backoff_base_seconds=0, backoff_jitter=0)
    fill(ps, a=2, b=1)
    ps.lease("*", 10).nack()
    assert by_queue(ps.lease("*", 10)) == {"b": 1}
    clock.advance(5 + TICK)

    assert [(delivery.id.queue, delivery.attempt) for delivery in ps.lease("*", 10)] == [("a", 2), ("a", 2)]


def test_a_lease_that_ran_out_is_given_to_the_next(ps, clock):
    ps.create_queue("a", lease_seconds=10, backoff_base_seconds=0)
    fill(ps, a=1)
    ps.lease("*", 10)
    clock.advance(11)

    assert [delivery.attempt for delivery in ps.lease("*", 10)] == [2]


def test_all_of_it_is_settled_in_one_operation(ps):
    fill(ps, a=3, b=3)
    leased = ps.lease("*", 10)
    leased[0].ack()

    leased.ack()

    assert [ps.queue(name).stats().groups["default"].acked for name in "ab"] == [3, 3]


def test_a_lease_that_is_lost_does_not_keep_the_others_from_being_settled(ps, clock):
    ps.create_queue("a", lease_seconds=10)
    ps.create_queue("b", lease_seconds=100)
    fill(ps, a=1, b=1)
    leased = ps.lease("*", 10)
    clock.advance(20)

    with pytest.raises(LeaseLost):
        leased.ack()

    assert ps.queue("b").stats().groups["default"].acked == 1
    assert ps.queue("a").stats().groups["default"].acked == 0


def test_each_queue_keeps_its_own_lease_time_and_all_are_extended_together(ps, clock):
    ps.create_queue("a", lease_seconds=10)
    ps.create_queue("b", lease_seconds=100)
    fill(ps, a=1, b=1)
    leased = ps.lease("*", 10)

    assert {lease.queue: lease.lease_seconds for lease in leased.leases} == {"a": 10, "b": 100}
    leased.extend(300)
    clock.advance(200)
    leased.ack()


def test_a_paused_queue_gives_nothing_until_it_is_resumed(ps):
    fill(ps, a=1, b=1)
    ps.queue("a").pause()
    assert by_queue(ps.lease("*", 10)) == {"b": 1}

    ps.queue("a").resume()

    assert by_queue(ps.lease("*", 10)) == {"a": 1}


def test_what_one_consumer_may_not_have_is_left_for_others(ps):
    ps.create_queue("a", max_in_flight=1)
    fill(ps, a=3)
    assert len(ps.lease("*", 10, consumer="ann")) == 1
    assert len(ps.lease("*", 10, consumer="ann")) == 0

    assert len(ps.lease("*", 10, consumer="bob")) == 1


def test_ordered_queues_keep_their_order(ps):
    ps.create_queue("a", ordering="partition")
    fill(ps, a=4)
    first = ps.lease("*", 2)
    assert len(ps.lease("*", 2)) == 0
    first.ack()

    assert ps.lease("*", 2).payloads() == [b"a-2", b"a-3"]


def test_a_queue_that_is_named_must_exist_and_one_that_a_prefix_would_match_need_not(ps):
    fill(ps, a=1)

    refuse(QueueNotFound, lambda: ps.lease(["a", "nowhere"], 1), "nowhere")
    assert len(ps.lease(["a", "nowhere*"], 1)) == 1

    ps.queue("nowhere").push(b"x")
    assert by_queue(ps.lease(["a", "nowhere"], 1)) == {"nowhere": 1}
    ps.delete_queue("nowhere")
    refuse(QueueNotFound, lambda: ps.lease(["a", "nowhere"], 1), "nowhere")


def test_a_group_is_created_where_start_says_and_in_new_queues_too(ps):
    fill(ps, a=2)
    refuse(GroupNotFound, lambda: ps.lease("a", 1, group="billing"), "billing")
    assert len(ps.lease("*", 1, group="billing")) == 0

    assert by_queue(ps.lease("*", 10, group="billing", start="earliest")) == {"a": 2}
    fill(ps, b=3)
    assert by_queue(ps.lease("*", 10, group="billing", start="earliest")) == {"b": 3}
    assert by_queue(ps.lease("*", 10)) == {"a": 2, "b": 3}


def test_a_group_that_was_deleted_is_not_created_again(ps):
    fill(ps, a=2)
    ps.lease("*", 1, group="billing", start="earliest")
    ps.queue("a").delete_group("billing")

    assert len(ps.lease("*", 1, group="billing", start="earliest")) == 0
    assert "billing" not in ps.queue("a").groups()


def test_groups_that_are_shared_among_members_are_left_out_by_a_prefix(ps):
    fill(ps, a=2, b=1)
    subscription = ps.queue("a").subscribe("default", "ann")
    next(subscription)

    assert by_queue(ps.lease("*", 10)) == {"b": 1}
    subscription.close()


def test_messages_are_acknowledged_on_delivery_if_that_is_asked_for(ps):
    fill(ps, a=2, b=1)

    assert len(ps.lease("*", 10, auto_ack=True)) == 3
    assert [ps.queue(name).stats().groups["default"].acked for name in "ab"] == [2, 1]


def test_consumption_of_several_queues(ps):
    fill(ps, a=30, b=20)

    taken = Counter(delivery.id.queue for delivery in islice(ps.consume(["a", "b"], idle_seconds=5), 50))

    assert taken == {"a": 30, "b": 20}
    counts = [ps.queue(name).stats().groups["default"] for name in "ab"]
    assert [count.acked + count.waiting for count in counts] == [30, 20]


def test_leaving_the_loop_gives_back_what_was_not_begun_of_every_queue(ps):
    fill(ps, a=5, b=5)
    for _ in ps.consume("*", batch=10):
        break

    stats = [ps.queue(name).stats().groups["default"] for name in "ab"]
    assert sum(group.ready for group in stats) == 9
    assert sum(group.leased for group in stats) == 0


@pytest.mark.parametrize(
    ("queues", "options", "word"),
    [([], {}, "queues"), (3, {}, "queues"), (["a"], {"order": "random"}, "order"), (["a"], {"max": 0}, "max")],
)
def test_what_cannot_be_leased_is_refused(ps, queues, options, word):
    refuse(InvalidField, lambda: ps.lease(queues, **options), word)


@pytest.mark.parametrize("name", ["", "a b", "a*b", "**", "/*", "*a"])
def test_a_name_that_is_none_is_refused(ps, name):
    refuse(InvalidName, lambda: ps.lease([name]))


def test_what_a_pause_of_everything_held_back_is_found_after_it(ps):
    fill(ps, a=1, b=1)
    ps.pause()
    assert len(ps.lease("*", 10)) == 0

    ps.resume()

    assert by_queue(ps.lease("*", 10)) == {"a": 1, "b": 1}


@pytest.mark.parametrize("way", ["memory", "file"], indirect=True)
def test_acknowledging_leases_of_several_queues_is_one_frame(ps):
    fill(ps, a=3, b=3, c=3)
    leased = ps.lease("*", 9)
    leased.leases[1][0].ack()  # so that this one has to be looked at closely
    session = ps.session.session
    before = session.shard.journal.sequence

    nonces = [lease.nonce for lease in leased.leases]
    failure, _ = session.settle_leases([*nonces, nonces[0]], ACK)

    assert isinstance(failure, LeaseLost)  # of the one that is named twice
    assert session.shard.journal.sequence == before + 2
    assert [ps.queue(name).stats().groups["default"].acked for name in "abc"] == [3, 3, 3]
