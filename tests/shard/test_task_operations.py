"""Operations on many tasks: they go on where they were after the process stopped, and end when somebody says so."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock import operations as ops
from penstock.clock import ManualClock
from penstock.embedded.session import Session
from penstock.errors import QueueFull
from penstock.model_tasks import OperationState, OperationView, TaskFilter
from penstock.shard.tasks import operations
from tests.behaviour.task_steps import Office
from tests.storage.test_tasks_table import Archive
from tests.support.operations import purge_tasks, run_operation

CHUNK = 7


class Killed(Exception):
    """The process ends here."""


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    monkeypatch.setattr(operations, "CHUNK", CHUNK)


def filled(path: Path) -> Archive:
    """Tasks in every state: some final, some waiting, blocked, running; some parents."""
    office = Archive(path, ManualClock())
    office.push(*(office.new("a") for _ in range(25)))
    for index in range(15):
        outcome = ("completed", "dead", "cancelled")[index % 3]
        office.lease_one().finish(outcome, error="x" if index % 3 else "")
    run_operation(office.session, ops.Seal())
    office.push(*(office.new("a", delay_seconds=60 * (n % 2), priority=n % 3) for n in range(20)))
    parent = office.new("a")
    office.submit(parent, *(office.new("a", depends_on=(parent.task_id,)) for _ in range(5)))
    office.push(*(office.new("b") for _ in range(10)))
    return office


def lasting(office: Office) -> dict[str, Any]:
    return {
        task_id: (view.state, view.error, view.attempt)
        for task_id, view in ((task_id, office.task(task_id)) for task_id in office.ids(limit=1000))
    }


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Let some steps happen, then end the process before the next one."""
    left = [steps]
    take = operations.take_step

    def taken(*arguments: Any) -> Any:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return take(*arguments)

    monkeypatch.setattr(operations, "take_step", taken)


def killed(office: Archive, path: Path) -> Archive:
    """The directory as the process left it, opened by another one."""
    office.session.session.shard.journal.sync()
    shutil.copytree(office.path, path, ignore=shutil.ignore_patterns("lock"))
    return Archive(path, office.clock)


@pytest.mark.parametrize("action", ["purge", "cancel"])
@pytest.mark.parametrize("steps", range(9))
def test_it_goes_on_where_it_was_after_a_kill(tmp_path, monkeypatch, action, steps):
    office = filled(tmp_path / "data")
    ids = set(office.ids(limit=1000))
    with monkeypatch.context() as patched:
        stop_after(patched, steps)
        try:
            view, _ = run_operation(office.session, ops.BeginOperation(action, TaskFilter(task_type="a")))
            assert view.state is OperationState.DONE
        except Killed:
            pass
    again = killed(office, tmp_path / "left")
    try:
        again.session.session.tasks.operations.run()
        (view,) = again.confirmed(run_operation(again.session, ops.ListOperations()))

        assert view.state is OperationState.DONE
        if action == "purge":
            assert view.purged == 51
            assert {again.task(id).task_type for id in again.ids(limit=1000)} == {"b"}
        else:
            assert view.cancelled == 36
            assert set(again.ids(limit=1000)) == ids
            assert not [id for id in again.ids(task_type="a", limit=1000) if not again.task(id).is_final]
        before = lasting(again)
        run_operation(again.session, ops.Seal())
        again.start_over()
        assert lasting(again) == before
    finally:
        again.ps.close()
        office.ps.close()


def test_one_that_is_stopped_does_no_step_more(tmp_path, monkeypatch):
    office = filled(tmp_path / "data")
    take = operations.take_step
    stopped: list[OperationView] = []

    def taken(shard: Any, operation_id: str, *arguments: Any) -> Any:
        answer = take(shard, operation_id, *arguments)
        if not stopped:
            stopped.append(office.confirmed(run_operation(office.session, ops.StopOperation(operation_id))))
        return answer

    monkeypatch.setattr(operations, "take_step", taken)
    view = office.confirmed(run_operation(office.session, ops.BeginOperation("purge", TaskFilter())))

    assert stopped[0] == view
    assert (view.state, view.purged) == (OperationState.STOPPED, CHUNK)
    assert view.matched == 61
    office.reopen()
    office.session.session.tasks.operations.run()
    assert office.confirmed(run_operation(office.session, ops.FindOperation(view.operation_id))) == view
    office.ps.close()


def test_an_operation_is_over_soon_although_the_shard_is_closed_meanwhile(tmp_path, monkeypatch):
    office = filled(tmp_path / "data")
    office.ps.close()
    take = operations.take_step
    session = Session(office.path, durability="os")

    def taken(*arguments: Any) -> Any:
        session.tasks.operations._is_stopping = True  # as closing does, while a step is under way
        return take(*arguments)

    monkeypatch.setattr(operations, "take_step", taken)
    view, _ = run_operation(session, ops.BeginOperation("purge", TaskFilter()))
    session.close()
    monkeypatch.undo()

    with closing(Session(office.path, durability="os")) as again:
        assert purge_tasks(again, TaskFilter())[0] <= 61
        assert run_operation(again, ops.FindOperation(view.operation_id))[0].is_over
        assert run_operation(again, ops.ListTasks(TaskFilter()))[0].tasks == []


def test_only_so_many_run_at_a_time_and_those_that_are_over_are_forgotten(tmp_path, monkeypatch):
    office = Archive(tmp_path / "data", ManualClock())
    monkeypatch.setattr(office.session.session.tasks.operations, "run", lambda: None)
    names = [
        office.confirmed(run_operation(office.session, ops.BeginOperation("purge", TaskFilter()))).operation_id
        for _ in range(16)
    ]
    with pytest.raises(QueueFull):
        run_operation(office.session, ops.BeginOperation("purge", TaskFilter()))
    monkeypatch.undo()
    office.session.session.tasks.operations.run()
    assert [
        view.operation_id for view in reversed(office.confirmed(run_operation(office.session, ops.ListOperations())))
    ] == names

    for _ in range(100):
        office.confirmed(run_operation(office.session, ops.BeginOperation("cancel", TaskFilter())))
    assert len(office.confirmed(run_operation(office.session, ops.ListOperations()))) == 100
    office.reopen()
    assert len(office.confirmed(run_operation(office.session, ops.ListOperations()))) == 100
    office.ps.close()
