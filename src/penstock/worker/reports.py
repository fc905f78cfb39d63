"""What the worker reports to the broker about its runs: progress while they run, and how they finished.

Of the progress of a run only the latest value is sent, and no task waits for that. Finishes are sent at once when no
request is under way, and collected for the next batch otherwise. Each finish carries the receipt of its delivery, so
that it counts once or not at all. While no broker answers it is retried; its lease is extended meanwhile. A finish that
is refused because its lease is gone is logged and dropped: the task is final, or somebody else's. A result that the
broker refuses is replaced by the reason: the task is completed, its work is done.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from penstock import operations as ops
from penstock.client.session import AsyncSession
from penstock.errors import Closed, InputError, LeaseLost, PenstockError, ServerError
from penstock.model import Outcome, Receipt
from penstock.model_tasks import RESULT_ERROR_START, Finish
from penstock.requests import Settling
from penstock.tasks.endings import result_error
from penstock.worker.event_loop import Spawner
from penstock.worker.runs import Lease, Run

logger: Final = logging.getLogger("penstock.worker")

BATCH_MAX: Final = 1_000
BATCH_BYTES_MAX: Final = 4 << 20
PAUSE_SECONDS_MAX: Final = 2.0

Report = tuple[Run, Finish]


class ProgressReporter:
    """Sends the progress of runs. Belongs to the loop on which it is made."""

    def __init__(self, session: AsyncSession, spawner: Spawner) -> None:
        self._session = session
        self._spawner = spawner
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def note(self, run: Run, data: bytes) -> None:
        """Send the progress of a run; called by the task, in any thread."""
        if run.is_ending:
            return
        run.progress = data  # at once: the end of the run may come to the loop before the call
        if threading.get_ident() == self._thread:
            self._begin(run)
        else:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._begin, run)

    def last(self, run: Run) -> asyncio.Task[None] | None:
        """The run ends: take no more. What to wait for until its progress is sent; None when it is."""
        run.is_ending = True
        return None if run.progress is run.progress_sent else self._begin(run)

    def _begin(self, run: Run) -> asyncio.Task[None]:
        if run.progress_task is None or run.progress_task.done():
            run.progress_task = self._spawner.spawn(self._send(run))
        return run.progress_task

    async def _send(self, run: Run) -> None:
        while (data := run.progress) is not None and data is not run.progress_sent:
            try:
                await self._session.execute(ops.NoteProgress(run.receipt, run.envelope.task_id, data))
            except LeaseLost:
                return  # the task is final, or somebody else's
            except PenstockError as error:
                logger.warning("progress could not be sent", extra=run.fields(error=str(error)))
            run.progress_sent = data


class FinishReporter:
    """Sends how runs finished. `on_idle` is called when nothing is left to send."""

    def __init__(
        self, session: AsyncSession, spawner: Spawner, rng: random.Random, progress: ProgressReporter | None = None
    ) -> None:
        self._session = session
        self._spawner = spawner
        self._rng = rng
        self._progress = progress
        self._waiting = 0  # for their progress to be sent first
        self._ready: deque[Report] = deque()
        self._under_way = 0
        self._sender: asyncio.Task[None] | None = None
        self.on_idle: Callable[[], object] = lambda: None

    def __len__(self) -> int:
        """How many are not sent yet."""
        return len(self._ready) + self._under_way + self._waiting

    def add(self, run: Run, finish: Finish) -> None:
        """Send a finish, after the run's progress: after the finish that would be refused.

        What is added in one turn of the loop leaves in one batch.
        """
        progress = None if self._progress is None else self._progress.last(run)
        if progress is None:
            self._add(run, finish)
        else:
            self._waiting += 1
            self._spawner.spawn(self._add_after(progress, run, finish))

    async def _add_after(self, progress: asyncio.Task[None], run: Run, finish: Finish) -> None:
        await asyncio.wait([progress])
        self._waiting -= 1
        self._add(run, finish)

    def _add(self, run: Run, finish: Finish) -> None:
        self._ready.append((run, finish))
        if self._sender is None:
            self._sender = self._spawner.spawn(self._send())

    def reject(self, lease: Lease, receipt: Receipt, error: str) -> None:
        """Reject a message that is not a task, or not one to be run: no id of it can be trusted to finish it by."""
        logger.error(
            "not run: moving the message to the dead-letter queue", extra={"receipt": str(receipt), "error": error}
        )
        self._spawner.spawn(self._reject(lease, receipt, error))

    async def _reject(self, lease: Lease, receipt: Receipt, error: str) -> None:
        try:
            await self._session.settle([receipt], Settling(Outcome.REJECTED, error=error))
        except PenstockError as refusal:
            logger.warning("refused", extra={"receipt": str(receipt), "error": str(refusal)})
        lease.unreported -= 1

    async def _send(self) -> None:
        try:
            while self._ready:
                batch = self._take_batch()
                self._under_way = len(batch)
                await self._send_batch(batch)
                self._under_way = 0
        finally:
            self._sender = None
            self.on_idle()

    def _take_batch(self) -> list[Report]:
        ready = self._ready
        batch: list[Report] = []
        size = 0
        while ready and len(batch) < BATCH_MAX:
            finish = ready[0][1]
            size += len(finish.result) + len(finish.error)
            if batch and size > BATCH_BYTES_MAX:
                break
            batch.append(ready.popleft())
        return batch

    async def _send_batch(self, batch: Sequence[Report]) -> None:
        try:
            replies = await self._finish_tasks([finish for _, finish in batch])
        except PenstockError as error:
            if len(batch) > 1:  # one of them is to blame; the others must not suffer
                for report in batch:
                    await self._send_batch([report])
                return
            replies = [error]
        for (run, finish), reply in zip(batch, replies, strict=True):
            if reply is None:
                run.lease.unreported -= 1
            else:
                self._refused(run, finish, reply)

    async def _finish_tasks(self, finishes: Sequence[Finish]) -> Sequence[PenstockError | None]:
        pause = 0.05
        while True:
            try:
                return await self._session.execute(ops.FinishTasks(finishes))
            except ServerError as error:
                extra = {"results": len(self), "error": str(error)}
                logger.warning("the broker does not answer; results are kept until it does", extra=extra)
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
            pause = min(pause * 2, PAUSE_SECONDS_MAX)

    def _refused(self, run: Run, finish: Finish, error: PenstockError) -> None:
        has_result = finish.outcome == "completed" and not finish.result.startswith(RESULT_ERROR_START)
        if isinstance(error, InputError) and has_result:
            logger.error("completed, but its result was refused", extra=run.fields(error=str(error)))
            self._ready.append((run, msgspec.structs.replace(finish, result=result_error(str(error)))))
            return
        run.lease.unreported -= 1
        if isinstance(error, LeaseLost):
            logger.warning("refused: the lease has expired", extra=run.fields(outcome=finish.outcome))
        elif not isinstance(error, Closed):
            logger.error("refused", extra=run.fields(outcome=finish.outcome, error=str(error)))
