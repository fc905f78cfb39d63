"""Async tasks run on the worker's own event loop, each as an asyncio task with a context of its own.

Where asyncio can begin a task at once (Python 3.12), one that never waits is over before the next begins.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final

from structlog.contextvars import bind_contextvars

from penstock.tasks.endings import Ending, error_text
from penstock.tasks.running import arun_one
from penstock.worker.lane import NOT_BEGUN, Ended, MayBegin
from penstock.worker.runs import Run

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
