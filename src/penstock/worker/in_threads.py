"""Plain functions run in threads, which take runs from one queue and answer to the loop in batches.

A thread that is done with a run takes the next without asking the loop, so that short runs cost no change of threads.
A thread cannot be broken off: a run that was cancelled is told so (`current_task().is_cancelled`), and goes on.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from contextlib import suppress
from queue import SimpleQueue

from structlog.contextvars import bind_contextvars

from penstock.tasks.endings import Ending, error_text
from penstock.tasks.running import run_one
from penstock.worker.lane import NOT_BEGUN, Ended, MayBegin
from penstock.worker.runs import Run


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
