"""Pauses: of pushes, of delivery or of both, for a queue, a group, a namespace or the whole broker."""

from __future__ import annotations

import threading

import pytest

from penstock import Message
from penstock.errors import GroupNotFound, InvalidField, InvalidName, NotAuthorised, PushPaused, QueueNotFound
from penstock.model import to_datetime
from tests.behaviour.steps import TICK, drain, lease_one, take


def paused(ps, name):
    """(delivery, push) of a queue."""
    stats = ps.queue(name).stats()
    return stats.paused, stats.push_paused


def why(queue, id):
    return {reason.group: reason.code for reason in queue.why(id)}


def test_pushes_are_refused_and_delivery_goes_on(ps):
    queue = ps.queue("mail")
    queue.push(b"before")
    queue.pause("push", reason="the database is moved")

    for push in (
        lambda: queue.push(b"one"),
        lambda: queue.push(b"one", key="k"),
        lambda: queue.push_many([b"a", b"b"]),
    ):
        with pytest.raises(PushPaused, match=r"'mail'.*the database is moved"):
            push()
    assert paused(ps, "mail") == (False, True)
    assert drain(queue) == [b"before"]
    queue.resume()
    queue.push(b"after")
    assert drain(queue) == [b"after"]


def test_delivery_is_paused_and_pushes_go_on(ps):
    queue = ps.queue("mail")
    id = queue.push(b"a")
    queue.pause()

    queue.push(b"b")
    assert take(queue) == []
    assert paused(ps, "mail") == (True, False)
    assert why(queue, id) == {"default": "paused"}
    queue.resume()
    assert drain(queue) == [b"a", b"b"]


def test_both_and_one_after_the_other(ps):
    queue = ps.queue("mail")
    queue.push(b"a")
    queue.pause("all", reason="all of it")
    assert paused(ps, "mail") == (True, True)
    queue.resume("push")
    assert paused(ps, "mail") == (True, False)
    queue.push(b"b")
    queue.pause("push")
    assert ps.pauses()[0].reason == "all of it"
    queue.resume("delivery")
    assert paused(ps, "mail") == (False, True)
    queue.resume()
    assert (paused(ps, "mail"), ps.pauses()) == ((False, False), [])
    assert drain(queue) == [b"a", b"b"]


def test_a_group_is_paused_and_others_are_not(ps):
    queue = ps.queue("mail")
    id = queue.push(b"a")
    queue.create_group("billing")
    queue.pause(group="billing", reason="their turn is later")

    assert take(queue, group="billing") == []
    assert why(queue, id) == {"default": "no_consumer", "billing": "paused"}
    (reason,) = [reason.text for reason in queue.why(id) if reason.group == "billing"]
    assert "their turn is later" in reason
    assert {name: group.paused for name, group in queue.stats().groups.items()} == {"default": False, "billing": True}
    assert paused(ps, "mail") == (False, False)
    assert drain(queue) == [b"a"]
    queue.resume(group="billing")
    assert drain(queue, group="billing") == [b"a"]


def test_a_namespace_is_paused_with_the_queues_that_are_made_in_it(ps):
    orders = ps.create_queue("shop.orders")
    other = ps.create_queue("mail")
    orders.push(b"a")
    ps.pause(namespace="shop", reason="the tenant moves")

    assert paused(ps, "shop.orders") == (True, True)
    assert paused(ps, "mail") == (False, False)
    other.push(b"b")
    with pytest.raises(PushPaused, match=r"namespace 'shop'.*the tenant moves"):
        orders.push(b"x")
    with pytest.raises(PushPaused):
        ps.queue("shop.new").push(b"x")
    assert "shop.new" not in ps.queues()
    made = ps.create_queue("shop.made")
    assert paused(ps, "shop.made") == (True, True)
    with pytest.raises(PushPaused):
        made.push(b"x")
    ps.resume("push", namespace="shop")
    made.push(b"c")
    assert take(made) == []
    ps.resume(namespace="shop")
    assert (drain(orders), drain(made), drain(other)) == ([b"a"], [b"c"], [b"b"])


def test_the_broker_is_paused_as_a_whole(ps, clock):
    queue = ps.queue("mail")
    id = queue.push(b"a")
    ps.pause(reason="the disk is replaced")

    with pytest.raises(PushPaused, match="the broker is paused"):
        queue.push(b"b")
    with pytest.raises(PushPaused):
        ps.queue("new").push(b"b")
    assert take(queue) == []
    assert why(queue, id) == {"default": "paused"}
    (pause,) = ps.pauses()
    assert (pause.scope, pause.push, pause.delivery, pause.reason) == ("broker", True, True, "the disk is replaced")
    assert pause.since == to_datetime(clock.now())
    ps.resume()
    queue.push(b"b")
    assert drain(queue) == [b"a", b"b"]


def test_what_is_paused_by_itself_stays_so(ps):
    queue = ps.create_queue("shop.orders")
    queue.pause("push")
    queue.create_group("billing")
    queue.pause(group="billing")
    ps.pause(namespace="shop")
    ps.pause()
    ps.resume()
    ps.resume(namespace="shop")

    assert paused(ps, "shop.orders") == (False, True)
    assert [(pause.scope, pause.queue, pause.group) for pause in ps.pauses()] == [
        ("queue", "shop.orders", ""), ("group", "shop.orders", "billing"),
    ]  # fmt: skip
    queue.resume()
    assert queue.stats().groups["billing"].paused
    queue.resume(group="billing")
    assert ps.pauses() == []


def test_pauses_are_listed_from_the_widest_to_the_closest(ps):
    queue = ps.create_queue("shop.orders")
    queue.create_group("billing")
    queue.pause(group="billing")
    queue.pause("push")
    ps.pause("push", namespace="shop")
    ps.pause("delivery")

    assert [(pause.scope, pause.namespace or pause.queue, pause.push, pause.delivery) for pause in ps.pauses()] == [
        ("broker", "", False, True),
        ("namespace", "shop", True, False),
        ("queue", "shop.orders", True, False),
        ("group", "shop.orders", False, True),
    ]


def test_what_was_leased_before_can_be_settled_and_dies_all_the_same(ps, clock):
    queue = ps.create_queue("mail", max_attempts=1)
    queue.push_many([b"a", b"b", b"c"])
    first, second, third = queue.lease(3)
    ps.pause()

    first.ack()
    second.reject("bad")
    third.release()
    assert [letter.payload for letter in queue.dlq.list()] == [b"b"]
    with pytest.raises(PushPaused):
        queue.dlq.replace({queue.dlq.list()[0].id: b"B"})
    assert queue.dlq.redrive() == 1
    clock.advance(TICK)
    assert take(queue) == []
    ps.resume()
    assert sorted(drain(queue)) == [b"b", b"c"]


def test_a_transaction_that_pushes_where_pushes_are_paused_changes_nothing(ps):
    source, target = ps.queue("source"), ps.create_queue("target")
    source.push(b"a")
    delivery = lease_one(source)
    target.pause("push")

    def move():
        with ps.transaction() as tx:
            tx.push("target", b"b")
            tx.ack(delivery)

    with pytest.raises(PushPaused):
        move()
    delivery.release()
    assert drain(source) == [b"a"]


def test_a_lease_that_waits_goes_on_waiting_and_is_woken(ps, way):
    queue = ps.create_queue("shop.orders")
    for pause, resume in (
        (queue.pause, queue.resume),
        (lambda: queue.pause(group="default"), lambda: queue.resume(group="default")),
        (lambda: ps.pause(namespace="shop"), lambda: ps.resume(namespace="shop")),
        (ps.pause, ps.resume),
    ):
        queue.push(b"a")
        pause()
        seen: list[bytes] = []
        waiting = threading.Thread(target=lambda seen=seen: seen.extend(_leased(queue)))
        waiting.start()
        while not way.session.shard.waiters:
            threading.Event().wait(0.005)
        assert not seen
        resume()
        waiting.join(20)
        assert seen == [b"a"]


def _leased(queue):
    leased = queue.lease(wait=20)
    leased.ack()
    return leased.payloads()


@pytest.mark.parametrize("way", ["file", "sealed", "forgetful"], indirect=True)
@pytest.mark.parametrize("end", ["restart", "crash"])
@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_pauses_survive_the_process(ps, way, end, has_checkpoint):
    queue = ps.create_queue("shop.orders")
    queue.create_group("billing")
    ps.create_queue("mail").pause()
    queue.push(b"a")
    queue.pause(group="billing", reason="g")
    queue.pause("push", reason="q")
    ps.pause("delivery", namespace="shop", reason="n")
    ps.pause("push", reason="b")
    if has_checkpoint:
        way.session.checkpoint()
    before = ps.pauses()

    ps = getattr(way, end)()

    assert ps.pauses() == before
    assert len(before) == 5
    assert paused(ps, "shop.orders") == (True, True)
    assert paused(ps, "mail") == (True, True)
    with pytest.raises(PushPaused):
        ps.queue("another").push(b"x")
    ps.resume()
    ps.resume(namespace="shop")
    ps.queue("shop.orders").resume()
    ps.queue("shop.orders").resume(group="billing")
    ps.queue("mail").resume()
    ps = getattr(way, end)()
    assert ps.pauses() == []
    assert take(ps.queue("shop.orders"), group="billing") == [b"a"]


def test_other_changes_of_a_queue_leave_its_pauses(ps):
    queue = ps.create_queue("mail")
    queue.pause("all", reason="r")
    ps.update_queue("mail", max_attempts=7)
    queue.create_group("billing")

    assert paused(ps, "mail") == (True, True)
    assert take(queue, group="billing") == []
    assert [pause.reason for pause in ps.pauses()] == ["r"]
    ps.delete_queue("mail")
    assert ps.pauses() == []
    ps.create_queue("mail")
    assert paused(ps, "mail") == (False, False)


def test_what_cannot_be_paused_is_named(ps):
    queue = ps.queue("mail")
    queue.push(b"a")

    with pytest.raises(InvalidField, match="what"):
        queue.pause("everything")
    with pytest.raises(InvalidField, match="what"):
        queue.pause("push", group="default")
    with pytest.raises(GroupNotFound):
        queue.pause(group="nobody")
    with pytest.raises(QueueNotFound):
        ps.queue("nowhere").pause()
    with pytest.raises(InvalidField, match="namespace"):
        ps.pause(namespace="a.b")
    with pytest.raises(InvalidName, match="namespace"):
        ps.pause(namespace="")
    with pytest.raises(InvalidField, match="namespace"):
        ps.pause(namespace="penstock")
    with pytest.raises(InvalidField, match="reason"):
        ps.pause(reason="x" * 501)
    assert ps.pauses() == []


def test_a_message_still_expires_while_delivery_is_paused(ps, clock, way):
    queue = ps.queue("mail")
    queue.push(b"a", ttl=10)
    ps.pause()
    clock.advance(11)
    way.let_time_happen()
    ps.resume()

    assert drain(queue) == []


@pytest.mark.parametrize("way", ["memory", "file"], indirect=True)
def test_the_audit_log_goes_on_while_everything_is_paused(way, clock):
    way.arguments = lambda: {**type(way).arguments(way), "audit": True}
    ps = way.start()
    ps.create_queue("mail")
    ps.pause(reason="r")
    ps.queue("mail").pause()
    ps.resume()

    whats = [record.what for record in ps.audit.list()]
    assert {"pause_broker", "pause", "resume_broker"} <= set(whats)
    with pytest.raises(NotAuthorised):
        ps.queue("penstock.audit").pause("push")


def test_messages_with_options_are_refused_too(ps):
    queue = ps.create_queue("mail", partitions=2, max_length=10)
    queue.pause("push")
    with pytest.raises(PushPaused):
        queue.push_many([Message(payload=b"a", key="k", priority=3, delay=5, ttl=9, dedup_key="d")])
    fail_free = ps.create_queue("other")
    fail_free.push(b"a")
    assert drain(fail_free) == [b"a"]
