# Generated from penstock/tasks/_async/app_calls.py by `make generate`. Do not edit.
"""What an app asks of its broker. `aname`, for asyncio, is `name` in `_sync`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, cast

import msgspec

from penstock import operations as ops
from penstock.client._sync.task_calls import new_operation, run_operation, wait_task
from penstock.client.session import Session
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


class AppCalls:
    """What an app asks of its broker."""

    declarations: Declarations
    stand_in: LocalApp | None
    _sessions: Sessions

    def open_session(self) -> Session:
        """The session of the running loop, or of all threads; opened when first asked for."""
        session: Session = self._sessions.blocking()
        return session

    def close(self) -> None:
        """Close what was opened; a second call does nothing. On an event loop, the session of that loop too."""
        self._sessions.close()

    def __enter__(self) -> Self:
        """Opened when it is first used, closed at the end; one that was closed may be entered again."""
        self._sessions.reopen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def declare(self) -> None:
        """Send all declared queues and schedules to the broker; a worker does so when it starts."""
        self.declarations.declare(self.open_session())

    def workers(self) -> list[WorkerView]:
        """Workers that have reported to the broker, of this app and of others."""
        return (self.open_session()).execute(ops.Workers())

    def quiet_worker(self, worker_id: str, owner: str | None = None) -> WorkerView:
        """Have a worker take no more tasks; it finishes those that it has. Raises `WorkerNotFound`."""
        return (self.open_session()).execute(ops.QuietWorker(worker_id, owner))

    def resume_worker(self, worker_id: str, owner: str | None = None) -> WorkerView:
        """Have a quiet worker take tasks again. Raises `WorkerNotFound`."""
        return (self.open_session()).execute(ops.ResumeWorker(worker_id, owner))

    def stop_worker(
        self, worker_id: str, owner: str | None = None, *, grace_seconds: float | None = None
    ) -> WorkerView:
        """Have a worker end; what still runs after the grace is released, and counts no attempt."""
        return (self.open_session()).execute(ops.StopWorker(worker_id, owner, grace_seconds))

    # jobs

    def counts(self) -> list[TaskCounts]:
        """How many jobs there are in each state, by queue."""
        return (self.open_session()).execute(ops.CountTasks())

    def jobs(self, *, limit: int | None = None, **filters: Unpack[JobFilter]) -> Iterator[Job[Any]]:
        """Jobs that match, newest first; each has its `view`. Pages are asked for as they are needed."""
        return _pages(cast("App", self), filter_of(filters), check_limit(limit))

    def wait_task(self, task_id: str, seconds: float) -> TaskView:
        """The task once it is final, or as it is after `seconds`."""
        if self.stand_in is not None:
            return self.stand_in.wait_task(task_id, seconds)
        return wait_task(self.open_session(), task_id, seconds)

    # schedules

    def schedule(
        self,
        name: str,
        cron: str,
        task: Configured[..., Any] | Step[Any],
        *,
        timezone: str = "UTC",
        missed: MissedPolicy = "skip",
        is_paused: bool = False,
    ) -> ScheduleView:
        """Make or change a schedule, now: `app.schedule("eu", "0 3 * * *", report.s("eu"), timezone="Europe/Rome")`."""
        spec = spec_of(task, name, cron, timezone, missed, is_paused)
        session = self.open_session()
        self.declarations.ensure(session, spec.queue)
        return session.execute(ops.SetSchedule(spec))

    def schedules(self) -> list[ScheduleView]:
        """All schedules that the broker keeps, whoever made them."""
        return (self.open_session()).execute(ops.Schedules())

    def pause_schedule(self, name: str) -> ScheduleView:
        """No ticks until it is resumed, whoever declares it meanwhile."""
        return self._set_paused(name, is_paused=True)

    def resume_schedule(self, name: str) -> ScheduleView:
        """Go on with the next tick; those that came while it was paused are gone."""
        return self._set_paused(name, is_paused=False)

    def _set_paused(self, name: str, *, is_paused: bool) -> ScheduleView:
        for view in self.schedules():
            if view.spec.name == name:
                spec = msgspec.structs.replace(view.spec, is_paused=is_paused)
                return (self.open_session()).execute(ops.SetSchedule(spec))
        raise ScheduleNotFound(f"no schedule is named {name!r}")

    def run_schedule(self, name: str) -> ScheduleRun:
        """Submit the task of a schedule now; its ticks stay as they are. Raises `ScheduleNotFound`."""
        return (self.open_session()).execute(ops.RunSchedule(name))

    def ticks(self, name: str, count: int = 5, runs: int = 10) -> ScheduleTicks:
        """The next ticks of a schedule, and its last runs. Raises `ScheduleNotFound`."""
        return (self.open_session()).execute(ops.Ticks(name, count, runs))

    def delete_schedule(self, name: str) -> None:
        """End a schedule. One that a task declares comes back when its worker starts again."""
        (self.open_session()).execute(ops.DeleteSchedule(name))

    def prune_schedules(self) -> list[str]:
        """End those that `cron=` declared once, for queues of this app, and declares no more; returns their names.

        For when no worker with older code is left: one that starts would declare them again.
        """
        names = self.declarations.gone(self.schedules())
        for name in names:
            with suppress(ScheduleNotFound):  # somebody was quicker
                self.delete_schedule(name)
        return names

    def suggest(self, field: str, prefix: str = "", limit: int = 20) -> list[Suggestion]:
        """Values that jobs have in `field` and that begin with `prefix`, of queues that one may read.

        `field` is `task_type`, `queue`, `worker`, `status`, `workflow`, `schedule`, or `kwargs` for names of arguments.
        """
        return (self.open_session()).execute(ops.SuggestTasks(field, prefix, limit))

    def workflows(self, limit: int = 50, cursor: str | None = None) -> WorkflowPage:
        """A page of workflows, newest first. A page with a cursor is not the last, also when it is short."""
        return (self.open_session()).execute(ops.ListWorkflows(limit, cursor))

    def workflow(self, workflow: str) -> WorkflowView:
        """A workflow with its tasks, 1,000 at most, and its critical path. Raises `TaskNotFound`."""
        return (self.open_session()).execute(ops.FindWorkflow(workflow))

    # operations on many jobs

    def purge(self, **filters: Unpack[JobFilter]) -> int:
        """Forget final jobs that match; those that only wait are cancelled and forgotten too. Returns how many.

        It waits until the operation is over; `begin` does not.
        """
        return (run_operation(self.open_session(), "purge", filter_of(filters))).purged

    def cancel_all(self, **filters: Unpack[JobFilter]) -> int:
        """Cancel all jobs that match and are not final, running ones too. Returns how many; waits as `purge` does."""
        return (run_operation(self.open_session(), "cancel", filter_of(filters))).cancelled

    def retry_all(self, **filters: Unpack[JobFilter]) -> int:
        """Retry all dead, cancelled and failed jobs that match. Returns how many; waits as `purge` does."""
        return (run_operation(self.open_session(), "retry", filter_of(filters))).done

    def begin(
        self,
        action: Action,
        *,
        dry_run: bool = False,
        rate: float | None = None,
        canary: int | None = None,
        as_of: datetime | None = None,
        **filters: Unpack[JobFilter],
    ) -> OperationView:
        """Begin to purge, cancel or retry all jobs that match; returns the operation, which goes on by itself.

        `dry_run` only counts. `rate` is in jobs a second. With `canary`, that many come first; the rest waits for
        `continue_operation`. `as_of` means what matched at that moment.
        """
        options = {"dry_run": dry_run, "rate": rate, "canary": canary, "as_of": as_of}
        operation = new_operation(action, filter_of(filters), **options)
        return (self.open_session()).execute(operation)

    def operation(self, operation_id: str) -> OperationView:
        """How far an operation is. Raises `OperationNotFound`."""
        return (self.open_session()).execute(ops.FindOperation(operation_id))

    def operations(self) -> list[OperationView]:
        """Operations that run and those that did lately, the newest first."""
        return (self.open_session()).execute(ops.ListOperations())

    def continue_operation(self, operation_id: str) -> OperationView:
        """Have an operation deal with the rest, after its canary. Raises `TaskConflict` when it does not wait."""
        return (self.open_session()).execute(ops.ContinueOperation(operation_id))

    def stop_operation(self, operation_id: str) -> OperationView:
        """Stop an operation; what was done stays done. Raises `TaskConflict` when it is over already."""
        return (self.open_session()).execute(ops.StopOperation(operation_id))


def _pages(app: App, filter: TaskFilter, limit: int | None) -> Iterator[Job[Any]]:
    """Page after page, newest first, each asked for when it is needed."""
    session = app.open_session()
    more = limit
    while True:
        page = session.execute(ops.ListTasks(page_filter(filter, more)))
        for view in page.tasks:
            yield Job(app, view.task_id, app.tasks.get(view.task_type), view)
        more = None if more is None else more - len(page.tasks)
        if page.cursor is None or more == 0:
            return
        filter = msgspec.structs.replace(filter, cursor=page.cursor)
