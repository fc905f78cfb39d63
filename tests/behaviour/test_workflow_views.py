"""Workflows as a whole: their list, one with its tasks and critical path, over every way in."""

from __future__ import annotations

import pytest

from penstock import operations as ops
from penstock.errors import InvalidField, InvalidName, TaskNotFound
from penstock.model_tasks import TaskSubmission

IDS = [f"0190a1b2-c3d4-7e5f-8a9b-{number:012x}" for number in range(2000)]


def submit(ps, number: int, workflow: str, *parents: int, queue: str = "mail") -> None:
    depends_on = tuple(IDS[parent] for parent in parents)
    task = TaskSubmission(task_id=IDS[number], task_type="t", queue=queue, workflow=workflow, depends_on=depends_on)
    ps.session.execute(ops.SubmitTasks([task]))


def names(page) -> list[str]:
    return [view.workflow for view in page.workflows]


def test_workflows_are_listed_newest_first_in_pages(ps, clock):
    for number, workflow in enumerate(("a", "b", "", "c", "a", "d")):
        clock.advance(seconds=1)
        submit(ps, number, workflow)

    whole = ps.session.execute(ops.ListWorkflows())
    first = ps.session.execute(ops.ListWorkflows(2))
    second = ps.session.execute(ops.ListWorkflows(2, first.cursor))

    assert (names(whole), whole.cursor) == (["d", "a", "c", "b"], None)
    assert names(first) == ["d", "a"]
    assert names(second) == ["c", "b"]
    assert whole.workflows[1].tasks_total == 2
    assert whole.workflows[1].tasks is None
    if second.cursor is not None:
        assert names(ps.session.execute(ops.ListWorkflows(2, second.cursor))) == []


def test_one_workflow_has_its_tasks_and_their_states(ps, clock):
    submit(ps, 0, "w")
    submit(ps, 1, "w", 0, queue="sms")
    submit(ps, 2, "other")
    before = ps.session.execute(ops.FindWorkflow("w"))
    ps.session.execute(ops.CancelTask(IDS[0]))
    after = ps.session.execute(ops.FindWorkflow("w"))

    assert (before.status, before.finished_at, before.tasks_total, before.queues) == (
        "running",
        None,
        2,
        ["mail", "sms"],
    )
    assert (before.counts["pending"], before.counts["blocked"]) == (1, 1)
    assert [task.task_id for task in before.tasks] == IDS[:2]
    assert before.tasks[1].depends_on == (IDS[0],)
    assert before.critical_path == IDS[:2]
    assert (after.status, after.counts["cancelled"], after.is_cut) == ("cancelled", 2, False)
    assert after.finished_at is not None


def test_tasks_of_a_large_workflow_are_cut(ps):
    tasks = [TaskSubmission(task_id=id, task_type="t", queue="mail", workflow="w") for id in IDS[:1001]]
    ps.session.execute(ops.SubmitTasks(tasks[:1000]))
    assert not ps.session.execute(ops.FindWorkflow("w")).is_cut
    ps.session.execute(ops.SubmitTasks(tasks[1000:]))
    view = ps.session.execute(ops.FindWorkflow("w"))
    assert (view.is_cut, view.tasks_total, len(view.tasks)) == (True, 1001, 1000)


def test_what_is_no_workflow_is_not_found_and_odd_input_is_refused(ps):
    with pytest.raises(TaskNotFound):
        ps.session.execute(ops.FindWorkflow("nothing-of-that-name"))
    with pytest.raises(InvalidName, match="workflow"):
        ops.FindWorkflow("' OR 1=1 --")
    with pytest.raises(InvalidField, match="cursor"):
        ps.session.execute(ops.ListWorkflows(10, "rubbish"))
    with pytest.raises(InvalidField, match="limit"):
        ops.ListWorkflows(0)
    assert ps.session.execute(ops.ListWorkflows()).workflows == []
