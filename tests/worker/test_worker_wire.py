"""A worker over a wire that is cut: runs go on, results are told when the broker is back, and none counts twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from functools import partial

import pytest

from penstock import operations as ops
from penstock.clock import ManualClock
from penstock.embedded.session import Session
from penstock.model_tasks import TaskFilter, TaskState
from penstock.tasks.app import App
from penstock.worker import Worker
from tests.support.broker_loop import on_uvloop, until
from tests.support.brokers import BrokerThread
from tests.support.logs import capture_logs
from tests.support.workers import final, working

SHORT_SECONDS = 0.5  # of a lease: what was lost on its way to the worker comes back soon
MANY = 100  # attempts: on a loaded machine a worker may be too late to extend such a lease, more than once


@pytest.fixture(params=["penstock", "http"])
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerThread]:
    session = Session(None, durability="os")
    broker = BrokerThread(session, protocol=request.param)
    yield broker
    broker.stop()
    session.close()


@on_uvloop
async def test_a_run_outlives_its_connection_and_its_result_counts(broker):
    gate, arrived = asyncio.Event(), asyncio.Event()
    async with App(broker.url) as app:

        @app.task
        async def work() -> str:
            arrived.set()
            await gate.wait()
            return "done"

        async with working(app):
            job = await work.aenqueue()
            await arrived.wait()
            await asyncio.to_thread(broker.cut)
            gate.set()
            view = await final(app, job)

    assert (view.state, view.result, view.attempt) == (TaskState.COMPLETED, b'"done"', 1)


@on_uvloop
async def test_a_run_whose_lease_ended_meanwhile_is_broken_off_and_another_counts():
    clock = ManualClock()
    session = Session(None, durability="os", clock=clock)
    broker = BrokerThread(session)
    arrived: list[int] = []
    gate = asyncio.Event()
    async with App(broker.url) as app:

        @app.task
        async def work() -> str:
            arrived.append(len(arrived))
            if len(arrived) == 1:
                await asyncio.Event().wait()
            await gate.wait()
            return "done"

        with capture_logs() as lines:
            async with working(app, clock=clock, lease_seconds=10) as worker:
                job = await work.aenqueue()
                await until(lambda: len(arrived) == 1)
                clock.advance(seconds=15)  # the lease is over before it can be extended; the worker is not given up yet
                await until(lambda: not worker.runtime.dispatcher.runs)
                clock.advance(seconds=5)
                await until(lambda: len(arrived) == 2)
                gate.set()
                view = await final(app, job)
    await asyncio.to_thread(broker.stop)
    session.close()

    assert (view.result, view.attempt) == (b'"done"', 2)
    assert "the lease was lost" in {line["event"] for line in lines}


@pytest.mark.parametrize("kind", ["async", "plain"])
@on_uvloop
async def test_a_wire_that_is_cut_again_and_again_loses_and_doubles_nothing(broker, kind):
    rng = random.Random(kind)
    async with App(broker.url) as app:

        @app.task(max_attempts=MANY, backoff_base_seconds=0)
        async def on_the_loop(number: int) -> int:
            await asyncio.sleep(0)
            return number

        @app.task(max_attempts=MANY, backoff_base_seconds=0)
        def in_a_thread(number: int) -> int:
            return number

        task = on_the_loop if kind == "async" else in_a_thread
        jobs = []
        async with working(app, lease_seconds=SHORT_SECONDS, concurrency=4, prefetch_max=20) as worker:
            for batch in range(5):
                # Each round brings its own work, so that there is enough left to count, however late the cut comes;
                # some of it may be done before the call that enqueues it returns.
                done = worker.runtime.dispatcher.completed + rng.randint(1, 40)
                jobs += await task.aenqueue_many(range(60 * batch, 60 * batch + 60))
                await until(partial(has_completed, worker, done))
                await asyncio.to_thread(broker.cut)
            views = [await final(app, job) for job in jobs]
            session = await app.open_async_session()
            page = await session.execute(ops.ListTasks(TaskFilter(states=(TaskState.COMPLETED,), limit=500)))

    assert [view.result for view in views] == [str(number).encode() for number in range(300)]
    assert len(page.tasks) == 300


def has_completed(worker: Worker, count: int) -> bool:
    return worker.runtime.dispatcher.completed >= count
