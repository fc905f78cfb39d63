"""What Penstock knows of a task, as Django shows it."""

from __future__ import annotations

import builtins
import sys
import traceback
from inspect import getattr_static
from types import ModuleType
from typing import Any, Final, cast

import msgspec
from django.utils import timezone

from penstock.integrations.django.compat import TaskError, TaskResult, TaskResultStatus
from penstock.model_tasks import TaskState, TaskView

STATUS: Final = {
    TaskState.SCHEDULED: TaskResultStatus.READY,
    TaskState.PENDING: TaskResultStatus.READY,
    TaskState.BLOCKED: TaskResultStatus.READY,
    TaskState.FAILED: TaskResultStatus.READY,  # it will be run again
    TaskState.RUNNING: TaskResultStatus.RUNNING,
    TaskState.COMPLETED: TaskResultStatus.SUCCESSFUL,
    TaskState.DEAD: TaskResultStatus.FAILED,
    TaskState.CANCELLED: TaskResultStatus.FAILED,
}


class StoredError(TaskError):
    """An error of a run. The name of its class was stored by whoever ran it: nothing is imported because of it."""

    @property
    def exception_class(self) -> type[BaseException]:
        """The class, if its module is loaded; an `ImportError` otherwise, as for one that does not exist."""
        parts = self.exception_class_path.split(".")
        for length in range(len(parts) - 1, 0, -1):
            found: Any = sys.modules.get(".".join(parts[:length]))
            if found is None:
                continue
            for part in parts[length:]:
                # By its type: to ask a module that is loaded lazily for anything, even `__class__`, loads it.
                found = getattr_static(found, part, None) if issubclass(type(found), type | ModuleType) else None
            if issubclass(type(found), type) and issubclass(found, BaseException):
                return cast("type[BaseException]", found)
            break
        raise ImportError(f"{self.exception_class_path!r} is no exception of a module that is loaded")


def new_result(task: Any, id: str, status: Any, backend: str, args: Any, kwargs: Any, **known: Any) -> Any:
    """A TaskResult with nothing in it but what is `known`."""
    nothing = dict.fromkeys(("enqueued_at", "started_at", "finished_at", "last_attempted_at"))
    given: dict[str, Any] = {**nothing, "errors": [], "worker_ids": [], **known}
    return TaskResult(task=task, id=id, status=status, backend=backend, args=args, kwargs=kwargs, **given)


def result_of(task: Any, view: TaskView, backend: str) -> Any:
    """A TaskResult of this moment."""
    result = TaskResult(
        task=task,
        id=view.task_id,
        status=STATUS[view.state],
        enqueued_at=view.submitted_at,
        started_at=view.runs[0].started_at if view.runs else None,
        finished_at=view.finished_at,
        last_attempted_at=view.runs[-1].started_at if view.runs else None,
        args=msgspec.json.decode(view.args),
        kwargs=msgspec.json.decode(view.kwargs),
        backend=backend,
        errors=_errors(view),
        worker_ids=[run.worker for run in view.runs],
    )
    if view.result is not None:
        object.__setattr__(result, "_return_value", msgspec.json.decode(view.result))
    return result


def successful(result: Any, value: Any) -> Any:
    """The result of a run that has just ended well."""
    return _ended(result, TaskResultStatus.SUCCESSFUL, _return_value=value)


def failed(result: Any, error: Exception) -> Any:
    """The result of a run that has just failed, whether or not there will be another."""
    kind = type(error)
    text = "".join(traceback.format_exception(error))
    told = StoredError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=text)
    return _ended(result, TaskResultStatus.FAILED, errors=[*result.errors, told])


def _ended(result: Any, status: Any, **also: Any) -> Any:
    for name, value in {"status": status, "finished_at": timezone.now(), **also}.items():
        object.__setattr__(result, name, value)
    return result


def _errors(view: TaskView) -> list[Any]:
    """One for each run that failed."""
    texts = [run.error for run in view.runs if run.error]
    if not texts and view.error:
        texts = [view.error]  # it was cancelled, or died without a run
    return [StoredError(exception_class_path=class_path(text), traceback=text) for text in texts]


def class_path(text: str) -> str:
    """The class of an exception, from the end of its traceback: `shop.SoldOut: no tea` is shop.SoldOut."""
    # Lines of a long message, and notes below it, may come after the one that begins with the class.
    for line in reversed(text.strip().splitlines()):
        name = line.split(":", maxsplit=1)[0]
        if isinstance(getattr(builtins, name, None), type):
            return f"builtins.{name}"
        if "." in name and all(part.isidentifier() for part in name.split(".")):
            return name
    return "builtins.Exception"
