"""Any graph of tasks ends as its parents' fates say, each task once and after its parents; any JSON comes back."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import App, Cancel, current_task, graph
from penstock.model_tasks import ParentPolicy

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


class Node(NamedTuple):
    """A task to be: which of those before it are its parents, what it does, and what it does without them."""

    parents: frozenset[int]
    does: str
    policy: ParentPolicy


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    count = draw(st.integers(1, 8))
    return [
        Node(
            draw(st.frozensets(st.integers(0, index - 1), max_size=3)) if index else frozenset(),
            draw(st.sampled_from(["return", "return", "return", "raise", "cancel"])),
            draw(st.sampled_from(["cancel", "run"])),
        )
        for index in range(count)
    ]


def expected(nodes: list[Node]) -> list[str]:
    """The state in which each ends."""
    states: list[str] = []
    for node in nodes:
        is_orphan = any(states[parent] != "completed" for parent in node.parents)
        ends = {"return": "completed", "raise": "dead", "cancel": "cancelled"}[node.does]
        states.append("cancelled" if is_orphan and node.policy == "cancel" else ends)
    return states


@given(graphs(), st.randoms())
@settings(max_examples=40)
def test_any_graph_ends_as_it_should(nodes, random):
    ran: list[int] = []
    with App.in_memory() as app:

        @app.task(max_attempts=1)
        def work(number: int, does: str) -> int:
            ran.append(number)
            results = current_task().parent_results
            assert len(results) == len(nodes[number].parents)
            if does == "raise":
                raise ValueError("on purpose")
            if does == "cancel":
                raise Cancel("on purpose")
            return number

        flow = graph()
        order = list(range(len(nodes)))
        random.shuffle(order)
        for number in order:
            node = nodes[number]
            step = work.options(takes="none", on_parent_failure=node.policy).s(number, node.does)
            flow.add(str(number), step, after=[str(parent) for parent in node.parents])
        workflow = flow.enqueue()
        while app.run_pending(limit=random.randint(1, 3)):
            app.advance(1)
        states = [workflow[str(number)].status() for number in range(len(nodes))]
    assert states == expected(nodes)
    assert len(set(ran)) == len(ran)
    for place, number in enumerate(ran):
        # Those that were cancelled without having run come before nobody.
        assert nodes[number].parents.isdisjoint(ran[place:])


@given(st.lists(JSON, max_size=20))
@settings(max_examples=10)
def test_any_json_comes_back(values):
    with App.in_memory() as app:

        @app.task
        def echo(value: Any) -> Any:
            return value

        jobs = [echo.enqueue(value) for value in values] + echo.enqueue_many((value,) for value in values)
        app.run_pending()
        assert [job.result() for job in jobs] == values * 2
