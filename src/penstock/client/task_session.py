"""The part of a session that is about tasks. Answers come with tickets as everywhere; see `session.py`.

Plain tasks are pushed like any message (`envelopes.tasks_batch`); leases and extensions are the ordinary ones, with the
worker's id as consumer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.errors import PenstockError
from penstock.model import Receipt
from penstock.model_tasks import (
    Finish,
    OperationView,
    ScheduleSpec,
    ScheduleView,
    Submitted,
    TaskFilter,
    TaskPage,
    TaskSubmission,
    TaskView,
    WorkerInfo,
    WorkerNews,
    WorkerView,
)

Ticket = int


class TaskSession(Protocol):
    """For the blocking face; safe to share between threads."""

    def submit_tasks(self, tasks: Sequence[TaskSubmission]) -> tuple[list[Submitted], Ticket]:
        """All or none, in one frame. Parents may be among them, in any order."""

    def finish_tasks(self, finishes: Sequence[Finish]) -> tuple[list[PenstockError | None], Ticket]:
        """Each by itself: None, or why it was not accepted (`LeaseLost`). What is accepted is one frame."""

    def note_progress(self, receipt: Receipt, task_id: str, progress: bytes) -> Ticket:
        """Progress is JSON; it is kept with the task and costs no sync."""

    def task(self, task_id: str) -> tuple[TaskView, Ticket]:
        """`TaskNotFound` when there is none. Whoever was told of a change sees it."""

    def tasks(self, wanted: TaskFilter) -> tuple[TaskPage, Ticket]: ...

    def wait_task(self, task_id: str, seconds: float) -> tuple[TaskView, Ticket]:
        """The task once it is final, or as it is after `seconds`; its runs may be missing. Woken, never polling."""

    def cancel_task(self, task_id: str) -> tuple[TaskView, Ticket]:
        """Final at once, also when it runs: the worker is told, and what it still reports is refused."""

    def retry_task(self, task_id: str) -> tuple[TaskView, Ticket]:
        """A dead, cancelled or failed task is pending again, with all its attempts."""

    def purge_tasks(self, wanted: TaskFilter) -> tuple[int, Ticket]:
        """Forget final tasks, and cancel those that only wait and forget them too; how many. Waits until it is done."""

    def cancel_tasks(self, wanted: TaskFilter) -> tuple[int, Ticket]:
        """Cancel all tasks that match and are not final; how many. Waits until it is done."""

    def begin_operation(self, action: str, wanted: TaskFilter, operation_id: str = "") -> tuple[OperationView, Ticket]:
        """`purge` or `cancel` all tasks that match, in the background. The same id again is the same operation."""

    def operation(self, operation_id: str) -> tuple[OperationView, Ticket]:
        """How far it is. `OperationNotFound` when there is none of this id, or it was over long ago."""

    def operations(self) -> tuple[list[OperationView], Ticket]:
        """Those that run and those that did lately, the newest first."""

    def stop_operation(self, operation_id: str) -> tuple[OperationView, Ticket]:
        """No step more; what was done stays done."""

    def heartbeat_worker(self, info: WorkerInfo) -> tuple[WorkerNews, Ticket]: ...

    def worker_news(self, worker_id: str, seconds: float) -> tuple[WorkerNews, Ticket]:
        """The same news, waited for."""

    def forget_worker(self, worker_id: str) -> Ticket:
        """It has stopped; what it still holds is released."""

    def workers(self) -> tuple[list[WorkerView], Ticket]: ...

    def set_schedule(self, spec: ScheduleSpec) -> tuple[ScheduleView, Ticket]:
        """Make it, or change it; the same again changes nothing."""

    def delete_schedule(self, name: str) -> Ticket: ...

    def schedules(self) -> tuple[list[ScheduleView], Ticket]: ...


class AsyncTaskSession(Protocol):
    """For the asyncio face. Arguments are those of `TaskSession`."""

    async def submit_tasks(self, tasks: Sequence[TaskSubmission]) -> list[Submitted]: ...

    async def finish_tasks(self, finishes: Sequence[Finish]) -> list[PenstockError | None]: ...

    async def note_progress(self, receipt: Receipt, task_id: str, progress: bytes) -> None: ...

    async def task(self, task_id: str) -> TaskView: ...

    async def tasks(self, wanted: TaskFilter) -> TaskPage: ...

    async def wait_task(self, task_id: str, seconds: float) -> TaskView: ...

    async def cancel_task(self, task_id: str) -> TaskView: ...

    async def retry_task(self, task_id: str) -> TaskView: ...

    async def purge_tasks(self, wanted: TaskFilter) -> int: ...

    async def cancel_tasks(self, wanted: TaskFilter) -> int: ...

    async def begin_operation(self, action: str, wanted: TaskFilter, operation_id: str = "") -> OperationView: ...

    async def operation(self, operation_id: str) -> OperationView: ...

    async def operations(self) -> list[OperationView]: ...

    async def stop_operation(self, operation_id: str) -> OperationView: ...

    async def heartbeat_worker(self, info: WorkerInfo) -> WorkerNews: ...

    async def worker_news(self, worker_id: str, seconds: float) -> WorkerNews: ...

    async def forget_worker(self, worker_id: str) -> None: ...

    async def workers(self) -> list[WorkerView]: ...

    async def set_schedule(self, spec: ScheduleSpec) -> ScheduleView: ...

    async def delete_schedule(self, name: str) -> None: ...

    async def schedules(self) -> list[ScheduleView]: ...
