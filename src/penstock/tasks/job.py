"""A job: a handle on one task that was enqueued. Making one touches nothing; every method asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from penstock import limits
from penstock import operations as ops
from penstock.clock import Clock
from penstock.errors import ResultLost, TaskCancelled, TaskDied, TaskUnfinished
from penstock.model import check_seconds
from penstock.model_tasks import TaskState, TaskView

if TYPE_CHECKING:
    from penstock.tasks.app import App
    from penstock.tasks.task import Task

T = TypeVar("T")


class Job(Generic[T]):
    """One task that was enqueued. `view` is how it was when it was listed, None when it was not."""

    __slots__ = ("_app", "_task", "id", "view")

    def __init__(self, app: App, id: str, task: Task[..., Any, T] | None = None, view: TaskView | None = None) -> None:
        self._app = app
        self._task = task
        self.id = id
        self.view = view

    def info(self) -> TaskView:
        """All that is known about it, with the history of its runs."""
        return self._app.open_session().execute(ops.FindTask(self.id))

    def status(self) -> TaskState:
        """Where it stands: `scheduled`, `pending`, `blocked`, `running`, `completed`, `failed`, `dead`, `cancelled`."""
        return self.info().state

    def progress(self) -> Any:
        """What the task last reported with `current_task().progress(…)`; None when it has reported nothing."""
        return _progress(self.info())

    def result(self, timeout: float | None = None) -> T:
        """Wait for it, and return what the function returned.

        `TaskDied` when it failed for good, `TaskCancelled` when it was cancelled, `TaskUnfinished` (a `TimeoutError`)
        when it is not final after `timeout` seconds.
        """
        deadline = Deadline(self._app.clock, timeout)
        while True:
            view = self._app.wait_task(self.id, deadline.slice())
            if view.is_final or deadline.is_over():
                return self._outcome(view, timeout)

    def cancel(self) -> TaskView:
        """Make it final. A running worker is notified; whatever the run still returns is discarded."""
        return self._app.open_session().execute(ops.CancelTask(self.id))

    def retry(self) -> TaskView:
        """Run it again, although it is dead or cancelled; or at once, although its next attempt is not due."""
        return self._app.open_session().execute(ops.RetryTask(self.id))

    # asyncio versions

    async def ainfo(self) -> TaskView:
        return await (await self._app.open_async_session()).execute(ops.FindTask(self.id))

    async def astatus(self) -> TaskState:
        return (await self.ainfo()).state

    async def aprogress(self) -> Any:
        return _progress(await self.ainfo())

    async def aresult(self, timeout: float | None = None) -> T:  # noqa: ASYNC109  (the twin of result)
        deadline = Deadline(self._app.clock, timeout)
        while True:
            view = await self._app.await_task(self.id, deadline.slice())
            if view.is_final or deadline.is_over():
                return self._outcome(view, timeout)

    async def acancel(self) -> TaskView:
        return await (await self._app.open_async_session()).execute(ops.CancelTask(self.id))

    async def aretry(self) -> TaskView:
        return await (await self._app.open_async_session()).execute(ops.RetryTask(self.id))

    def _outcome(self, view: TaskView, timeout: float | None) -> T:
        what = f"task {view.task_type!r} ({view.task_id})"
        if view.state == TaskState.DEAD:
            times = f"{view.attempt} attempt" + "s" * (view.attempt != 1)
            raise TaskDied(f"{what} died after {times}:\n{view.error}", hint="")  # so that the error stands last
        if view.state == TaskState.CANCELLED:
            raise TaskCancelled(f"{what} was cancelled" + (f": {view.error}" if view.error else ""))
        if view.state != TaskState.COMPLETED:
            raise TaskUnfinished(f"{what} is {view.state} after {timeout or 0:g} seconds")
        if view.result_error:
            problem = f"{what} is completed, but its result could not be stored: {view.result_error}"
            raise ResultLost(problem)
        data = b"null" if view.result is None else view.result
        task = self._task or self._app.tasks.get(view.task_type)
        result: T = msgspec.json.decode(data) if task is None else task.decode_result(data)
        return result

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<Job {self.id} of {self._task.name}>" if self._task else f"<Job {self.id}>"


class Deadline:
    """How long to wait, in all and at a time: one request waits a limited time."""

    def __init__(self, clock: Clock, timeout: float | None) -> None:
        self._clock = clock
        self._at = None
        if timeout is not None:
            self._at = clock.monotonic() + round(check_seconds(timeout, "timeout") * 1_000_000)

    def left(self) -> float | None:
        return None if self._at is None else max(0.0, (self._at - self._clock.monotonic()) / 1e6)

    def slice(self) -> float:
        left = self.left()
        return limits.wait_seconds_max if left is None else min(limits.wait_seconds_max, left)

    def is_over(self) -> bool:
        return self.left() == 0


def _progress(view: TaskView) -> Any:
    return None if view.progress is None else msgspec.json.decode(view.progress)
