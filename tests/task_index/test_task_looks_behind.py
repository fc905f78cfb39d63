"""One task is answered as it is now, however far the task index is behind, and without its catching up."""

from __future__ import annotations

import pytest

from penstock import operations as ops
from penstock.batch import Batch
from penstock.clock import ManualClock
from penstock.envelopes import tasks_batch
from penstock.errors import TaskNotFound
from penstock.model_tasks import TaskFilter
from penstock.task_index import database
from penstock.task_index import index as module
from penstock.task_index.follower import Follower
from tests.storage.test_tasks_table import Archive
from tests.support.operations import purge_tasks, run_operation


@pytest.fixture
def office(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "NEAR", 10)
    made = Archive(tmp_path / "data", ManualClock())
    yield made
    made.ps.close()


def backlog(office: Archive, count: int = 30) -> None:
    """Many other tasks, each in a frame of its own, that the task index has not looked at."""
    for _ in range(count):
        office.enqueue("other")


def position(office: Archive) -> int:
    follower = office.session.session.tasks.task_index._follower
    assert isinstance(follower, Follower)
    return follower.position


def look(office: Archive, task_id: str) -> str:
    """The state of a task; the task index stays where it is."""
    before = position(office)
    state = office.state(task_id)
    assert position(office) == before
    return state


def caught_up(office: Archive) -> None:
    office.confirmed(run_operation(office.session, ops.ListTasks(TaskFilter())))


def test_what_has_not_changed_is_read_from_its_row(office, monkeypatch):
    pending = office.enqueue(priority=9)
    (blocked,) = office.submit(office.new("child", depends_on=(pending,)))
    other = office.enqueue(delay_seconds=60)
    caught_up(office)
    backlog(office)
    monkeypatch.setattr(
        office.session.session.shard.journal, "reader", lambda: pytest.fail("the journal need not be read for this")
    )

    assert look(office, pending) == "pending"
    assert look(office, blocked) == "blocked"
    assert look(office, other) == "scheduled"


def test_a_final_task_is_read_from_its_row(office, monkeypatch):
    task_id = office.enqueue()
    office.lease_one().finish(result=1)
    caught_up(office)
    backlog(office)
    monkeypatch.setattr(
        office.session.session.shard.journal, "reader", lambda: pytest.fail("the journal need not be read for this")
    )

    assert look(office, task_id) == "completed"


def test_its_own_entries_are_found_in_the_journal(office):
    task_id = office.enqueue(priority=0, max_attempts=3)
    caught_up(office)
    backlog(office)
    run = next(run for run in office.lease(100, worker="w7") if run.task_id == task_id)
    backlog(office)
    assert look(office, task_id) == "running"
    assert office.task(task_id).worker == "w7"

    office.clock.advance(2)
    run.finish("failed", error="boom", delay_seconds=5)
    backlog(office)
    view = office.task(task_id)
    assert (view.state, view.error, view.attempt, len(view.runs)) == ("failed", "boom", 1, 1)
    assert view.updated_at == view.runs[0].ended_at > view.started_at

    office.cancel(task_id)
    assert look(office, task_id) == "cancelled"
    seen = office.task(task_id)
    caught_up(office)
    assert office.task(task_id) == seen


def test_when_a_task_changed_is_known_from_its_row_and_its_runs(office):
    task_id = office.enqueue(max_attempts=3)
    run = office.lease_one()
    office.clock.advance(2)
    run.finish("failed", error="boom", delay_seconds=5)
    caught_up(office)
    before = office.task(task_id)
    assert before.updated_at == before.runs[0].ended_at
    office.clock.advance(2)
    backlog(office)

    stays = position(office)
    assert office.task(task_id) == before
    assert position(office) == stays


def test_a_task_that_the_task_index_does_not_know_yet_is_found(office):
    caught_up(office)
    backlog(office)
    task_id = office.enqueue(args=b'["new"]')
    (child,) = office.submit(office.new("child", depends_on=(task_id,)))
    backlog(office)

    assert look(office, task_id) == "pending"
    assert office.task(task_id).args == b'["new"]'
    assert look(office, child) == "blocked"


def test_one_that_is_nowhere_is_not_found(office):
    caught_up(office)
    backlog(office)

    with pytest.raises(TaskNotFound):
        office.task(office.new().task_id)


@pytest.mark.parametrize("how", ["purge", "retry", "seek", "delete"])
def test_what_reaches_back_is_seen(office, how):
    task_id = office.enqueue()
    office.lease_one().finish("dead", error="x")
    caught_up(office)
    backlog(office)
    if how == "purge":
        office.confirmed(purge_tasks(office.session, TaskFilter(states=("dead",))))  # type: ignore[arg-type]
    elif how == "retry":
        office.retry(task_id)
    elif how == "seek":
        office.ps.queue("mail").seek("default", "earliest")
    else:
        office.ps.delete_queue("mail")
        caught_up(office)
    if how == "purge":
        with pytest.raises(TaskNotFound):
            office.task(task_id)
        return
    seen = office.task(task_id)
    caught_up(office)
    assert office.task(task_id) == seen
    assert seen.state == ("dead" if how == "delete" else "pending")


def test_submitting_and_cancelling_do_not_wait_for_the_task_index(office):
    parent = office.enqueue()
    caught_up(office)
    backlog(office)
    before = position(office)

    (child,) = office.submit(office.new("child", depends_on=(parent,)))
    office.cancel(child)

    assert position(office) == before
    assert look(office, child) == "cancelled"


def test_a_compressed_batch_is_looked_into(office):
    caught_up(office)
    backlog(office)
    tasks = [office.new(args=b'["' + b"x" * 500 + b'"]') for _ in range(50)]
    batch = Batch(tasks_batch(tasks).encode(compress=True))
    assert batch.compressed
    office.session.push("mail", batch, None, None)
    backlog(office)

    assert look(office, tasks[25].task_id) == "pending"


def large_backlog(office: Archive) -> None:
    """Other tasks, many in each of a few frames."""
    for _ in range(3):
        office.push(*(office.new("other") for _ in range(500)))


def test_a_few_large_frames_are_far_behind_too(office):
    old = office.enqueue(priority=255)
    caught_up(office)
    large_backlog(office)
    new = office.enqueue()
    office.push(*(office.new("other") for _ in range(500)))

    assert look(office, old) == "pending"
    assert look(office, new) == "pending"
    assert office.lease_one().task_id == old
    assert look(office, old) == "running"


def test_a_task_index_that_was_never_asked_answers_without_reading_everything(office, monkeypatch):
    task_id = office.enqueue()
    large_backlog(office)
    monkeypatch.setattr(Follower, "follow", lambda *_: pytest.fail("it need not catch up for this"))

    assert office.state(task_id) == "pending"


def test_of_a_frame_with_many_tasks_only_those_that_are_wanted_are_stored(office, monkeypatch):
    caught_up(office)
    tasks = [office.new() for _ in range(1000)]
    office.push(*tasks)
    office.push(*(office.new("other") for _ in range(500)))
    stored: list[int] = []
    insert = database.execute_rows

    def noted(connection, statement, rows):
        stored.append(len(rows))
        insert(connection, statement, rows)

    monkeypatch.setattr(database, "execute_rows", noted)

    assert look(office, tasks[500].task_id) == "pending"
    assert max(stored) == 1


def test_many_are_answered_from_their_rows_and_the_few_that_changed_from_the_journal(office):
    ids = office.push(*(office.new(priority=255) for _ in range(module.FEW * 2)))
    caught_up(office)
    office.lease_one().finish("failed", error="boom", delay_seconds=5)
    large_backlog(office)
    before = position(office)

    views = office.session.session.tasks.task_index.views(ids)

    assert position(office) == before
    assert sorted(view.task_id for view in views) == sorted(ids)
    assert [view.error for view in views if view.state != "pending"] == ["boom"]
