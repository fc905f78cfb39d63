"""What a task can know about its run: `penstock.current_task()`.

It is available in the thread or asyncio task of the run. A thread that the task starts has it if it runs in a copy of
the context (`contextvars.copy_context`, or `asyncio.to_thread`, which makes one). Outside of a run it is a placeholder
that discards progress, so that a task can be called and tested like any function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final

import msgspec

from penstock.model_tasks import Envelope, TaskState, TaskView, decoded_result
from penstock.tasks.endings import Cancel, Ending
from penstock.tasks.json_values import written

Note = Callable[[bytes], object]  # takes progress, as JSON, on its way

_NOWHERE: Final = Envelope(task_id="", task_type="")


class TaskContext:
    """One run of a task, for use by the task. `progress` and `cancel` may be called from any thread."""

    __slots__ = (
        "_note", "attempt", "broken_off", "envelope", "exception", "is_cancelled", "key", "parents", "queue", "trace",
        "worker",
    )  # fmt: skip

    def __init__(
        self,
        envelope: Envelope = _NOWHERE,
        *,
        attempt: int = 1,
        queue: str = "",
        worker: str = "",
        key: str | None = None,
        trace: str | None = None,
        parents: Sequence[TaskView] = (),
        note: Note | None = None,
    ) -> None:
        self.envelope = envelope
        self.exception: BaseException | None = None  # what the run raised, for `after` of middleware
        self.attempt = attempt  # from 1
        self.queue = queue
        self.worker = worker
        self.key = key
        self.trace = trace
        self.parents = tuple(parents)  # in the order of depends_on
        self._note = note
        self.is_cancelled = False  # the task was cancelled meanwhile: what it still returns is thrown away
        self.broken_off: Ending | None = None  # the end of the task when its run is broken off

    @property
    def id(self) -> str:
        return self.envelope.task_id

    @property
    def task_type(self) -> str:
        return self.envelope.task_type

    @property
    def workflow(self) -> str:
        return self.envelope.workflow

    @property
    def schedule(self) -> str:
        return self.envelope.schedule

    @property
    def scheduled_at(self) -> datetime | None:
        """The tick of the schedule that submitted this task."""
        return datetime.fromisoformat(self.envelope.scheduled_at) if self.envelope.scheduled_at else None

    @property
    def parent_results(self) -> list[Any]:
        """The results of the parents, in order; None for a parent without a result."""
        return [
            None if parent.result is None or parent.result_error else decoded_result(parent.result)
            for parent in self.parents
        ]

    @property
    def parent_bytes(self) -> list[bytes | None]:
        """The results that parents returned as bytes; None for a parent with JSON or without a result."""
        return [parent.result_bytes if _has_result(parent) else None for parent in self.parents]

    def stop_if_cancelled(self) -> None:
        """End the run if the task was cancelled in the meantime."""
        if self.is_cancelled:
            raise Cancel("cancelled while it ran")

    def progress(self, value: Any) -> None:
        """Report progress, as any JSON value, for `job.progress()`. Returns immediately."""
        data = written(value, "progress")
        if self._note is not None:
            self._note(data)

    def cancel(self) -> None:
        """Notify the task that it was cancelled. For the code that runs it."""
        self.is_cancelled = True

    def first_argument(self) -> bytes | None:
        """What the task takes of its parents' results, as JSON; None when it takes nothing."""
        if self.envelope.takes == "none":
            return None
        results = [_as_argument(parent) for parent in self.parents]
        if self.envelope.takes == "one":
            return results[0] if results else b"null"
        return b"[" + b",".join(results) + b"]"

    def __repr__(self) -> str:
        return f"<TaskContext {self.task_type} {self.id} attempt {self.attempt}>"


def _has_result(parent: TaskView) -> bool:
    return parent.result is not None and parent.state == TaskState.COMPLETED and not parent.result_error


def _as_argument(parent: TaskView) -> bytes:
    """The result of a parent as JSON; bytes as base64, which an annotation of bytes reads."""
    if not _has_result(parent):
        return b"null"
    data = parent.result_bytes
    return parent.result or b"null" if data is None else msgspec.json.encode(data)


current: Final[ContextVar[TaskContext]] = ContextVar("penstock_current_task")


def current_task() -> TaskContext:
    """Return the run that this code is part of."""
    return current.get(None) or TaskContext()
