"""A job: a handle on one enqueued task. Creating one does not contact the broker; its methods do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import ResultLost, TaskCancelled, TaskDied, TaskUnfinished
from penstock.model_tasks import TaskState, TaskView, decoded_result
from penstock.tasks._async.calls import AsyncJobCalls
from penstock.tasks._sync.calls import JobCalls

if TYPE_CHECKING:
    from penstock.tasks.app import App
    from penstock.tasks.task import Task

T = TypeVar("T")


class Job(AsyncJobCalls[T], JobCalls[T]):
    """An enqueued task. `view` is its state when it was listed; None if it was not listed."""

    __slots__ = ("_app", "_task", "id", "view")

    def __init__(self, app: App, id: str, task: Task[..., Any, T] | None = None, view: TaskView | None = None) -> None:
        self._app = app
        self._task = task
        self.id = id
        self.view = view

    def _outcome(self, view: TaskView, timeout: float | None) -> T:
        what = f"task {view.task_type!r} ({view.task_id})"
        if view.state == TaskState.DEAD:
            times = f"{view.attempt} attempt" + "s" * (view.attempt != 1)
            raise TaskDied(f"{what} died after {times}:\n{view.error}", hint="")  # so that the error stands last
        if view.state == TaskState.CANCELLED:
            raise TaskCancelled(f"{what} was cancelled" + (f": {view.error}" if view.error else ""))
        if view.state != TaskState.COMPLETED:
            raise TaskUnfinished(f"{what} is still {view.state} after {timeout or 0:g} s")
        if view.result_error:
            problem = f"{what} is completed, but its result could not be stored: {view.result_error}"
            raise ResultLost(problem)
        data = b"null" if view.result is None else view.result
        task = self._task or self._app.tasks.get(view.task_type)
        result: T = decoded_result(data) if task is None else task.decode_result(data)
        return result

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<Job {self.id} of {self._task.name}>" if self._task else f"<Job {self.id}>"
