"""The life of a task: submitted, run, failed, retried, completed, dead; and what is told of it (F1–F4)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock import limits
from penstock.errors import InvalidField, LeaseLost, StateError, TaskNotFound, TooLarge
from penstock.model_tasks import TaskState
from tests.behaviour.steps import TICK, refuse
from tests.behaviour.task_steps import QUEUE, Office, in_thread

UNKNOWN = "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"
on_disk = pytest.mark.parametrize("way", ["file", "sealed", "forgetful"], indirect=True)


@pytest.fixture
def office(ps):
    return Office(ps)


def test_a_task_is_seen_from_its_submission_to_its_result(office, clock):
    task_id = office.enqueue("send", args=b'["a@b.c"]', kwargs=b'{"copy":true}', priority=200, key="k", workflow="w")

    seen = office.task(task_id)
    assert (seen.task_id, seen.task_type, seen.queue, seen.state) == (task_id, "send", QUEUE, TaskState.PENDING)
    assert (seen.args, seen.kwargs, seen.priority, seen.key) == (b'["a@b.c"]', b'{"copy":true}', 200, "k")
    assert (seen.attempt, seen.runs, seen.result, seen.workflow) == (0, (), None, "w")
    assert seen.message_id == f"{QUEUE}/0/0"

    run = office.lease_one(worker="w7")
    seen = office.task(task_id)
    assert (seen.state, seen.worker, seen.attempt) == (TaskState.RUNNING, "w7", 1)
    assert seen.started_at is not None
    assert seen.finished_at is None

    clock.advance(5)
    run.finish(result={"sent": 1})
    seen = office.task(task_id)
    assert (seen.state, seen.result, seen.worker) == (TaskState.COMPLETED, b'{"sent":1}', "w7")
    assert (seen.finished_at - seen.started_at).total_seconds() == 5
    assert [(each.attempt, each.worker, each.outcome) for each in seen.runs] == [(1, "w7", "acked")]
    assert office.lease() == []


@pytest.mark.parametrize("is_submitted", [False, True])
def test_the_id_of_a_task_belongs_to_its_type(office, is_submitted):
    task_id = office.enqueue("send", is_named=True)
    send = office.submit if is_submitted else office.push

    assert send(office.new("send", task_id=task_id, is_named=True)) == [task_id]
    other = office.new("other", task_id=task_id, is_named=True)
    refuse(StateError, lambda: send(office.new("send"), other), "task_id", task_id, "'send'", "'other'")

    assert [run.task_id for run in office.lease()] == [task_id]


def test_a_task_that_fails_is_tried_again_until_it_is_dead(office, clock):
    task_id = office.enqueue(max_attempts=2)

    office.lease_one().finish("failed", error="Traceback: first", delay_seconds=10)
    seen = office.task(task_id)
    assert (seen.state, seen.attempt, seen.error) == (TaskState.FAILED, 1, "Traceback: first")
    assert seen.due_at is not None

    clock.advance(10 + TICK)
    assert office.state(task_id) == "pending"
    office.lease_one().finish("failed", error="Traceback: second")
    seen = office.task(task_id)
    assert (seen.state, seen.attempt, seen.error) == (TaskState.DEAD, 2, "Traceback: second")
    assert seen.finished_at is not None
    assert [run.error for run in seen.runs] == ["Traceback: first", "Traceback: second"]
    assert office.ps.queue(QUEUE).stats().dead == 1


def test_every_ending_has_its_state(office, clock):
    endings = {
        "completed": "completed",
        "failed": "failed",
        "dead": "dead",
        "snoozed": "scheduled",
        "cancelled": "cancelled",
        "released": "pending",
    }
    ids = office.push(*(office.new(outcome) for outcome in endings))

    runs = office.lease()
    delays = {"snoozed": 60, "failed": 60}
    finishes = [
        run.ending(run.envelope.task_type, error="why", delay_seconds=delays.get(run.envelope.task_type))
        for run in runs
    ]
    assert office.finish(finishes) == [None] * len(endings)

    assert [office.state(task_id) for task_id in ids] == list(endings.values())
    again = {run.envelope.task_type: run.delivery.attempt for run in office.lease()}
    assert again == {"released": 1}
    clock.advance(60 + TICK)
    again = {run.envelope.task_type: run.delivery.attempt for run in office.lease()}
    assert again == {"snoozed": 1, "failed": 2}  # a snooze costs no attempt


def test_a_finish_that_is_refused_harms_no_other(office):
    first, second, third = office.push(office.new(), office.new(), office.new())
    runs = office.lease()
    runs[0].finish()

    refusals = office.finish([runs[0].ending("completed", 1), runs[1].ending("completed", 2), runs[2].ending("dead")])

    assert [type(refusal) for refusal in refusals] == [LeaseLost, type(None), type(None)]
    assert [office.state(task_id) for task_id in (first, second, third)] == ["completed", "completed", "dead"]
    assert office.task(first).result == b"null"
    assert office.task(second).result == b"2"


def test_a_result_that_cannot_be_kept_is_refused_and_the_run_goes_on(office):
    task_id = office.enqueue()
    run = office.lease_one()

    large = b'"' + b"x" * limits.task_result_bytes_max + b'"'
    (too_large,) = office.finish([msgspec.structs.replace(run.ending("completed"), result=large)])
    (no_json,) = office.finish([msgspec.structs.replace(run.ending("completed"), result=b"{nope")])

    assert isinstance(too_large, TooLarge)
    assert isinstance(no_json, InvalidField)
    assert office.state(task_id) == "running"
    run.finish("failed", error="its result was too large", delay_seconds=60)
    assert office.state(task_id) == "failed"


def test_a_delayed_task_is_scheduled_until_it_is_due(office, clock):
    task_id = office.enqueue(delay_seconds=60)

    seen = office.task(task_id)
    assert (seen.state, seen.due_at is not None) == (TaskState.SCHEDULED, True)
    assert office.lease() == []
    clock.advance(60 + TICK)

    assert office.state(task_id) == "pending"
    assert office.work() == [task_id]


def test_progress_is_seen_while_it_runs_and_refused_when_it_does_not(office, clock):
    task_id = office.enqueue()
    run = office.lease_one()

    run.progress({"done": 1, "of": 2})
    assert office.task(task_id).progress == b'{"done":1,"of":2}'
    run.progress([2, 2])
    assert office.task(task_id).progress == b"[2,2]"
    run.finish(result=7)
    with pytest.raises(LeaseLost):
        run.progress(3)

    assert office.task(task_id).result == b"7"


def test_a_lease_that_runs_out_is_an_attempt(office, clock, way):
    task_id = office.enqueue(max_attempts=2)
    late = office.lease_one(worker="w1")

    clock.advance(limits.lease_seconds_default + 1)
    way.let_time_happen()
    clock.advance(120)
    again = office.lease_one(worker="w2")

    assert again.delivery.attempt == 2
    with pytest.raises(LeaseLost):
        late.finish(result="late")
    again.finish(result="second")
    seen = office.task(task_id)
    assert (seen.state, seen.result) == (TaskState.COMPLETED, b'"second"')
    assert [(run.attempt, run.worker, run.outcome) for run in seen.runs] == [
        (1, "w1", "timed_out"),
        (2, "w2", "acked"),
    ]


def test_a_task_whose_workers_never_answer_is_dead_at_last(office, clock, way):
    task_id = office.enqueue(max_attempts=1)
    for _ in range(limits.task_attempts_lost_max):
        assert office.task(task_id).state is not TaskState.DEAD
        office.lease_one()
        clock.advance(limits.lease_seconds_default + 1)
        way.let_time_happen()
        clock.advance(120)

    seen = office.task(task_id)
    assert (seen.state, seen.attempt) == (TaskState.DEAD, limits.task_attempts_lost_max)
    assert seen.finished_at is not None


def test_a_task_shows_how_many_attempts_were_lost_with_their_workers(office, clock, way):
    task_id = office.enqueue(max_attempts=1)

    def lose() -> Any:
        office.lease_one()
        clock.advance(limits.lease_seconds_default + 1)
        way.let_time_happen()
        clock.advance(120)
        return office.task(task_id).attempts_lost

    assert office.task(task_id).attempts_lost == 0
    assert [lose(), lose()] == [1, 2]
    office.lease_one().finish("failed", error="no")
    seen = office.task(task_id)
    assert (seen.state, seen.attempt, seen.attempts_lost) == (TaskState.DEAD, 3, 2)

    office.retry(task_id)
    assert lose() == 1


def test_an_id_that_the_caller_chose_is_one_task(office):
    office.push(office.new(task_id=UNKNOWN, is_named=True))
    office.push(office.new(task_id=UNKNOWN, is_named=True))

    assert office.work() == [UNKNOWN]
    assert office.ids() == [UNKNOWN]


def test_messages_that_are_no_tasks_are_none(office):
    office.ps.queue(QUEUE).push(b"just a message")
    task_id = office.enqueue()

    assert office.ids() == [task_id]


def test_a_task_that_is_not_there_is_named(office):
    refuse(TaskNotFound, lambda: office.task(UNKNOWN), UNKNOWN)
    refuse(TaskNotFound, lambda: office.wait(UNKNOWN, 5), UNKNOWN)
    refuse(TaskNotFound, lambda: office.cancel(UNKNOWN), UNKNOWN)
    refuse(TaskNotFound, lambda: office.retry(UNKNOWN), UNKNOWN)
    with pytest.raises(InvalidField, match="task_id"):
        office.task("seven")


def test_a_confirmed_change_is_visible_from_any_thread(office):
    for number in range(10):
        task_id = office.enqueue()
        assert in_thread(lambda: office.state(task_id)).result(30) == "pending"  # noqa: B023
        office.lease_one().finish(result=number)
        assert in_thread(lambda: office.task(task_id).result).result(30) == str(number).encode()  # noqa: B023


@on_disk
def test_results_errors_and_runs_outlast_a_restart(way, clock):
    office = Office(way.start())
    done, failed, waits = office.push(office.new(), office.new(max_attempts=3), office.new(delay_seconds=3600))
    runs = office.lease()
    runs[0].finish(result="r")
    runs[1].finish("failed", error="no luck", delay_seconds=60)
    before = [office.task(task_id) for task_id in (done, failed, waits)]

    office = Office(way.restart())

    assert [office.task(task_id) for task_id in (done, failed, waits)] == before


@pytest.mark.parametrize("way", ["file", "sealed"], indirect=True)  # a power cut may take a delivery with it
def test_what_was_reported_of_tasks_holds_although_the_process_ended_without_a_farewell(way):
    office = Office(way.start())
    done, runs = office.push(office.new(), office.new())
    office.lease_one().finish(result="r")
    office.lease_one(worker="w2")
    assert office.state(runs) == "running"

    office = Office(way.crash())

    assert office.task(done).result == b'"r"'
    assert office.state(runs) in {"failed", "pending"}  # the attempt counts
    assert office.task(runs).attempt == 1
