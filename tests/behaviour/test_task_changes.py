"""Cancelling, retrying, listing and forgetting tasks, in every state that they can be in."""

from __future__ import annotations

import pytest

from penstock import limits
from penstock import operations as ops
from penstock.errors import InvalidField, LeaseLost, TaskConflict, TaskNotFound
from penstock.model_tasks import TaskFilter, TaskState, WorkerInfo
from tests.behaviour.steps import TICK, refuse
from tests.behaviour.task_steps import QUEUE, Office, waiting
from tests.support.operations import purge_tasks, run_operation


@pytest.fixture
def office(ps):
    return Office(ps)


# cancelling


@pytest.mark.parametrize("options", [{}, {"delay_seconds": 60}, {"key": "k"}])
def test_a_task_that_waits_can_be_cancelled(office, clock, options):
    task_id = office.enqueue(**options)
    other = office.enqueue()

    seen = office.cancel(task_id)

    assert seen.state is TaskState.CANCELLED
    assert seen.finished_at is not None
    clock.advance(60 + TICK)
    assert office.work() == [other]
    assert office.cancel(task_id) == seen


def test_a_task_that_waits_for_its_next_attempt_can_be_cancelled(office, clock):
    task_id = office.enqueue()
    office.lease_one().finish("failed", error="no luck", delay_seconds=60)

    assert office.cancel(task_id).state is TaskState.CANCELLED
    clock.advance(60 + TICK)

    assert office.lease() == []


def test_a_task_that_runs_is_cancelled_at_once_and_its_worker_is_notified(office, way):
    task_id, other = office.push(office.new(), office.new())
    run_operation(office.session, ops.HeartbeatWorker(WorkerInfo(worker_id="w1")))
    run, goes_on = office.lease(worker="w1")
    news = waiting(way, lambda: office.confirmed(run_operation(office.session, ops.AwaitNews("w1", 60))))

    seen = office.cancel(task_id)

    assert (seen.state, seen.worker) == (TaskState.CANCELLED, "w1")
    assert news.result(30).cancelled == (task_id,)
    assert office.confirmed(run_operation(office.session, ops.AwaitNews("w1", 0))).cancelled == ()
    assert office.confirmed(
        run_operation(office.session, ops.HeartbeatWorker(WorkerInfo(worker_id="w1")))
    ).cancelled == (task_id,)
    with pytest.raises(LeaseLost):
        run.finish(result="too late")
    goes_on.finish(result="fine")
    assert office.state(task_id) == "cancelled"
    assert office.task(other).result == b'"fine"'


def test_what_is_over_cannot_be_cancelled(office):
    done, dead = office.push(office.new(), office.new())
    first, second = office.lease()
    first.finish()
    second.finish("dead")

    refuse(TaskConflict, lambda: office.cancel(done), done, "completed")
    refuse(TaskConflict, lambda: office.cancel(dead), dead, "dead")


# retrying


def test_a_dead_task_is_retried_with_all_its_attempts(office, clock):
    task_id = office.enqueue(max_attempts=1)
    office.lease_one().finish("failed", error="no luck")
    assert office.state(task_id) == "dead"

    assert office.retry(task_id).state is TaskState.PENDING

    run = office.lease_one()
    assert (run.task_id, run.delivery.attempt) == (task_id, 1)
    run.finish(result="at last")
    seen = office.task(task_id)
    assert (seen.state, seen.result) == (TaskState.COMPLETED, b'"at last"')
    assert office.ids() == [task_id]


def test_a_cancelled_task_can_be_retried(office):
    waits, runs = office.push(office.new("waits"), office.new("runs"))
    office.cancel(waits)
    assert office.lease_one().task_id == runs
    office.cancel(runs)

    for task_id in (waits, runs):
        assert office.retry(task_id).state is TaskState.PENDING

    assert sorted(office.work()) == sorted([waits, runs])
    assert office.confirmed(run_operation(office.session, ops.AwaitNews("w1", 0))).cancelled == ()


def test_a_failed_task_need_not_wait_for_its_next_attempt(office):
    task_id = office.enqueue(max_attempts=2)
    office.lease_one().finish("failed", error="no luck", delay_seconds=3600)

    office.retry(task_id)

    assert office.work() == [task_id]


def test_what_has_not_failed_is_not_retried(office):
    done, runs, waits = office.push(office.new(), office.new(), office.new())
    first, _ = office.lease(2)
    first.finish()

    for task_id in (done, runs, waits):
        refuse(TaskConflict, lambda: office.retry(task_id), task_id)  # noqa: B023


# listing and forgetting


def test_tasks_are_listed_newest_first_page_by_page(office, clock):
    ids = []
    for number in range(7):
        ids.append(office.enqueue("even" if number % 2 == 0 else "odd", args=f"[{number}]".encode()))
        clock.advance(1)

    assert office.ids(limit=3) == ids[::-1]
    assert office.ids(task_type="odd") == [ids[5], ids[3], ids[1]]
    assert office.ids(argument="args.0=4") == [ids[4]]
    page = office.confirmed(run_operation(office.session, ops.ListTasks(TaskFilter(limit=7))))
    assert (len(page.tasks), page.cursor) == (7, None)


def test_tasks_are_found_by_state_queue_worker_and_workflow(office):
    mine = office.enqueue(workflow="w")
    other = office.enqueue(queue="other")
    office.lease_one(worker="w5").finish(result=1)

    assert office.ids(states=(TaskState.COMPLETED,)) == [mine]
    assert office.ids(states=(TaskState.PENDING, TaskState.RUNNING)) == [other]
    assert office.ids(queue="other") == [other]
    assert office.ids(worker="w5") == [mine]
    assert office.ids(workflow="w") == [mine]
    assert office.ids(queue="nowhere") == []


def test_a_filter_that_makes_no_sense_is_refused(office):
    with pytest.raises(InvalidField, match="limit"):
        office.ids(limit=limits.task_page_max + 1)
    with pytest.raises(InvalidField, match="cursor"):
        run_operation(office.session, ops.ListTasks(TaskFilter(cursor="rubbish")))


def test_purging_forgets_what_is_over_and_what_only_waits(office, clock):
    done, runs, waits, later, keeps = office.push(
        office.new("a"), office.new("a"), office.new("a"), office.new("a", delay_seconds=60), office.new("b")
    )
    first, second = office.lease(2)
    first.finish()

    assert office.confirmed(purge_tasks(office.session, TaskFilter(task_type="a"))) == 3

    assert office.ids() == [keeps, runs]
    for task_id in (done, waits, later):
        refuse(TaskNotFound, lambda: office.task(task_id))  # noqa: B023
    second.finish()
    clock.advance(60 + TICK)
    assert office.work() == [keeps]


def test_purging_by_state_forgets_only_those(office):
    done, waits = office.push(office.new(), office.new())
    office.lease_one().finish()

    assert office.confirmed(purge_tasks(office.session, TaskFilter(states=(TaskState.PENDING,)))) == 1

    assert office.ids() == [done]
    assert office.lease() == []
    assert office.ps.queue(QUEUE).stats().ready == 0
    assert waits not in office.ids()
