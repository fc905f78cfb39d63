"""Operations on tasks, workers and schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Final

import msgspec

from penstock import validation
from penstock.errors import PenstockError
from penstock.model import Receipt
from penstock.model_tasks import (
    Finish,
    OperationView,
    ScheduleSpec,
    ScheduleView,
    Submitted,
    TaskCounts,
    TaskFilter,
    TaskPage,
    TaskSubmission,
    TaskView,
    WorkerInfo,
    WorkerNews,
    WorkerView,
)
from penstock.operations.base import SOME_QUEUE, Action, Check, Operation, Repeat, operation
from penstock.operations.types import IN_PUSH, OperationId, ScheduleName, TaskId, WaitSeconds, WorkerId

ONE_TASK: Final = ("task_not_found", "invalid_field")
SETTLE: Final = ("bad_receipt", "lease_lost", "invalid_field")
WORKER: Final = ("invalid_field", "invalid_name")
RECEIPT: Final = "orders:0:7:1:6f2a90c44d1be803"
TASK: Final = "0190f3a2-7b1c-7c00-8000-0123456789ab"
# Not within the classes: what is written in an annotation there does not see the names of this module when it runs.
Filter = Annotated[TaskFilter, Check(lambda value, field: validation.task_filter(value))]
OperationFilter = Annotated[TaskFilter, Check(lambda value, field: validation.operation_filter(value))]
OperationAction = Annotated[str, Check(lambda value, field: validation.operation_action(value).value)]
NewOperationId = Annotated[str, Check(lambda value, field: value and validation.operation_id(value))]
Submissions = Annotated[Sequence[TaskSubmission], Check(lambda value, field: validation.submissions(value))]
Progress = Annotated[bytes, Check(validation.json_of)]
Worker = Annotated[WorkerInfo, Check(lambda value, field: validation.worker(value))]
Schedule = Annotated[ScheduleSpec, Check(lambda value, field: validation.schedule(value))]


@operation(
    Action.PUSH,
    http="POST /tasks",
    reply="tasks",
    status=201,
    errors=(*IN_PUSH, "invalid_name", "task_conflict"),
    example={"task_type": "send_email", "queue": "mail", "args": ["a@b.c"], "priority": "high"},
)
class SubmitTasks(Operation[list[Submitted]], frozen=True):
    """Submit tasks: all are stored, or none.

    Their ids are known beforehand, so a submission that is sent again is not stored again.
    """

    tasks: Submissions

    def queues(self) -> Iterable[str]:
        return {task.queue for task in self.tasks}


@operation(
    Action.CONSUME,
    http="POST /tasks/finish",
    is_for_leases=True,
    errors=(*SETTLE, "task_not_found", "disk_full"),
    example={"receipt": RECEIPT, "task_id": TASK, "outcome": "completed", "result": {"sent": 1}},
)
class FinishTasks(Operation[list[PenstockError | None]], frozen=True):
    """Report how runs ended; each is accepted (None) or refused by itself."""

    finishes: Sequence[Finish]
    is_again: bool = False  # sent before, and the reply was lost: what the first try did counts as accepted

    def queues(self) -> Iterable[str]:
        return {finish.receipt.queue for finish in self.finishes}


@operation(
    Action.CONSUME,
    http="POST /tasks/progress",
    is_for_leases=True,
    route="report_task_progress",
    errors=SETTLE,
    example={"receipt": RECEIPT, "task_id": TASK, "progress": {"done": 0.5}},
)
class NoteProgress(Operation[None], frozen=True):
    """Report the progress of a run, as JSON."""

    receipt: Receipt
    task_id: TaskId
    progress: Progress

    def queues(self) -> Iterable[str]:
        return (self.receipt.queue,)


@operation(
    Action.READ,
    http="GET /tasks/{task_id}",
    errors=ONE_TASK,
    route="get_task",
    example={"wait_ms": 5000},
    queues=(),
)
class FindTask(Operation[TaskView], frozen=True):
    """One task, with its runs."""

    task_id: TaskId


@operation(
    Action.MONITOR,
    http="GET /tasks/counts",
    route="count_tasks",
    reply="counts",
    queues=(),
)
class CountTasks(Operation[list[TaskCounts]], frozen=True):
    """How many tasks of each queue that one may see are in each state."""

    def visible(self, reply: list[TaskCounts], may: Callable[[str], bool]) -> list[TaskCounts]:
        return [counts for counts in reply if may(counts.queue)]


@operation(
    Action.READ,
    http="GET /tasks",
    errors=("invalid_field",),
    example={"status": "failed,dead", "task_type": "send_email", "limit": 20},
)
class ListTasks(Operation[TaskPage], frozen=True):
    """Search tasks, newest first, a page at a time.

    Without a queue, the tasks of all queues that one may read.
    """

    filter: Filter = TaskFilter()

    def queues(self) -> Iterable[str]:
        return () if self.filter.queue is None else (self.filter.queue,)


@operation(Action.READ, errors=ONE_TASK, queues=())
class WaitTask(Operation[TaskView], frozen=True):
    """A task once it is final, or as it is after the given number of seconds."""

    task_id: TaskId
    wait_seconds: WaitSeconds


@operation(Action.MANAGE, http="DELETE /tasks/{task_id}", errors=(*ONE_TASK, "task_conflict"), queues=())
class CancelTask(Operation[TaskView], frozen=True):
    """Cancel a task, also when it runs."""

    task_id: TaskId


@operation(
    Action.MANAGE,
    http="POST /tasks/{task_id}/retry",
    repeat=Repeat.NEVER,
    errors=(*ONE_TASK, "task_conflict", "disk_full", "queue_full", "queue_not_found"),
    queues=(),
)
class RetryTask(Operation[TaskView], frozen=True):
    """Retry a dead, cancelled or failed task, with all its attempts."""

    task_id: TaskId


# operations on many tasks


@operation(
    Action.MANAGE,
    http="POST /operations",
    status=202,
    errors=("invalid_field", "queue_full", "disk_full"),
    example={"action": "purge", "status": ["completed"], "until": "2030-01-31T12:00:00Z"},
)
class BeginOperation(Operation[OperationView], frozen=True):
    """Purge or cancel all tasks that match, in the background.

    Started again under the same id, it is the same operation.
    """

    action: OperationAction
    filter: OperationFilter
    operation_id: NewOperationId = ""

    def queues(self) -> Iterable[str]:
        return (self.filter.queue or "",)

    def needs(self) -> Iterable[tuple[Action, str]]:
        # A count of those that match is an answer to a question about what is stored.
        reads = self.filter.argument is not None or self.filter.error_contains is not None
        actions = (Action.MANAGE, Action.READ) if reads else (Action.MANAGE,)
        return [(action, queue) for action in actions for queue in self.queues()]


@operation(
    Action.MONITOR,
    http="GET /operations/{operation_id}",
    errors=("operation_not_found", "invalid_field"),
    route="get_operation",
    queues=(),
)
class FindOperation(Operation[OperationView], frozen=True):
    """The progress of an operation."""

    operation_id: OperationId


@operation(
    Action.MONITOR,
    http="GET /operations",
    reply="operations",
    queues=(),
)
class ListOperations(Operation[list[OperationView]], frozen=True):
    """Operations that run and those that ended lately, newest first."""

    def visible(self, reply: list[OperationView], may: Callable[[str], bool]) -> list[OperationView]:
        return [operation for operation in reply if may(operation.filter.queue or "")]


@operation(
    Action.MANAGE,
    http="DELETE /operations/{operation_id}",
    errors=("operation_not_found", "task_conflict", "invalid_field"),
    queues=(),
)
class StopOperation(Operation[OperationView], frozen=True):
    """Stop an operation; what is done stays done."""

    operation_id: OperationId


# workers


def visible_worker(worker: WorkerView, may: Callable[[str], bool]) -> WorkerView | None:
    """A worker with those of its queues that somebody may see; None when they may see none of them."""
    queues = tuple(queue for queue in worker.info.queues if may(queue))
    if not (queues or may("")):
        return None
    if len(queues) == len(worker.info.queues):
        return worker
    return msgspec.structs.replace(worker, info=msgspec.structs.replace(worker.info, queues=queues))


@operation(
    Action.CONSUME,
    http="POST /workers/{worker_id}/heartbeat",
    errors=WORKER,
    example={"host": "web-1", "queues": ["mail"], "concurrency": 16, "running": 3},
)
class HeartbeatWorker(Operation[WorkerNews], frozen=True):
    """Report that a worker is alive; the reply tells what it should know."""

    info: Worker

    def queues(self) -> Iterable[str]:
        return self.info.queues or ("",)


@operation(
    Action.CONSUME,
    http="GET /workers/{worker_id}/news",
    route="get_worker_news",
    errors=WORKER,
    example={"wait_ms": 20000},
    queues=(SOME_QUEUE,),
)
class AwaitNews(Operation[WorkerNews], frozen=True):
    """Wait for news for a worker, such as a cancelled task."""

    worker_id: WorkerId
    wait_seconds: WaitSeconds = 0.0


@operation(
    Action.CONSUME,
    http="DELETE /workers/{worker_id}",
    errors=WORKER,
    queues=(SOME_QUEUE,),
)
class ForgetWorker(Operation[None], frozen=True):
    """Unregister a worker that has stopped; what it still holds is released."""

    worker_id: WorkerId


@operation(
    Action.MONITOR,
    http="GET /workers",
    route="list_workers",
    reply="workers",
    queues=(),
)
class Workers(Operation[list[WorkerView]], frozen=True):
    """Workers that sent a heartbeat lately, with those of their queues that one may see."""

    def visible(self, reply: list[WorkerView], may: Callable[[str], bool]) -> list[WorkerView]:
        views = (visible_worker(worker, may) for worker in reply)
        return [worker for worker in views if worker is not None]


# schedules


@operation(
    Action.MANAGE,
    http="PUT /schedules/{name}",
    errors=("invalid_field", "invalid_name", "disk_full"),
    example={"cron": "0 3 * * *", "timezone": "Europe/Berlin", "task_type": "report"},
)
class SetSchedule(Operation[ScheduleView], frozen=True):
    """Create a schedule, or change it."""

    schedule: Schedule

    def queues(self) -> Iterable[str]:
        return (self.schedule.queue,)

    def needs(self) -> Iterable[tuple[Action, str]]:
        return [(Action.MANAGE, self.schedule.queue), (Action.PUSH, self.schedule.queue)]


@operation(
    Action.MANAGE, http="DELETE /schedules/{name}", repeat=Repeat.NEVER, errors=("schedule_not_found",), queues=()
)
class DeleteSchedule(Operation[None], frozen=True):
    """Delete a schedule; tasks that it submitted stay."""

    name: ScheduleName


@operation(
    Action.MONITOR,
    http="GET /schedules",
    route="list_schedules",
    reply="schedules",
    queues=(),
)
class Schedules(Operation[list[ScheduleView]], frozen=True):
    """List the schedules."""

    def visible(self, reply: list[ScheduleView], may: Callable[[str], bool]) -> list[ScheduleView]:
        return [schedule for schedule in reply if may(schedule.spec.queue)]
