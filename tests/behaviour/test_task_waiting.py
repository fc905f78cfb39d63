"""Waiting for a task: woken by its end, however it ends, and by nothing else."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock import limits
from penstock import operations as ops
from penstock.errors import Closed
from penstock.model_tasks import TaskState
from tests.behaviour.task_steps import Office, waiting
from tests.support.operations import run_operation

embedded = pytest.mark.parametrize("way", ["memory", "file"], indirect=True)


@pytest.fixture
def office(ps):
    return Office(ps)


def test_a_final_task_is_reported_at_once(office):
    task_id = office.enqueue()
    office.work()

    assert replace(office.wait(task_id, 30), runs=()) == replace(office.task(task_id), runs=())


def test_a_task_that_is_not_final_is_reported_as_it_is_when_the_time_is_over(office):
    task_id = office.enqueue()

    assert office.wait(task_id).state is TaskState.PENDING
    office.lease_one()
    assert office.wait(task_id).state is TaskState.RUNNING


def test_whoever_waits_receives_the_result(office, way):
    task_id, other = office.push(office.new("first", args=b"[1]"), office.new("other"))
    future = waiting(way, lambda: office.wait(task_id, 60))

    first, second = office.lease()
    second.finish(result="of another")
    assert not future.done()
    first.finish(result=[1, 2])

    seen = future.result(30)
    assert (seen.task_id, seen.state, seen.result) == (task_id, TaskState.COMPLETED, b"[1,2]")
    assert (seen.args, seen.attempt, seen.worker) == (b"[1]", 1, "w1")
    assert seen.finished_at == office.task(task_id).finished_at
    assert office.wait(other).result == b'"of another"'


def test_many_may_wait_for_one_task(office, way):
    task_id = office.enqueue()
    futures = [waiting(way, lambda: office.wait(task_id, 60)) for _ in range(3)]

    office.work()

    assert {future.result(30).result for future in futures} == {b'"result of send"'}
    assert len(way.session.tasks.waiters) == 0


def test_whoever_waits_is_notified_of_the_last_failure_and_not_before(office, way, clock):
    task_id = office.enqueue(max_attempts=2)
    future = waiting(way, lambda: office.wait(task_id, 600))

    office.lease_one().finish("failed", error="first", delay_seconds=0)
    clock.advance(1)
    assert not future.done()
    office.lease_one().finish("failed", error="second")

    seen = future.result(30)
    assert (seen.state, seen.error) == (TaskState.DEAD, "second")


def test_whoever_waits_is_notified_that_a_run_was_given_up(office, way):
    task_id = office.enqueue()
    future = waiting(way, lambda: office.wait(task_id, 60))

    office.lease_one().finish("cancelled", error="not needed any more")

    seen = future.result(30)
    assert (seen.state, seen.error) == (TaskState.CANCELLED, "not needed any more")


def test_whoever_waits_is_notified_that_the_task_was_cancelled(office, way):
    task_id = office.enqueue(delay_seconds=3600)
    future = waiting(way, lambda: office.wait(task_id, 60))

    office.cancel(task_id)

    assert future.result(30).state is TaskState.CANCELLED


def test_whoever_waits_for_a_child_is_notified_that_its_parent_died(office, way):
    parent = office.enqueue(max_attempts=1)
    (child,) = office.submit(office.new("child", depends_on=(parent,)))
    future = waiting(way, lambda: office.wait(child, 60))

    office.lease_one().finish("dead", error="hopeless")

    seen = future.result(30)
    assert seen.state is TaskState.CANCELLED
    assert parent in seen.error


def test_whoever_waits_is_notified_that_the_worker_never_answered(office, way, clock):
    task_id = office.enqueue(max_attempts=1)
    future = waiting(way, lambda: office.wait(task_id, 6000))

    for _ in range(limits.task_attempts_lost_max):
        clock.advance(120)
        office.lease_one()
        clock.advance(limits.lease_seconds_default + 1)
        way.let_time_happen()
    office.ids()  # any reader has the task index follow; a thread does so by itself

    assert future.result(30).state is TaskState.DEAD


@embedded
def test_the_end_of_patience_comes_by_the_clock(office, way, clock):
    task_id = office.enqueue()
    future = waiting(way, lambda: office.wait(task_id, 60))

    clock.advance(59)
    assert not future.done()
    clock.advance(1)

    assert future.result(30).state is TaskState.PENDING


@embedded
def test_closing_tells_whoever_waits(office, way):
    task_id = office.enqueue()
    result = waiting(way, lambda: office.wait(task_id, 60))
    news = waiting(way, lambda: run_operation(office.session, ops.AwaitNews("w1", 60)))

    office.ps.close()

    with pytest.raises(Closed):
        result.result(30)
    with pytest.raises(Closed):
        news.result(30)


def test_a_finish_that_names_the_wrong_task_tells_nobody_a_wrong_result(office, way):
    mine, _ = office.push(office.new("mine"), office.new("other"))
    future = waiting(way, lambda: office.wait(mine, 60))
    first, second = office.lease()

    second.task_id = mine
    office.finish([second.ending("completed", "not mine")])
    first.finish(result="mine")

    assert future.result(30).result == b'"mine"'
