"""Why is this message not delivered? Answered from state, per group (C24)."""

from __future__ import annotations

import pytest

from penstock import Message
from penstock.errors import MessageNotFound
from tests.behaviour.steps import TICK, lease_one, numbered, take


def codes(queue, id):
    return {reason.group: reason.code for reason in queue.why(id)}


def code(queue, id):
    return codes(queue, id)["default"]


def test_a_message_that_nobody_asked_for(ps, clock):
    queue = ps.queue("mail")
    id = queue.push(b"a")

    assert code(queue, id) == "no_consumer"
    assert code(queue, str(id)) == "no_consumer"


def test_a_message_in_line(ps, clock):
    queue = ps.queue("mail")
    ids = queue.push_many(numbered(3)).ids
    clock.advance(1)
    lease_one(queue)

    assert code(queue, ids[2]) == "in_line"


def test_a_leased_message_names_its_holder(ps):
    queue = ps.queue("mail")
    id = queue.push(b"a")
    lease_one(queue, consumer="ann")

    (reason,) = queue.why(id)

    assert reason.code == "leased"
    assert "ann" in reason.text


def test_a_message_that_is_not_due(ps, clock):
    queue = ps.queue("mail")
    id = queue.push(b"a", delay=60)

    (reason,) = queue.why(id)

    assert reason.code == "not_due"
    assert "2025" in reason.text


def test_a_queue_that_delays_everything(ps, way, clock):
    queue = ps.create_queue("mail", delay_seconds=60)
    first = queue.push(b"a")
    clock.advance(50)
    second = queue.push(b"b")
    way.seal()
    clock.advance(20)

    assert code(queue, first) == "no_consumer"
    assert code(queue, second) == "not_due"


def test_a_partition_that_is_not_quiet_yet(ps):
    queue = ps.create_queue("mail", window_seconds=60)

    assert code(queue, queue.push(b"a")) == "window"


def test_a_retry_says_when_it_is_due(ps):
    queue = ps.queue("mail")
    id = queue.push(b"a")
    lease_one(queue).nack(delay=60)

    (reason,) = queue.why(id)

    assert reason.code == "retry"
    assert "attempt 2" in reason.text


def test_a_paused_queue(ps):
    queue = ps.queue("mail")
    id = queue.push(b"a")
    queue.pause()

    assert code(queue, id) == "paused"


def test_a_message_behind_another_of_its_partition(ps):
    queue = ps.create_queue("mail", ordering="partition")
    _, second = queue.push_many(numbered(2)).ids
    lease_one(queue)

    assert code(queue, second) == "held_by_order"


def test_in_partition_order_what_is_ahead_of_a_retry_is_in_line(ps, clock):
    queue = ps.create_queue("mail", ordering="partition")
    ids = queue.push_many(numbered(3)).ids
    clock.advance(1)
    first, second, third = queue.lease(3)
    second.nack(delay=60)
    third.release()
    first.release()

    assert [code(queue, id) for id in ids] == ["in_line", "retry", "held_by_order"]
    assert take(queue) == [b"0"]


def test_what_came_back_waits_for_no_window_and_no_delay(ps, clock):
    queue = ps.create_queue("mail", window_seconds=60, delay_seconds=10)
    id = queue.push(b"a")
    clock.advance(61)
    queue.lease(1).release()
    later = queue.push(b"b")

    assert (code(queue, id), code(queue, later)) == ("in_line", "not_due")
    assert take(queue) == [b"a"]


def test_a_message_behind_another_of_its_key_that_nobody_has_asked_for(ps):
    queue = ps.create_queue("mail", ordering="key")
    ids = queue.push_many([Message(payload=b"x", key=key) for key in ("a", "a", "b")]).ids

    assert [code(queue, id) for id in ids] == ["no_consumer", "held_by_key", "no_consumer"]
    assert len(queue.lease(3)) == 2


@pytest.mark.parametrize("max", [1, 10])
def test_a_message_behind_another_of_its_key(ps, max):
    queue = ps.create_queue("mail", ordering="key")
    ids = queue.push_many([Message(payload=b"x", key=key) for key in ("a", "a", "b")]).ids
    queue.lease(max)

    assert code(queue, ids[0]) == "leased"
    assert code(queue, ids[1]) == "held_by_key"
    assert code(queue, ids[2]) in ("in_line", "leased", "no_consumer")


def test_a_message_behind_a_retry_of_its_key(ps):
    queue = ps.create_queue("mail", ordering="key")
    ids = queue.push_many([Message(payload=b"x", key="a") for _ in range(2)]).ids
    lease_one(queue).nack(delay=60)

    assert [code(queue, id) for id in ids] == ["retry", "held_by_key"]


def test_settled_and_dead_messages(ps):
    queue = ps.queue("mail")
    acked, dead = queue.push_many(numbered(2)).ids
    lease_one(queue).ack()
    lease_one(queue).reject()

    assert code(queue, acked) == "settled"
    assert code(queue, dead) == "dead"


def test_a_message_before_the_start_of_a_group(ps):
    queue = ps.queue("mail")
    id = queue.push(b"a")
    queue.create_group("late", start="latest")

    assert codes(queue, id) == {"default": "no_consumer", "late": "skipped"}


def test_every_group_has_its_own_answer(ps, clock):
    queue = ps.create_queue("mail")
    queue.create_group("billing")
    id = queue.push(b"a")
    lease_one(queue).nack(delay=60)
    lease_one(queue, group="billing")

    assert codes(queue, id) == {"default": "retry", "billing": "leased"}


def test_a_message_that_does_not_exist(ps):
    queue = ps.queue("mail")
    queue.push(b"a")

    with pytest.raises(MessageNotFound):
        queue.why("mail/0/1")


def test_the_answer_changes_as_things_go_on(ps, clock):
    queue = ps.queue("mail")
    id = queue.push(b"a", delay=10)
    assert code(queue, id) == "not_due"
    clock.advance(10 + TICK)
    assert code(queue, id) in ("no_consumer", "in_line")
    delivery = lease_one(queue)
    assert code(queue, id) == "leased"
    delivery.nack(delay=5)
    assert code(queue, id) == "retry"
    clock.advance(5 + TICK)
    assert take(queue) == [b"a"]
