"""What the worker reports to the broker about its runs: progress while they run, and how they finished.

Of the progress of a run only the latest value is sent, and no task waits for that. Finishes are sent at once when no
request is under way, and collected for the next batch otherwise. Each finish carries the receipt of its delivery, so
that it counts once or not at all. While no broker answers it is retried; its lease is extended meanwhile. A finish that
is refused because its lease is gone is logged and dropped: the task is final, or somebody else's. A result that the
broker refuses is replaced by the reason: the task is completed, its work is done.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import structlog

from penstock import operations as ops
from penstock.client.session import AsyncSession
from penstock.errors import Closed, InputError, LeaseLost, PenstockError, ServerError
from penstock.model import Outcome, Receipt
from penstock.model_tasks import RESULT_ERROR_START, Finish
from penstock.requests import Settling
from penstock.tasks.endings import result_error
from penstock.worker.event_loop import Spawner
from penstock.worker.runs import Lease, Run

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
                await self._session.execute(ops.NoteProgress(run.receipt, run.envelope.task_id, data))
            except LeaseLost:
                return  # it is over: nobody is interested
            except PenstockError as error:
                log.warning("progress could not be told", error=str(error), **run.fields())
            run.progress_told = data


BATCH_MAX: Final = 1_000
BATCH_BYTES_MAX: Final = 4 << 20
PAUSE_SECONDS_MAX: Final = 2.0

Told = tuple[Run, Finish]


class Finishing:
    """See the module's rules."""

    def __init__(
        self, session: AsyncSession, spawner: Spawner, rng: random.Random, progress: Progress | None = None
    ) -> None:
        self._session = session
        self._spawner = spawner
        self._rng = rng
        self._progress = progress
        self._waiting = 0  # for their progress to be told first
        self._ready: deque[Told] = deque()
        self._under_way = 0
        self._sender: asyncio.Task[None] | None = None
        self.told: Callable[[], object] = lambda: None  # nothing is left to be told

    def __len__(self) -> int:
        """How many are not told yet."""
        return len(self._ready) + self._under_way + self._waiting

    def add(self, run: Run, finish: Finish) -> None:
        """Tell it. What is added in this turn of the loop leaves together."""
        telling = None if self._progress is None else self._progress.last(run)
        if telling is not None:
            self._waiting += 1
            self._spawner.spawn(self._add_after(telling, run, finish))
            return
        self._add(run, finish)

    async def _add_after(self, telling: asyncio.Task[None], run: Run, finish: Finish) -> None:
        """The same, when what the run said of its progress is told."""
        await asyncio.wait([telling])
        self._waiting -= 1
        self._add(run, finish)

    def _add(self, run: Run, finish: Finish) -> None:
        self._ready.append((run, finish))
        if self._sender is None:
            self._sender = self._spawner.spawn(self._send())

    def reject(self, lease: Lease, receipt: Receipt, error: str) -> None:
        """A message that is no task at all: it has no id to be finished by."""
        log.error("not a task", place=str(receipt), error=error)
        self._spawner.spawn(self._reject(lease, receipt, error))

    async def _reject(self, lease: Lease, receipt: Receipt, error: str) -> None:
        try:
            await self._session.settle([receipt], Settling(Outcome.REJECTED, error=error))
        except PenstockError as refused:
            log.warning("refused", place=str(receipt), error=str(refused))
        lease.left -= 1

    async def _send(self) -> None:
        try:
            while self._ready:
                batch = self._take()
                self._under_way = len(batch)
                await self._tell(batch)
                self._under_way = 0
        finally:
            self._sender = None
            self.told()

    def _take(self) -> list[Told]:
        ready = self._ready
        batch: list[Told] = []
        size = 0
        while ready and len(batch) < BATCH_MAX:
            finish = ready[0][1]
            size += len(finish.result) + len(finish.error)
            if batch and size > BATCH_BYTES_MAX:
                break
            batch.append(ready.popleft())
        return batch

    async def _tell(self, batch: Sequence[Told]) -> None:
        finishes = [finish for _, finish in batch]
        try:
            answers = await self._answered(finishes)
        except PenstockError as error:
            if len(batch) > 1:  # one of them is to blame; the others must not suffer
                for each in batch:
                    await self._tell([each])
                return
            answers = [error]
        for (run, finish), answer in zip(batch, answers, strict=True):
            if answer is None:
                run.lease.left -= 1
            else:
                self._refused(run, finish, answer)

    async def _answered(self, finishes: Sequence[Finish]) -> Sequence[PenstockError | None]:
        pause = 0.05
        while True:
            try:
                return await self._session.execute(ops.FinishTasks(finishes))
            except ServerError as error:
                log.warning("results are kept until the broker answers", results=len(self), error=str(error))
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
            pause = min(pause * 2, PAUSE_SECONDS_MAX)

    def _refused(self, run: Run, finish: Finish, error: PenstockError) -> None:
        has_result = finish.outcome == "completed" and not finish.result.startswith(RESULT_ERROR_START)
        if isinstance(error, InputError) and has_result:
            log.error("completed, but its result was refused", error=str(error), **run.fields())
            self._ready.append((run, msgspec.structs.replace(finish, result=result_error(str(error)))))
            return
        run.lease.left -= 1
        if isinstance(error, LeaseLost):
            log.warning("refused: the lease was over", outcome=finish.outcome, **run.fields())
        elif not isinstance(error, Closed):
            log.error("refused", outcome=finish.outcome, error=str(error), **run.fields())
