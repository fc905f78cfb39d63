"""Tasks on their way to the queue: plain ones are pushed like any message, the others submitted.

What an app declares: queues with their options, and schedules. The broker keeps both.

A queue is made, or brought to the declared options, before this process first uses it; a schedule when a worker starts
or `app.declare()` is called. Options that are not declared stay as they are.

Making a task of a function: its name, its options, its schedule.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import InvalidField, InvalidName
from penstock.model import check_name, queue_options
from penstock.model_tasks import ScheduleSpec, ScheduleView, TaskSubmission
from penstock.tasks._async.calls import AsyncDeclarationsCalls, AsyncSenderCalls
from penstock.tasks._sync.calls import DeclarationsCalls, SenderCalls
from penstock.tasks.json_values import local_hints_of
from penstock.tasks.options import DECLARED_OPTIONS, QueueDeclaration, TaskOptions, check_known, checked
from penstock.tasks.schedules import spec_of
from penstock.tasks.task import Task

if TYPE_CHECKING:
    from penstock.tasks.app import App


class Sender(AsyncSenderCalls, SenderCalls):
    """Sends tasks of one app, for threads and for event loops; answers with their ids once they are durable."""

    def __init__(self, app: App) -> None:
        self._app = app

    def through(self, task: TaskSubmission) -> TaskSubmission:
        """What the app's middleware makes of it, signed if the app signs."""
        for item in self._app.middleware:
            task = item.enqueue(task)
        signer = self._app.signer
        return task if signer is None else signer.signed(task, self._app.clock.now())


class Declarations(AsyncDeclarationsCalls, DeclarationsCalls):
    """Queues and schedules of one app."""

    def __init__(self) -> None:
        self.queues: dict[str, Mapping[str, Any]] = {}
        self.schedules: dict[str, ScheduleSpec] = {}
        self._waiting: set[str] = set()  # queues whose options were not sent to the broker yet

    def queue(self, name: str, options: Mapping[str, Any]) -> QueueDeclaration:
        """Declare a queue; twice only with the same options."""
        check_name(name)
        known = self.queues.get(name)
        if options:
            queue_options(options)
            if known and known != options:
                raise InvalidField(f"queue {name!r}: already declared, with other options")
            self._waiting.add(name)
        self.queues[name] = options or known or {}
        return QueueDeclaration(name, self.queues[name])

    def schedule(self, spec: ScheduleSpec) -> None:
        """Declare a schedule."""
        self.schedules[spec.name] = msgspec.structs.replace(spec, is_declared=True)

    def gone(self, known: list[ScheduleView]) -> list[str]:
        """Schedules that code declared once, for queues of this app, and that it declares no more.

        Whoever works on a queue has to know all its tasks, so those of its queues are the app's own.
        """
        return [
            view.spec.name
            for view in known
            if view.spec.is_declared and view.spec.queue in self.queues and view.spec.name not in self.schedules
        ]

    def _as_paused(self, known: list[ScheduleView]) -> list[ScheduleSpec]:
        """What is declared, but what somebody has paused stays paused: a worker that starts must not end that."""
        paused = {view.spec.name for view in known if view.spec.is_paused}
        return [msgspec.structs.replace(spec, is_paused=spec.name in paused) for spec in self.schedules.values()]


_OF_SCHEDULES = ("cron", "timezone", "missed")


def registered(app: App, function: Any, declared: Mapping[str, Any], names: Mapping[str, Any]) -> Task[..., Any, Any]:
    """A task of this function. `names` are those around it, which its annotations may use."""
    if isinstance(function, Task):  # of another app, or declared again
        function = function.function
    if not callable(function) or inspect.isclass(function):
        raise InvalidField(f"task: {function!r} is not a function", hint="write @app.task, or @app.task(queue=…)")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        hint = "return a list, or report values with current_task().progress(…)"
        raise InvalidField(f"task: {function!r} is a generator, which a task cannot be", hint=hint)
    check_known(declared, DECLARED_OPTIONS)
    options = {name: value for name, value in declared.items() if name not in (*_OF_SCHEDULES, "name")}
    for word in ("key", "unique_key"):
        if word in options:
            options[f"{word}_of"] = options.pop(word)
    if isinstance(options.get("queue"), QueueDeclaration):
        options["queue"] = options["queue"].name
    known = (*options, *DECLARED_OPTIONS)
    defaults = checked(options, known, TaskOptions(queue=app.queue_default))
    task: Task[..., Any, Any] = Task(
        app, function, name_of(function, declared.get("name")), defaults, local_hints_of(function, names)
    )
    _check_free(app.tasks.get(task.name), task)
    if declared.get("cron") is not None:
        app.declarations.schedule(
            spec_of(task, task.name, **{key: declared[key] for key in _OF_SCHEDULES if key in declared})
        )
    elif "timezone" in declared or "missed" in declared:
        raise InvalidField(f"task {task.name!r}: timezone and missed need cron, which is not given")
    app.declarations.queue(defaults.queue, {})
    return task


def name_of(function: Callable[..., Any], name: str | None) -> str:
    """The name that a task travels by: as given, or that of the function."""
    chosen = getattr(function, "__name__", "") if name is None else name
    try:
        return check_name(chosen, "task")
    except InvalidName as error:
        hint = error.hint if name is not None else "give it one with @app.task(name=…)"
        raise InvalidName(error.message, hint=hint) from None


def _check_free(known: Task[..., Any, Any] | None, task: Task[..., Any, Any]) -> None:
    """A name stands for one function. The same function may be declared again: modules are reloaded."""
    if known is None:
        return
    before, now = (_home(declared.function) for declared in (known, task))
    if before != now:
        hint = "give one of them another name with @app.task(name=…)"
        raise InvalidField(f"task {task.name!r}: {now} would replace {before}", hint=hint)


def _home(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"
