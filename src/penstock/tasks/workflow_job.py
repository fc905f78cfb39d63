"""A workflow that was enqueued: its jobs, and what comes of them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.errors import InvalidField, TaskConflict
from penstock.model import suggestion
from penstock.model_tasks import TaskState
from penstock.tasks.job import Deadline, Job

if TYPE_CHECKING:
    from penstock.tasks.app import App

T = TypeVar("T")


class Workflow(Generic[T]):
    """A chain, group or graph on its way. `jobs` are all of its tasks, `ends` those that nobody in it waits for.

    `workflow["name"]` is the job of that name in a graph; `app.jobs(workflow=workflow.id)` finds them all later.
    """

    def __init__(
        self,
        app: App | None,  # None: it has no tasks
        id: str,
        jobs: Sequence[Job[Any]],
        ends: Sequence[Job[Any]],
        names: Mapping[str, Job[Any]],
        *,
        is_list: bool,
        is_empty: bool = False,
    ) -> None:
        self._app = app
        self._names = names
        self._is_list = is_list
        self._is_empty = is_empty  # an empty group ends it: an empty list once the others are done
        self.id = id
        self.jobs = tuple(jobs)
        self.ends = tuple(ends)

    @property
    def end_ids(self) -> tuple[str, ...]:
        """What waits for this workflow waits for these tasks."""
        return tuple(job.id for job in self.ends)

    def result(self, timeout: float | None = None) -> T:
        """Wait for the end; of a group, a list. Raises what `Job.result` raises, for the first that has no result."""
        if self._app is None:
            return self._joined([])
        deadline = Deadline(self._app.clock, timeout)
        return self._joined([job.result(deadline.left()) for job in self.ends])

    def status(self) -> dict[TaskState, int]:
        """How many of its tasks are in which state."""
        if self._app is None:
            return {}
        seen = {job.id: job.view.state for job in self._app.jobs(workflow=self.id) if job.view is not None}
        return dict(Counter(seen.get(job.id) or job.status() for job in self.jobs))

    def cancel(self) -> None:
        """Cancel whatever of it is not final. Children first, so that none starts because its parent has ended."""
        for job in reversed(self.jobs):
            with suppress(TaskConflict):
                job.cancel()

    # the same, awaited

    async def aresult(self, timeout: float | None = None) -> T:  # noqa: ASYNC109  (the twin of result)
        if self._app is None:
            return self._joined([])
        deadline = Deadline(self._app.clock, timeout)
        return self._joined([await job.aresult(deadline.left()) for job in self.ends])

    async def astatus(self) -> dict[TaskState, int]:
        if self._app is None:
            return {}
        seen = {job.id: job.view.state async for job in self._app.ajobs(workflow=self.id) if job.view is not None}
        return dict(Counter([seen.get(job.id) or await job.astatus() for job in self.jobs]))

    async def acancel(self) -> None:
        for job in reversed(self.jobs):
            with suppress(TaskConflict):
                await job.acancel()

    def __getitem__(self, name: str) -> Job[Any]:
        if name not in self._names:
            raise InvalidField(f"workflow: no task is named {name!r}", hint=suggestion(name, tuple(self._names)))
        return self._names[name]

    def _joined(self, results: list[Any]) -> T:
        joined: Any = [] if self._is_empty else results if self._is_list else results[0]
        result: T = joined
        return result

    def __repr__(self) -> str:
        return f"<Workflow {self.id} of {len(self.jobs)} tasks>"
