"""Operations on many tasks: purge and cancel, in the background, over every way in."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import operations as ops
from penstock.errors import InvalidField, OperationNotFound, TaskConflict
from penstock.model_tasks import OperationState, OperationView, TaskFilter, TaskState, WorkerInfo
from tests.behaviour.steps import refuse
from tests.behaviour.task_steps import Office
from tests.support.operations import cancel_tasks, purge_tasks, run_operation


@pytest.fixture
def office(ps):
    return Office(ps)


def begin(office: Office, action: str, operation_id: str = "", **wanted) -> OperationView:
    """Begun, and worked off: whoever looks until it is over sees that it is."""
    view: OperationView = office.confirmed(
        run_operation(office.session, ops.BeginOperation(action, TaskFilter(**wanted), operation_id))
    )
    while not view.is_over:
        view = office.confirmed(run_operation(office.session, ops.FindOperation(view.operation_id)))
    return view


def test_an_operation_tells_what_it_did(office):
    done = office.push(*(office.new("a") for _ in range(3)))
    office.work()
    office.push(*(office.new("a") for _ in range(2)))
    (other,) = office.push(office.new("b"))

    view = begin(office, "purge", task_type="a")

    assert (view.action, view.state, view.error) == ("purge", OperationState.DONE, "")
    assert (view.matched, view.cancelled, view.purged) == (5, 2, 5)
    assert view.filter is not None
    assert view.filter.task_type == "a"
    assert view.ended_at is not None
    assert office.ids() == [other]
    assert done


def test_cancelling_by_a_filter_ends_what_waits_and_what_runs(office, way):
    run_operation(office.session, ops.HeartbeatWorker(WorkerInfo(worker_id="w1", queues=("mail",))))
    ids = office.push(*(office.new("a", delay_seconds=30 * (n % 2)) for n in range(6)))
    parent, child = office.submit(first := office.new("a"), office.new("a", depends_on=(first.task_id,)))
    running = office.lease_one()
    other = office.enqueue("b")

    view = begin(office, "cancel", task_type="a")

    assert {office.state(task_id) for task_id in (*ids, parent, child)} == {"cancelled"}
    assert office.state(other) == "pending"
    assert view.cancelled in (7, 8)  # the child may have been cancelled with its parent
    assert view.purged == 0
    assert way.session.tasks.registry.news("w1").cancelled == (running.task_id,)
    with pytest.raises(Exception, match="receipt"):
        running.finish(result=1)
    assert office.work() == [other]


def test_running_tasks_are_left_alone_where_the_filter_leaves_them_out(office):
    running = office.enqueue()
    waiting = office.enqueue()
    run = office.lease_one()

    assert begin(office, "cancel", states=(TaskState.PENDING,)).cancelled == 1

    assert (office.state(running), office.state(waiting)) == ("running", "cancelled")
    run.finish(result=1)
    assert begin(office, "cancel").cancelled == 0


def test_the_same_id_is_the_same_operation(office):
    office.enqueue()
    first = begin(office, "purge", "spring-cleaning")
    office.enqueue()

    again = begin(office, "purge", "spring-cleaning")

    assert again == first
    assert len(office.ids()) == 1
    assert [view.operation_id for view in office.confirmed(run_operation(office.session, ops.ListOperations()))] == [
        "spring-cleaning"
    ]


def test_operations_are_listed_newest_first_and_one_that_is_over_cannot_be_stopped(office):
    office.enqueue()
    first, second = begin(office, "cancel"), begin(office, "purge")

    assert office.confirmed(run_operation(office.session, ops.ListOperations())) == [second, first]
    refuse(TaskConflict, lambda: run_operation(office.session, ops.StopOperation(first.operation_id)), "is done")
    refuse(OperationNotFound, lambda: run_operation(office.session, ops.FindOperation("none")), "'none'")
    refuse(OperationNotFound, lambda: run_operation(office.session, ops.StopOperation("none")), "'none'")


ODD: Any = ("odd",)  # no state


def test_bad_input_names_its_field(office):
    refuse(InvalidField, lambda: run_operation(office.session, ops.BeginOperation("drop", TaskFilter())), "action")
    refuse(
        InvalidField,
        lambda: run_operation(office.session, ops.BeginOperation("purge", TaskFilter(), "a/b")),
        "operation_id",
    )
    refuse(
        InvalidField,
        lambda: run_operation(office.session, ops.BeginOperation("purge", TaskFilter(states=ODD))),
        "states",
    )
    refuse(
        InvalidField,
        lambda: run_operation(office.session, ops.BeginOperation("purge", TaskFilter(argument=""))),
        "argument",
    )
    refuse(InvalidField, lambda: run_operation(office.session, ops.FindOperation("..")), "operation_id")
    assert office.confirmed(run_operation(office.session, ops.ListOperations())) == []


def test_tasks_that_are_submitted_after_it_began_are_not_meant(office, clock):
    office.enqueue()
    first = begin(office, "purge")
    clock.advance(1)
    kept = office.enqueue()

    assert first.purged == 1
    assert office.ids() == [kept]


def test_purge_and_cancel_wait_until_it_is_done(office):
    office.push(*(office.new() for _ in range(5)))

    assert office.confirmed(cancel_tasks(office.session, TaskFilter())) == 5
    assert office.confirmed(purge_tasks(office.session, TaskFilter())) == 5
    assert office.ids() == []
