"""Chains, groups and graphs: children wait for their parents, take their results, and share their fate."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import App, Cancel, chain, current_task, graph, group
from penstock.errors import InvalidField, TaskCancelled, TaskDied, TaskUnfinished


@pytest.fixture
def app():
    with App.in_memory() as app:
        yield app


@pytest.fixture
def tasks(app):
    return Tasks(app)


class Tasks:
    """Some tasks, and the order in which they ran."""

    def __init__(self, app: App) -> None:
        self.ran: list[str] = []

        @app.task
        def add(a: int, b: int = 1) -> int:
            self.ran.append(f"{a}+{b}")
            return a + b

        @app.task(queue="sums")
        async def total(numbers: list[int]) -> int:
            self.ran.append(f"total {numbers}")
            return sum(numbers)

        @app.task
        def alone() -> str:
            self.ran.append("alone")
            return "alone"

        @app.task(max_attempts=1)
        def fail(*anything: Any) -> int:
            self.ran.append("fail")
            raise ValueError("on purpose")

        @app.task
        def either(value: int | None) -> str:
            self.ran.append(f"either {value}")
            return f"{value}, {[parent.state.value for parent in current_task().parents]}"

        self.add, self.total, self.alone, self.fail, self.either = add, total, alone, fail, either


def test_a_chain_hands_each_result_on(app, tasks):
    flow = chain(tasks.add.s(1), tasks.add.s(10), tasks.add.s(b=100)).enqueue()
    assert [job.status() for job in flow.jobs] == ["pending", "blocked", "blocked"]
    assert app.run_pending() == 3
    assert tasks.ran == ["1+1", "2+10", "12+100"]
    assert flow.result() == 112
    assert flow.status() == {"completed": 3}


def test_a_bar_makes_a_chain_too(app, tasks):
    flow = (tasks.add.s(1) | tasks.add.s(1) | tasks.add.s(1)).enqueue()
    app.run_pending()
    assert flow.result() == 4


def test_a_group_gives_a_list_in_its_order(app, tasks):
    flow = group(tasks.add.s(n) for n in (5, 3, 4)).enqueue()
    app.run_pending()
    assert flow.result() == [6, 4, 5]


def test_a_group_with_a_callback_that_takes_all_results(app, tasks):
    flow = group(tasks.add.s(1), tasks.add.s(2)).then(tasks.total.s()).enqueue()
    app.run_pending()
    assert tasks.ran[-1] == "total [2, 3]"
    assert flow.result() == 5


def test_a_group_of_one_is_a_group(app, tasks):
    flow = group(tasks.add.s(1)).then(tasks.total.s()).enqueue()
    app.run_pending()
    assert flow.result() == 2


def test_parts_nest(app, tasks):
    flow = chain(
        tasks.add.s(0),
        group(tasks.add.s(1), chain(tasks.add.s(2), tasks.add.s(3))),
        tasks.total.s(),
        group(tasks.add.s(10), tasks.add.s(20)),
    ).enqueue()
    assert len(flow.jobs) == 7
    app.run_pending()
    assert flow.result() == [2 + 6 + 10, 2 + 6 + 20]


def test_a_graph_of_any_shape(app, tasks):
    flow = (
        graph()
        .add("sum", tasks.total.s(), after=["left", "right"])  # those it waits for may come later
        .add("start", tasks.add.s(0))
        .add("left", tasks.add.s(10), after="start")
        .add("right", tasks.add.s(20), after="start")
        .enqueue()
    )
    app.run_pending()
    assert tasks.ran[-1] == "total [11, 21]"
    assert flow.result() == flow["sum"].result() == 32
    assert flow["left"].result() == 11
    with pytest.raises(InvalidField, match=r"'lefd'.*did you mean 'left'"):
        flow["lefd"]


def test_what_a_task_takes_can_be_said(app, tasks):
    flow = chain(tasks.add.s(1), tasks.alone.options(takes="none").s()).enqueue()
    app.run_pending()
    assert flow.result() == "alone"
    assert tasks.ran == ["1+1", "alone"]


def test_a_task_may_depend_on_jobs_and_workflows_and_takes_nothing_by_itself(app, tasks):
    first = tasks.add.enqueue(1)
    flow = group(tasks.add.s(2), tasks.add.s(3)).enqueue()
    last = tasks.alone.options(depends_on=[first, flow]).enqueue()
    sums = tasks.total.options(depends_on=[first, flow], takes="all").enqueue()
    assert set(last.info().depends_on) == {first.id, *flow.end_ids}
    app.run_pending()
    assert last.result() == "alone"
    assert sums.result() == 2 + 3 + 4


def test_a_child_sees_its_parents(app, tasks):
    seen: list[Any] = []

    @app.task
    def look() -> None:
        seen.append(([parent.task_type for parent in current_task().parents], current_task().parent_results))

    jobs = [tasks.add.enqueue(1), tasks.alone.enqueue()]
    look.options(depends_on=jobs).enqueue()
    app.run_pending()
    assert seen == [(["add", "alone"], [2, "alone"])]


def test_children_of_a_dead_task_are_cancelled_and_say_why(app, tasks):
    flow = chain(tasks.fail.s(), tasks.add.s(), tasks.add.s()).enqueue()
    app.run_pending()
    app.advance(1)
    app.run_pending()
    assert [job.status() for job in flow.jobs] == ["dead", "cancelled", "cancelled"]
    with pytest.raises(TaskCancelled, match=flow.jobs[1].id):
        flow.result()
    with pytest.raises(TaskDied, match="on purpose"):
        flow.jobs[0].result()
    assert tasks.ran == ["fail"]


@pytest.mark.parametrize("how", ["dies", "is cancelled", "cancels itself"])
def test_a_child_may_run_all_the_same(app, tasks, how):
    @app.task
    def give_up() -> int:
        raise Cancel("no")

    parent = tasks.fail if how == "dies" else give_up
    flow = chain(parent.s(), tasks.either.options(on_parent_failure="run").s()).enqueue()
    if how == "is cancelled":
        flow.jobs[0].cancel()
    app.run_pending()
    app.advance(1)
    app.run_pending()
    assert flow.result() == f"None, ['{'dead' if how == 'dies' else 'cancelled'}']"


def test_a_workflow_is_cancelled_as_a_whole(app, tasks):
    flow = group(tasks.add.s(1), chain(tasks.add.s(2), tasks.either.options(on_parent_failure="run").s())).enqueue()
    flow.cancel()
    assert flow.status() == {"cancelled": 3}
    app.advance(1)
    assert app.run_pending() == 0
    flow.cancel()


def test_a_retried_parent_does_not_wake_cancelled_children(app, tasks):
    flow = chain(tasks.fail.s(), tasks.add.s()).enqueue()
    app.run_pending()
    app.advance(1)
    flow.jobs[0].retry()
    app.run_pending()
    assert [job.status() for job in flow.jobs] == ["dead", "cancelled"]


def test_the_tasks_of_a_workflow_are_found_by_its_id(app, tasks):
    flow = chain(tasks.add.s(1), tasks.add.s()).enqueue()
    tasks.alone.enqueue()
    assert {job.id for job in app.jobs(workflow=flow.id)} == {job.id for job in flow.jobs}
    with pytest.raises(TaskUnfinished):
        flow.result(timeout=0)


def test_workflows_on_an_event_loop(app, tasks):
    async def scenario() -> tuple[Any, Any]:
        flow = await (tasks.add.s(1) | group(tasks.add.s(1), tasks.add.s(2)) | tasks.total.s()).aenqueue()
        await app.arun_pending()
        return await flow.aresult(), await flow.astatus()

    assert asyncio.run(scenario()) == (7, {"completed": 4})


def test_arguments_of_steps_are_checked_as_they_will_be_called(app, tasks):
    refused = [
        (chain(tasks.add.s("x")), r"task 'add', argument 'a': expected `int`"),
        (chain(tasks.add.s(1), tasks.add.s("x")), r"task 'add', argument 'b': expected `int`"),
        (chain(tasks.add.s(1), tasks.add.s(1, 2)), r"too many arguments; the function takes \(b: int = 1\)"),
        (chain(tasks.add.s(1), tasks.add.s(a=1)), r"argument 'a': the function has no such parameter"),
        (chain(tasks.add.s(1), tasks.alone.s()), r"'alone': it has no parameter for the results of its parents"),
        (chain(tasks.add.s()), r"argument 'a': missing"),
        (chain(), "workflow: has no tasks"),
        (graph(), "workflow: has no tasks"),
        (graph().add("a", tasks.add.s(1), after="b"), r"'a' is after 'b', which does not exist"),
        (graph().add("a", tasks.add.s(), after="b").add("b", tasks.add.s(), after="a"), "in a circle: . → . → ."),
        (graph().add("a", tasks.add.s(), after="a"), "in a circle: a → a"),
        (
            chain(tasks.add.options(unique=True).s(1), tasks.add.s()),
            "'add': a unique task cannot have tasks that depend on it",
        ),
    ]
    for flow, message in refused:
        with pytest.raises(InvalidField, match=message):
            flow.enqueue()
    assert list(app.jobs()) == []


def test_what_is_no_step_is_refused(app, tasks):
    number: Any = 5
    for make in (
        lambda: chain(tasks.add),
        lambda: chain(tasks.add.s(1), number),
        lambda: group(tasks.add),
        lambda: group(number),
        lambda: graph().add("a", tasks.add),
        lambda: graph().add("", tasks.add.s(1)),
        lambda: graph().add("a", tasks.add.s(1)).add("a", tasks.add.s(1)),
    ):
        with pytest.raises(InvalidField):
            make()


def test_tasks_of_two_apps_are_no_workflow(tasks):
    with App.in_memory() as other, pytest.raises(InvalidField, match="belongs to another app"):
        chain(tasks.add.s(1), Tasks(other).add.s()).enqueue()


def test_unknown_parents_are_refused(app, tasks):
    unknown = "00000000-0000-7000-8000-000000000000"
    with pytest.raises(InvalidField, match="depends_on"):
        tasks.alone.options(depends_on=unknown).enqueue()
    for nonsense in (5, "x", [None], [["x"]]):
        with pytest.raises(InvalidField, match="depends_on"):
            tasks.alone.options(depends_on=nonsense)


def test_a_unique_task_at_the_end_may_be_one_that_is_there(app, tasks):
    there = tasks.total.options(unique=True, unique_key="k").enqueue([1])
    flow = chain(group(tasks.add.s(1)), tasks.total.options(unique=True, unique_key="k").s()).enqueue()
    assert flow.end_ids == (there.id,)
    app.run_pending()
    assert flow.result() == 1


def test_a_chain_can_be_enqueued_again(app, tasks):
    flow = chain(tasks.add.s(1), tasks.add.s())
    first, second = flow.enqueue(), flow.enqueue()
    assert first.id != second.id
    app.run_pending()
    assert (first.result(), second.result()) == (3, 3)


def test_a_wide_group_of_many(app, tasks):
    flow = group(tasks.add.s(n) for n in range(300)).then(tasks.total.s()).enqueue()
    assert app.run_pending() == 301
    assert flow.result() == sum(range(300)) + 300
