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
from penstock.worker.dispatcher import Aging, Deadlines, Desk
from penstock.worker.event_loop import Role, Spawner, Ticker, Watchdog
from penstock.worker.executors import Lane, LoopLane, ProcessLane, ThreadLane
from penstock.worker.heartbeat import Heartbeat
from penstock.worker.leases import Extending, Leasing
from penstock.worker.reports import Finishing, Progress
from penstock.worker.runs import Lease, Run
from penstock.worker.settings import Settings

if TYPE_CHECKING:
    from penstock.tasks.app import App


CANCEL_SECONDS: Final = 1.0  # then a task that was cancelled is cancelled again


class Crew:
    """Made on the loop on which the worker runs."""

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
        self._spawner = Spawner()
        self._ticker = Ticker(clock)
        self._progress = Progress(session, self._spawner)
        self._on_loop = LoopLane(settings.concurrency, self._ended, self._may_begin)
        self._in_threads = ThreadLane(settings.threads, self._ended, self._may_begin)
        self._in_processes: ProcessLane | None = None
        if settings.processes:
            self._in_processes = ProcessLane(
                settings.processes,
                hello,
                self._ended,
                self._may_begin,
                clock,
                self._began,
                self._progress,
                self._spawner,
            )
        self.finishing = Finishing(session, self._spawner, rng, self._progress)
        self.desk = Desk(settings, clock, app.tasks, self._lane_of, self.finishing, self._begin)
        self._extending = Extending(
            session, clock, self._ticker, self._spawner, settings.lease_seconds, self.desk.lost, self.desk.pump
        )
        self.desk.confirm = self._extending.confirm
        self._deadlines = Deadlines(self.desk, self._ticker)
        self._aging = Aging(self.desk, self._ticker)
        self.heartbeat = Heartbeat(
            session, settings, clock, self.desk, self._ticker, self._spawner, rng,
            task_types=tuple(sorted(app.tasks)),
            children=self._in_processes.pids if self._in_processes is not None else tuple,
        )  # fmt: skip
        self._leasing = Leasing(session, self.desk, settings, rng, self._taken)
        self._watchdog = Watchdog()
        self._leasing_task: asyncio.Task[None] | None = None
        self.background: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Everything begins."""
        roles: list[Role] = [self.heartbeat, self._extending, self._deadlines, self._aging]
        create = asyncio.get_running_loop().create_task
        self._leasing_task = create(self._leasing.run())
        self.background = [self._leasing_task, create(self._ticker.run(roles)), create(self.heartbeat.hear_news())]
        self._watchdog.start()
        if self._in_processes is not None:
            self._in_processes.open()

    async def stop_leasing(self) -> None:
        """Take no more."""
        self.heartbeat.is_stopping = True
        if self._leasing_task is not None:
            await _cancelled(self._leasing_task)
            self.heartbeat.tick(self._clock.monotonic())

    async def close(self) -> None:
        """Whatever is still there ends."""
        self._watchdog.stop()
        for task in self.background:
            await _cancelled(task)
        await self._spawner.close()
        self._in_threads.close()
        if self._in_processes is not None:
            await self._in_processes.close()

    def interrupt(self) -> None:
        """Pass Ctrl-C on to whatever runs in processes."""
        if self._in_processes is not None:
            self._in_processes.interrupt()

    def _lane_of(self, task: Any) -> Lane:
        if task.is_async:
            return self._on_loop
        return self._in_processes or self._in_threads

    def _taken(self, lease: Lease) -> None:
        self._extending.watch(lease)
        self._aging.watch(self._clock.monotonic())

    def _may_begin(self, run: Run) -> bool:
        return run.lease.holds(self._clock.monotonic())

    def _ended(self, run: Run, ending: Ending | None) -> None:
        self.desk.ended(run, ending)

    def _began(self, run: Run) -> None:
        self.desk.began(run)

    def _begin(self, lane: Lane, run: Run) -> None:
        """A slot is free: the run's context, and off it goes."""
        run.context = TaskContext(
            run.envelope,
            attempt=run.attempt,
            queue=run.receipt.queue,
            worker=self._settings.worker_id,
            key=run.key,
            trace=run.trace,
            note=partial(self._progress.note_anywhere, run),
        )
        if run.envelope.depends_on:
            self._spawner.spawn(self._begin_child(lane, run, run.context))
        else:
            lane.start(run)

    async def _begin_child(self, lane: Lane, run: Run, context: TaskContext) -> None:
        """The same for one that may look at its parents."""
        try:
            context.parents = tuple(await aload_parents(self.session, run.envelope))
        except ServerError:
            self.desk.ended(run, Ending("released"))
        except Exception as error:  # noqa: BLE001 - whatever it is, the slot must not be lost
            self.desk.ended(run, Ending("failed", error=error_text(error)))
        else:
            if run.why is None:
                lane.start(run)
            else:
                self.desk.ended(run, None)


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Break a task off; what it died of is told elsewhere. Something that it awaits may swallow a cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_SECONDS)
