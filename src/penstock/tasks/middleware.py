"""Middleware: hooks around every task of an app, wherever it runs.

Derive from `Middleware` and override what you need; `app = penstock.App(url, middleware=[Timing()])`. `before` hooks
run in the order of the list, `after` hooks in reverse. If `before` raises, the run ends as if the task had raised the
error, and the task is not called. If `after` raises, the error is logged and has no other effect, because the run has
ended.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from penstock.errors import InvalidField
from penstock.model_tasks import TaskSubmission
from penstock.tasks.context import TaskContext
from penstock.tasks.endings import Ending

logger: Final = logging.getLogger("penstock.tasks")


class Middleware:
    """Hooks around tasks that do nothing by default. They run in the thread or on the loop of the task."""

    def enqueue(self, task: TaskSubmission) -> TaskSubmission:
        """Called before a task is stored. Returns what to store (`msgspec.structs.replace` changes fields)."""
        return task

    def before(self, context: TaskContext) -> None:
        """Called before a run."""

    def after(self, context: TaskContext, ending: Ending) -> None:
        """Called after a run."""

    def worker_started(self, worker_id: str) -> None:
        """Called before a worker takes its first task."""

    def worker_stopped(self, worker_id: str) -> None:
        """Called after a worker has finished its last task."""


def checked_middleware(middleware: Sequence[Middleware]) -> tuple[Middleware, ...]:
    """As given, when it is nothing but middleware."""
    if not isinstance(middleware, Sequence):
        raise InvalidField(f"middleware: {middleware!r} is not a list", hint="pass [MyMiddleware()]")
    for item in middleware:
        if not isinstance(item, Middleware):
            raise InvalidField(
                f"middleware: {item!r} is not a Middleware", hint="pass objects whose class derives from Middleware"
            )
    return tuple(middleware)


def run_after(middleware: Sequence[Middleware], context: TaskContext, ending: Ending) -> None:
    """All `after` hooks, the last one first."""
    for item in reversed(middleware):
        try:
            item.after(context, ending)
        except Exception:
            logger.exception("after() of %s failed; task %s has ended nevertheless", type(item).__name__, context.id)
