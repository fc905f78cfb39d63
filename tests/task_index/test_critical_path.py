"""The critical path of a workflow."""

from __future__ import annotations

from penstock.model import to_datetime
from penstock.model_tasks import TaskState, TaskView
from penstock.task_index.workflows import critical_path

NOW = 1_900_000_000_000_000


def ran(id: str, seconds: float | None, *parents: str, state: TaskState = TaskState.COMPLETED) -> TaskView:
    begun = None if seconds is None else to_datetime(NOW - round(seconds * 1_000_000))
    return TaskView(
        task_id=id, task_type="t", queue="q", state=state, priority=0, attempt=1, max_attempts=1, args=b"[]",
        kwargs=b"{}", submitted_at=to_datetime(0), depends_on=parents, started_at=begun,
        finished_at=None if begun is None or state is TaskState.RUNNING else to_datetime(NOW),
    )  # fmt: skip


def test_the_chain_that_ran_longest_wins_over_the_one_with_more_tasks():
    tasks = [ran("a", 1), ran("b", 1, "a"), ran("c", 1, "b"), ran("d", 9, "a"), ran("e", 1, "c", "d")]
    assert critical_path(tasks, NOW) == ["a", "d", "e"]


def test_a_running_task_counts_until_now_and_one_that_waits_as_nothing():
    waits = ran("c", None, "a", "b", state=TaskState.BLOCKED)
    assert critical_path([ran("a", 2), ran("b", 5, state=TaskState.RUNNING), waits], NOW) == ["b", "c"]


def test_unknown_parents_cycles_and_no_tasks_do_no_harm():
    assert critical_path([], NOW) == []
    assert critical_path([ran("a", 1, "gone")], NOW) == ["a"]
    assert critical_path([ran("a", 1, "b"), ran("b", 1, "a")], NOW) == []
    assert critical_path([ran("a", 1), ran("b", 1, "a", "a")], NOW) == ["a", "b"]


def test_a_chain_of_a_thousand_is_followed():
    tasks = [ran(str(number), 1, *([str(number - 1)] if number else [])) for number in range(1000)]
    assert critical_path(tasks[::-1], NOW) == [str(number) for number in range(1000)]
