"""Making a task of a function: its name, its options, its schedule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidField, InvalidName
from penstock.model import check_name
from penstock.tasks.json_values import local_hints_of
from penstock.tasks.options import DECLARED_OPTIONS, QueueDeclaration, TaskOptions, check_known, checked
from penstock.tasks.schedules import spec_of
from penstock.tasks.task import Task

if TYPE_CHECKING:
    from penstock.tasks.app import App

_OF_SCHEDULES = ("cron", "timezone", "missed")


def registered(app: App, function: Any, given: Mapping[str, Any], names: Mapping[str, Any]) -> Task[..., Any, Any]:
    """A task of this function. `names` are those around it, which its annotations may use."""
    if isinstance(function, Task):  # of another app, or declared again
        function = function.function
    if not callable(function) or inspect.isclass(function):
        raise InvalidField(f"task: {function!r} is not a function", hint="write @app.task, or @app.task(queue=…)")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        hint = "return a list, or tell values with current_task().progress(…)"
        raise InvalidField(f"task: {function!r} is a generator, whose values nobody would ask for", hint=hint)
    check_known(given, DECLARED_OPTIONS)
    options = {name: value for name, value in given.items() if name not in (*_OF_SCHEDULES, "name")}
    for word in ("key", "unique_key"):
        if word in options:
            options[f"{word}_of"] = options.pop(word)
    if isinstance(options.get("queue"), QueueDeclaration):
        options["queue"] = options["queue"].name
    known = (*options, *DECLARED_OPTIONS)
    defaults = checked(options, known, TaskOptions(queue=app.queue_default))
    task: Task[..., Any, Any] = Task(
        app, function, name_of(function, given.get("name")), defaults, local_hints_of(function, names)
    )
    _check_free(app.tasks.get(task.name), task)
    if given.get("cron") is not None:
        app.declarations.schedule(
            spec_of(task, task.name, **{key: given[key] for key in _OF_SCHEDULES if key in given})
        )
    elif "timezone" in given or "missed" in given:
        raise InvalidField(f"task {task.name!r}: timezone and missed say how cron is meant, which is not given")
    app.declarations.queue(defaults.queue, {})
    return task


def name_of(function: Callable[..., Any], name: str | None) -> str:
    """The name that a task travels by: as given, or that of the function."""
    wanted = getattr(function, "__name__", "") if name is None else name
    try:
        return check_name(wanted, "task")
    except InvalidName as error:
        hint = error.hint if name is not None else "give it one with @app.task(name=…)"
        raise InvalidName(error.message, hint=hint) from None


def _check_free(known: Task[..., Any, Any] | None, task: Task[..., Any, Any]) -> None:
    """A name stands for one function. The same function may be declared again: modules are reloaded."""
    if known is None:
        return
    before, now = (_home(each.function) for each in (known, task))
    if before != now:
        hint = "give one of them another name with @app.task(name=…)"
        raise InvalidField(f"task {task.name!r}: {now} would replace {before}", hint=hint)


def _home(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"
