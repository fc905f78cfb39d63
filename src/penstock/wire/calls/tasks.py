"""Operations on tasks, workers and schedules."""

from __future__ import annotations

from penstock.model import Receipt
from penstock.model_tasks import Finish, ScheduleSpec, TaskFilter, TaskSubmission, WorkerInfo
from penstock.wire.calls.arguments import Arguments


class SubmitTasks(Arguments):
    """Tasks to be stored, all or none. Their ids are known: sent again, they are not stored again."""

    tasks: list[TaskSubmission]


class FinishTasks(Arguments):
    """How runs ended, each by itself; the answer maps the place of each that was not accepted to its error."""

    finishes: list[Finish]
    is_again: bool = False  # sent before, and the answer was lost: what the first try did counts as accepted


class NoteProgress(Arguments):
    """How far a run is."""

    receipt: Receipt
    task_id: str
    progress: bytes


class FindTask(Arguments):
    """One task, with its runs."""

    task_id: str


class ListTasks(Arguments):
    """A page of tasks."""

    filter: TaskFilter = TaskFilter()


class WaitTask(Arguments):
    """A task once it is final, or as it is after so many seconds."""

    task_id: str
    seconds: float


class CancelTask(Arguments):
    """Final at once, also when it runs."""

    task_id: str


class RetryTask(Arguments):
    """Pending again, with all its attempts."""

    task_id: str


# operations on many tasks


class BeginOperation(Arguments):
    """Purge or cancel all tasks that match, in the background; sent again with its id, it is the same operation."""

    action: str
    filter: TaskFilter
    operation_id: str = ""


class FindOperation(Arguments):
    """How far an operation is."""

    operation_id: str


class Operations(Arguments):
    """Operations that run, and those that did lately."""


class StopOperation(Arguments):
    """No step more; what was done stays done."""

    operation_id: str


# workers


class HeartbeatWorker(Arguments):
    """A worker is there; answers with its news."""

    info: WorkerInfo


class AwaitNews(Arguments):
    """News of a worker, waited for."""

    worker_id: str
    seconds: float


class ForgetWorker(Arguments):
    """A worker has stopped; what it still holds is released."""

    worker_id: str


class Workers(Arguments):
    """All workers that were heard of lately."""


# schedules


class SetSchedule(Arguments):
    """Make a schedule, or change it."""

    spec: ScheduleSpec


class DeleteSchedule(Arguments):
    """It fires no more."""

    name: str


class Schedules(Arguments):
    """All schedules."""
