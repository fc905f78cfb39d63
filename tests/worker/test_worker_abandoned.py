"""Runs that cannot be interrupted: threads that go on. Others get their slots, up to a bound; limits per key hold."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from penstock import operations as ops
from penstock.clock import ManualClock
from penstock.model_tasks import TaskState
from penstock.tasks.app import App
from penstock.worker import Worker
from tests.support.broker_loop import on_uvloop, until
from tests.support.broker_process import QUIET, Served
from tests.support.worker_process import Visits, WorkerProcess
from tests.support.workers import an_app, extended, final, view_of, working

HANGS = """
import threading

import penstock

app = penstock.App(queue="stuck")


@app.task(timeout=0.05, max_attempts=1)
def hang() -> None:
    threading.Event().wait()


@app.task
def echo(n: int) -> int:
    return n
"""


class Hanging:
    """A task that stands still until the test lets one of its runs go."""

    def __init__(self, app: App, **options: object) -> None:
        self.begun = 0
        self.now = 0
        self.most = 0
        self._lock = threading.Lock()
        self._gate = threading.Semaphore(0)
        self.task = app.task(name="hang", timeout=5, **options)(self._hang)  # type: ignore[call-overload]

    def _hang(self) -> None:
        with self._lock:
            self.begun += 1
            self.now += 1
            self.most = max(self.most, self.now)
        self._gate.acquire()
        with self._lock:
            self.now -= 1

    def let_go(self, count: int = 1) -> None:
        self._gate.release(count)

    async def reached(self, count: int) -> None:
        await until(lambda: self.begun >= count)


@on_uvloop
async def test_slots_of_runs_that_do_not_end_are_given_to_others_up_to_a_bound():
    clock = ManualClock()
    async with an_app(clock) as app:
        hanging = Hanging(app, max_attempts=1)

        @app.task
        def echo(n: int) -> int:
            return n

        async with working(app, clock=clock, concurrency=1, threads=1, abandoned_max=2) as worker:
            dispatcher = worker.runtime.dispatcher
            for count in (1, 2):
                job = await hanging.task.aenqueue()
                await hanging.reached(count)
                clock.advance(seconds=5)
                assert (await final(app, job)).state == TaskState.DEAD
                assert (await final(app, await echo.aenqueue(count))).result == str(count).encode()
                assert (len(dispatcher.abandoned), dispatcher.running, dispatcher.is_stuck) == (count, 0, False)

            job = await hanging.task.aenqueue()
            await hanging.reached(3)
            clock.advance(seconds=5)
            await final(app, job)
            assert (len(dispatcher.abandoned), dispatcher.running, dispatcher.is_stuck) == (3, 1, True)
            await worker.runtime.heartbeat.beat()
            (shown,) = await (await app.open_async_session()).execute(ops.Workers())
            assert (shown.state, shown.info.abandoned, shown.info.running) == ("stuck", 3, 1)
            waiting = await echo.aenqueue(3)
            assert dispatcher.room_for("default") == 0

            hanging.let_go()  # whichever of them it is
            assert (await final(app, waiting)).result == b"3"
            assert (len(dispatcher.abandoned), dispatcher.running, dispatcher.is_stuck) == (2, 0, False)
            hanging.let_go(2)
            await until(lambda: not dispatcher.abandoned)
            assert [executor.abandoned for executor in dispatcher.executors] == [0]
            jobs = [await echo.aenqueue(n) for n in range(3)]
            assert [(await final(app, job)).result for job in jobs] == [b"0", b"1", b"2"]


@on_uvloop
async def test_a_limit_per_key_is_not_exceeded_by_a_run_that_goes_on():
    clock = ManualClock()
    async with an_app(clock) as app:
        app.queue("keyed", key_max_in_flight=1, backoff_base_seconds=0)
        hanging = Hanging(app, queue="keyed", max_attempts=2)

        @app.task(queue="keyed")
        def echo(n: int) -> int:
            return n

        async with working(app, clock=clock) as worker:
            dispatcher = worker.runtime.dispatcher
            job = await hanging.task.options(key="k").aenqueue()
            await hanging.reached(1)
            clock.advance(seconds=5)
            await until(lambda: dispatcher.abandoned)
            behind = await echo.options(key="k").aenqueue(1)
            for _ in range(20):
                clock.advance(seconds=10)
                await extended(app, clock)
            assert (await final(app, await echo.options(key="other").aenqueue(2))).result == b"2"
            assert (await view_of(app, behind)).state == TaskState.PENDING
            assert (await view_of(app, job)).state == TaskState.RUNNING
            hanging.let_go()
            await until(lambda: not dispatcher.abandoned)
            hanging.let_go()
            clock.advance(seconds=1)  # the next attempt, or what waits behind it: whichever is first
            assert (await final(app, job)).state == TaskState.COMPLETED
            assert (await final(app, behind)).result == b"1"

    assert hanging.most == 1


@on_uvloop
async def test_a_run_with_a_key_that_still_goes_on_when_the_worker_stops_has_failed():
    clock = ManualClock()
    async with an_app(clock) as app:
        hanging = Hanging(app, max_attempts=1)
        async with working(app, clock=clock) as worker:
            job = await hanging.task.options(key="k").aenqueue()
            await hanging.reached(1)
            clock.advance(seconds=5)
            await until(lambda: worker.runtime.dispatcher.abandoned)
        view = await final(app, job)
        hanging.let_go()

    assert (view.state, view.error) == (TaskState.DEAD, "timeout: it took longer than 5 s and was interrupted")
    assert worker.has_interrupted


@on_uvloop
async def test_the_slot_of_a_cancelled_run_that_goes_on_is_given_to_others():
    clock = ManualClock()
    async with an_app(clock) as app:
        hanging = Hanging(app)

        @app.task
        def echo(n: int) -> int:
            return n

        async with working(app, clock=clock, concurrency=1) as worker:
            job = await hanging.task.aenqueue()
            await hanging.reached(1)
            await job.acancel()
            (run,) = worker.runtime.dispatcher.runs
            await until(lambda: run.interrupt_reason is not None)
            assert not worker.runtime.dispatcher.abandoned  # it may clean up
            clock.advance(seconds=5)
            assert (await final(app, await echo.aenqueue(7))).result == b"7"
            assert len(worker.runtime.dispatcher.abandoned) == 1
            hanging.let_go()
            await until(lambda: not worker.runtime.dispatcher.abandoned)
        assert (await view_of(app, job)).state == TaskState.CANCELLED


@pytest.mark.parametrize("is_stopped", [False, True])
@on_uvloop
async def test_a_worker_that_is_stuck_ends_if_asked_and_says_why(is_stopped):
    clock = ManualClock()
    async with an_app(clock) as app:
        hanging, gate = Hanging(app, max_attempts=1), threading.Event()
        began = threading.Event()

        @app.task
        def slow() -> str:
            began.set()
            gate.wait()
            return "finished"

        worker = Worker(app, clock=clock, abandoned_max=0, restart_when_stuck=True)
        running = asyncio.create_task(worker.run())
        jobs = [await slow.aenqueue(), await hanging.task.aenqueue()]
        await hanging.reached(1)
        await until(began.is_set)
        clock.advance(seconds=5)
        await until(lambda: worker.wants_restart)
        if is_stopped:
            worker.stop()
        gate.set()
        await running
        assert [(await final(app, job)).state for job in jobs] == [TaskState.COMPLETED, TaskState.DEAD]
        assert worker.wants_restart is not is_stopped  # whoever stops it does not want it back
        hanging.let_go()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Served(tmp_path_factory.mktemp("broker"), *QUIET) as broker:
        yield broker.url("tcp")


def test_a_stuck_worker_starts_itself_again(tmp_path, url):
    (tmp_path / "hangs.py").write_text(HANGS, encoding="utf-8")
    caller = App(url, queue="stuck")

    @caller.task
    def hang() -> None: ...

    @caller.task
    def echo(n: int) -> int:
        return n

    flags = ("--concurrency", "1", "--abandoned-max", "0", "--restart-when-stuck")
    with Visits() as visits, WorkerProcess(tmp_path, url, visits, *flags, app="hangs:app") as worker:
        job = hang.options(max_attempts=1, timeout=0.05).enqueue()
        worker.until("stuck: too many runs cannot be interrupted")
        worker.until("restarted: too many runs could not be interrupted")
        worker.until("working")
        assert echo.enqueue(5).result(timeout=60) == 5
        assert caller.wait_task(job.id, 60).state == TaskState.DEAD
        worker.signal()
        assert worker.ended() == 0
    caller.close()
