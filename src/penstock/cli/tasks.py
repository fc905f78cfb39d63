"""`penstock tasks`: list, show, cancel, retry, purge; and `penstock enqueue`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.markup import escape

from penstock import limits
from penstock import operations as ops
from penstock.cli import human, output, shapes
from penstock.cli.exits import SERVER_ERROR, CommandError, exit_code, nothing_there
from penstock.cli.options import (
    Arg,
    Args,
    AsJson,
    ContextOption,
    Key,
    Kwargs,
    Limit,
    MaxAttempts,
    Priority,
    Queue,
    Since,
    TaskType,
    Timeout,
    Until,
    Url,
    Values,
    Yes,
    instant_option,
    seconds_option,
)
from penstock.cli.target import opened
from penstock.client._sync.task_calls import run_operation, wait_task
from penstock.clock import SystemClock
from penstock.errors import PenstockError, TaskConflict, TaskNotFound
from penstock.model import check_priority, suggestion
from penstock.model_tasks import ParentPolicy, TaskFilter, TaskState, TaskSubmission, TaskView
from penstock.units import plural

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
            output.write_json_line(shapes.task(view))
        return
    headings = ("id", "type", "state", "age", "tries", "what")
    rows = [_row(view) for view in found]
    output.write(output.table(headings, rows, text_columns=4, has_excerpt=True))


@app.command()
def show(id: TaskId, url: Url = None, context: ContextOption = None, as_json: AsJson = False) -> None:
    """One task: arguments, result, progress, and every run with its error."""
    with opened(url, context) as ps:
        view = ps.session.execute(ops.FindTask(id))
    if as_json:
        output.write_json(shapes.task(view))
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
    _each(ids, lambda session, id: session.execute(ops.CancelTask(id)), "{}", url, context, as_json=as_json)


@app.command()
def retry(ids: TaskIds, url: Url = None, context: ContextOption = None, as_json: AsJson = False) -> None:
    """Run dead, cancelled or failed tasks again, with all their attempts."""
    _each(ids, lambda session, id: session.execute(ops.RetryTask(id)), "{} again", url, context, as_json=as_json)


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
        count = run_operation(ps.session, "purge", wanted).purged
    output.done(f"forgot {plural(count, 'task')}", {"purged": count}, as_json=as_json)


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
        found = session.execute(ops.ListTasks(part))
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
    change: Callable[[Session, str], TaskView],
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
                view = change(ps.session, id)
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


PARENTS = "Depending on others"
ONCE = "Only once"
POLICIES: Final[tuple[ParentPolicy, ...]] = ("cancel", "run")


NewTaskId = Annotated[
    str | None, typer.Option(help="A UUID: a second task with it is not stored.", rich_help_panel=ONCE)
]
UniqueKey = Annotated[
    str | None, typer.Option(help="Not while another with this key is not finished.", rich_help_panel=ONCE)
]
UniqueFor = Annotated[
    float | None, seconds_option("--unique-for", about="With --unique-key: for so long, finished or not.")
]
DependsOn = Annotated[
    list[str] | None, typer.Option(metavar="ID", help="Run it after this task; may repeat.", rich_help_panel=PARENTS)
]
OnParentFailure = Annotated[str, typer.Option(help="cancel or run, when one of them dies.", rich_help_panel=PARENTS)]


def enqueue(
    task_type: TaskType,
    values: Values = None,
    arg: Arg = None,
    args: Args = None,
    kwargs: Kwargs = None,
    queue: Queue = "default",
    delay: Annotated[float, seconds_option("--delay", about="Run it no sooner than in so long.")] = 0.0,
    deliver_at: Annotated[datetime | None, instant_option("--deliver-at", about="Run it no sooner than then.")] = None,
    priority: Priority = "normal",
    key: Key = None,
    timeout: Timeout = None,
    max_attempts: MaxAttempts = None,
    ttl: Annotated[float | None, seconds_option("--ttl", about="Drop it if no worker has it by then.")] = None,
    task_id: NewTaskId = None,
    unique_key: UniqueKey = None,
    unique_for: UniqueFor = None,
    depends_on: DependsOn = None,
    on_parent_failure: OnParentFailure = "cancel",
    wait: Annotated[float | None, seconds_option("--wait", about="Wait so long for the result and print it.")] = None,
    url: Url = None,
    context: ContextOption = None,
    as_json: AsJson = False,
) -> None:
    """Submit a task; it is durable when the command returns. Prints its id, or with --wait its result.

    Words that are JSON are taken as such: `penstock enqueue add 1 2`, `penstock enqueue send a@b.c -a urgent=true`.
    """
    from penstock.envelopes import new_task_id

    given_args, given_kwargs = shapes.arguments(values or [], arg or [], args, kwargs)
    submission = TaskSubmission(
        task_id=task_id or new_task_id(SystemClock().now()),
        is_named=task_id is not None,
        task_type=task_type,
        queue=queue,
        args=given_args,
        kwargs=given_kwargs,
        timeout_seconds=timeout,
        depends_on=tuple(depends_on or ()),
        on_parent_failure=parent_policy(on_parent_failure),
        unique_key=unique_key,
        unique_seconds=unique_for,
        key=key,
        priority=check_priority(int(priority) if priority.isdigit() else priority),
        delay_seconds=delay,
        deliver_at=deliver_at,
        ttl_seconds=ttl,
        max_attempts=max_attempts,
    )
    with opened(url, context, is_made=True) as ps:
        (submitted,) = ps.session.execute(ops.SubmitTasks([submission]))
        if wait is not None:
            _write_result(_waited(ps.session, submitted.task_id, wait), as_json=as_json)
        elif as_json:
            output.write_json({"task_id": submitted.task_id, "is_new": submitted.is_new})
        else:
            output.write_plain(submitted.task_id + ("" if submitted.is_new else " (it was there: nothing was stored)"))


def parent_policy(text: str) -> ParentPolicy:
    """What a child does when a parent dies."""
    for policy in POLICIES:
        if text == policy:
            return policy
    raise CommandError(f"--on-parent-failure: {text!r} is no policy", hint="use cancel or run")


def _waited(session: Session, task_id: str, seconds: float) -> TaskView:
    return wait_task(session, task_id, seconds)


def _write_result(view: TaskView, *, as_json: bool) -> None:
    if not view.is_final:
        hint = f"it goes on; 'penstock tasks show {view.task_id}' tells how far it is"
        raise CommandError(f"task {view.task_id} is {view.state} still", hint=hint, code="task_unfinished")
    if as_json:
        output.write_json(shapes.task(view))
    elif view.state is TaskState.COMPLETED and not view.result_error:
        output.write_bytes(view.result or b"null")
    if view.result_error:
        problem = f"task {view.task_id} is completed, but its result could not be stored: {view.result_error}"
        raise CommandError(
            problem, hint="have the task return less, or JSON", code="result_lost", exit_code=SERVER_ERROR
        )
    if view.state is not TaskState.COMPLETED:
        last = view.error.strip().splitlines()[-1:] or [""]
        hint = f"'penstock tasks show {view.task_id}' shows all of it"
        code = f"task_{'died' if view.state is TaskState.DEAD else 'cancelled'}"
        raise CommandError(
            f"task {view.task_id} is {view.state}: {last[0]}", hint=hint, code=code, exit_code=SERVER_ERROR
        )
