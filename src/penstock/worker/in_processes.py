"""Plain functions run in processes, one at a time in each; a process that dies takes only its own run with it.

Processes are started when they are needed and kept. A run that is broken off ends with its process, which is killed
with its process group; the next run gets a new one. When the worker is gone its guardian ends all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Final

import msgspec
import structlog

from penstock.clock import Clock, SystemClock
from penstock.tasks.endings import Ending
from penstock.worker.child_process import ChildProcess
from penstock.worker.guarding import Guardian
from penstock.worker.lane import NOT_BEGUN, Ended, MayBegin
from penstock.worker.pipes import Hello, Job
from penstock.worker.progress import Progress
from penstock.worker.runs import Run
from penstock.worker.ticking import NEVER, Spawner

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
