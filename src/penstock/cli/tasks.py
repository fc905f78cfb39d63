"""`penstock tasks`: list, show, cancel, retry, purge."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from penstock import limits
from penstock.cli import human, output, task_shapes
from penstock.cli.exits import CommandError, exit_code, nothing_there
from penstock.cli.options import AsJson, ContextOption, Limit, Since, Until, Url, Yes
from penstock.cli.target import opened
from penstock.errors import PenstockError, TaskConflict, TaskNotFound
from penstock.model import suggestion
from penstock.model_tasks import TaskFilter, TaskState, TaskView
from penstock.storage.findings import spelt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.client.session import Session

app = typer.Typer(help="Tasks: list, show, cancel, retry, purge.", no_args_is_help=True)

PAGE = 500
WIDTH = len("submitted at") + 2
FILTER = "Which ones: all that is given must match"
STATES = tuple(state.value for state in TaskState)
COLOURS = {"completed": "green", "running": "cyan", "failed": "yellow", "dead": "red", "cancelled": "dim"}

TaskId = Annotated[str, typer.Argument(metavar="ID", help="As 'penstock tasks list' prints it.")]
TaskIds = Annotated[list[str], typer.Argument(metavar="ID...", help="As 'penstock tasks list' prints them.")]
Status = Annotated[
    list[str] | None,
    typer.Option("--status", "-s", metavar="STATE", help=f"{', '.join(STATES)}; may repeat.", rich_help_panel=FILTER),
]
Type = Annotated[str | None, typer.Option("--type", "-t", help="The name of the task.", rich_help_panel=FILTER)]
InQueue = Annotated[str | None, typer.Option("--queue", "-q", help="Its queue.", rich_help_panel=FILTER)]
Worker = Annotated[str | None, typer.Option("--worker", "-w", help="Who runs it, or ran it.", rich_help_panel=FILTER)]
Workflow = Annotated[str | None, typer.Option(help="The id of its workflow.", rich_help_panel=FILTER)]
Schedule = Annotated[str | None, typer.Option(help="The schedule that made it.", rich_help_panel=FILTER)]
Argument = Annotated[
    str | None,
    typer.Option(
        metavar="VALUE",
        help="A value among its arguments; kwargs.to=a@b.c or args.0=7 says where.",
        rich_help_panel=FILTER,
    ),
]
Error = Annotated[str | None, typer.Option("--error", help="The error has this text.", rich_help_panel=FILTER)]


@app.command(name="list")
def list_(
    status: Status = None,
    task_type: Type = None,
    queue: InQueue = None,
    worker: Worker = None,
    workflow: Workflow = None,
    schedule: Schedule = None,
    argument: Argument = None,
    error: Error = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 50,
    url: Url = None,
    context: ContextOption = None,
    as_json: AsJson = False,
) -> None:
    """Tasks, newest first. With --json one object per line."""
    wanted = filter_of(status, task_type, queue, worker, workflow, schedule, argument, error, since, until)
    with opened(url, context) as ps:
        found = list(pages(ps.session, wanted, limit))
    if not found:
        raise nothing_there("no tasks" if wanted == TaskFilter() else "no tasks that match")
    if as_json:
        for view in found:
            output.write_json_line(task_shapes.task(view))
        return
    headings = ("id", "type", "state", "age", "tries", "what")
    rows = [_row(view) for view in found]
    output.write(output.table(headings, rows, text_columns=4, has_excerpt=True))


@app.command()
def show(id: TaskId, url: Url = None, context: ContextOption = None, as_json: AsJson = False) -> None:
    """One task: arguments, result, progress, and every run with its error."""
    with opened(url, context) as ps:
        view, ticket = ps.session.task(id)
        ps.session.confirm(ticket)
    if as_json:
        output.write_json(task_shapes.task(view))
        return
    for name, value in _about(view):
        output.write(f"[dim]{name:<{WIDTH}}[/]{value}")
    if view.runs:
        rows = [_run(run) for run in view.runs]
        output.write("")
        output.write(output.table(("run", "started", "took", "outcome", "worker"), rows, text_columns=5))
    for run in view.runs:
        if run.error:
            output.write(f"\n[dim]error of run {run.attempt}[/]\n{escape(run.error.rstrip())}")
    if view.error and not any(run.error for run in view.runs):
        output.write(f"\n[dim]error[/]\n{escape(view.error.rstrip())}")


@app.command()
def cancel(ids: TaskIds, url: Url = None, context: ContextOption = None, as_json: AsJson = False) -> None:
    """Cancel tasks, waiting or running; what a worker still reports of them is refused."""
    _each(ids, lambda session, id: session.cancel_task(id), "{}", url, context, as_json=as_json)


@app.command()
def retry(ids: TaskIds, url: Url = None, context: ContextOption = None, as_json: AsJson = False) -> None:
    """Run dead, cancelled or failed tasks again, with all their attempts."""
    _each(ids, lambda session, id: session.retry_task(id), "{} again", url, context, as_json=as_json)


@app.command()
def purge(
    status: Status = None,
    task_type: Type = None,
    queue: InQueue = None,
    worker: Worker = None,
    workflow: Workflow = None,
    schedule: Schedule = None,
    argument: Argument = None,
    error: Error = None,
    since: Since = None,
    until: Until = None,
    yes: Yes = False,
    url: Url = None,
    context: ContextOption = None,
    as_json: AsJson = False,
) -> None:
    """Forget finished tasks; those that only wait are cancelled first. Running ones stay."""
    wanted = filter_of(status, task_type, queue, worker, workflow, schedule, argument, error, since, until)
    with opened(url, context) as ps:
        if not list(pages(ps.session, wanted, 1)):
            raise nothing_there("no tasks" if wanted == TaskFilter() else "no tasks that match")
        which = "all tasks" if wanted == TaskFilter() else "all tasks that match"
        output.confirm(f"Forget {which}, and cancel those that wait?", yes=yes)
        count, ticket = ps.session.purge_tasks(wanted)
        ps.session.confirm(ticket)
    output.done(f"forgot {spelt(count, 'task')}", {"purged": count}, as_json=as_json)


def filter_of(
    status: list[str] | None,
    task_type: str | None,
    queue: str | None,
    worker: str | None,
    workflow: str | None,
    schedule: str | None,
    argument: str | None,
    error: str | None,
    since: datetime | None,
    until: datetime | None,
) -> TaskFilter:
    """Which tasks are meant."""
    return TaskFilter(
        states=tuple(_state(text) for text in status or ()),
        task_type=task_type,
        queue=queue,
        worker=worker,
        workflow=workflow,
        schedule=schedule,
        submitted_since=since,
        submitted_until=until,
        argument=argument,
        error_contains=error,
    )


def pages(session: Session, wanted: TaskFilter, limit: int) -> Iterator[TaskView]:
    """Up to `limit` tasks, page by page."""
    import msgspec

    cursor = None
    while limit > 0:
        part = msgspec.structs.replace(wanted, limit=min(limit, PAGE), cursor=cursor)
        found, ticket = session.tasks(part)
        session.confirm(ticket)
        yield from found.tasks
        limit -= len(found.tasks)
        cursor = found.cursor
        if cursor is None:
            return


def _state(text: str) -> TaskState:
    if text not in STATES:
        raise CommandError(f"--status: {text!r} is no state of a task", hint=suggestion(text, STATES))
    return TaskState(text)


def _each(
    ids: list[str],
    change: Callable[[Session, str], tuple[TaskView, int]],
    what: str,
    url: str | None,
    context: str | None,
    *,
    as_json: bool,
) -> None:
    """One task that is refused does not keep the others from being changed."""
    worst = 0
    with opened(url, context) as ps:
        for id in ids:
            try:
                view, ticket = change(ps.session, id)
                ps.session.confirm(ticket)
            except (TaskConflict, TaskNotFound) as error:
                if len(ids) == 1:
                    raise
                worst = max(worst, exit_code(error))
                _write_refused(id, error, as_json=as_json)
            else:
                if as_json:
                    output.write_json_line({"task_id": id, "state": view.state})
                else:
                    output.done(f"{id} is {what.format(view.state)}", None, as_json=False)
    if worst:
        raise typer.Exit(worst)


def _write_refused(id: str, error: PenstockError, *, as_json: bool) -> None:
    if as_json:
        told = {"code": error.code, "message": error.message, "hint": error.hint}
        output.write_json_line({"task_id": id, "error": told})
    else:
        output.write_error(error.code, error.message, error.hint, as_json=False)


def _row(view: TaskView) -> tuple[Any, ...]:
    return view.task_id, view.task_type, view.state, human.age(view.submitted_at), view.attempt, _what(view)


def _what(view: TaskView) -> str:
    """The most telling thing about a task, on one line."""
    if view.result_error:
        return human.excerpt(f"no result: {view.result_error}".encode(errors="replace"), 200)
    if view.state is TaskState.COMPLETED:
        return human.excerpt(view.result or b"null", 200)
    if view.state in (TaskState.DEAD, TaskState.FAILED, TaskState.CANCELLED) and view.error:
        return human.excerpt(view.error.strip().splitlines()[-1].encode(errors="replace"), 200)
    if view.state is TaskState.RUNNING:
        told = f" {view.progress.decode(errors='replace')}" if view.progress else ""
        return human.excerpt(f"by {view.worker}{told}".encode(), 200)
    return f"due {human.until(view.due_at)}" if view.due_at else human.EMPTY


def _about(view: TaskView) -> Iterator[tuple[str, str]]:
    colour = COLOURS.get(view.state)
    facts: list[tuple[str, Any]] = [
        ("queue", view.queue),
        ("message", view.message_id),
        ("key", view.key),
        ("priority", view.priority if view.priority != 128 else ""),
        ("workflow", view.workflow),
        ("schedule", view.schedule),
        ("depends on", ", ".join(view.depends_on)),
        ("submitted at", _moment(view.submitted_at)),
        ("due at", _moment(view.due_at)),
        ("started at", _moment(view.started_at)),
        ("finished at", _moment(view.finished_at)),
        ("worker", view.worker),
        ("attempts", f"{view.attempt} of {view.max_attempts}" if view.max_attempts else view.attempt),
        ("attempts lost", f"{view.attempts_lost} of {limits.task_attempts_lost_max}" if view.attempts_lost else ""),
        ("timeout", human.duration(view.timeout_seconds) if view.timeout_seconds else ""),
        ("trace", view.trace),
        ("args", _json(view.args) if view.args != b"[]" else ""),
        ("kwargs", _json(view.kwargs) if view.kwargs != b"{}" else ""),
        ("progress", _json(view.progress)),
        ("result", "" if view.result_error else _json(view.result)),
        ("result error", view.result_error),
    ]
    yield "task", escape(view.task_id)
    yield "type", escape(view.task_type)
    yield "state", f"[{colour}]{view.state}[/]" if colour else view.state
    yield from ((name, escape(str(value))) for name, value in facts if value not in ("", None))


def _json(text: bytes | None) -> str:
    return "" if text is None else human.excerpt(text, 4000)


def _moment(at: datetime | None) -> str:
    return (
        ""
        if at is None
        else f"{human.moment(at)}  ({human.age(at)} ago)"
        if human.until(at) == "now"
        else (f"{human.moment(at)}  ({human.until(at)})")
    )


def _run(run: Any) -> tuple[Any, ...]:
    took = human.EMPTY if run.ended_at is None else human.duration((run.ended_at - run.started_at).total_seconds())
    return str(run.attempt), human.moment(run.started_at), took, run.outcome or "running", run.worker or human.EMPTY
