"""A worker: takes tasks from queues, runs them, and reports how they ended.

    LeaseLoop ──► Dispatcher ──► executors: the event loop, threads, processes
                    │   ▲            │
                    │   └───ended────┘      by the clock: Heartbeat, LeaseExtender, Deadlines, BufferTimeout
                    ▼
              FinishReporter

It stops in two steps. The first waits for what runs, `stop_seconds` at most, and gives back what has not started. The
second, or the end of that time, interrupts what still runs and gives it back too: nothing is lost, and what was given
back costs no attempt.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock import operations as ops
from penstock.client.session import AsyncSession
from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidField, PenstockError, ServerError
from penstock.model_tasks import WorkerNews
from penstock.tasks.context import TaskContext
from penstock.tasks.endings import Ending, error_text
from penstock.tasks.runs import aload_parents
from penstock.worker.child_protocol import Hello
from penstock.worker.dispatcher import BufferTimeout, Deadlines, Dispatcher
from penstock.worker.event_loop import Role, Spawner, Ticker, Watchdog
from penstock.worker.executors import Executor, LoopExecutor, ProcessExecutor, ThreadExecutor
from penstock.worker.heartbeat import Heartbeat
from penstock.worker.leases import LeaseExtender, LeaseLoop
from penstock.worker.reports import FinishReporter, ProgressReporter
from penstock.worker.runs import Lease, Run
from penstock.worker.settings import Settings, settings

if TYPE_CHECKING:
    from penstock.tasks.app import App


CANCEL_SECONDS: Final = 1.0  # then a background task is cancelled again


class WorkerRuntime:
    """What a worker consists of while it runs. Made on the loop on which it runs."""

    def __init__(
        self,
        app: App,
        session: AsyncSession,
        settings: Settings,
        clock: Clock,
        rng: random.Random,
        hello: Hello,
    ) -> None:
        self.session = session
        self._settings = settings
        self._clock = clock
        self._spawner = spawner = Spawner()
        self._ticker = ticker = Ticker(clock)
        self._progress = ProgressReporter(session, spawner)
        self._loop_executor = LoopExecutor(settings.concurrency, clock)
        self._threads = ThreadExecutor(settings.threads, clock)
        self._processes: ProcessExecutor | None = None
        if settings.processes:
            self._processes = ProcessExecutor(settings.processes, clock, hello, self._progress, spawner)
        self.finishes = FinishReporter(session, spawner, rng, self._progress)
        self.dispatcher = Dispatcher(
            settings, clock, app.tasks, self._executor_of, self.finishes, self._start, app.signer
        )
        if self._processes is not None:
            self._processes.on_start = self.dispatcher.started
        self._extender = LeaseExtender(session, clock, ticker, spawner, settings.lease_seconds, self.dispatcher)
        self._deadlines = Deadlines(self.dispatcher, ticker)
        self._buffer_timeout = BufferTimeout(self.dispatcher, ticker)
        self.heartbeat = Heartbeat(
            session, settings, clock, self.dispatcher, ticker, spawner, rng,
            task_types=tuple(sorted(app.tasks)),
            children=self._processes.pids if self._processes is not None else tuple,
        )  # fmt: skip
        self._leases = LeaseLoop(session, self.dispatcher, settings, rng, self._on_lease)
        self._watchdog = Watchdog()
        self._lease_task: asyncio.Task[None] | None = None
        self.background: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start everything."""
        roles: list[Role] = [self.heartbeat, self._extender, self._deadlines, self._buffer_timeout]
        create = asyncio.get_running_loop().create_task
        self._lease_task = create(self._leases.run())
        self.background = [
            self._lease_task,
            create(self._ticker.run(roles)),
            create(self.heartbeat.receive_cancellations()),
        ]
        self._watchdog.start()
        if self._processes is not None:
            self._processes.open()

    async def stop_leasing(self) -> None:
        """Take no more tasks."""
        self.heartbeat.is_stopping = True
        if self._lease_task is not None:
            await _cancel(self._lease_task)
            self.heartbeat.tick(self._clock.monotonic())

    def set_quiet(self, is_quiet: bool) -> None:
        """Take no more tasks and give back what has not started; or take tasks again. The broker is notified."""
        self.heartbeat.is_quiet = is_quiet
        if is_quiet:
            self.dispatcher.close()
            self._leases.interrupt()
        else:
            self.dispatcher.open()
        self.heartbeat.tick(self._clock.monotonic())

    async def close(self) -> None:
        """End whatever still runs."""
        self._watchdog.stop()
        for task in self.background:
            await _cancel(task)
        await self._spawner.close()
        self._threads.close()
        if self._processes is not None:
            await self._processes.close()

    def send_sigint(self) -> None:
        """Pass Ctrl-C on to the processes that run tasks."""
        if self._processes is not None:
            self._processes.send_sigint()

    def _executor_of(self, task: Any) -> Executor:
        return self._loop_executor if task.is_async else self._processes or self._threads

    def _on_lease(self, lease: Lease) -> None:
        self._extender.watch(lease)
        self._buffer_timeout.watch(self._clock.monotonic())

    def _start(self, executor: Executor, run: Run) -> None:
        """Make the run's context, and start it."""
        run.context = TaskContext(
            run.envelope,
            attempt=run.attempt,
            queue=run.receipt.queue,
            worker=self._settings.worker_id,
            key=run.key,
            trace=run.trace,
            note=partial(self._progress.note, run),
        )
        if run.envelope.depends_on:
            self._spawner.spawn(self._start_with_parents(executor, run, run.context))
        else:
            executor.start(run)

    async def _start_with_parents(self, executor: Executor, run: Run, context: TaskContext) -> None:
        """Load the parents of a run, which it may look at, and start it."""
        try:
            context.parents = tuple(await aload_parents(self.session, run.envelope))
        except ServerError:
            self.dispatcher.ended(run, Ending("released"))
        except Exception as error:  # noqa: BLE001 - whatever it is, the slot must not be lost
            self.dispatcher.ended(run, Ending("failed", error=error_text(error)))
        else:
            if run.interrupt_reason is None:
                executor.start(run)
            else:
                self.dispatcher.ended(run, None)


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end. Something that it awaits may swallow a cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_SECONDS)


T = TypeVar("T")

logger: Final = logging.getLogger("penstock.worker")

GOODBYE_SECONDS: Final = 5.0  # for the last results, and to say that we go
INTERRUPT_SECONDS: Final = 2.0  # for handlers that were interrupted to clean up
PAUSE_SECONDS_MAX: Final = 2.0


class Worker:
    """Runs the tasks of an app. Call `run` once, and `stop` from the loop that runs it."""

    def __init__(
        self,
        app: App,
        *,
        queues: Iterable[str] | None = None,
        app_path: str | None = None,
        app_url: str | None = None,
        app_logs: tuple[str, str] | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        **options: Any,
    ) -> None:
        self.app = app
        self.settings = settings(app.queues if queues is None else queues, **options)
        if self.settings.processes and not app_path:
            raise InvalidField("processes: the app must be importable", hint="pass app_path, such as 'myapp:app'")
        self._hello = Hello(app_path or "", app_url, [path for path in sys.path if path], app_logs)
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._stopped = asyncio.Event()  # `stop` was called
        self._hurried = asyncio.Event()  # … twice
        self.started = asyncio.Event()
        self.has_interrupted = False  # runs did not end by themselves; their threads may still work
        self._stop_seconds = self.settings.stop_seconds
        self.wants_restart = False  # it was stuck, and ended for that: run another process
        self.runtime: WorkerRuntime  # from the moment it runs

    def stop(self) -> None:
        """Finish the running tasks, then end. A second call releases them and ends immediately."""
        if self._stopped.is_set():
            self._hurried.set()
        self._stopped.set()
        self.wants_restart = False

    def _obey(self, news: WorkerNews) -> None:
        """Do what an operator wants: be quiet, work again, or stop."""
        if self._stopped.is_set():
            return
        if news.requested == "stop":
            logger.info("stopping, as requested by an operator")
            if news.grace_seconds is not None:
                self._stop_seconds = news.grace_seconds
            self.stop()
        elif (news.requested == "quiet") != self.runtime.heartbeat.is_quiet:
            is_quiet = news.requested == "quiet"
            logger.info(
                "quiet, as requested by an operator" if is_quiet else "working again, as requested by an operator"
            )
            self.runtime.set_quiet(is_quiet)

    def send_sigint(self) -> None:
        """Pass Ctrl-C on to the processes that run tasks, whose sessions the terminal does not reach."""
        if self.started.is_set():
            self.runtime.send_sigint()

    async def run(self) -> None:
        """Run until stopped or, when draining, until no tasks are left. Raises errors that are not retryable."""
        session = await self._retried(self.app.open_async_session)
        if session is None:
            return
        self.runtime = WorkerRuntime(self.app, session, self.settings, self._clock, self._rng, self._hello)
        try:
            await self._begin()
            await self._work()
        finally:
            await self._end()

    async def _retried(self, request: Callable[[], Awaitable[T]]) -> T | None:
        """The reply of a broker, once one answers; None when the worker was stopped before."""
        pause, reported = 0.1, ""
        while not self._stopped.is_set():
            try:
                return await request()
            except ServerError as error:
                if self.settings.is_draining:
                    raise
                if str(error) != reported:
                    reported = str(error)
                    logger.warning("no broker answers yet; the worker keeps trying", extra={"error": reported})
            with suppress(TimeoutError):
                async with asyncio.timeout(pause * self._rng.uniform(0.5, 1.0)):
                    await self._stopped.wait()
            pause = min(pause * 2, PAUSE_SECONDS_MAX)
        return None

    async def _begin(self) -> None:
        await self._retried(self.runtime.heartbeat.beat)
        await self._retried(partial(self.app.declarations.adeclare, self.runtime.session))
        for middleware in self.app.middleware:
            middleware.worker_started(self.settings.worker_id)
        settings = self.settings
        extra = {"worker": settings.worker_id, "queues": settings.queues, "concurrency": settings.concurrency}
        logger.info("working", extra=extra)
        self.started.set()

    async def _work(self) -> None:
        """Run until it is stopped or stuck, or a background task has ended."""
        runtime = self.runtime
        runtime.start()
        runtime.heartbeat.on_request = self._obey
        stops: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._stopped.wait())]
        if self.settings.restarts_when_stuck:
            stops.append(asyncio.ensure_future(runtime.dispatcher.stuck.wait()))
        await asyncio.wait([*stops, *runtime.background], return_when=asyncio.FIRST_COMPLETED)
        for stop in stops:
            stop.cancel()
        is_stuck = self.settings.restarts_when_stuck and runtime.dispatcher.is_stuck
        self.wants_restart = is_stuck and not self._stopped.is_set()
        for task in runtime.background:
            if task.done():
                _raise_first(task)

    # the end

    async def _end(self) -> None:
        runtime, dispatcher = self.runtime, self.runtime.dispatcher
        await runtime.stop_leasing()
        logger.info("stopping", extra={"running": dispatcher.running, "given_back": dispatcher.close()})
        await self._wait(dispatcher.is_done, self._stop_seconds)
        self.has_interrupted = bool(dispatcher.runs)
        if not dispatcher.is_done():
            logger.warning(
                "interrupting running tasks and returning them to their queues", extra={"running": dispatcher.running}
            )
            dispatcher.interrupt_all()
            await self._wait(dispatcher.is_done, INTERRUPT_SECONDS, is_patient=True)
        dispatcher.give_up_all()
        await self._wait(lambda: not len(runtime.finishes), GOODBYE_SECONDS, is_patient=True)
        await self._say_goodbye()
        await runtime.close()
        if self.started.is_set():
            for middleware in self.app.middleware:
                middleware.worker_stopped(self.settings.worker_id)
        logger.info("stopped", extra={"completed": dispatcher.completed, "failed": dispatcher.failed})

    async def _wait(self, is_true: Callable[[], bool], seconds: float, *, is_patient: bool = False) -> None:
        """Wait until a condition is true, `seconds` at most; unless patient, a second `stop` ends the wait."""
        changed = self.runtime.dispatcher.changed
        hurried = asyncio.ensure_future(self._hurried.wait())
        try:
            async with asyncio.timeout(seconds):
                while not is_true() and (is_patient or not self._hurried.is_set()):
                    changed.clear()
                    change = asyncio.ensure_future(changed.wait())
                    events = [change] if is_patient else [change, hurried]
                    await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
                    change.cancel()
        except TimeoutError:
            return
        finally:
            hurried.cancel()

    async def _say_goodbye(self) -> None:
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self.runtime.heartbeat.stop()
                await self.runtime.session.execute(ops.ForgetWorker(self.settings.worker_id))
        except (PenstockError, TimeoutError) as error:
            extra = {"error": str(error) or "no reply"}
            logger.warning("could not notify the broker that the worker stops", extra=extra)


def _raise_first(done: asyncio.Future[Any]) -> None:
    """Raise what a background task ended with; of a group, the first."""
    error = done.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is not None:
        raise error
