"""Tasks by the path of their declaration, `module:app.task`: the call has the options that the code declares.

Flags of the command line override what is declared. The task goes where the app keeps its tasks, unless the command
line names a broker; arguments are checked against the function, as `task.enqueue(…)` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.cli.target import Broker
from penstock.errors import InvalidField
from penstock.refusals import likeness, suggestion

if TYPE_CHECKING:
    from penstock.client.session import Session
    from penstock.model_tasks import TaskSubmission
    from penstock.tasks.app import App
    from penstock.tasks.task import Task

NAMES_COMPARED_MAX = 1000


def is_path(name: str) -> bool:
    """Whether a task is named by its declaration; the name of a type has no colon."""
    return ":" in name


def load_task(path: str) -> Task[..., Any, Any]:
    """The task at `module:app.task`; `InvalidField` says what is not there."""
    from penstock.worker.command import load_app

    module, _, names = path.partition(":")
    app_name, dot, name = names.partition(".")
    if not dot or not name:
        raise InvalidField(f"task: {path!r} does not name a task", hint="write module:app.task, such as shop:app.send")
    app: App = load_app(f"{module}:{app_name}")
    if name not in app.tasks:
        known = sorted(app.tasks)
        hint = suggestion(name, known) if known else "declare it with @app.task"
        raise InvalidField(f"task: {module}:{app_name} has no task {name!r}", hint=hint)
    return app.tasks[name]


def submission_of(
    task: Task[..., Any, Any], args: bytes, kwargs: bytes, first: bytes | None, options: dict[str, Any]
) -> TaskSubmission:
    """A call of a task with its declared options, and those of `options` that are given.

    `args` and `kwargs` are JSON; `first` are bytes for the first parameter.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if first is not None:
        args = msgspec.json.encode([b"", *msgspec.json.decode(args, type=list[msgspec.Raw])])
    values, named = task.calls.decode(args, kwargs)
    if first is not None:
        values[0] = first
    return task.options(**given).submission(tuple(values), named)


@contextmanager
def session_of(app: App, broker: Broker) -> Iterator[Session]:
    """A session with the broker of the app, or with the one that the command line names."""
    if broker.is_named or app.is_in_memory:
        app.move(broker.address, token=broker.token())
    with app:
        yield app.open_session()


def unknown_type_note(session: Session, task_type: str) -> str:
    """What to know of a type that no worker runs; empty when one does, or when nobody may say."""
    from penstock import operations as ops
    from penstock.errors import PenstockError

    try:
        views = session.execute(ops.Workers())
    except PenstockError:
        return ""
    types = sorted({name for view in views for name in view.info.task_types})[:NAMES_COMPARED_MAX]
    if task_type in types:
        return ""
    close = likeness(task_type, types)
    known = f"no running worker handles tasks of type {task_type!r}"
    return f"{known}; {close}" if close else f"{known}; the task waits until one does"
