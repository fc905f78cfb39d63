"""Runs that end before their time: timed out, cancelled, lost, given back."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

from penstock import operations as ops
from penstock.clock import ManualClock
from penstock.errors import LeaseLost
from penstock.model_tasks import TaskState
from penstock.tasks.context import current_task
from penstock.worker import Worker
from tests.support.broker_loop import on_uvloop, until
from tests.support.logs import capture_logs
from tests.support.workers import an_app, extended, final, view_of, working


class Gate:
    """Where a handler stands until the test lets it go on; for the loop and for threads."""

    def __init__(self) -> None:
        self.arrived = 0
        self.is_cancelled = False
        self._open = asyncio.Event()
        self._open_for_threads = threading.Event()

    async def wait(self) -> None:
        self.arrived += 1
        try:
            await self._open.wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise

    def wait_in_thread(self) -> None:
        self.arrived += 1
        self._open_for_threads.wait()

    def open(self) -> None:
        self._open.set()
        self._open_for_threads.set()

    async def reached(self, times: int = 1) -> None:
        await until(lambda: self.arrived >= times)


@on_uvloop
async def test_a_lease_is_extended_for_as_long_as_the_task_runs():
    clock, gate = ManualClock(), Gate()
    async with an_app(clock) as app:

        @app.task
        async def work() -> str:
            await gate.wait()
            return "done"

        async with working(app, clock=clock):
            job = await work.aenqueue()
            await gate.reached()
            for _ in range(30):
                clock.advance(seconds=10)
                await extended(app, clock)
            gate.open()
            view = await final(app, job)

    assert (view.result, view.attempt) == (b'"done"', 1)


@on_uvloop
async def test_an_async_task_that_takes_too_long_is_cancelled_and_has_failed():
    clock, gate = ManualClock(), Gate()
    async with an_app(clock) as app:

        @app.task(timeout=5, max_attempts=1)
        async def work() -> None:
            await gate.wait()

        async with working(app, clock=clock):
            job = await work.aenqueue()
            await gate.reached()
            clock.advance(seconds=5)
            view = await final(app, job)

    assert gate.is_cancelled
    assert (view.state, view.error) == (TaskState.DEAD, "timeout: it took longer than 5 s and was interrupted")


@on_uvloop
async def test_a_timeout_that_a_handler_takes_no_notice_of_is_a_failure_all_the_same():
    clock, gate = ManualClock(), Gate()
    async with an_app(clock) as app:

        @app.task(timeout=5, max_attempts=1)
        async def work() -> None:
            with suppress(asyncio.CancelledError):
                await gate.wait()
            await gate.wait()

        with capture_logs() as lines:
            async with working(app, clock=clock, abandoned_max=0) as worker:
                job = await work.aenqueue()
                await gate.reached()
                clock.advance(seconds=5)
                await gate.reached(2)
                assert (await view_of(app, job)).state == TaskState.RUNNING  # it may clean up
                clock.advance(seconds=5)
                view = await final(app, job)
                assert worker.runtime.dispatcher.running == 1  # nobody else gets its slot
                gate.open()
                await until(lambda: worker.runtime.dispatcher.running == 0)

    assert "timeout: it took longer than 5 s" in view.error
    assert "a run cannot be interrupted: its slot stays taken" in {line["event"] for line in lines}


@on_uvloop
async def test_a_thread_that_takes_too_long_is_reported_and_keeps_its_slot_when_none_may_be_replaced():
    clock, gate = ManualClock(), Gate()
    noticed = []
    async with an_app(clock) as app:

        @app.task(timeout=5, max_attempts=1)
        def work() -> None:
            gate.wait_in_thread()
            noticed.append(current_task().is_cancelled)

        with capture_logs() as lines:
            async with working(app, clock=clock, concurrency=1, abandoned_max=0) as worker:
                first, second = await work.aenqueue(), await work.aenqueue()
                await gate.reached()
                clock.advance(seconds=5)
                view = await final(app, first)
                assert (await view_of(app, second)).state == TaskState.PENDING
                gate.open()
                assert (await final(app, second)).state == TaskState.COMPLETED
                await until(lambda: worker.runtime.dispatcher.running == 0)

    assert (view.state, view.error) == (TaskState.DEAD, "timeout: it took longer than 5 s and was interrupted")
    assert noticed == [True, False]
    assert {"a run cannot be interrupted: its slot stays taken", "an abandoned run has ended"} <= {
        line["event"] for line in lines
    }
    assert all(line["task_id"] == first.id and line["attempt"] == 1 for line in lines if "slot" in line["event"])


@on_uvloop
async def test_a_running_task_that_is_cancelled_is_broken_off_at_once():
    gate = Gate()
    async with an_app() as app:

        @app.task
        async def work() -> None:
            await gate.wait()

        async with working(app) as worker:
            job = await work.aenqueue()
            await gate.reached()
            session = await app.open_async_session()
            await session.execute(ops.CancelTask(job.id))
            await until(lambda: gate.is_cancelled and not worker.runtime.dispatcher.runs)
            view = await view_of(app, job)

    assert view.state == TaskState.CANCELLED
    assert worker.runtime.dispatcher.failed == 0


@on_uvloop
async def test_what_a_handler_returns_after_it_was_cancelled_is_refused():
    gate = Gate()
    async with an_app() as app:

        @app.task
        async def ignores() -> str:
            with suppress(asyncio.CancelledError):
                await gate.wait()
            return "too late"

        @app.task
        def cannot_be_stopped() -> str:
            gate.wait_in_thread()
            return "too late"

        session = await app.open_async_session()
        with capture_logs() as lines:
            async with working(app) as worker:
                jobs = [await ignores.aenqueue(), await cannot_be_stopped.aenqueue()]
                await gate.reached(2)
                for job in jobs:
                    await session.execute(ops.CancelTask(job.id))
                gate.open()
                await until(lambda: worker.runtime.dispatcher.is_idle)
                views = [await view_of(app, job) for job in jobs]

    assert [(view.state, view.result) for view in views] == [(TaskState.CANCELLED, None)] * 2
    assert [line["event"] for line in lines].count("refused: the lease has expired") == 2


@on_uvloop
async def test_a_buffered_task_that_is_cancelled_never_begins():
    gate = Gate()
    async with an_app() as app:

        @app.task
        async def work() -> None:
            await gate.wait()

        session = await app.open_async_session()
        async with working(app, concurrency=1) as worker:
            worker.runtime.dispatcher.prefetch.run_us = 1
            jobs = [await work.aenqueue() for _ in range(3)]
            await until(lambda: worker.runtime.dispatcher.buffered == 2)
            await session.execute(ops.CancelTask(jobs[1].id))
            await until(lambda: worker.runtime.dispatcher.buffered == 1)
            gate.open()
            await final(app, jobs[2])

    assert gate.arrived == 2


@on_uvloop
async def test_a_run_whose_lease_is_lost_is_broken_off_and_tells_nothing():
    clock, gate = ManualClock(), Gate()
    async with an_app(clock) as app:

        @app.task
        async def work() -> None:
            await gate.wait()

        session = await app.open_async_session()

        async def lost(nonce: int, seconds: float) -> int:
            raise LeaseLost("gone")

        with capture_logs() as lines:
            async with working(app, clock=clock) as worker:
                await work.aenqueue()
                await gate.reached()
                session.extend = lost  # type: ignore[method-assign]
                clock.advance(seconds=10)
                await until(lambda: gate.is_cancelled and not worker.runtime.dispatcher.runs)
                del session.extend

    assert "the lease was lost" in {line["event"] for line in lines}
    assert worker.runtime.dispatcher.completed == worker.runtime.dispatcher.failed == 0


@on_uvloop
async def test_what_was_buffered_for_a_second_is_given_back_and_costs_no_attempt():
    clock, gate = ManualClock(), Gate()
    async with an_app(clock) as app:

        @app.task
        async def work() -> None:
            await gate.wait()

        async with working(app, concurrency=1, clock=clock) as worker:
            dispatcher = worker.runtime.dispatcher
            dispatcher.prefetch.run_us = 1
            jobs = [await work.aenqueue() for _ in range(3)]
            await until(lambda: dispatcher.buffered == 2)
            dispatcher.prefetch.run_us = 1e9
            clock.advance(seconds=1)
            await until(
                lambda: dispatcher.buffered == 0 and dispatcher.running == 1 and not len(worker.runtime.finishes)
            )
            assert [(await view_of(app, job)).state for job in jobs] == [
                TaskState.RUNNING,
                TaskState.PENDING,
                TaskState.PENDING,
            ]
            gate.open()
            for job in jobs:
                assert (await final(app, job)).attempt == 1


@on_uvloop
async def test_a_worker_that_stops_finishes_what_runs_and_gives_back_the_rest():
    gate = Gate()
    async with an_app() as app:

        @app.task
        async def work() -> str:
            await gate.wait()
            return "done"

        worker = Worker(app, concurrency=1)
        running = asyncio.create_task(worker.run())
        await worker.started.wait()
        worker.runtime.dispatcher.prefetch.run_us = 1
        jobs = [await work.aenqueue() for _ in range(2)]
        await until(lambda: worker.runtime.dispatcher.buffered == 1)
        worker.stop()
        await until(lambda: worker.runtime.dispatcher.buffered == 0)
        gate.open()
        await running
        first, second = [await view_of(app, job) for job in jobs]
        workers = await (await app.open_async_session()).execute(ops.Workers())

    assert (first.state, first.result) == (TaskState.COMPLETED, b'"done"')
    assert (second.state, gate.arrived, workers) == (TaskState.PENDING, 1, [])


@on_uvloop
async def test_a_second_stop_gives_back_what_runs_and_ends_at_once():
    gate = Gate()
    async with an_app() as app:

        @app.task
        async def waits() -> None:
            await gate.wait()

        @app.task
        def blocks() -> None:
            gate.wait_in_thread()

        jobs = [await waits.aenqueue(), await blocks.aenqueue()]
        async with working(app):
            await gate.reached(2)
        views = [await view_of(app, job) for job in jobs]
        gate.open()

    assert gate.is_cancelled
    assert [view.state for view in views] == [TaskState.PENDING] * 2


@on_uvloop
async def test_a_run_that_was_given_up_is_not_waited_for_at_the_end():
    clock, gate = ManualClock(), Gate()
    async with an_app(clock) as app:

        @app.task(timeout=5, max_attempts=1)
        def work() -> None:
            gate.wait_in_thread()

        worker = Worker(app, clock=clock)
        running = asyncio.create_task(worker.run())
        job = await work.aenqueue()
        await gate.reached()
        clock.advance(seconds=5)
        await final(app, job)
        worker.stop()
        await running
        gate.open()

    assert worker.has_interrupted
