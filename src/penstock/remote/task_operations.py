"""The part of a session over the wire that is about tasks; `operations.py` has the rules.

Waiting takes as many requests as it must, none of them longer than a broker lets one wait.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Sequence
from secrets import token_hex
from typing import Any

from penstock import limits, validation
from penstock.clock import Clock
from penstock.model import Receipt
from penstock.model_tasks import Finish, OperationView, ScheduleSpec, TaskFilter, TaskSubmission, TaskView, WorkerInfo
from penstock.remote import request as tcp_requests
from penstock.remote.request import Request
from penstock.wire import calls


class TaskOperations:
    """See the module's rules."""

    asking_tasks: Any = tcp_requests  # a module that makes requests in the language of the protocol

    @abstractmethod
    def _told(self, request: Request) -> Any: ...

    @abstractmethod
    def _done(self, request: Request) -> Any: ...

    @abstractmethod
    def _call(self, arguments: calls.Arguments) -> Request: ...

    def submit_tasks(self, tasks: Sequence[TaskSubmission]) -> Any:
        return self._told(self.asking_tasks.submit_tasks(tasks))

    def finish_tasks(self, finishes: Sequence[Finish]) -> Any:
        return self._told(self.asking_tasks.finish_tasks(finishes))

    def note_progress(self, receipt: Receipt, task_id: str, progress: bytes) -> Any:
        return self._done(self._call(calls.NoteProgress(receipt, task_id, progress)))

    def task(self, task_id: str) -> Any:
        return self._told(self._call(calls.FindTask(task_id)))

    def tasks(self, wanted: TaskFilter) -> Any:
        return self._told(self._call(calls.ListTasks(wanted)))

    def cancel_task(self, task_id: str) -> Any:
        return self._told(self._call(calls.CancelTask(task_id)))

    def retry_task(self, task_id: str) -> Any:
        return self._told(self._call(calls.RetryTask(task_id)))

    # operations

    def begin_operation(self, action: str, wanted: TaskFilter, operation_id: str = "") -> Any:
        """It always has an id, so that it may be sent again."""
        given = calls.BeginOperation(
            validation.operation_action(action).value,
            validation.operation_filter(wanted),
            validation.operation_id(operation_id) if operation_id else token_hex(6),
        )
        return self._told(self._call(given))

    def operation(self, operation_id: str) -> Any:
        return self._told(self._call(calls.FindOperation(validation.operation_id(operation_id))))

    def operations(self) -> Any:
        return self._told(self._call(calls.Operations()))

    def stop_operation(self, operation_id: str) -> Any:
        return self._told(self._call(calls.StopOperation(validation.operation_id(operation_id))))

    # workers

    def heartbeat_worker(self, info: WorkerInfo) -> Any:
        return self._told(self._call(calls.HeartbeatWorker(info)))

    def worker_news(self, worker_id: str, seconds: float) -> Any:
        """No news is an answer too: it may come sooner than it was waited for."""
        return self._told(self._call(calls.AwaitNews(worker_id, min(seconds, limits.wait_seconds_max))))

    def forget_worker(self, worker_id: str) -> Any:
        return self._done(self._call(calls.ForgetWorker(worker_id)))

    def workers(self) -> Any:
        return self._told(self._call(calls.Workers()))

    # schedules

    def set_schedule(self, spec: ScheduleSpec) -> Any:
        return self._told(self._call(calls.SetSchedule(spec)))

    def delete_schedule(self, name: str) -> Any:
        return self._done(self._call(calls.DeleteSchedule(name)))

    def schedules(self) -> Any:
        return self._told(self._call(calls.Schedules()))

    def _part_of_wait(self, task_id: str, seconds: float) -> Request:
        return self._call(calls.WaitTask(task_id, max(0.0, min(seconds, limits.wait_seconds_max))))


class Waits(TaskOperations):
    """Waiting, for the blocking shells."""

    clock: Clock

    def wait_task(self, task_id: str, seconds: float) -> tuple[TaskView, int]:
        deadline = self.clock.monotonic() + round(seconds * 1_000_000)
        while True:
            view, ticket = self._told(self._part_of_wait(task_id, (deadline - self.clock.monotonic()) / 1e6))
            if view.is_final or self.clock.monotonic() >= deadline:
                return view, ticket

    def purge_tasks(self, wanted: TaskFilter) -> tuple[int, int]:
        view, ticket = self._worked_off("purge", wanted)
        return view.purged, ticket

    def cancel_tasks(self, wanted: TaskFilter) -> tuple[int, int]:
        view, ticket = self._worked_off("cancel", wanted)
        return view.cancelled, ticket

    def _worked_off(self, action: str, wanted: TaskFilter) -> tuple[OperationView, int]:
        view, ticket = self.begin_operation(action, wanted)
        pauses = validation.pauses()
        while not view.is_over:
            time.sleep(next(pauses))
            view, ticket = self.operation(view.operation_id)
        return validation.succeeded(view), ticket


class AsyncWaits(TaskOperations):
    """The same for the asyncio shells."""

    clock: Clock

    async def wait_task(self, task_id: str, seconds: float) -> TaskView:
        deadline = self.clock.monotonic() + round(seconds * 1_000_000)
        while True:
            view: TaskView = await self._told(self._part_of_wait(task_id, (deadline - self.clock.monotonic()) / 1e6))
            if view.is_final or self.clock.monotonic() >= deadline:
                return view

    async def purge_tasks(self, wanted: TaskFilter) -> int:
        return (await self._worked_off("purge", wanted)).purged

    async def cancel_tasks(self, wanted: TaskFilter) -> int:
        return (await self._worked_off("cancel", wanted)).cancelled

    async def _worked_off(self, action: str, wanted: TaskFilter) -> OperationView:
        view: OperationView = await self.begin_operation(action, wanted)
        pauses = validation.pauses()
        while not view.is_over:
            await asyncio.sleep(next(pauses))
            view = await self.operation(view.operation_id)
        return validation.succeeded(view)
