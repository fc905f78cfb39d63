"""One run of a task, from its envelope to its ending: shared by workers and `run_pending`.

Whatever happens becomes an `Ending`; only what would stop the process itself (KeyboardInterrupt, the cancellation of an
asyncio task) passes through. A kind of task that nobody registered is refused, never looked for: names from the wire
import nothing. A fork of a run ends where the run does: what comes after it, from the middleware to the report, is for
the process that was given the task.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import Collection
from contextlib import suppress
from typing import Any, Final, NoReturn

from penstock import operations as ops
from penstock.client.session import AsyncSession, Session
from penstock.errors import InvalidField
from penstock.model_tasks import Envelope, TaskView
from penstock.tasks.context import TaskContext, current
from penstock.tasks.endings import Ending, Unfit, ending
from penstock.tasks.middleware import run_after
from penstock.tasks.task import Task

AnyTask = Task[..., Any, Any]

_PARENTS_AT_A_TIME: Final = 64
_CANCELLED: Final = Ending("cancelled", error="cancelled while it ran")


def run_one(task: AnyTask, envelope: Envelope, context: TaskContext) -> Ending:
    """Run a plain function here and now."""
    token, pid = current.set(context), os.getpid()
    try:
        value: Any
        try:
            args, kwargs = _begin(task, envelope, context)
            value = task.function(*args, **kwargs)
        except BaseException as error:
            value = error
            if os.getpid() == pid and not isinstance(error, Exception | SystemExit):
                raise
        return _ended(task, context, value, pid)
    finally:
        current.reset(token)


async def arun_one(task: AnyTask, envelope: Envelope, context: TaskContext) -> Ending:
    """Run an async function on this loop.

    Its cancellation passes through: whoever cancelled the run, for its timeout say, knows the state of the task, and
    may have put it into `context.broken_off` for the middleware to see.
    """
    token, pid = current.set(context), os.getpid()
    try:
        value: Any
        try:
            args, kwargs = _begin(task, envelope, context)
            value = await task.function(*args, **kwargs)
        except asyncio.CancelledError:
            run_after(task.app.middleware, context, context.broken_off or _CANCELLED)
            raise
        except BaseException as error:
            value = error
            if os.getpid() == pid and not isinstance(error, Exception | SystemExit):
                raise
        return _ended(task, context, value, pid)
    finally:
        current.reset(token)


def _ended(task: AnyTask, context: TaskContext, value: Any, pid: int) -> Ending:
    if os.getpid() != pid:
        _end_fork(value)
    context.exception = value if isinstance(value, BaseException) else None
    ended = ending(value, task, context.attempt)
    run_after(task.app.middleware, context, ended)
    return ended


def _end_fork(value: Any) -> NoReturn:
    """End a fork whose part of the run is over, as Python would end a process with that value or exception."""
    code: Any = 0
    if isinstance(value, SystemExit):
        code = value.code
    elif isinstance(value, BaseException):
        code = 1
        traceback.print_exception(value)
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit((code or 0) & 0xFF)


def timeout_of(task: AnyTask, envelope: Envelope) -> float | None:
    """How long a run may take: as the call said, or else as the task was declared."""
    return task.defaults.timeout if envelope.timeout_seconds is None else envelope.timeout_seconds


def _begin(task: AnyTask, envelope: Envelope, context: TaskContext) -> tuple[list[Any], dict[str, Any]]:
    for item in task.app.middleware:
        item.before(context)
    try:
        first = context.first_argument()
        values, named = task.bind(bytes(envelope.args), bytes(envelope.kwargs), first, envelope.payload)
        if first is not None and any(data is not None for data in context.parent_bytes):
            task.calls.with_bytes_of_parents(values, context.parent_bytes, is_list=envelope.takes == "all")
        return values, named
    except InvalidField as error:
        raise Unfit(str(error)) from None


def unknown(envelope: Envelope, known: Collection[str]) -> Ending:
    """A kind of task that is not registered here. It fails, and is retried: another worker may know it."""
    names = ", ".join(sorted(known)) or "none"
    hint = "start a worker whose app declares it; names are those of @app.task(name=…)"
    return ending(
        InvalidField(f"task_type: {envelope.task_type!r} is not a task of this app; known: {names}", hint=hint)
    )


def timed_out(task: AnyTask, seconds: float, attempt: int) -> Ending:
    """A run that took too long: a failure like any other."""
    return ending(TimeoutError(f"the run took longer than its timeout of {seconds:g} s"), task, attempt)


def load_parents(session: Session, envelope: Envelope) -> list[TaskView]:
    """The tasks that this one waited for, for its context."""
    return [session.execute(ops.FindTask(parent)) for parent in envelope.depends_on]


async def aload_parents(session: AsyncSession, envelope: Envelope) -> list[TaskView]:
    """Asyncio version of `load_parents()`. Loads a limited number at a time, since there may be thousands."""
    ids, views = envelope.depends_on, list[TaskView]()
    for first in range(0, len(ids), _PARENTS_AT_A_TIME):
        views += await asyncio.gather(
            *(session.execute(ops.FindTask(id)) for id in ids[first : first + _PARENTS_AT_A_TIME])
        )
    return views
