"""The part of a session that is about tasks, answered by a shard, its catalogue and the registry of workers.

What is told of tasks is read from the catalogue, which first follows the journal to where it is durable: whoever was
told of a change sees it. A decision that rests on what was read there is made anew when the shard says that the task
has moved meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from penstock import validation
from penstock.errors import PenstockError, TaskConflict
from penstock.model import MessageId, Receipt, check_seconds
from penstock.model_tasks import (
    FINAL,
    Finish,
    OperationAction,
    OperationView,
    ScheduleSpec,
    ScheduleView,
    Submitted,
    TaskFilter,
    TaskPage,
    TaskState,
    TaskSubmission,
    TaskView,
    WorkerInfo,
    WorkerNews,
    WorkerView,
)
from penstock.shard import tasks as shard_tasks
from penstock.shard.engine import Ticket
from penstock.shard.shard import Shard
from penstock.shard.tasks.lookups import not_found
from penstock.shard.tasks.service import Desk
from penstock.shard.tasks.waits import TaskWaiter

T = TypeVar("T")
LOOKS_MAX: Final = 20  # at something that moves each time


class TaskMethods:
    """What a session can do with tasks."""

    shard: Shard
    desk: Desk

    # submitting and finishing

    def submit_tasks(self, tasks: Sequence[TaskSubmission], client: str = "") -> tuple[list[Submitted], Ticket]:
        """All or none, in one frame. Parents may be among them, in any order."""
        checked = validation.submissions(tasks)
        parents = {parent for task in checked for parent in task.depends_on}
        outside = parents.difference(task.task_id for task in checked)
        if not outside:
            with suppress(shard_tasks.Moved):  # one of them was submitted before, and is done
                return shard_tasks.submit_tasks(self.shard, checked, {}, client)

        def submit() -> tuple[list[Submitted], Ticket]:
            return shard_tasks.submit_tasks(self.shard, checked, self.desk.catalogue.places(parents), client)

        return self._again_if_moved(submit, "depends_on")

    def finish_tasks(self, finishes: Sequence[Finish]) -> tuple[list[PenstockError | None], Ticket]:
        """Each by itself: None, or why it was not accepted. What is accepted is one frame."""
        return shard_tasks.finish_tasks(self.shard, finishes)

    def note_progress(self, receipt: Receipt, task_id: str, progress: bytes) -> Ticket:
        """Progress is JSON; it is kept with the task."""
        validation.json_of(progress, "progress")
        return shard_tasks.note_progress(self.shard, receipt, validation.task_id(task_id), progress)

    # looking

    def task(self, task_id: str) -> tuple[TaskView, Ticket]:
        """One task, with its runs."""
        return self._task(validation.task_id(task_id)), 0

    def tasks(self, wanted: TaskFilter) -> tuple[TaskPage, Ticket]:
        """A page of tasks."""
        checked = validation.task_filter(wanted)
        return self.desk.caught_up().page(checked), 0

    def _task(self, task_id: str) -> TaskView:
        found = self.desk.catalogue.find(task_id)
        if found is None:
            raise not_found(task_id)
        return found

    # waiting

    def wait_task(self, task_id: str, seconds: float) -> tuple[TaskView, Ticket]:
        """The task once it is final, or as it is after `seconds`. Nothing polls."""
        checked = validation.task_id(task_id)
        clock = self.shard.clock
        deadline = clock.monotonic() + round(check_seconds(seconds, "seconds") * 1_000_000)
        turn = threading.Semaphore(0)
        waiter = self.watch_task(checked, turn.release)
        try:
            while True:
                view = self._task(checked)
                left = deadline - clock.monotonic()
                if view.is_final or left <= 0:
                    return view, 0
                turn.acquire(timeout=left / 1e6)
                final = self.told(waiter, view)
                if final is not None:
                    return final, waiter.ticket
        finally:
            self.unwatch_task(waiter)

    def watch_task(self, task_id: str, wake: Callable[[], object]) -> TaskWaiter:
        """Have `wake` called when the task may have become final. Look afterwards: it may have been before."""
        return self.desk.watch(task_id, wake)

    def unwatch_task(self, waiter: TaskWaiter) -> None:
        self.desk.waiters.leave(waiter)

    def told(self, waiter: TaskWaiter, view: TaskView) -> TaskView | None:
        """The final task, when whoever woke the waiter told it; to be told on with the waiter's ticket."""
        self.shard.require_open()  # a closed one wakes everybody
        return waiter.final(view)

    # changing

    def cancel_task(self, task_id: str) -> tuple[TaskView, Ticket]:
        """Final at once, also when it runs: its worker is told, and what it still reports is refused."""
        checked = validation.task_id(task_id)
        self._again_if_moved(lambda: self._cancel(self._task(checked)), checked)
        return self._task(checked), 0

    def _cancel(self, view: TaskView) -> None:
        if view.state is TaskState.CANCELLED:
            return
        if view.state in FINAL:
            raise TaskConflict(f"task {view.task_id} is {view.state} and cannot be cancelled")
        _, consumer = shard_tasks.cancel(self.shard, _place(view), view.task_id)
        if consumer:
            self.desk.cancelled(consumer, view.task_id)

    def retry_task(self, task_id: str) -> tuple[TaskView, Ticket]:
        """A dead, cancelled or failed task is pending again, or blocked; and so is what was cancelled because of it."""
        checked = validation.task_id(task_id)

        def retry() -> None:
            asked = shard_tasks.kin(self.shard, checked)
            known = shard_tasks.Kin(asked, self.desk.catalogue.places(asked) if asked else {})
            view = self._task(checked)
            self.desk.registry.revived(checked)
            shard_tasks.retry(self.shard, _place(view), checked, view.state, view.finished_at, known)

        self._again_if_moved(retry, checked)
        return self._task(checked), 0

    def purge_tasks(self, wanted: TaskFilter) -> tuple[int, Ticket]:
        """Forget final tasks, and cancel those that only wait and forget them too; how many. Waits until it is done."""
        return self._worked_off(OperationAction.PURGE, wanted).purged, 0

    def cancel_tasks(self, wanted: TaskFilter) -> tuple[int, Ticket]:
        """Cancel all tasks that match and are not final; how many. Waits until it is done."""
        return self._worked_off(OperationAction.CANCEL, wanted).cancelled, 0

    def _worked_off(self, action: OperationAction, wanted: TaskFilter) -> OperationView:
        view, _ = self.begin_operation(action, wanted)
        pauses = validation.pauses()
        while not view.is_over:
            time.sleep(next(pauses))
            view, _ = self.operation(view.operation_id)
        return validation.succeeded(view)

    # operations

    def begin_operation(self, action: str, wanted: TaskFilter, operation_id: str = "") -> tuple[OperationView, Ticket]:
        """Purge or cancel all tasks that match, in the background. The same id again is the same operation."""
        view, ticket = shard_tasks.begin_operation(
            self.shard,
            validation.operation_action(action),
            validation.operation_filter(wanted),
            validation.operation_id(operation_id) if operation_id else "",
        )
        self.desk.operations.work()
        return (view, ticket) if self.desk.operations.sleeper is not None else self.operation(view.operation_id)

    def operation(self, operation_id: str) -> tuple[OperationView, Ticket]:
        return shard_tasks.operation(self.shard, validation.operation_id(operation_id))

    def operations(self) -> tuple[list[OperationView], Ticket]:
        return shard_tasks.operations(self.shard)

    def stop_operation(self, operation_id: str) -> tuple[OperationView, Ticket]:
        return shard_tasks.stop_operation(self.shard, validation.operation_id(operation_id))

    def _again_if_moved(self, decide: Callable[[], T], what: str) -> T:
        """Decide by what the catalogue tells, again while it has moved before the decision is made."""
        for _ in range(LOOKS_MAX):
            try:
                return decide()
            except shard_tasks.Moved:
                continue
        raise TaskConflict(f"{what}: changed each time it was looked at", hint="try again")

    # workers

    def heartbeat_worker(self, info: WorkerInfo) -> tuple[WorkerNews, Ticket]:
        """A worker is there; what it should know."""
        return self.desk.heartbeat(validation.worker(info)), 0

    def worker_news(self, worker_id: str, seconds: float) -> tuple[WorkerNews, Ticket]:
        """The same news, waited for."""
        checked = validation.worker_id(worker_id)
        clock, registry = self.shard.clock, self.desk.registry
        deadline = clock.monotonic() + round(check_seconds(seconds, "seconds") * 1_000_000)
        turn = threading.Semaphore(0)
        registry.listen(checked, turn.release)
        try:
            while True:
                self.shard.require_open()
                news = registry.news(checked)
                left = deadline - clock.monotonic()
                if news.cancelled or left <= 0:
                    return news, 0
                turn.acquire(timeout=left / 1e6)
        finally:
            registry.unlisten(checked, turn.release)

    def forget_worker(self, worker_id: str) -> Ticket:
        """It has stopped; what it still holds is released."""
        checked = validation.worker_id(worker_id)
        self.desk.registry.forget(checked)
        return shard_tasks.release_consumer(self.shard, checked)

    def workers(self) -> tuple[list[WorkerView], Ticket]:
        """Who works here, and who did until lately."""
        self.shard.require_open()
        self.desk.tick()
        return self.desk.registry.workers(), 0

    # schedules

    def set_schedule(self, spec: ScheduleSpec) -> tuple[ScheduleView, Ticket]:
        """Make it, or change it; the same again changes nothing."""
        return shard_tasks.set_schedule(self.shard, validation.schedule(spec))

    def delete_schedule(self, name: str) -> Ticket:
        return shard_tasks.delete_schedule(self.shard, validation.schedule_name(name))

    def schedules(self) -> tuple[list[ScheduleView], Ticket]:
        return shard_tasks.schedules(self.shard)


def _place(view: TaskView) -> MessageId | None:
    """Where its message is; None while it is blocked."""
    return MessageId.parse(view.message_id) if view.message_id else None
