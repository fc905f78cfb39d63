"""The parts of a running worker, put together; each is a file of its own."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.client.session import AsyncSession
from penstock.clock import Clock
from penstock.errors import ServerError
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
from penstock.worker.settings import Settings

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
        self.dispatcher = Dispatcher(settings, clock, app.tasks, self._executor_of, self.finishes, self._start)
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
        self.background = [self._lease_task, create(self._ticker.run(roles)), create(self.heartbeat.receive_news())]
        self._watchdog.start()
        if self._processes is not None:
            self._processes.open()

    async def stop_leasing(self) -> None:
        """Take no more tasks."""
        self.heartbeat.is_stopping = True
        if self._lease_task is not None:
            await _cancel(self._lease_task)
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
