"""Nothing that a worker has ready begins when its lease is over: the process, its loop or a thread stood still."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import closing
from typing import Any

import pytest

from penstock.clock import ManualClock, SystemClock
from penstock.model_tasks import TaskState, TaskView
from penstock.tasks.app import App
from penstock.tasks.context import current_task
from penstock.worker.child import Pipe, _run
from penstock.worker.child_protocol import Job, NotStarted
from tests.support.broker_loop import on_uvloop, until
from tests.support.workers import an_app, final, working

BEYOND = 40.0  # seconds: longer than a lease of half a minute


async def in_time(app: App, clock: ManualClock, job: Any) -> TaskView:
    """The job once it is final, while time goes on in small steps."""
    ended = asyncio.ensure_future(final(app, job))

    def is_over() -> bool:
        clock.advance(seconds=0.0001)  # leases last 30 s, and a busy machine may turn the loop very often meanwhile
        return ended.done()

    await until(is_over)
    return await ended


@pytest.mark.parametrize("is_async", [True, False])
@on_uvloop
async def test_what_was_ready_while_the_loop_stood_still_is_left_to_whoever_has_it_now(is_async):
    clock, stage, attempts = ManualClock(), threading.Event(), dict[int, list[int]]()
    async with an_app(clock) as app:
        app.queue("default", backoff_base_seconds=0)

        def note(n: int) -> None:
            attempts.setdefault(n, []).append(current_task().attempt)

        async def on_loop(n: int) -> None:
            note(n)
            if attempts == {0: [1]}:
                await until(stage.is_set)
                clock.advance(seconds=BEYOND)  # it blocks the loop, and all leases end

        def in_thread(n: int) -> None:
            note(n)
            if attempts == {0: [1]}:
                stage.wait()
                clock.advance(seconds=BEYOND)

        work: Any = app.task(on_loop) if is_async else app.task(in_thread)
        session = await app.open_async_session()

        async def extend(*arguments, **options):
            for _ in range(50):  # an answer takes its time
                await asyncio.sleep(0)
            await type(session).extend(session, *arguments, **options)

        session.extend = extend  # type: ignore[method-assign]
        async with working(app, clock=clock, concurrency=1) as worker:
            worker.runtime.dispatcher.prefetch.run_us = 1
            jobs = [await work.aenqueue(n) for n in range(4)]
            await until(lambda: worker.runtime.dispatcher.buffered == 3)
            stage.set()
            views = [await in_time(app, clock, job) for job in jobs]

    assert [view.state for view in views] == [TaskState.COMPLETED] * 4
    # The first ran twice, since its lease ended while it ran. The others were not begun under a lease that was over.
    assert attempts == {0: [1, 2], 1: [2], 2: [2], 3: [2]}


@on_uvloop
async def test_a_lease_whose_answer_was_long_on_its_way_is_confirmed_before_anything_begins():
    clock, attempts = ManualClock(), list[int]()
    async with an_app(clock) as app:
        app.queue("default", backoff_base_seconds=0)

        @app.task
        async def work() -> None:
            attempts.append(current_task().attempt)

        job = await work.aenqueue()
        session = await app.open_async_session()
        lease = session.lease_queues
        extended = []

        async def slow(*arguments, **options):
            reply = await lease(*arguments, **options)
            if reply.count and not attempts:
                clock.advance(seconds=28)  # of 30: it lasts, but who would know
            return reply

        async def extend(*arguments, **options):
            extended.append(list(attempts))
            await type(session).extend(session, *arguments, **options)

        session.lease_queues, session.extend = slow, extend  # type: ignore[method-assign]
        async with working(app, clock=clock):
            view = await in_time(app, clock, job)

    assert (view.state, attempts) == (TaskState.COMPLETED, [1])
    assert extended[0] == []


@on_uvloop
async def test_a_thread_that_stood_still_before_its_run_began_does_not_begin_it():
    clock, attempts = ManualClock(), list[int]()
    async with an_app(clock) as app:
        app.queue("default", backoff_base_seconds=0)

        @app.task
        def work() -> None:
            attempts.append(current_task().attempt)

        async with working(app, clock=clock, lease_seconds=10) as worker:
            executor = worker.runtime._threads
            jobs = executor._jobs

            class Stuck:
                """Between the loop, which started it, and the thread, which has not begun, the lease ends."""

                get = jobs.get

                def put(self, run):
                    if run is not None and run.attempt == 1:
                        clock.advance(seconds=12)  # the worker itself is not dead yet
                    jobs.put(run)

            executor._jobs = Stuck()  # type: ignore[assignment]
            job = await work.aenqueue()
            view = await in_time(app, clock, job)

    assert view.state is TaskState.COMPLETED
    assert 1 not in attempts  # later ones may meet a clock that has jumped too


def test_a_process_that_stood_still_before_its_job_began_does_not_begin_it():
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        late = Job(7, b"{}", 1, SystemClock().monotonic(), "default", "worker", None, None, [])

        assert _run(None, late, Pipe(theirs)) == NotStarted(7)
