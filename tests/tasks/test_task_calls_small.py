"""Small things that callers of tasks run into."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import penstock
from penstock import chain, group
from penstock.errors import InvalidField
from tests.support.broker_loop import on_uvloop


@pytest.fixture
def app():
    with penstock.App.in_memory() as app:
        yield app


def test_a_timedelta_is_as_good_as_seconds(app):
    @app.task(timeout=timedelta(minutes=1), ttl=timedelta(days=1))
    def work() -> None: ...

    job = work.options(delay=timedelta(hours=1), timeout=timedelta(seconds=2)).enqueue()
    view = job.info()

    assert work.defaults.timeout == 60.0
    assert view.timeout_seconds == 2.0
    assert view.due_at - view.submitted_at == timedelta(hours=1)
    assert penstock.Snooze(timedelta(minutes=2)).seconds == 120.0
    with pytest.raises(InvalidField, match="delay"):
        work.options(delay=timedelta(seconds=-1))


def test_an_empty_group_results_in_an_empty_list(app):
    nothing: Any = group([]).enqueue()
    assert (nothing.result(), nothing.status(), nothing.jobs) == ([], {}, ())
    nothing.cancel()


@pytest.mark.parametrize("takes", [None, "all", "none"])
def test_an_empty_group_hands_an_empty_list_on(app, takes):
    seen: list[Any] = []

    @app.task
    def work(*values: Any) -> str:
        seen.append(values)
        return "result"

    last = work.s(1) if takes is None else work.options(takes=takes).s(1)
    flows = [
        chain(work.s("first"), group([]), last).enqueue(),
        chain(work.s("first"), group([]), group([group([])]), group(last, group([]))).enqueue(),
        chain(group([]), last).enqueue(),
        group([]).then(last).enqueue(),
    ]
    app.run_pending()

    given: tuple[Any, ...] = (1,) if takes == "none" else ([], 1)
    assert sorted(seen, key=str) == sorted([("first",), ("first",), *[given] * 4], key=str)
    assert [flow.result(0) for flow in flows] == ["result", ["result"], "result", "result"]
    assert [job.status().value for flow in flows for job in flow.jobs] == ["completed"] * 6
    waits = [job.info().depends_on for job in flows[0].jobs]
    assert waits == [(), (flows[0].jobs[0].id,)]  # the order of a chain holds across what is empty


def test_a_chain_that_ends_with_an_empty_group_results_in_an_empty_list_when_the_rest_is_done(app):
    @app.task
    def work() -> int:
        return 1

    flow: Any = chain(work.s(), group([])).enqueue()
    with pytest.raises(penstock.errors.TaskUnfinished):
        flow.result(0)
    app.run_pending()

    assert flow.result(0) == []
    assert chain(group([]), group([])).enqueue().result(0) == []
    with pytest.raises(InvalidField, match="no tasks"):
        chain().enqueue()


def test_a_parameter_may_be_called_self(app):
    @app.task
    def work(self: int, transaction: int = 0) -> int:
        return self + transaction

    jobs = [work.enqueue(self=3), work.s(self=4).enqueue(), work.options(priority="high").enqueue(self=5)]
    app.run_pending()

    assert [job.result(0) for job in jobs] == [3, 4, 5]


@on_uvloop
async def test_a_lifespan_is_entered_twice(tmp_path):
    from examples.fastapi.service import lifespan, service
    from examples.fastapi.tasks import app, send

    app.move(tmp_path / "data")
    for number in (1, 2):
        async with lifespan(service):
            await send.aenqueue("a@b.c", "hello")
            assert len([job async for job in app.ajobs()]) == number
