"""A trace over all queues: what was pushed, how long it waited and ran."""

from __future__ import annotations

import pytest

from penstock import Message
from penstock import operations as ops
from penstock.errors import InvalidField, InvalidName
from tests.behaviour.steps import TICK, lease_one, refuse
from tests.behaviour.task_steps import Office
from tests.support.operations import run_operation

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def trace_of(ps, trace=TRACE, **numbers):
    return Office(ps).confirmed(run_operation(ps._session, ops.GetTrace(trace, **numbers)))


def test_messages_of_several_queues_in_the_order_of_their_pushes(ps, clock, way):
    orders, mail = ps.queue("orders"), ps.queue("mail")
    first = orders.push(b"a", trace=TRACE, key="customer-7")
    orders.push(b"other", trace="another")
    clock.advance(2)
    delivery = lease_one(orders, consumer="ann")
    clock.advance(3)
    second = mail.push(b"b", trace=TRACE)
    delivery.ack()
    way.seal()
    clock.advance(1)
    lease_one(mail, consumer="bob").nack(delay=4, error="no luck")
    clock.advance(4 + TICK)
    lease_one(mail, consumer="bob")
    clock.advance(1)

    view = trace_of(ps)

    assert [step.id for step in view.steps] == [first, second]
    one, two = view.steps
    assert (one.kind, one.queue, one.key) == ("message", "orders", "customer-7")
    assert (one.wait_seconds, one.run_seconds) == (2, 3)
    assert [(run.consumer, run.attempt, run.outcome) for run in one.runs] == [("ann", 1, "acked")]
    assert [(run.outcome, run.error, run.ended_at is None) for run in two.runs] == [
        ("retried", "no luck", False),
        ("", "", True),
    ]
    assert two.run_seconds == pytest.approx(1, abs=0.01)
    assert two.wait_seconds == pytest.approx(5, abs=0.01)
    assert (view.began_at, view.is_cut) == (one.pushed_at, False)
    assert {reach.queue: reach.is_complete for reach in view.queues} == {"orders": True, "mail": True}


def test_tasks_of_a_trace_show_what_they_are(ps):
    office = Office(ps)
    task_id = office.enqueue("send", trace=TRACE)
    office.work()

    (step,) = trace_of(ps).steps

    assert (step.kind, step.task_id, step.task_type, step.state) == ("task", task_id, "send", "completed")


def test_a_trace_is_cut_where_it_may_not_go_on(ps):
    queue = ps.queue("mail")
    queue.push_many([Message(payload=b"x", trace=TRACE) for _ in range(5)])

    view = trace_of(ps, limit=2)

    assert len(view.steps) == 2
    assert view.is_cut


def test_a_trace_that_nobody_knows_is_empty_and_a_bad_one_is_refused(ps):
    ps.queue("mail").push(b"x")
    view = trace_of(ps, "nobody")
    assert (view.steps, view.began_at, view.ended_at, view.is_cut) == ([], None, None, False)

    refuse(InvalidName, lambda: ops.GetTrace(""), "trace")
    refuse(InvalidName, lambda: ops.GetTrace("x" * 1_000), "trace")
    with pytest.raises(InvalidField, match="limit"):
        ops.GetTrace(TRACE, limit=0)
