"""What is kept of tasks that were purged, or have been final for long: sealed rows, and a task index without them."""

from __future__ import annotations

import pytest

from penstock import operations as ops
from penstock.clock import ManualClock
from penstock.errors import TaskNotFound
from penstock.model_tasks import TaskFilter, TaskState
from tests.storage.test_tasks_table import Archive
from tests.support.operations import purge_tasks, run_operation

WEEK = 7 * 24 * 3600


@pytest.fixture
def office(tmp_path):
    made = Archive(tmp_path / "data", ManualClock())
    yield made
    made.ps.close()


def purge(office: Archive, **wanted) -> int:
    count: int = office.confirmed(purge_tasks(office.session, TaskFilter(**wanted)))
    return count


def states(office: Archive, task_id: str) -> list[str]:
    return [row["state"] for row in office.rows(task_id)]


def test_a_purge_before_a_seal_loses_no_sealed_rows_and_leaves_no_ghosts(office):
    done = office.enqueue()
    waiting = office.enqueue()
    run_operation(office.session, ops.Seal())
    office.lease_one().finish(result=1)

    assert purge(office) == 2
    run_operation(office.session, ops.Seal())
    office.start_over()

    assert office.everything() == []
    assert states(office, done) == ["pending", "completed", "purged"]
    assert states(office, waiting) == ["pending", "cancelled", "purged"]


def test_a_purge_is_remembered_by_the_journal_alone(office):
    office.enqueue()
    office.lease_one().finish(result=1)
    assert purge(office) == 1

    office.start_over()

    assert office.everything() == []


def test_a_task_that_was_final_for_long_before_a_seal_keeps_its_rows(office):
    task_id = office.enqueue()
    run_operation(office.session, ops.Seal())
    office.lease_one().finish("dead", error="boom")
    office.everything()
    office.clock.advance(WEEK + 1)
    assert office.session.session.tasks.task_index.expire() == 1

    run_operation(office.session, ops.Seal())
    office.start_over()

    assert states(office, task_id) == ["pending", "dead", "purged"]
    assert office.everything() == []


def test_identities_are_kept_no_longer_than_they_are_needed(office):
    office.enqueue()
    office.lease_one().finish()
    purge(office)
    assert office.everything() == []
    follower = office.session.session.tasks.task_index._follower

    def kept() -> int:
        with follower.database.reading() as connection:
            return int(connection.execute("SELECT count(*) FROM forgotten").fetchone()[0])

    assert kept() == 1
    run_operation(office.session, ops.Seal())
    assert kept() == 0


def test_an_id_that_was_purged_can_be_used_again(office):
    task_id = office.enqueue("first", task_id="01890000-0000-7000-8000-000000000001")
    office.lease_one().finish()
    purge(office)
    office.submit(office.new("parent", queue="other"), again := office.new("second", task_id=task_id))
    run_operation(office.session, ops.Seal())

    office.start_over()

    assert office.task(again.task_id).task_type == "second"


def test_a_dead_letter_of_a_purged_task_runs_again_unseen(office):
    task_id = office.enqueue(max_attempts=1)
    office.lease_one().finish("failed", error="boom")
    purge(office)
    office.ps.queue("mail").dlq.redrive()
    office.lease_one().finish(result=2)
    with pytest.raises(TaskNotFound):
        office.task(task_id)

    run_operation(office.session, ops.Seal())
    office.start_over()

    with pytest.raises(TaskNotFound):
        office.task(task_id)


def test_a_run_without_an_error_does_not_inherit_the_one_before(office):
    task_id = office.enqueue(max_attempts=5)
    office.lease_one().finish("failed", error="boom", delay_seconds=0)
    run_operation(office.session, ops.Seal())
    office.lease_one().finish("failed", error="", delay_seconds=0)

    assert office.task(task_id).error == ""
    assert [run.error for run in office.task(task_id).runs] == ["boom", ""]
    before = office.everything()
    run_operation(office.session, ops.Seal())
    office.start_over()
    assert office.everything() == before


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("max_attempts", [1, 3])
def test_a_restart_keeps_who_ran_an_interrupted_task_and_since_when(office, is_sealed, max_attempts):
    task_id = office.enqueue(max_attempts=max_attempts)
    office.lease_one(worker="w1")
    started_at = office.task(task_id).started_at
    office.clock.advance(5)
    if is_sealed:
        run_operation(office.session, ops.Seal())

    office.reopen()

    (run,) = office.task(task_id).runs
    assert (run.worker, run.started_at, run.error) == ("w1", started_at, "the process stopped")
    assert office.task(task_id).worker == "w1"
    before = office.everything()
    run_operation(office.session, ops.Seal())
    office.start_over()
    assert office.everything() == before


def test_purging_a_parent_waits_for_its_children(office):
    parent, child = office.submit(
        first := office.new("parent"), office.new("child", depends_on=(first.task_id,), on_parent_failure="run")
    )
    assert purge(office, states=(TaskState.PENDING,)) == 0
    assert office.state(parent) == "cancelled"
    assert office.state(child) in ("pending", "blocked")

    office.work()
    assert purge(office) == 2
    assert office.everything() == []
