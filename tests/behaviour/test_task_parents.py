"""Tasks that wait for others, and tasks of which there is only one (F5, F6)."""

from __future__ import annotations

import threading

import pytest

from penstock import operations as ops
from penstock.errors import InvalidField
from penstock.model_tasks import TaskFilter, TaskState
from tests.behaviour.steps import refuse
from tests.behaviour.task_steps import Office, in_thread
from tests.support.operations import purge_tasks, run_operation

UNKNOWN = "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"


@pytest.fixture
def office(ps):
    return Office(ps)


def types_of(runs):
    return sorted(run.envelope.task_type for run in runs)


# parents


def test_a_child_runs_when_its_last_parent_is_done(office):
    first, second = office.push(office.new("first"), office.new("second"))
    (child,) = office.submit(office.new("child", depends_on=(first, second)))

    seen = office.task(child)
    assert (seen.state, seen.depends_on, seen.message_id) == (TaskState.BLOCKED, (first, second), "")
    runs = office.lease()
    assert types_of(runs) == ["first", "second"]
    runs[0].finish(result=1)
    assert office.lease() == []
    runs[1].finish(result=2)

    assert office.state(child) == "pending"
    assert office.work() == [child]
    assert office.task(child).result == b'"result of child"'


def test_a_parent_that_is_done_already_is_not_waited_for(office):
    parent = office.enqueue("parent")
    office.work()

    (child,) = office.submit(office.new("child", depends_on=(parent,)))

    assert office.state(child) == "pending"
    assert office.work() == [child]


def test_a_whole_graph_is_submitted_at_once_in_any_order(office):
    #  top ─► left, right ─► bottom
    top, left, right, bottom = (office.new(name) for name in ("top", "left", "right", "bottom"))
    graph = [
        office.new("bottom", task_id=bottom.task_id, depends_on=(left.task_id, right.task_id)),
        office.new("left", task_id=left.task_id, depends_on=(top.task_id,)),
        office.new("top", task_id=top.task_id),
        office.new("right", task_id=right.task_id, depends_on=(top.task_id,), queue="other"),
    ]

    assert office.submit(*graph) == [task.task_id for task in graph]

    assert office.work() == [top.task_id, left.task_id]
    assert office.work(queue="other") == [right.task_id]
    assert office.work() == [bottom.task_id]


def test_a_child_of_a_parent_that_dies_is_cancelled_and_so_are_its_own(office):
    parent = office.enqueue("parent")
    (child,) = office.submit(office.new("child", depends_on=(parent,)))
    (grandchild,) = office.submit(office.new("grandchild", depends_on=(child,)))

    office.lease_one().finish("dead", error="hopeless")

    for task_id, why in ((child, parent), (grandchild, child)):
        seen = office.task(task_id)
        assert seen.state is TaskState.CANCELLED
        assert why in seen.error
    assert office.lease() == []


def test_a_child_may_run_whatever_becomes_of_its_parent(office):
    parent = office.enqueue("parent")
    (child,) = office.submit(office.new("child", depends_on=(parent,), on_parent_failure="run"))

    office.cancel(parent)

    assert office.work() == [child]


def test_a_child_of_one_that_is_dead_already_is_cancelled_at_once(office):
    parent = office.enqueue("parent")
    office.lease_one().finish("dead")

    cancelled, runs = office.submit(
        office.new("child", depends_on=(parent,)), office.new("brave", depends_on=(parent,), on_parent_failure="run")
    )

    assert parent in office.wait(cancelled, 30).error
    assert office.work() == [runs]


def test_a_blocked_task_can_be_cancelled(office):
    parent = office.enqueue("parent")
    (child,) = office.submit(office.new("child", depends_on=(parent,)))

    assert office.cancel(child).state is TaskState.CANCELLED

    assert office.work() == [parent]
    assert office.lease() == []


def test_parents_that_cannot_be_waited_for_are_refused_and_nothing_is_stored(office):
    one, two = office.new("one"), office.new("two")
    circle = [
        office.new("one", task_id=one.task_id, depends_on=(two.task_id,)),
        office.new("two", task_id=two.task_id, depends_on=(one.task_id,)),
    ]
    stranger = office.new(depends_on=(UNKNOWN,))

    refuse(InvalidField, lambda: office.submit(office.new(), stranger), "tasks[1].depends_on", UNKNOWN)
    refuse(InvalidField, lambda: office.submit(*circle), "depends_on", "circle")
    refuse(InvalidField, lambda: office.submit(office.new(task_id=UNKNOWN, depends_on=(UNKNOWN,))), "depends_on")
    refuse(InvalidField, lambda: office.submit(one, one), "tasks[1].task_id", "twice")
    refuse(InvalidField, lambda: office.submit(office.new(args=b"{}")), "tasks[0].args")

    assert office.ids() == []


def test_submitting_again_what_was_stored_stores_nothing(office):
    parent, child = office.new("parent"), office.new("child")
    both = [parent, office.new("child", task_id=child.task_id, depends_on=(parent.task_id,))]
    office.submit(*both)

    assert office.submit(*both) == [parent.task_id, child.task_id]
    assert office.work() == [parent.task_id, child.task_id]
    assert office.submit(*both) == [parent.task_id, child.task_id]

    assert office.work() == []
    assert sorted(office.ids()) == sorted([parent.task_id, child.task_id])


def test_a_child_may_be_added_to_a_call_whose_parent_is_done_meanwhile(office):
    parent = office.new("parent", is_named=True)
    office.submit(parent)
    office.work()

    _, child = office.submit(parent, office.new("child", depends_on=(parent.task_id,)))

    assert office.work() == [child]


def test_parents_that_end_while_their_children_are_submitted_strand_nobody(office):
    parents = office.push(*(office.new("parent") for _ in range(40)))
    begun = threading.Event()

    def work() -> None:
        begun.wait(30)
        for run in office.lease():
            run.finish()

    done = in_thread(work)
    begun.set()
    children = [office.submit(office.new("child", depends_on=(parent,)))[0] for parent in parents]
    done.result(30)

    assert sorted(office.work()) == sorted(children)


@pytest.mark.parametrize("way", ["file", "sealed", "forgetful"], indirect=True)
def test_children_wait_on_after_a_crash(way):
    office = Office(way.start())
    parent = office.enqueue("parent")
    (child,) = office.submit(office.new("child", depends_on=(parent,)))
    before = office.task(child)

    office = Office(way.crash())

    assert office.task(child) == before
    assert office.work() == [parent, child]


# only one


def test_a_unique_task_is_there_once_until_it_is_final(office):
    first = office.confirmed(run_operation(office.session, ops.SubmitTasks([office.new(unique_key="daily")])))[0]
    second = office.confirmed(run_operation(office.session, ops.SubmitTasks([office.new(unique_key="daily")])))[0]

    assert (first.is_new, second.is_new, second.task_id) == (True, False, first.task_id)
    assert office.work() == [first.task_id]
    (third,) = office.submit(office.new(unique_key="daily"))
    assert third != first.task_id
    assert office.work() == [third]


def test_a_unique_task_may_keep_others_away_for_a_time(office, clock):
    (first,) = office.submit(office.new(unique_key="hourly", unique_seconds=3600))
    office.work()

    assert office.submit(office.new(unique_key="hourly", unique_seconds=3600)) == [first]
    clock.advance(3600)

    (second,) = office.submit(office.new(unique_key="hourly", unique_seconds=3600))
    assert second != first


def test_unique_keys_belong_to_their_queue(office):
    first, second, third = office.submit(
        office.new(unique_key="k"), office.new(unique_key="k"), office.new(unique_key="k", queue="other")
    )

    assert first == second
    assert third != first


@pytest.mark.parametrize("by_hand", [True, False])
def test_submitting_again_a_blocked_task_that_was_cancelled_leaves_it_cancelled(office, by_hand):
    parent = office.new("parent", is_named=True)
    child = office.new("child", depends_on=(parent.task_id,), is_named=True)
    tasks = [parent, child]
    office.submit(*tasks)
    if by_hand:
        office.cancel(child.task_id)
    else:
        office.lease_one().finish("dead", error="boom")

    answers = office.confirmed(run_operation(office.session, ops.SubmitTasks(tasks)))
    (alone,) = office.confirmed(run_operation(office.session, ops.SubmitTasks([child])))

    assert [answer.is_new for answer in (*answers, alone)] == [False] * 3
    assert office.state(child.task_id) == "cancelled"


def test_what_waits_for_a_cancelled_task_that_is_submitted_again_is_cancelled_too(office):
    first = office.new("first", is_named=True)
    second = office.new("second", depends_on=(first.task_id,), is_named=True)
    office.submit(first, second)
    office.cancel(second.task_id)

    third = office.new("third", depends_on=(second.task_id,))
    *known, new = office.confirmed(run_operation(office.session, ops.SubmitTasks([first, second, third])))

    assert ([answer.is_new for answer in known], new.is_new) == ([False, False], True)
    assert office.state(third.task_id) == "cancelled"


def test_a_cancelled_task_that_was_purged_can_be_submitted_again(office):
    parent = office.enqueue("parent")
    child = office.new("child", depends_on=(parent,), is_named=True)
    office.submit(child)
    office.cancel(child.task_id)
    office.confirmed(purge_tasks(office.session, TaskFilter(task_type="child")))

    (answer,) = office.confirmed(run_operation(office.session, ops.SubmitTasks([child])))

    assert answer.is_new
    assert office.state(child.task_id) == "blocked"
