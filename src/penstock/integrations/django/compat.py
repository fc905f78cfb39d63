"""The tasks of whichever Django this is."""

from __future__ import annotations

from typing import Any, Final

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
