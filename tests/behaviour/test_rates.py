"""Rate limits: token buckets on push and on lease (C16)."""

from __future__ import annotations

import pytest

from penstock import Message
from penstock.errors import InvalidField, RateLimited, TooLarge
from tests.behaviour.steps import TICK, drain, lease_one, numbered, refuse, take


def retry_after(call):
    with pytest.raises(RateLimited) as caught:
        call()
    return caught.value.retry_after_seconds


def test_pushes_beyond_the_burst_are_refused_until_there_are_tokens(ps, clock):
    queue = ps.create_queue("mail", push_per_second=2, push_burst=3)
    for number in range(3):
        queue.push(str(number).encode())

    assert retry_after(lambda: queue.push(b"x")) == 0.5
    clock.advance(0.499_999)
    assert retry_after(lambda: queue.push(b"x")) == 0.000_001
    clock.advance(0.000_001)
    queue.push(b"3")

    assert retry_after(lambda: queue.push(b"x")) == 0.5
    assert drain(queue) == numbered(4)


def test_a_batch_is_refused_whole_and_takes_nothing(ps, clock):
    queue = ps.create_queue("mail", push_per_second=10)
    queue.push_many(numbered(4))

    assert retry_after(lambda: queue.push_many(numbered(9))) == 0.3
    queue.push_many(numbered(6))

    assert queue.stats().messages == 10


def test_a_batch_beyond_the_burst_can_never_pass(ps):
    queue = ps.create_queue("mail", push_per_second=10, push_burst=5)

    refuse(TooLarge, lambda: queue.push_many(numbered(6)), "push_burst", "6", "5")
    queue.push_many(numbered(5))


def test_the_burst_is_a_second_by_default_and_at_least_one(ps, clock):
    slow = ps.create_queue("slow", push_per_second=0.5)
    slow.push(b"a")

    assert retry_after(lambda: slow.push(b"b")) == 2
    clock.advance(3600)
    slow.push(b"b")
    assert retry_after(lambda: slow.push(b"c")) == 2


def test_duplicates_cost_nothing(ps):
    queue = ps.create_queue("mail", push_per_second=1)
    first = queue.push(b"a", dedup_key="k")

    assert queue.push(b"a", dedup_key="k") == first
    with pytest.raises(RateLimited):
        queue.push(b"b", dedup_key="l")


def test_nothing_is_taken_from_one_bucket_when_another_refuses(ps, clock):
    queue = ps.create_queue("mail", push_per_second=4, key_push_per_second=1)
    queue.push(b"a", key="k")

    assert retry_after(lambda: queue.push(b"b", key="k")) == 1
    queue.push_many([Message(payload=b"x", key=key) for key in ("l", "m", "n")])

    assert retry_after(lambda: queue.push(b"c", key="o")) == 0.25


def test_every_key_has_a_bucket_of_its_own_and_messages_without_key_have_none(ps):
    queue = ps.create_queue("mail", key_push_per_second=1, key_push_burst=2)
    queue.push_many([Message(payload=b"x", key=key) for key in ("a", "b", "a", None, None, None)])

    queue.push(b"x", key="b")
    with pytest.raises(RateLimited):
        queue.push(b"x", key="a")
    refuse(TooLarge, lambda: queue.push_many([Message(payload=b"x", key="c")] * 3), "key_push_burst")
    queue.push(b"x")


def test_the_client_of_an_embedded_system_is_one(ps):
    queue = ps.create_queue(
        "mail", client_push_per_second=2, client_push_burst=3, client_lease_per_second=1, client_lease_burst=2
    )
    queue.push_many(numbered(3))

    assert retry_after(lambda: queue.push(b"3")) == 0.5
    assert take(queue) == [b"0", b"1"]
    assert take(queue, consumer="another") == []


def test_a_transaction_is_refused_whole(ps, clock):
    queue = ps.create_queue("mail", push_per_second=3)
    queue.push(b"a")
    delivery = lease_one(queue)

    def both():
        with ps.transaction() as tx:
            tx.ack(delivery)
            tx.push("mail", b"b")
            tx.push("mail", b"c")
            tx.push("other", b"d")

    queue.push(b"z")
    assert retry_after(both) == pytest.approx(1 / 3, abs=1e-6)
    assert "other" not in ps.queues()
    assert queue.stats().leased == 1

    clock.advance(1)
    both()
    assert queue.stats().messages == 4


def test_a_lease_gets_as_many_as_there_are_tokens(ps, clock):
    queue = ps.create_queue("mail", lease_per_second=10, lease_burst=4)
    queue.push_many(numbered(9))

    assert take(queue) == numbered(4)
    assert take(queue) == []
    clock.advance(0.099_999)
    assert take(queue) == []
    clock.advance(0.000_001)
    assert take(queue) == [b"4"]
    clock.advance(0.25)
    assert take(queue) == [b"5", b"6"]


def test_a_lease_takes_tokens_for_what_it_got_only(ps):
    queue = ps.create_queue("mail", lease_per_second=3)
    queue.push(b"a")
    assert take(queue) == [b"a"]

    queue.push_many([b"b", b"c", b"d"])

    assert take(queue) == [b"b", b"c"]


def test_every_delivery_counts_also_a_second_one(ps, clock):
    queue = ps.create_queue("mail", lease_per_second=2)
    queue.push(b"a")
    for _ in range(2):
        lease_one(queue).release()

    assert take(queue) == []
    clock.advance(0.5)
    assert take(queue) == [b"a"]


def test_groups_do_not_use_up_each_others_tokens(ps):
    queue = ps.create_queue("mail", lease_per_second=2)
    queue.create_group("audit")
    queue.push_many(numbered(3))

    assert take(queue) == numbered(2)
    assert take(queue, group="audit") == numbered(2)


def test_the_highest_priority_gets_the_tokens(ps, clock):
    queue = ps.create_queue("mail", lease_per_second=1)
    queue.push(b"low", priority="low")
    queue.push(b"high", priority="high")

    assert take(queue) == [b"high"]
    clock.advance(1)
    assert take(queue) == [b"low"]


def test_order_is_kept_when_tokens_run_out(ps, clock):
    queue = ps.create_queue("mail", ordering="partition", lease_per_second=2)
    queue.push_many(numbered(5))
    seen = []
    for _ in range(3):
        seen += drain(queue)
        clock.advance(1)

    assert seen == numbered(5)


def test_new_limits_hold_at_once(ps, clock):
    queue = ps.create_queue("mail", push_per_second=1, lease_per_second=1)
    queue.push(b"0")
    assert take(queue) == [b"0"]
    with pytest.raises(RateLimited):
        queue.push(b"1")

    ps.update_queue("mail", push_per_second=None, lease_per_second=None)
    queue.push_many(numbered(100))
    assert len(take(queue)) == 100

    ps.update_queue("mail", push_per_second=1, push_burst=5)
    queue.push_many(numbered(5))
    assert retry_after(lambda: queue.push(b"x")) == 1


def test_what_flowed_in_stays_when_the_rate_changes(ps, clock):
    queue = ps.create_queue("mail", push_per_second=1, push_burst=10)
    queue.push_many(numbered(10))
    clock.advance(2)

    ps.update_queue("mail", push_per_second=100)

    queue.push_many(numbered(2))
    assert retry_after(lambda: queue.push(b"x")) == 0.01


def test_buckets_are_full_after_a_restart_and_the_limit_is_remembered(ps, way):
    if not way.lasts:
        return
    queue = ps.create_queue("mail", push_per_second=1, push_burst=2, lease_per_second=1)
    queue.push_many(numbered(2))

    queue = way.crash().queue("mail")

    queue.push_many([b"2", b"3"])
    with pytest.raises(RateLimited):
        queue.push(b"4")
    assert take(queue) == [b"0"]


@pytest.mark.parametrize("limit", [{"lease_per_second": 2}, {"client_lease_per_second": 2}])
def test_someone_who_waits_is_woken_when_there_is_a_token(ps, way, clock, limit):
    queue = ps.create_queue("mail", **limit)
    queue.push_many(numbered(3))
    assert take(queue) == numbered(2)
    woken = []
    waiter = way.session.watch("mail", lambda: woken.append(clock.now()))
    assert take(queue) == []

    clock.advance(0.4)
    woken.clear()  # a clock that is moved by hand wakes everybody
    waiter = way.session.watch("mail", lambda: woken.append(clock.now()))
    way.let_time_happen()
    assert not woken
    with way.session.shard.lock:
        at = way.session.shard.next_at(clock.now(), clock.monotonic())
    assert at is not None
    assert at <= clock.now() + 100_000 + 2_000
    clock._now += 102_000
    way.let_time_happen()

    assert woken
    assert take(queue) == [b"2"]
    way.session.unwatch(waiter, served=True)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"push_per_second": 0}, "push_per_second"),
        ({"lease_per_second": -1}, "lease_per_second"),
        ({"key_lease_burst": 0, "key_lease_per_second": 1}, "key_lease_burst"),
        ({"client_push_burst": 5}, "client_push_per_second"),
        ({"key_max_in_flight": 0}, "key_max_in_flight"),
        ({"key_max_in_flight": 1, "ordering": "partition"}, "key_max_in_flight"),
        ({"key_lease_per_second": 1, "ordering": "partition"}, "key_lease_per_second"),
        ({"push_per_second": float("nan")}, "push_per_second"),
    ],
)
def test_limits_that_make_no_sense_are_refused(ps, options, word):
    refuse(InvalidField, lambda: ps.create_queue("mail", **options), word)


def test_why_names_the_rate(ps, clock):
    queue = ps.create_queue("mail", lease_per_second=1)
    ids = queue.push_many(numbered(2)).ids
    clock.advance(1)
    take(queue)

    (reason,) = queue.why(ids[1])

    assert reason.code == "queue_rate"
    clock.advance(1 + TICK)
    assert queue.why(ids[1])[0].code == "in_line"
