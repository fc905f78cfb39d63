"""Tasks that were cancelled while they waited for their parents, and wait again: by themselves, or with a parent."""

from __future__ import annotations

import pytest

from penstock.errors import TaskConflict
from penstock.model_tasks import TaskFilter, TaskState
from tests.behaviour.steps import refuse
from tests.behaviour.task_steps import Office, in_thread
from tests.support.operations import purge_tasks


@pytest.fixture
def office(ps):
    return Office(ps)


def test_children_of_a_dead_parent_wait_again_when_it_is_retried(office, clock):
    parent = office.enqueue("parent")
    (child,) = office.submit(office.new("child", depends_on=(parent,)))
    (grandchild,) = office.submit(office.new("grandchild", depends_on=(child,)))
    before = office.task(child)
    clock.advance(1)
    office.lease_one().finish("dead", error="hopeless")
    assert {office.state(child), office.state(grandchild)} == {"cancelled"}

    office.retry(parent)

    assert office.task(child) == before
    assert office.state(grandchild) == "blocked"
    assert office.work() == [parent, child, grandchild]
    assert office.task(grandchild).result == b'"result of grandchild"'


def test_children_of_a_cancelled_parent_wait_again_when_it_is_retried(office):
    parent = office.enqueue("parent")
    (child,) = office.submit(office.new("child", depends_on=(parent,)))
    office.cancel(parent)

    assert office.retry(parent).state is TaskState.PENDING

    assert office.state(child) == "blocked"
    assert office.work() == [parent, child]


def test_it_may_die_and_be_retried_as_often_as_it_takes(office):
    parent = office.enqueue("parent")
    (child,) = office.submit(office.new("child", depends_on=(parent,)))

    for _ in range(3):
        office.lease_one().finish("dead")
        assert parent in office.task(child).error
        office.retry(parent)
        assert (office.state(child), office.task(child).error) == ("blocked", "")

    assert office.work() == [parent, child]


def test_what_somebody_cancelled_stays_cancelled_when_its_parent_is_retried(office):
    parent = office.enqueue("parent")
    stopped, child = office.submit(office.new("a", depends_on=(parent,)), office.new("b", depends_on=(parent,)))
    office.cancel(stopped)
    office.lease_one().finish("dead")

    office.retry(parent)

    assert (office.state(stopped), office.state(child)) == ("cancelled", "blocked")


def test_a_child_of_two_dead_parents_waits_again_when_both_are_retried(office):
    one, two = office.push(office.new("one"), office.new("two"))
    (child,) = office.submit(office.new("child", depends_on=(one, two)))
    for run in office.lease():
        run.finish("dead")

    office.retry(one)
    seen = office.task(child)
    assert (seen.state, two in seen.error) == (TaskState.CANCELLED, True)
    office.retry(two)
    assert office.state(child) == "blocked"

    assert sorted(office.work()) == sorted([one, two, child])


def test_one_that_came_too_late_for_its_parent_waits_when_that_is_retried(office):
    parent = office.enqueue("parent")
    office.lease_one().finish("dead")
    (child,) = office.submit(office.new("child", depends_on=(parent,)))
    assert office.state(child) == "cancelled"

    office.retry(parent)

    assert office.work() == [parent, child]


def test_a_task_cancelled_while_it_was_blocked_is_blocked_again_when_it_is_retried(office):
    parent = office.enqueue("parent")
    (child,) = office.submit(office.new("child", depends_on=(parent,), priority=7, takes="one", headers={"a": "b"}))
    (grandchild,) = office.submit(office.new("grandchild", depends_on=(child,)))
    office.cancel(child)
    assert office.state(grandchild) == "cancelled"

    assert office.retry(child).state is TaskState.BLOCKED

    assert office.state(grandchild) == "blocked"
    office.lease_one().finish()
    run = office.lease_one()
    assert (run.task_id, run.envelope.takes, run.delivery.headers) == (child, "one", {"a": "b"})
    run.finish()
    assert office.work() == [grandchild]


def test_it_is_pending_when_its_parents_are_done_meanwhile(office):
    parent = office.enqueue("parent")
    (child,) = office.submit(office.new("child", depends_on=(parent,)))
    office.cancel(child)
    office.work()

    assert office.retry(child).state is TaskState.PENDING

    assert office.work() == [child]
    refuse(TaskConflict, lambda: office.retry(child), child)


def test_it_cannot_be_retried_while_a_parent_is_dead_unless_that_does_not_matter_to_it(office):
    parent = office.enqueue("parent")
    child, brave = office.submit(
        office.new("child", depends_on=(parent,)), office.new("brave", depends_on=(parent,), on_parent_failure="run")
    )
    office.cancel(brave)
    office.lease_one().finish("dead")

    refuse(TaskConflict, lambda: office.retry(child), child, parent, "dead")
    assert office.retry(brave).state is TaskState.PENDING

    assert office.work() == [brave]


def test_what_was_forgotten_does_not_come_back(office):
    parent = office.enqueue("parent")
    _, child = office.submit(office.new("a", depends_on=(parent,)), office.new("b", depends_on=(parent,)))
    office.lease_one().finish("dead")
    office.confirmed(purge_tasks(office.session, TaskFilter(task_type="a")))

    office.retry(parent)

    assert sorted(office.ids()) == sorted([parent, child])
    assert office.work() == [parent, child]


def test_what_was_submitted_again_meanwhile_runs_once(office):
    parent = office.enqueue("parent")
    (child,) = office.submit(office.new("child", depends_on=(parent,)))
    office.lease_one().finish("dead")
    office.submit(office.new("child", task_id=child))

    office.retry(parent)

    assert sorted(office.work()) == sorted([parent, child])
    assert office.lease() == []


def test_its_unique_key_is_its_own_again(office):
    parent = office.enqueue("parent")
    (child,) = office.submit(office.new("child", depends_on=(parent,), unique_key="k"))
    office.lease_one().finish("dead")

    office.retry(parent)

    assert office.submit(office.new("child", unique_key="k")) == [child]
    assert office.work() == [parent, child]
    (other,) = office.submit(office.new("child", unique_key="k"))
    assert other != child


def test_many_retry_a_parent_and_its_children_come_back_once(office):
    parent = office.enqueue("parent")
    children = office.submit(*(office.new("child", depends_on=(parent,)) for _ in range(30)))
    office.lease_one().finish("dead")

    def retry() -> int:
        try:
            office.retry(parent)
        except TaskConflict:
            return 0
        return 1

    assert sum(each.result(30) for each in [in_thread(retry) for _ in range(4)]) == 1
    assert sorted(office.work()) == sorted([parent, *children])


@pytest.mark.parametrize("way", ["file", "sealed", "forgetful"], indirect=True)
def test_it_can_be_retried_after_a_crash_and_waits_on_after_another(way):
    office = Office(way.start())
    parent = office.enqueue("parent")
    (child,) = office.submit(office.new("child", depends_on=(parent,)))
    submitted_at = office.task(child).submitted_at
    office.lease_one().finish("dead")

    office = Office(way.crash())
    office.retry(parent)
    office = Office(way.crash())

    seen = office.task(child)
    assert (seen.state, seen.submitted_at) == (TaskState.BLOCKED, submitted_at)
    assert office.work() == [parent, child]
