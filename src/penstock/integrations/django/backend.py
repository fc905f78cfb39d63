"""The backend. Django's tasks go to a Penstock queue of the same name; results come from its task index.

A task is registered when its decorator runs, because Django then asks the backend to validate it. A worker runs only
registered tasks: the name in a message is looked up, never imported.
"""

from __future__ import annotations

import builtins
import inspect
import sys
import traceback
from collections.abc import Callable
from inspect import getattr_static
from types import ModuleType
from typing import Any, Final, cast

import msgspec
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections
from django.utils import timezone

from penstock.envelopes import new_task_id
from penstock.errors import InvalidField, PenstockError, TaskNotFound
from penstock.model_tasks import TaskState, TaskSubmission, TaskView, decoded_result
from penstock.refusals import suggestion
from penstock.tasks.app import App
from penstock.tasks.context import current_task

__all__ = [
    "BaseTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "signals",
    "task_backends",
]


try:
    from django.tasks import base, exceptions, signals, task_backends
    from django.tasks.backends.base import BaseTaskBackend
except ImportError:  # before Django 6
    from django_tasks import base, exceptions, signals, task_backends
    from django_tasks.backends.base import BaseTaskBackend

Task: Final[Any] = base.Task
TaskContext: Final[Any] = base.TaskContext
TaskError: Final[Any] = base.TaskError
TaskResult: Final[Any] = base.TaskResult
TaskResultStatus: Final[Any] = base.TaskResultStatus
TaskResultDoesNotExist: Final[Any] = exceptions.TaskResultDoesNotExist


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
    """The error of a run. The name of its class comes from the worker; it is never imported."""

    @property
    def exception_class(self) -> type[BaseException]:
        """The class, if its module is loaded. Raises `ImportError` otherwise, and if it does not exist."""
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
        raise ImportError(f"{self.exception_class_path!r} is not an exception of a loaded module")


def new_result(task: Any, id: str, status: Any, backend: str, args: Any, kwargs: Any, **known: Any) -> Any:
    """Return a TaskResult with only the given fields set."""
    nothing = dict.fromkeys(("enqueued_at", "started_at", "finished_at", "last_attempted_at"))
    given: dict[str, Any] = {**nothing, "errors": [], "worker_ids": [], **known}
    return TaskResult(task=task, id=id, status=status, backend=backend, args=args, kwargs=kwargs, **given)


def result_of(task: Any, view: TaskView, backend: str) -> Any:
    """Return the current TaskResult of a task."""
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
        object.__setattr__(result, "_return_value", decoded_result(view.result))
    return result


def successful(result: Any, value: Any) -> Any:
    """Return the result of a run that just succeeded."""
    return _ended(result, TaskResultStatus.SUCCESSFUL, _return_value=value)


def failed(result: Any, error: Exception) -> Any:
    """Return the result of a run that just failed, whether or not it will be retried."""
    kind = type(error)
    text = "".join(traceback.format_exception(error))
    error = StoredError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=text)
    return _ended(result, TaskResultStatus.FAILED, errors=[*result.errors, error])


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
    """Return the class of an exception from the end of its traceback: `shop.SoldOut: no tea` is shop.SoldOut."""
    # Lines of a long message, and notes below it, may come after the one that begins with the class.
    for line in reversed(text.strip().splitlines()):
        name = line.split(":", maxsplit=1)[0]
        if isinstance(getattr(builtins, name, None), type):
            return f"builtins.{name}"
        if "." in name and all(part.isidentifier() for part in name.split(".")):
            return name
    return "builtins.Exception"


OPTIONS: Final = ("durability", "max_attempts", "timeout", "token", "url")
PRIORITY_NORMAL: Final = 128
PRIORITY_STEP: Final = 1.27  # Django counts from -100 to 100


class PenstockBackend(BaseTaskBackend):
    """A task backend. OPTIONS: `url`, `token`, `durability`, and `timeout`, `max_attempts` for all tasks."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        for name in self.options:
            if name not in OPTIONS:
                raise ImproperlyConfigured(f"TASKS[{alias!r}]: no option {name!r}; {suggestion(name, OPTIONS)}")
        self.known: dict[str, Any] = {}
        try:
            given = {name: self.options[name] for name in ("durability", "token") if name in self.options}
            self.app = App(self.options.get("url", "penstock://localhost:7710"), client="django", **given)
        except PenstockError as error:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]: {error}") from None

    def validate_task(self, task: Any) -> None:
        """Validate a task. Called for every declared task, and for every variant of it."""
        super().validate_task(task)
        if self.known.setdefault(task.module_path, task) is task:
            limits = {name: self.options.get(name) for name in ("max_attempts", "timeout")}
            self.app.task(name=task.module_path, queue=task.queue_name, **limits)(self._handler(task))

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Store a task. It is durable when this returns."""
        result, submission = self._prepared(task, args, kwargs)
        self.app.sender.send(submission)
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Asyncio version of `enqueue()`. Uses no thread."""
        result, submission = self._prepared(task, args, kwargs)
        await self.app.sender.asend(submission)
        await signals.task_enqueued.asend(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the current state of a task."""
        try:
            view = self.app.job(result_id).info()
        except (TaskNotFound, InvalidField) as error:
            raise TaskResultDoesNotExist(result_id) from error
        return self._result(view)

    async def aget_result(self, result_id: str) -> Any:
        """Asyncio version of `get_result()`. Uses no thread."""
        try:
            view = await self.app.job(result_id).ainfo()
        except (TaskNotFound, InvalidField) as error:
            raise TaskResultDoesNotExist(result_id) from error
        return self._result(view)

    def _result(self, view: Any) -> Any:
        task = self.known.get(view.task_type)
        if task is None:  # somebody else's task, or one that this process has not imported
            raise TaskResultDoesNotExist(view.task_id)
        return result_of(task, view, self.alias)

    def _prepared(self, task: Any, args: Any, kwargs: Any) -> tuple[Any, TaskSubmission]:
        self.validate_task(task)
        id, now = new_task_id(self.app.clock.now()), timezone.now()
        result = new_result(task, id, TaskResultStatus.READY, self.alias, list(args), dict(kwargs), enqueued_at=now)
        known = self.app.tasks[task.module_path]
        submission = TaskSubmission(
            task_id=result.id,
            task_type=task.module_path,
            queue=task.queue_name,
            args=msgspec.json.encode(result.args),  # Django has made plain JSON of them
            kwargs=msgspec.json.encode(result.kwargs),
            priority=PRIORITY_NORMAL + round(PRIORITY_STEP * task.priority),
            deliver_at=task.run_after and timezone.localtime(task.run_after),
            timeout_seconds=known.defaults.timeout,
            max_attempts=known.defaults.max_attempts,
        )
        return result, submission

    # running

    def _handler(self, task: Any) -> Callable[..., Any]:
        """What a worker calls: the function, with Django's context, signals and care for database connections."""

        async def arun(*args: Any, **kwargs: Any) -> Any:
            context = self._context(task)
            await signals.task_started.asend(type(self), task_result=context.task_result)
            try:
                value = await task.func(*((context,) if task.takes_context else ()), *args, **kwargs)
            except Exception as error:
                await signals.task_finished.asend(type(self), task_result=failed(context.task_result, error))
                raise
            await signals.task_finished.asend(type(self), task_result=successful(context.task_result, value))
            return value

        def run(*args: Any, **kwargs: Any) -> Any:
            close_old_connections()  # as at the beginning and the end of a request
            context = self._context(task)
            signals.task_started.send(type(self), task_result=context.task_result)
            try:
                value = task.func(*((context,) if task.takes_context else ()), *args, **kwargs)
            except Exception as error:
                signals.task_finished.send(type(self), task_result=failed(context.task_result, error))
                raise
            else:
                signals.task_finished.send(type(self), task_result=successful(context.task_result, value))
                return value
            finally:
                close_old_connections()

        handler = arun if inspect.iscoroutinefunction(task.func) else run
        handler.__module__, handler.__qualname__ = task.func.__module__, task.func.__qualname__
        return handler

    def _context(self, task: Any) -> Any:
        """This run, in Django's words."""
        run, now = current_task(), timezone.now()
        args, kwargs = (msgspec.json.decode(bytes(each)) for each in (run.envelope.args, run.envelope.kwargs))
        workers = [run.worker] * run.attempt
        result = new_result(
            task, run.id, TaskResultStatus.RUNNING, self.alias, args, kwargs,
            started_at=now, last_attempted_at=now, worker_ids=workers,
        )  # fmt: skip
        return TaskContext(task_result=result)
