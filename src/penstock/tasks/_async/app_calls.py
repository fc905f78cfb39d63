"""The calls of an app to its broker. `aname` is for asyncio; the blocking `name` is generated into `_sync`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, cast

import msgspec

from penstock import operations as ops
from penstock.client._async.task_calls import new_operation, run_operation, wait_task
from penstock.client.session import AsyncSession
from penstock.errors import ScheduleNotFound
from penstock.model_tasks import (
    MissedPolicy,
    OperationView,
    ScheduleRun,
    ScheduleTicks,
    ScheduleView,
    Suggestion,
    TaskCounts,
    TaskFilter,
    TaskView,
    WorkerView,
    WorkflowPage,
    WorkflowView,
)
from penstock.tasks.job import Job
from penstock.tasks.job_search import JobFilter, check_limit, filter_of, page_filter
from penstock.tasks.schedules import spec_of
from penstock.tasks.sessions import Sessions
from penstock.tasks.submission import Declarations

if TYPE_CHECKING:
    from penstock.tasks.app import App
    from penstock.tasks.local import LocalApp
    from penstock.tasks.task import Configured
    from penstock.tasks.workflows import Step

Action = Literal["purge", "cancel", "retry"]


class AsyncAppCalls:
    """The calls of an app to its broker."""

    declarations: Declarations
    stand_in: LocalApp | None
    _sessions: Sessions

    async def open_async_session(self) -> AsyncSession:
        """The session of the running loop, or of all threads; opened when first asked for."""
        session: AsyncSession = await self._sessions.asynchronous()
        return session

    async def aclose(self) -> None:
        """Close all open sessions, including the session of the running loop. A second call does nothing."""
        await self._sessions.aclose()

    async def __aenter__(self) -> Self:
        """Enter a block at whose end the app is closed. A closed app can be entered again."""
        self._sessions.reopen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    async def adeclare(self) -> None:
        """Send all declared queues and schedules to the broker. A worker does so when it starts."""
        await self.declarations.adeclare(await self.open_async_session())

    async def aworkers(self) -> list[WorkerView]:
        """Return the workers that have reported to the broker, of this app and of others."""
        return await (await self.open_async_session()).execute(ops.Workers())

    async def aquiet_worker(self, worker_id: str, owner: str | None = None) -> WorkerView:
        """Tell a worker to take no more tasks and finish the running ones. Raises `WorkerNotFound`."""
        return await (await self.open_async_session()).execute(ops.QuietWorker(worker_id, owner))

    async def aresume_worker(self, worker_id: str, owner: str | None = None) -> WorkerView:
        """Tell a quiet worker to take tasks again. Raises `WorkerNotFound`."""
        return await (await self.open_async_session()).execute(ops.ResumeWorker(worker_id, owner))

    async def astop_worker(
        self, worker_id: str, owner: str | None = None, *, grace_seconds: float | None = None
    ) -> WorkerView:
        """Tell a worker to exit. Tasks that still run after the grace period are released, uncounted.

        Raises `WorkerNotFound`.
        """
        return await (await self.open_async_session()).execute(ops.StopWorker(worker_id, owner, grace_seconds))

    # jobs

    async def acounts(self) -> list[TaskCounts]:
        """Return the number of jobs in each state, by queue."""
        return await (await self.open_async_session()).execute(ops.CountTasks())

    def ajobs(self, *, limit: int | None = None, **filters: Unpack[JobFilter]) -> AsyncIterator[Job[Any]]:
        """Iterate over matching jobs, newest first, each with its `view`. Pages are fetched as needed."""
        return _apages(cast("App", self), filter_of(filters), check_limit(limit))

    async def await_task(self, task_id: str, seconds: float) -> TaskView:
        """Wait until a task is final, at most `seconds`. Returns its current state."""
        if self.stand_in is not None:
            return await self.stand_in.await_task(task_id, seconds)
        return await wait_task(await self.open_async_session(), task_id, seconds)

    # schedules

    async def aschedule(
        self,
        name: str,
        cron: str,
        task: Configured[..., Any] | Step[Any],
        *,
        timezone: str = "UTC",
        missed: MissedPolicy = "skip",
        is_paused: bool = False,
    ) -> ScheduleView:
        """Create or change a schedule: `app.schedule("eu", "0 3 * * *", report.s("eu"), timezone="Europe/Rome")`."""
        spec = spec_of(task, name, cron, timezone, missed, is_paused)
        session = await self.open_async_session()
        await self.declarations.aensure(session, spec.queue)
        return await session.execute(ops.SetSchedule(spec))

    async def aschedules(self) -> list[ScheduleView]:
        """Return all schedules of the broker, including those of other apps."""
        return await (await self.open_async_session()).execute(ops.Schedules())

    async def apause_schedule(self, name: str) -> ScheduleView:
        """Pause a schedule until it is resumed, even if it is declared again meanwhile."""
        return await self._aset_paused(name, is_paused=True)

    async def aresume_schedule(self, name: str) -> ScheduleView:
        """Resume a schedule with its next tick. Ticks missed during the pause are skipped."""
        return await self._aset_paused(name, is_paused=False)

    async def _aset_paused(self, name: str, *, is_paused: bool) -> ScheduleView:
        for view in await self.aschedules():
            if view.spec.name == name:
                spec = msgspec.structs.replace(view.spec, is_paused=is_paused)
                return await (await self.open_async_session()).execute(ops.SetSchedule(spec))
        raise ScheduleNotFound(f"no schedule is named {name!r}")

    async def arun_schedule(self, name: str) -> ScheduleRun:
        """Submit the task of a schedule now, in addition to its ticks. Raises `ScheduleNotFound`."""
        return await (await self.open_async_session()).execute(ops.RunSchedule(name))

    async def aticks(self, name: str, count: int = 5, runs: int = 10) -> ScheduleTicks:
        """Return the next ticks of a schedule and its last runs. Raises `ScheduleNotFound`."""
        return await (await self.open_async_session()).execute(ops.Ticks(name, count, runs))

    async def adelete_schedule(self, name: str) -> None:
        """Delete a schedule. If a task declares it, it is created again when a worker restarts."""
        await (await self.open_async_session()).execute(ops.DeleteSchedule(name))

    async def aprune_schedules(self) -> list[str]:
        """Delete schedules that `cron=` in this app declared earlier and no longer declares.

        Returns their names. Call it when no worker runs older code: when it restarts, it would declare them again.
        """
        names = self.declarations.gone(await self.aschedules())
        for name in names:
            with suppress(ScheduleNotFound):  # somebody was quicker
                await self.adelete_schedule(name)
        return names

    async def asuggest(self, field: str, prefix: str = "", limit: int = 20) -> list[Suggestion]:
        """Return values of `field` among jobs that start with `prefix`, from queues that the caller may read.

        `field` is `task_type`, `queue`, `worker`, `status`, `workflow`, `schedule`, or `kwargs` for argument names.
        """
        return await (await self.open_async_session()).execute(ops.SuggestTasks(field, prefix, limit))

    async def aworkflows(self, limit: int = 50, cursor: str | None = None) -> WorkflowPage:
        """Return a page of workflows, newest first. A page with a cursor is not the last, even if short."""
        return await (await self.open_async_session()).execute(ops.ListWorkflows(limit, cursor))

    async def aworkflow(self, workflow: str) -> WorkflowView:
        """Return a workflow with up to 1,000 tasks and its critical path. Raises `TaskNotFound`."""
        return await (await self.open_async_session()).execute(ops.FindWorkflow(workflow))

    # operations on many jobs

    async def apurge(self, **filters: Unpack[JobFilter]) -> int:
        """Delete final jobs that match; waiting ones are cancelled and deleted too. Returns how many.

        Waits until the operation has finished; `begin` does not.
        """
        return (await run_operation(await self.open_async_session(), "purge", filter_of(filters))).purged

    async def acancel_all(self, **filters: Unpack[JobFilter]) -> int:
        """Cancel all matching unfinished jobs, running ones too. Returns how many; waits as `purge` does."""
        return (await run_operation(await self.open_async_session(), "cancel", filter_of(filters))).cancelled

    async def aretry_all(self, **filters: Unpack[JobFilter]) -> int:
        """Retry all matching dead, cancelled and failed jobs. Returns how many; waits as `purge` does."""
        return (await run_operation(await self.open_async_session(), "retry", filter_of(filters))).done

    async def abegin(
        self,
        action: Action,
        *,
        dry_run: bool = False,
        rate: float | None = None,
        canary: int | None = None,
        as_of: datetime | None = None,
        **filters: Unpack[JobFilter],
    ) -> OperationView:
        """Start to purge, cancel or retry all matching jobs in the background. Returns the operation.

        `dry_run` only counts. `rate` limits jobs per second. `canary` processes that many first; the rest waits for
        `continue_operation`. `as_of` selects what matched at that moment.
        """
        options = {"dry_run": dry_run, "rate": rate, "canary": canary, "as_of": as_of}
        operation = new_operation(action, filter_of(filters), **options)
        return await (await self.open_async_session()).execute(operation)

    async def aoperation(self, operation_id: str) -> OperationView:
        """Return the progress of an operation. Raises `OperationNotFound`."""
        return await (await self.open_async_session()).execute(ops.FindOperation(operation_id))

    async def aoperations(self) -> list[OperationView]:
        """Return running and recent operations, newest first."""
        return await (await self.open_async_session()).execute(ops.ListOperations())

    async def acontinue_operation(self, operation_id: str) -> OperationView:
        """Continue an operation after its canary. Raises `TaskConflict` if it is not waiting."""
        return await (await self.open_async_session()).execute(ops.ContinueOperation(operation_id))

    async def astop_operation(self, operation_id: str) -> OperationView:
        """Stop an operation. Jobs already processed are not undone. Raises `TaskConflict` if it has ended."""
        return await (await self.open_async_session()).execute(ops.StopOperation(operation_id))


async def _apages(app: App, filter: TaskFilter, limit: int | None) -> AsyncIterator[Job[Any]]:
    """Page after page, newest first, each asked for when it is needed."""
    session = await app.open_async_session()
    more = limit
    while True:
        page = await session.execute(ops.ListTasks(page_filter(filter, more)))
        for view in page.tasks:
            yield Job(app, view.task_id, app.tasks.get(view.task_type), view)
        more = None if more is None else more - len(page.tasks)
        if page.cursor is None or more == 0:
            return
        filter = msgspec.structs.replace(filter, cursor=page.cursor)
