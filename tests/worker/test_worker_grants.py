"""A worker whose key may consume and push, and not create queues: it waits for those that do not exist yet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.model_tasks import TaskState
from penstock.tasks.app import App
from tests.support.broker_loop import on_uvloop, until
from tests.support.logs import capture_logs
from tests.support.tls import TlsBroker
from tests.support.workers import drained, final, working

WAITS = "waiting for a queue that this worker may not create"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TlsBroker]:
    with TlsBroker(tmp_path, auth="on") as running:
        yield running


def app_of(broker: TlsBroker, *grants: str) -> App:
    assert broker.server.broker is not None
    token = broker.server.broker.session.access.create_key("worker", grants)[1]
    app = App(f"penstock://127.0.0.1:{broker.port('tcp')}", token=token)

    @app.task(queue="first")
    def one() -> int:
        return 1

    @app.task(queue="second")
    def two() -> int:
        return 2

    return app


@on_uvloop
async def test_tasks_of_queues_that_are_created_later_run_and_those_of_other_queues_meanwhile(broker):
    async with app_of(broker, "consumer", "producer", "reader") as app:
        one, two = app.tasks["one"], app.tasks["two"]
        with capture_logs() as lines:
            async with working(app):
                await until(lambda: sum(line["event"] == WAITS for line in lines) == 2)
                first = await final(app, await one.aenqueue())
                second = await final(app, await two.aenqueue())

    assert (first.state, second.state) == (TaskState.COMPLETED, TaskState.COMPLETED)
    assert sorted(line["queue"] for line in lines if line["event"] == WAITS) == ["first", "second"], "said once each"


@on_uvloop
async def test_one_that_drains_has_nothing_to_wait_for(broker):
    async with app_of(broker, "consumer") as app:
        worker = await asyncio.wait_for(drained(app), 60)

    assert worker.runtime.dispatcher.is_idle


@on_uvloop
async def test_one_that_may_not_consume_ends(broker):
    async with app_of(broker, "producer") as app:
        with pytest.raises(penstock.errors.NotAuthorised, match="lacks the permission consume"):
            async with working(app):
                pass
