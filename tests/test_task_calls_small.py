"""Small things that callers of tasks run into."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import penstock
from penstock import chain, group
from penstock.errors import InvalidField
from tests.support.serving import on_uvloop


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


def test_an_empty_group_as_a_part_is_refused(app):
    @app.task
    def work(value: Any = None) -> None: ...

    with pytest.raises(InvalidField, match="nothing to wait for"):
        chain(work.s(), group([]), work.s()).enqueue()


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
