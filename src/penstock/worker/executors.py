"""The three ways to run a task: on the event loop, in threads, in processes.

Async functions run on the worker's own loop, each as an asyncio task with its own context. Plain functions run in
threads, which take runs from one queue and report to the loop in batches, so that short runs cost no thread switch; or
in processes, one run at a time in each, so that a crash takes only its own run with it.

A run on the loop or in a process can be interrupted; a thread cannot: its run sees `current_task().is_cancelled`.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from itertools import count
from queue import SimpleQueue
from typing import Any, Final, Protocol

import msgspec
import structlog
from structlog.contextvars import bind_contextvars

from penstock.clock import Clock, SystemClock
from penstock.tasks.endings import Ending, error_text
from penstock.tasks.runs import arun_one, run_one
from penstock.worker.child_protocol import Hello, Job
from penstock.worker.event_loop import NEVER, Spawner
from penstock.worker.processes import ChildProcess, Guardian
from penstock.worker.reports import Progress
from penstock.worker.runs import NOT_BEGUN, Run

MayBegin = Callable[[Run], bool]  # whether its lease still holds; asked right before a run begins, in any thread
Ended = Callable[[Run, Ending | None], None]  # told once of every run, on the loop; None: it was broken off


class Lane(Protocol):
    """A way of running: on the loop, in threads, in processes."""

    size: int  # so many at once
    running: int
    abandoned: int  # runs that do not end and whose slots others have; see `desk`
    waiting: deque[Run]
    buffered: int  # of those that wait, some may have been dropped

    def start(self, run: Run) -> None:
        """Run it; `ended` is called on the loop, later."""

    def break_off(self, run: Run) -> bool:
        """Whether it will end by that."""


_EAGER: Final[dict[str, Any]] = {"eager_start": True} if sys.version_info >= (3, 12) else {}


class LoopLane:
    """See the module's rules."""

    def __init__(self, size: int, ended: Ended, may_begin: MayBegin) -> None:
        self.size = size
        self.running = 0
        self.abandoned = 0
        self.buffered = 0
        self.waiting: deque[Run] = deque()
        self._ended = ended
        self._may_begin = may_begin
        self._loop = asyncio.get_running_loop()

    def start(self, run: Run) -> None:
        task = _task(self._run(run), self._loop)
        if not task.done():
            run.handle = task

    def break_off(self, run: Run) -> bool:
        if run.handle is not None:
            run.handle.cancel()
        return True

    async def _run(self, run: Run) -> None:
        assert run.context is not None
        if not self._may_begin(run):
            self._ended(run, NOT_BEGUN)
            return
        bind_contextvars(**run.fields())
        try:
            ending: Ending | None = await arun_one(run.task, run.envelope, run.context)
        except asyncio.CancelledError:
            ending = None if run.why is not None else Ending("failed", error="the handler raised CancelledError")
        except BaseException as error:  # noqa: BLE001 - one task does not end the worker
            ending = Ending("failed", error=error_text(error))
        self._ended(run, ending)


def _task(work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
    return asyncio.Task(work, loop=loop, **_EAGER) if _EAGER else loop.create_task(work)


class ThreadLane:
    """See the module's rules. Threads are started when they are needed, and are no reason to stay alive."""

    def __init__(self, size: int, ended: Ended, may_begin: MayBegin) -> None:
        self.size = size
        self.running = 0
        self.abandoned = 0
        self.buffered = 0
        self.waiting: deque[Run] = deque()
        self._ended = ended
        self._may_begin = may_begin
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[Run | None] = SimpleQueue()
        self._done: deque[tuple[Run, Ending]] = deque()
        self._is_signalled = False
        self._threads = 0

    def start(self, run: Run) -> None:
        if self._threads < self.running + self.abandoned:
            self._threads += 1
            threading.Thread(target=self._work, name=f"penstock-task-{self._threads}", daemon=True).start()
        self._jobs.put(run)

    def break_off(self, run: Run) -> bool:
        return False

    def close(self) -> None:
        """Threads that wait end; those that work do so after it."""
        for _ in range(self._threads):
            self._jobs.put(None)

    def _work(self) -> None:
        while (run := self._jobs.get()) is not None:
            ending = contextvars.Context().run(_ending_of, run) if self._may_begin(run) else NOT_BEGUN
            self._done.append((run, ending))
            if not self._is_signalled:
                self._is_signalled = True
                with suppress(RuntimeError):  # the loop is closed: nobody waits for it any more
                    self._loop.call_soon_threadsafe(self._drain)
            del run

    def _drain(self) -> None:
        # First, so that whoever is done from here on signals again.
        self._is_signalled = False
        while self._done:
            self._ended(*self._done.popleft())


def _ending_of(run: Run) -> Ending:
    assert run.context is not None
    bind_contextvars(**run.fields())
    try:
        return run_one(run.task, run.envelope, run.context)
    except BaseException as error:  # noqa: BLE001 - the thread has other runs to do
        return Ending("failed", error=error_text(error))


log: Any = structlog.stdlib.get_logger("penstock.worker")

CLOSE_SECONDS: Final = 10.0  # for killed processes to be gone


class ProcessLane:
    """See the module's rules. `began` is called when a run's own time begins."""

    def __init__(
        self,
        size: int,
        hello: Hello,
        ended: Ended,
        may_begin: MayBegin,
        clock: Clock,
        began: Callable[[Run], None],
        progress: Progress,
        spawner: Spawner,
    ) -> None:
        self.size = size
        self.running = 0
        self.abandoned = 0
        self.buffered = 0
        self.waiting: deque[Run] = deque()
        self._hello = hello
        self._ended = ended
        self._may_begin = may_begin
        self._has_real_time = isinstance(clock, SystemClock)  # the same in other processes
        self._began = began
        self._progress = progress
        self._spawner = spawner
        self._guardian = Guardian()
        self._idle: list[ChildProcess] = []
        self._children: set[ChildProcess] = set()
        self._numbers = count(1)

    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    def open(self) -> None:
        """Start all processes: whoever comes first shall not wait for them."""
        self._guardian.start()
        self._idle += [self._new() for _ in range(self.size)]

    def start(self, run: Run) -> None:
        self._spawner.spawn(self._run(run))

    def break_off(self, run: Run) -> bool:
        if run.handle is not None:
            run.handle.kill()
        return True

    def interrupt(self) -> None:
        """Pass Ctrl-C on to the processes, which have sessions of their own."""
        for child in self._children:
            child.interrupt()

    async def close(self) -> None:
        """Kill what is left."""
        for child in self._children:
            child.kill()
        if self._children:
            ends = [asyncio.ensure_future(child.ended()) for child in self._children]
            await asyncio.wait(ends, timeout=CLOSE_SECONDS)
        await asyncio.to_thread(self._guardian.close)

    async def _run(self, run: Run) -> None:
        run.deadline = 0  # the start of a process does not count
        try:
            child = run.handle = self._living()
        except OSError as error:
            self._ended(run, Ending("failed", error=f"no process could be started to run it: {error}"))
            return
        ending = await self._answered(run, child) if run.why is None and await child.ready() else None
        if ending is not None:
            self._idle.append(child)
        else:
            child.kill()
            how = await child.ended()
            how = child.problem or how
            log.warning("a process is gone", how=how, pid=child.pid, **run.fields())
            ending = None if run.why is not None else Ending("failed", error=f"the process that ran it ended: {how}")
        self._ended(run, ending)

    def _living(self) -> ChildProcess:
        """A process for a run. One that died while it had nothing to do costs nobody an attempt."""
        while self._idle:
            child = self._idle.pop()
            if not child.has_ended():
                return child
        return self._new()

    def _new(self) -> ChildProcess:
        child = ChildProcess(self._hello, self._guardian, self._gone)
        self._children.add(child)
        return child

    def _gone(self, child: ChildProcess, how: str) -> None:
        self._children.discard(child)
        if child in self._idle:
            self._idle.remove(child)
            log.warning("an idle process is gone", how=how, pid=child.pid)

    async def _answered(self, run: Run, child: ChildProcess) -> Ending | None:
        """How the run ended; None when the process did."""
        if not self._may_begin(run):
            return NOT_BEGUN
        self._began(run)
        sure_until = run.lease.sure_until if self._has_real_time else NEVER
        return await child.run(_job(next(self._numbers), run, sure_until), partial(self._progress.note_anywhere, run))


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
