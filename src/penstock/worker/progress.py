"""What running tasks tell of their progress: only the latest of each is on its way, and nobody waits for it."""

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
        if threading.get_ident() == self._thread:
            self.note(run, data)
        else:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.note, run, data)

    def note(self, run: Run, data: bytes) -> None:
        """On the loop: tell it, or let it take the place of what waits to be told."""
        is_first = run.progress is None
        run.progress = data
        if is_first:
            self._spawner.spawn(self._tell(run))

    async def _tell(self, run: Run) -> None:
        while (data := run.progress) is not None:
            try:
                await self._session.note_progress(run.receipt, run.envelope.task_id, data)
            except LeaseLost:
                return  # it is over: nobody is interested
            except PenstockError as error:
                log.warning("progress could not be told", error=str(error), **run.fields())
            if run.progress is data:
                run.progress = None
