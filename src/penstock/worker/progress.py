"""What running tasks tell of their progress: only the latest of each is on its way, and no task waits for it.

The finish of a run waits: after it nothing would be taken any more, and what was told last would be lost.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import structlog

from penstock.client.session import AsyncSession
from penstock.errors import LeaseLost, PenstockError
from penstock.worker.runs import Run
from penstock.worker.ticking import Spawner

log: Any = structlog.stdlib.get_logger("penstock.worker")


class Progress:
    """See the module's rules. Belongs to the loop on which it is made."""

    def __init__(self, session: AsyncSession, spawner: Spawner) -> None:
        self._session = session
        self._spawner = spawner
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def note_anywhere(self, run: Run, data: bytes) -> None:
        """What a task calls with its progress, in whatever thread it runs."""
        if run.is_ending:
            return  # it was reported before it was over: nobody is interested
        run.progress = data  # at once: the end of the run may come to the loop before the call
        if threading.get_ident() == self._thread:
            self._begin(run)
        else:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._begin, run)

    def last(self, run: Run) -> asyncio.Task[None] | None:
        """The run ends: nothing more is taken. What has to be waited for until everything is told, if anything."""
        run.is_ending = True
        return None if run.progress is run.progress_told else self._begin(run)

    def _begin(self, run: Run) -> asyncio.Task[None]:
        """On the loop: tell the latest, or leave that to whoever is about it."""
        if run.telling is None or run.telling.done():
            run.telling = self._spawner.spawn(self._tell(run))
        return run.telling

    async def _tell(self, run: Run) -> None:
        while (data := run.progress) is not None and data is not run.progress_told:
            try:
                await self._session.note_progress(run.receipt, run.envelope.task_id, data)
            except LeaseLost:
                return  # it is over: nobody is interested
            except PenstockError as error:
                log.warning("progress could not be told", error=str(error), **run.fields())
            run.progress_told = data
