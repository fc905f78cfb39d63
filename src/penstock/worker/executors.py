"""The three ways to run a task: on the event loop, in threads, in processes.

Async functions run on the worker's own loop, each as an asyncio task with its own context. Plain functions run in
threads, which take runs from one queue and report to the loop in batches, so that short runs cost no thread switch; or
in processes, one run at a time in each, so that a crash takes only its own run with it.

A run on the loop or in a process can be interrupted; a thread cannot: its run sees `current_task().is_cancelled`.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from queue import SimpleQueue
from typing import Any, Final

import msgspec
from structlog.contextvars import bind_contextvars

from penstock.clock import Clock, SystemClock
from penstock.tasks.endings import Ending, error_text
from penstock.tasks.runs import arun_one, run_one
from penstock.worker.child_protocol import Hello, Job
from penstock.worker.event_loop import NEVER, Spawner
from penstock.worker.processes import ChildProcess, Guardian
from penstock.worker.reports import ProgressReporter
from penstock.worker.runs import NOT_STARTED, Run

logger: Final = logging.getLogger("penstock.worker")

CLOSE_SECONDS: Final = 10.0  # for killed processes to be gone
# Where asyncio can start a task at once (Python 3.12), one that never waits ends before the next starts.
_EAGER: Final[dict[str, Any]] = {"eager_start": True} if sys.version_info >= (3, 12) else {}


class Executor(ABC):
    """Slots for runs. `on_end` is called once for each run, on the loop; with None when it was interrupted."""

    def __init__(self, size: int, clock: Clock) -> None:
        self.size = size  # slots
        self.running = 0
        self.abandoned = 0  # runs that do not end and whose slots others have
        self.waiting: deque[Run] = deque()
        self.buffered = 0  # some of those in `waiting` may have been dropped
        self.on_end: Callable[[Run, Ending | None], None]  # set by the dispatcher
        self._clock = clock
        self._loop = asyncio.get_running_loop()

    @abstractmethod
    def start(self, run: Run) -> None:
        """Run it."""

    @abstractmethod
    def interrupt(self, run: Run) -> bool:
        """Interrupt it; whether it will end by that."""

    def may_start(self, run: Run) -> bool:
        """Whether its lease still holds; checked right before a run starts, in any thread."""
        return run.lease.holds(self._clock.monotonic())


class LoopExecutor(Executor):
    """Runs async functions on the event loop."""

    def start(self, run: Run) -> None:
        work = self._run(run)
        task = asyncio.Task(work, loop=self._loop, **_EAGER) if _EAGER else self._loop.create_task(work)
        if not task.done():
            run.handle = task

    def interrupt(self, run: Run) -> bool:
        if run.handle is not None:
            run.handle.cancel()
        return True

    async def _run(self, run: Run) -> None:
        assert run.context is not None
        if not self.may_start(run):
            self.on_end(run, NOT_STARTED)
            return
        bind_contextvars(**run.fields())
        try:
            ending: Ending | None = await arun_one(run.task, run.envelope, run.context)
        except asyncio.CancelledError:
            is_ours = run.interrupt_reason is not None
            ending = None if is_ours else Ending("failed", error="the handler raised CancelledError")
        except BaseException as error:  # noqa: BLE001 - one task does not end the worker
            ending = Ending("failed", error=error_text(error))
        self.on_end(run, ending)


class ThreadExecutor(Executor):
    """Runs plain functions in threads, which are started when they are needed and do not keep the process alive."""

    def __init__(self, size: int, clock: Clock) -> None:
        super().__init__(size, clock)
        self._jobs: SimpleQueue[Run | None] = SimpleQueue()
        self._done: deque[tuple[Run, Ending]] = deque()
        self._is_signalled = False
        self._threads = 0

    def start(self, run: Run) -> None:
        if self._threads < self.running + self.abandoned:
            self._threads += 1
            threading.Thread(target=self._work, name=f"penstock-task-{self._threads}", daemon=True).start()
        self._jobs.put(run)

    def interrupt(self, run: Run) -> bool:
        return False

    def close(self) -> None:
        """Threads that wait end; those that work end after their run."""
        for _ in range(self._threads):
            self._jobs.put(None)

    def _work(self) -> None:
        while (run := self._jobs.get()) is not None:
            ending = contextvars.Context().run(_run_in_thread, run) if self.may_start(run) else NOT_STARTED
            self._done.append((run, ending))
            if not self._is_signalled:
                self._is_signalled = True
                with suppress(RuntimeError):  # the loop is closed: nobody waits for it any more
                    self._loop.call_soon_threadsafe(self._drain)
            del run

    def _drain(self) -> None:
        # First, so that a thread that finishes from here on signals again.
        self._is_signalled = False
        while self._done:
            self.on_end(*self._done.popleft())


def _run_in_thread(run: Run) -> Ending:
    assert run.context is not None
    bind_contextvars(**run.fields())
    try:
        return run_one(run.task, run.envelope, run.context)
    except BaseException as error:  # noqa: BLE001 - the thread has other runs to do
        return Ending("failed", error=error_text(error))


class ProcessExecutor(Executor):
    """Runs plain functions in processes, which are kept from run to run; an interrupted run ends with its process.

    `on_start` is called when the run's own time starts: the start of a process does not count.
    """

    def __init__(self, size: int, clock: Clock, hello: Hello, progress: ProgressReporter, spawner: Spawner) -> None:
        super().__init__(size, clock)
        self.on_start: Callable[[Run], None]
        self._hello = hello
        self._has_real_time = isinstance(clock, SystemClock)  # the same in other processes
        self._progress = progress
        self._spawner = spawner
        self._guardian = Guardian()
        self._idle: list[ChildProcess] = []
        self._children: set[ChildProcess] = set()
        self._numbers = count(1)

    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    def open(self) -> None:
        """Start all processes, so that the first runs need not wait for them."""
        self._guardian.start()
        self._idle += [self._new_child() for _ in range(self.size)]

    def start(self, run: Run) -> None:
        self._spawner.spawn(self._run(run))

    def interrupt(self, run: Run) -> bool:
        if run.handle is not None:
            run.handle.kill()
        return True

    def send_sigint(self) -> None:
        """Pass Ctrl-C on to the processes, which have sessions of their own."""
        for child in self._children:
            child.send_sigint()

    async def close(self) -> None:
        """Kill all processes."""
        for child in self._children:
            child.kill()
        if self._children:
            ends = [asyncio.ensure_future(child.ended()) for child in self._children]
            await asyncio.wait(ends, timeout=CLOSE_SECONDS)
        await asyncio.to_thread(self._guardian.close)

    async def _run(self, run: Run) -> None:
        run.deadline = 0
        try:
            child = run.handle = self._take_child()
        except OSError as error:
            self.on_end(run, Ending("failed", error=f"no process could be started to run it: {error}"))
            return
        ending = await self._run_in(child, run) if run.interrupt_reason is None and await child.ready() else None
        if ending is not None:
            self._idle.append(child)
        else:
            child.kill()
            how = await child.ended()
            how = child.problem or how
            logger.warning("the process of a run ended", extra=run.fields(how=how, pid=child.pid))
            if run.interrupt_reason is None:
                ending = Ending("failed", error=f"the process that ran it ended: {how}")
        self.on_end(run, ending)

    def _take_child(self) -> ChildProcess:
        """A process for a run. One that died while it was idle costs nobody an attempt."""
        while self._idle:
            child = self._idle.pop()
            if not child.has_ended():
                return child
        return self._new_child()

    def _new_child(self) -> ChildProcess:
        child = ChildProcess(self._hello, self._guardian, self._child_ended)
        self._children.add(child)
        return child

    def _child_ended(self, child: ChildProcess, how: str) -> None:
        self._children.discard(child)
        if child in self._idle:
            self._idle.remove(child)
            logger.warning("an idle process ended", extra={"how": how, "pid": child.pid})

    async def _run_in(self, child: ChildProcess, run: Run) -> Ending | None:
        """How the run ended; None when the process did."""
        if not self.may_start(run):
            return NOT_STARTED
        self.on_start(run)
        sure_until = run.lease.sure_until if self._has_real_time else NEVER
        return await child.run(_job(next(self._numbers), run, sure_until), partial(self._progress.note, run))


def _job(number: int, run: Run, sure_until: int) -> Job:
    context = run.context
    assert context is not None
    return Job(
        number,
        msgspec.json.encode(run.envelope),
        run.attempt,
        sure_until,
        context.queue,
        context.worker,
        context.key,
        context.trace,
        [msgspec.json.encode(parent) for parent in context.parents],
    )
