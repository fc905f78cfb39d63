"""The calls of senders, declarations, jobs and workflows to a broker. `aname` is for asyncio, `name` is in `_sync`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from penstock import operations as ops
from penstock.client.session import AsyncSession
from penstock.client.values import Deadline
from penstock.envelopes import (
    Call,
    alike_batch,
    alike_payloads,
    new_task_ids,
    push_payloads,
    push_tasks,
    task_message,
    tasks_batch,
)
from penstock.errors import QueueExists, TaskConflict
from penstock.model_tasks import ScheduleSpec, ScheduleView, Submitted, TaskState, TaskSubmission, TaskView

if TYPE_CHECKING:
    from penstock.tasks.app import App
    from penstock.tasks.job import Job

T = TypeVar("T")


class AsyncSenderCalls:
    """Sending tasks; the replies are their ids, once they are durable."""

    _app: App
    through: Callable[[TaskSubmission], TaskSubmission]

    async def asend(self, task: TaskSubmission) -> str:
        task = self.through(task)
        session = await self._app.open_async_session()
        await self._app.declarations.aensure(session, task.queue)
        if not task.is_plain:
            return (await self.asubmit([task]))[0].task_id
        await session.push_one(task.queue, task_message(task), None)
        return task.task_id

    async def asend_many(self, tasks: Sequence[TaskSubmission]) -> list[str]:
        tasks = [self.through(task) for task in tasks]
        if not all(task.is_plain for task in tasks):
            return [submitted.task_id for submitted in await self.asubmit(tasks)]
        session = await self._app.open_async_session()
        for queue, part in push_tasks(tasks):
            await self._app.declarations.aensure(session, queue)
            await session.push(queue, tasks_batch(part), None, None)
        return [task.task_id for task in tasks]

    async def asend_alike(self, task: TaskSubmission, calls: Sequence[Call]) -> list[str]:
        """Tasks that differ only by their arguments."""
        session = await self._app.open_async_session()
        await self._app.declarations.aensure(session, task.queue)
        ids = new_task_ids(len(calls), self._app.clock.now())
        for payloads in push_payloads(alike_payloads(task, calls, ids)):
            await session.push(task.queue, alike_batch(task, payloads), None, None)
        return ids

    async def asubmit(self, tasks: Sequence[TaskSubmission]) -> list[Submitted]:
        """All of them or none, in one frame."""
        session = await self._app.open_async_session()
        for queue in dict.fromkeys(task.queue for task in tasks):
            await self._app.declarations.aensure(session, queue)
        return await session.execute(ops.SubmitTasks(tasks))


class AsyncDeclarationsCalls:
    """Sending to the broker what an app declares."""

    queues: dict[str, Mapping[str, Any]]
    schedules: dict[str, ScheduleSpec]
    _waiting: set[str]
    _as_paused: Callable[[list[ScheduleView]], list[ScheduleSpec]]

    async def aensure(self, session: AsyncSession, queue: str) -> None:
        """Create or update the queue with its declared options, unless that was done before."""
        if queue not in self._waiting:
            self.queues.setdefault(queue, {})
            return
        options = self.queues[queue]
        try:
            await session.execute(ops.CreateQueue(queue, options, exist_ok=True))
        except QueueExists:
            await session.execute(ops.UpdateQueue(queue, options))
        self._waiting.discard(queue)

    async def adeclare(self, session: AsyncSession) -> None:
        """Send all declared queues and schedules to the broker."""
        for queue in list(self._waiting):
            await self.aensure(session, queue)
        if self.schedules:
            for spec in self._as_paused(await session.execute(ops.Schedules())):
                await session.execute(ops.SetSchedule(spec))


class AsyncJobCalls(Generic[T]):
    """The calls of a job to its broker."""

    __slots__ = ()
    id: str
    _app: App
    _outcome: Callable[[TaskView, float | None], T]

    async def ainfo(self) -> TaskView:
        """Return everything known about the job, with the history of its runs. Raises `TaskNotFound`."""
        return await (await self._app.open_async_session()).execute(ops.FindTask(self.id))

    async def astatus(self) -> TaskState:
        """Return its state: scheduled, pending, blocked, running, completed, failed, dead or cancelled."""
        return (await self.ainfo()).state

    async def aprogress(self) -> Any:
        """Return the last progress that the task reported with `current_task().progress(…)`, or None."""
        view = await self.ainfo()
        return None if view.progress is None else msgspec.json.decode(view.progress)

    async def aresult(self, timeout: float | None = None) -> T:  # noqa: ASYNC109 - many requests are within it
        """Wait for the task and return the result of its function.

        Raises `TaskDied` if it failed for good, `TaskCancelled` if it was cancelled, and `TaskUnfinished` (a
        `TimeoutError`) if it is not final after `timeout` seconds.
        """
        deadline = Deadline(self._app.clock, timeout)
        while True:
            view = await self._app.await_task(self.id, deadline.slice())
            if view.is_final or deadline.is_over():
                return self._outcome(view, timeout)

    async def acancel(self) -> TaskView:
        """Cancel the job. If it is running, its worker is notified and the result of the run is discarded."""
        return await (await self._app.open_async_session()).execute(ops.CancelTask(self.id))

    async def aretry(self) -> TaskView:
        """Retry a dead or cancelled job, or a failed job immediately instead of after its backoff."""
        return await (await self._app.open_async_session()).execute(ops.RetryTask(self.id))


class AsyncWorkflowCalls(Generic[T]):
    """The calls of a workflow to its broker."""

    id: str
    jobs: tuple[Job[Any], ...]
    ends: tuple[Job[Any], ...]
    _app: App | None
    _joined: Callable[[list[Any]], T]

    async def aresult(self, timeout: float | None = None) -> T:  # noqa: ASYNC109
        """Wait for the workflow and return its result; for a group, a list. Raises what `Job.result` raises."""
        if self._app is None:
            return self._joined([])
        deadline = Deadline(self._app.clock, timeout)
        return self._joined([await job.aresult(deadline.left()) for job in self.ends])

    async def astatus(self) -> dict[TaskState, int]:
        """Return the number of its tasks in each state."""
        if self._app is None:
            return {}
        seen = {job.id: job.view.state async for job in self._app.ajobs(workflow=self.id) if job.view is not None}
        return dict(Counter([seen.get(job.id) or await job.astatus() for job in self.jobs]))

    async def acancel(self) -> None:
        """Cancel all unfinished tasks, children first, so that none starts because its parent ended."""
        for job in reversed(self.jobs):
            with suppress(TaskConflict):
                await job.acancel()
