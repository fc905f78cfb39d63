"""Operations on tasks, workers and schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Final

import msgspec

from penstock import limits, refusals, validation
from penstock.errors import PenstockError
from penstock.model import Receipt, check_name, check_seconds
from penstock.model_tasks import (
    Finish,
    ScheduleRun,
    ScheduleSpec,
    ScheduleTicks,
    ScheduleView,
    Submitted,
    Suggestion,
    TaskCounts,
    TaskFilter,
    TaskPage,
    TaskSubmission,
    TaskView,
    WorkerInfo,
    WorkerNews,
    WorkerView,
    WorkflowPage,
    WorkflowView,
)
from penstock.operations.base import SOME_QUEUE, Action, Check, Operation, Repeat, operation
from penstock.operations.types import IN_PUSH, Prefix, ScheduleName, TaskId, WaitSeconds, WorkerId, number

ONE_TASK: Final = ("task_not_found", "invalid_field")
SETTLE: Final = ("bad_receipt", "lease_lost", "invalid_field")
WORKER: Final = ("invalid_field", "invalid_name")
RECEIPT: Final = "orders:0:7:1:6f2a90c44d1be803"
TASK: Final = "0190f3a2-7b1c-7c00-8000-0123456789ab"
# Not within the classes: what is written in an annotation there does not see the names of this module when it runs.
Filter = Annotated[TaskFilter, Check(lambda value, field: validation.task_filter(value))]
Submissions = Annotated[Sequence[TaskSubmission], Check(lambda value, field: validation.submissions(value))]
Progress = Annotated[bytes, Check(validation.json_of)]
Worker = Annotated[WorkerInfo, Check(lambda value, field: validation.worker(value))]
TickCount = Annotated[int, number(limits.ticks_max)]
SUGGESTED: Final = ("task_type", "queue", "worker", "status", "workflow", "schedule", "kwargs")


def _suggested(value: Any, field: str) -> str:
    if value not in SUGGESTED:
        raise refusals.choice(value, SUGGESTED, field)
    return str(value)


SuggestedField = Annotated[str, Check(_suggested)]


def _short_text(value: Any, field: str) -> str | None:
    if value is not None:
        validation.text(value, field, limits.name_length_max)
    return value  # type: ignore[no-any-return]


Cursor = Annotated[str | None, Check(_short_text)]
WorkflowName = Annotated[str, Check(check_name)]
WorkflowCount = Annotated[int, number(limits.workflow_page_max)]
SuggestionCount = Annotated[int, number(limits.suggestions_max)]
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
    """Submit tasks. Either all of them are stored, or none.

    Task ids are chosen before the request, so a submission that is sent again is not stored twice.
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
    """Report how runs ended. Each report is accepted or refused individually."""

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
    """Get one task, with its runs."""

    task_id: TaskId


@operation(
    Action.MONITOR,
    http="GET /tasks/counts",
    route="count_tasks",
    reply="counts",
    queues=(),
)
class CountTasks(Operation[list[TaskCounts]], frozen=True):
    """Count the tasks in each state, for each queue that the caller may see."""

    def visible(self, reply: list[TaskCounts], may: Callable[[str], bool]) -> list[TaskCounts]:
        return [counts for counts in reply if may(counts.queue)]


@operation(
    Action.READ,
    http="GET /tasks/suggest",
    reply="suggestions",
    errors=("invalid_field",),
    example={"field": "task_type", "prefix": "se", "limit": 20},
    queues=(),
)
class SuggestTasks(Operation[list[Suggestion]], frozen=True):
    """List values of a field that begin with a prefix, to complete a search.

    Only tasks in queues that the caller may read are searched. The field `kwargs` suggests names of arguments, such as
    `kwargs.to`.
    """

    field: SuggestedField
    prefix: Prefix = ""
    limit: SuggestionCount = 20


@operation(
    Action.READ,
    http="GET /tasks",
    errors=("invalid_field",),
    example={"status": "failed,dead", "task_type": "send_email", "limit": 20},
)
class ListTasks(Operation[TaskPage], frozen=True):
    """Search tasks, newest first, one page at a time.

    Without a queue, all queues that the caller may read are searched.
    """

    filter: Filter = TaskFilter()

    def queues(self) -> Iterable[str]:
        return () if self.filter.queue is None else (self.filter.queue,)


@operation(
    Action.READ,
    http="GET /workflows",
    errors=("invalid_field",),
    example={"limit": 20},
    queues=(),
)
class ListWorkflows(Operation[WorkflowPage], frozen=True):
    """List workflows, newest first, one page at a time.

    Only workflows with tasks in queues that the caller may read are listed. The work per page is limited: a short or
    empty page that has a cursor is not the last one.
    """

    limit: WorkflowCount = 50
    cursor: Cursor = None


@operation(
    Action.READ,
    http="GET /workflows/{workflow}",
    errors=ONE_TASK,
    route="get_workflow",
    queues=(),
)
class FindWorkflow(Operation[WorkflowView], frozen=True):
    """Get one workflow, with its tasks in queues that the caller may read, and its critical path."""

    workflow: WorkflowName


@operation(Action.READ, errors=ONE_TASK, queues=())
class WaitTask(Operation[TaskView], frozen=True):
    """Wait until a task is final. Returns its current state when `wait_seconds` have passed."""

    task_id: TaskId
    wait_seconds: WaitSeconds


@operation(Action.MANAGE, http="DELETE /tasks/{task_id}", errors=(*ONE_TASK, "task_conflict"), queues=())
class CancelTask(Operation[TaskView], frozen=True):
    """Cancel a task, even if it is running."""

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
    """Send a heartbeat of a worker. The reply contains cancelled tasks and requests of operators."""

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
    """Unregister a worker that has stopped, and release what it still holds."""

    worker_id: WorkerId


@operation(
    Action.MONITOR,
    http="GET /workers",
    route="list_workers",
    reply="workers",
    queues=(),
)
class Workers(Operation[list[WorkerView]], frozen=True):
    """List the workers with a recent heartbeat, with those of their queues that the caller may see."""

    def visible(self, reply: list[WorkerView], may: Callable[[str], bool]) -> list[WorkerView]:
        views = (visible_worker(worker, may) for worker in reply)
        return [worker for worker in views if worker is not None]


@operation(
    Action.MANAGE,
    http="POST /workers/{worker_id}/quiet",
    errors=(*WORKER, "worker_not_found", "conflict"),
    example={"owner": "mail-service"},
    queues=(),
)
class QuietWorker(Operation[WorkerView], frozen=True):
    """Tell a worker to take no more tasks, and to finish the running ones.

    `resume` makes it take tasks again. `owner` is the principal that the worker runs as; it is needed if several
    principals have a worker with this id.
    """

    worker_id: WorkerId
    owner: str | None = None


@operation(
    Action.MANAGE,
    http="POST /workers/{worker_id}/resume",
    errors=(*WORKER, "worker_not_found", "conflict"),
    example={"owner": "mail-service"},
    queues=(),
)
class ResumeWorker(Operation[WorkerView], frozen=True):
    """Tell a quiet worker to take tasks again."""

    worker_id: WorkerId
    owner: str | None = None


@operation(
    Action.MANAGE,
    http="POST /workers/{worker_id}/stop",
    errors=(*WORKER, "worker_not_found", "conflict"),
    example={"grace_ms": 30000},
    queues=(),
)
class StopWorker(Operation[WorkerView], frozen=True):
    """Tell a worker to finish its running tasks and exit.

    Tasks that still run after `grace_seconds`, or after the worker's own grace period, are released without counting an
    attempt.
    """

    worker_id: WorkerId
    owner: str | None = None
    grace_seconds: Annotated[float, Check(check_seconds)] | None = None


# schedules


@operation(
    Action.MANAGE,
    http="PUT /schedules/{name}",
    errors=("invalid_field", "invalid_name", "disk_full"),
    example={"cron": "0 3 * * *", "timezone": "Europe/Berlin", "task_type": "report"},
)
class SetSchedule(Operation[ScheduleView], frozen=True):
    """Create or change a schedule."""

    schedule: Schedule

    def queues(self) -> Iterable[str]:
        return (self.schedule.queue,)

    def needs(self) -> Iterable[tuple[Action, str]]:
        return [(Action.MANAGE, self.schedule.queue), (Action.PUSH, self.schedule.queue)]


@operation(
    Action.MANAGE, http="DELETE /schedules/{name}", repeat=Repeat.NEVER, errors=("schedule_not_found",), queues=()
)
class DeleteSchedule(Operation[None], frozen=True):
    """Delete a schedule. Tasks that it has submitted are kept."""

    name: ScheduleName


@operation(
    Action.MANAGE,
    http="POST /schedules/{name}/run",
    repeat=Repeat.NEVER,
    status=201,
    errors=(*IN_PUSH, "schedule_not_found"),
    queues=(),
)
class RunSchedule(Operation[ScheduleRun], frozen=True):
    """Submit the task of a schedule now, in addition to its regular ticks.

    The ticks do not change, and a paused schedule stays paused.
    """

    name: ScheduleName


@operation(
    Action.MONITOR,
    http="GET /schedules/{name}/ticks",
    route="list_ticks",
    errors=("schedule_not_found", "invalid_field"),
    example={"count": 5, "runs": 10},
    queues=(),
)
class Ticks(Operation[ScheduleTicks], frozen=True):
    """List the next ticks of a schedule, in UTC and in its time zone, and the last tasks that it submitted."""

    name: ScheduleName
    count: TickCount = 5
    runs: TickCount = 10


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
