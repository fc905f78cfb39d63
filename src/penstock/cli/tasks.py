"""`penstock tasks`: list, show, result, cancel, retry, purge; and `penstock enqueue`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.markup import escape

from penstock import limits
from penstock.cli import declared_tasks, human, output, shapes
from penstock.cli.bulk import BulkFlags, run_bulk
from penstock.cli.exits import SERVER_ERROR, CommandError, nothing_there
from penstock.cli.options import (
    AsJson,
    Flags,
    Limit,
    Since,
    Until,
    Yes,
    command,
    instant_option,
    pairs,
    priority,
    seconds_option,
)
from penstock.cli.target import Broker
from penstock.clock import SystemClock
from penstock.model_tasks import ParentPolicy, TaskFilter, TaskState, TaskSubmission, TaskView
from penstock.refusals import suggestion
from penstock.units import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.client.session import Session
    from penstock.operations.base import Operation


app = typer.Typer(help="Tasks: list, show, result, cancel, retry, purge.", no_args_is_help=True)

PAGE = 500
WIDTH = len("submitted at") + 2
FILTER = "Filters (all must match)"
STATES = tuple(state.value for state in TaskState)
COLOURS = {"completed": "green", "running": "cyan", "failed": "yellow", "dead": "red", "cancelled": "dim"}

TaskId = Annotated[str, typer.Argument(metavar="ID", help="The id, from 'penstock tasks list'.")]
SomeIds = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="Ids, from 'penstock tasks list'; or use a filter.")
]
TaskType = Annotated[str, typer.Argument(metavar="TYPE", help="The name of the task, such as send.")]
TaskPath = Annotated[str, typer.Argument(metavar="TASK", help="module:app.task, or the name of a task type.")]
QUEUE_DEFAULT: Final = "default"  # of tasks that name none


@dataclass(frozen=True)
class FilterFlags(Flags):
    """Which tasks a command is about."""

    panel = FILTER
    status: Annotated[
        list[str] | None, typer.Option("--status", "-s", metavar="STATE", help=f"{', '.join(STATES)}; repeatable.")
    ] = None
    task_type: Annotated[str | None, typer.Option("--type", "-t", help="The name of the task.")] = None
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="The queue.")] = None
    worker: Annotated[str | None, typer.Option("--worker", "-w", help="The worker that runs or last ran it.")] = None
    workflow: Annotated[str | None, typer.Option(help="The id of the workflow.")] = None
    schedule: Annotated[str | None, typer.Option(help="The schedule that submitted it.")] = None
    argument: Annotated[
        str | None,
        typer.Option(metavar="VALUE", help="An argument value, anywhere or at a path: kwargs.to=a@b.c, args.0=7."),
    ] = None
    error: Annotated[str | None, typer.Option(help="The error contains this text.")] = None
    since: Since = None
    until: Until = None

    def filter(self) -> TaskFilter:
        """The filter that they make."""
        fields = asdict(self)
        names = {"error": "error_contains", "since": "submitted_since", "until": "submitted_until"}
        states = tuple(map(_state, fields.pop("status") or ()))
        return TaskFilter(states=states, **{names.get(name, name): value for name, value in fields.items()})

    def __str__(self) -> str:
        return "tasks" if self == FilterFlags() else "tasks that match"


@dataclass(frozen=True)
class TaskFlags(Flags):
    """What describes a task, for the commands that submit one now or by the clock."""

    values: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGUMENT]...", help="Arguments: JSON, or else plain text.")
    ] = None
    arg: Annotated[
        list[str] | None, typer.Option("--arg", "-a", metavar="NAME=VALUE", help="A named argument; repeatable.")
    ] = None
    args: Annotated[str | None, typer.Option(metavar="JSON", help="All positional arguments, as a JSON array.")] = None
    kwargs: Annotated[str | None, typer.Option(metavar="JSON", help="All named arguments, as a JSON object.")] = None
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", help="The queue. [default: as declared, or 'default']")
    ] = None
    priority: Annotated[str | None, typer.Option(help="0 to 255, or background, low, normal, high, critical.")] = None
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key, for limits per key.")] = None
    timeout: Annotated[float | None, seconds_option("--timeout", about="Interrupt a run that takes longer.")] = None
    max_attempts: Annotated[int | None, typer.Option(min=1, help="Attempts before the task is dead.")] = None

    def arguments(self) -> tuple[bytes, bytes]:
        """Positional and named arguments, as JSON."""
        return arguments(self.values or [], self.arg or [], self.args, self.kwargs)

    def options(self) -> dict[str, Any]:
        """The options that are given, as `task.options()` takes them; None for those that are not."""
        chosen = None if self.priority is None else priority(self.priority)
        rest = {name: getattr(self, name) for name in ("queue", "key", "timeout", "max_attempts")}
        return {"priority": chosen, **rest}

    def fields(self) -> dict[str, Any]:
        """The fields of a submission or a schedule."""
        args, kwargs = self.arguments()
        return {
            "queue": self.queue or QUEUE_DEFAULT,
            "args": args,
            "kwargs": kwargs,
            "priority": priority(self.priority or "normal"),
            "key": self.key,
            "timeout_seconds": self.timeout,
            "max_attempts": self.max_attempts,
        }


@command(app, "list")
def list_(broker: Broker, filters: FilterFlags, limit: Limit = 50, as_json: AsJson = False) -> None:
    """List tasks, newest first. With --json, print one object per line."""
    with broker.opened() as ps:
        tasks = list(pages(ps.session, filters.filter(), limit))
    if as_json:
        for view in tasks:
            output.write_json_line(shapes.task(view))
        return
    if not tasks:
        output.write_nothing(f"no {filters}")
        return
    headings = ("id", "type", "state", "age", "tries", "what")
    rows = [_row(view) for view in tasks]
    output.write(output.table(headings, rows, text_columns=4, has_excerpt=True))


@command(app)
def show(broker: Broker, id: TaskId, as_json: AsJson = False) -> None:
    """Show a task: arguments, result, progress, and every run with its error."""
    from penstock import operations as ops

    with broker.opened() as ps:
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


@command(app)
def result(
    broker: Broker,
    id: TaskId,
    wait: Annotated[float, seconds_option("--wait", about="Wait this long for the task to finish.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Print the result of a task: JSON, or raw bytes (`penstock tasks result ID > image.png`)."""
    from penstock.client._sync.task_calls import wait_task

    with broker.opened() as ps:
        _write_result(wait_task(ps.session, id, wait), wait, as_json=as_json)


@command(app)
def cancel(
    broker: Broker,
    filters: FilterFlags,
    bulk: BulkFlags,
    ids: SomeIds = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Cancel waiting or running tasks, by id or by filter. Later reports from their workers are refused."""
    from penstock import operations as ops

    if ids:
        _each(broker, _only_ids(ids, filters), ops.CancelTask, "{}", as_json=as_json)
    else:
        _all(broker, "cancel", filters, bulk, f"Cancel all {filters} that are not final?", yes=yes, as_json=as_json)


@command(app)
def retry(
    broker: Broker,
    filters: FilterFlags,
    bulk: BulkFlags,
    ids: SomeIds = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Run dead, cancelled or failed tasks again with all their attempts, by id or by filter."""
    from penstock import operations as ops

    if ids:
        _each(broker, _only_ids(ids, filters), ops.RetryTask, "{} again", as_json=as_json)
    else:
        question = f"Run all dead, cancelled and failed {filters} again?"
        _all(broker, "retry", filters, bulk, question, yes=yes, as_json=as_json)


@command(app)
def suggest(
    broker: Broker,
    field: Annotated[
        str, typer.Argument(metavar="FIELD", help="task_type, queue, worker, status, workflow, schedule, kwargs.")
    ],
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Only values that start with this.")] = "",
    limit: Annotated[int, typer.Option(help="At most this many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the values of a field to filter by: types, queues, workers, workflows, argument names."""
    from penstock import operations as ops

    with broker.opened() as ps:
        found = ps.session.execute(ops.SuggestTasks(field, prefix, limit))
    output.write_list(
        *(found, ("value", "tasks"), lambda each: (each.value, human.EMPTY if each.count is None else each.count)),
        as_json=as_json,
        nothing=(f"no {field} begins with {prefix!r}" if prefix else f"no {field} is known", ""),
    )


@command(app)
def purge(broker: Broker, filters: FilterFlags, bulk: BulkFlags, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete finished tasks. Waiting tasks are cancelled first; running tasks stay."""
    question = f"Delete all {filters}, and cancel those that wait?"
    _all(broker, "purge", filters, bulk, question, yes=yes, as_json=as_json)


def _all(
    broker: Broker,
    action: str,
    filters: FilterFlags,
    bulk: BulkFlags,
    question: str,
    *,
    yes: bool,
    as_json: bool,
) -> None:
    """An operation on all tasks that match."""
    from penstock.client._sync.task_calls import new_operation

    chosen = filters.filter()
    with broker.opened() as ps:
        if not bulk.dry_run:
            if not list(pages(ps.session, chosen, 1)):
                raise nothing_there(f"no {filters}")
            output.confirm(question, yes=yes)
        run_bulk(ps, new_operation(action, chosen, **bulk.options()), f"no {filters}", as_json=as_json)


def _only_ids(ids: list[str], filters: FilterFlags) -> list[str]:
    if filters != FilterFlags():
        raise CommandError("ids and filters exclude each other", hint="use one of them")
    return ids


def pages(session: Session, filter: TaskFilter, limit: int) -> Iterator[TaskView]:
    """Up to `limit` tasks, page by page."""
    from penstock import operations as ops

    cursor = None
    while limit > 0:
        part = msgspec.structs.replace(filter, limit=min(limit, PAGE), cursor=cursor)
        page = session.execute(ops.ListTasks(part))
        yield from page.tasks
        limit -= len(page.tasks)
        cursor = page.cursor
        if cursor is None:
            return


def _state(text: str) -> TaskState:
    if text not in STATES:
        raise CommandError(f"--status: {text!r} is not a task state", hint=suggestion(text, STATES))
    return TaskState(text)


def _each(
    broker: Broker, ids: list[str], operation: Callable[[str], Operation[TaskView]], what: str, *, as_json: bool
) -> None:
    def change(id: str) -> tuple[str, dict[str, Any]]:
        view = ps.session.execute(operation(id))
        return f"{id} is {what.format(view.state)}", {"state": view.state}

    with broker.opened() as ps:
        output.change_each(ids, "task_id", change, as_json=as_json)


def _row(view: TaskView) -> tuple[Any, ...]:
    return view.task_id, view.task_type, view.state, human.age(view.submitted_at), view.attempt, _what(view)


def _what(view: TaskView) -> str:
    """The most telling thing about a task, on one line."""
    if view.result_error:
        return human.excerpt(f"no result: {view.result_error}".encode(errors="replace"), 200)
    if view.state is TaskState.COMPLETED:
        return _result(view) or human.excerpt(view.result or b"null", 200)
    if view.state in (TaskState.DEAD, TaskState.FAILED, TaskState.CANCELLED) and view.error:
        return human.excerpt(view.error.strip().splitlines()[-1].encode(errors="replace"), 200)
    if view.state is TaskState.RUNNING:
        progress = f" {view.progress.decode(errors='replace')}" if view.progress else ""
        return human.excerpt(f"by {view.worker}{progress}".encode(), 200)
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
        ("result", "" if view.result_error else _result(view) or _json(view.result)),
        ("result error", view.result_error),
    ]
    yield "task", escape(view.task_id)
    yield "type", escape(view.task_type)
    yield "state", f"[{colour}]{view.state}[/]" if colour else view.state
    yield from ((name, escape(str(value))) for name, value in facts if value not in ("", None))


def _result(view: TaskView) -> str:
    """A result of bytes, in words; empty for JSON."""
    returned = view.result_bytes
    return "" if returned is None else f"{plural(len(returned), 'byte')} (penstock tasks result {view.task_id})"


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
    str | None, typer.Option(help="A UUID; a second task with the same id is not stored.", rich_help_panel=ONCE)
]
UniqueKey = Annotated[
    str | None, typer.Option(help="Do not submit while a task with this key is unfinished.", rich_help_panel=ONCE)
]
UniqueFor = Annotated[
    float | None,
    seconds_option("--unique-for", about="With --unique-key: do not submit within this time, finished or not."),
]
DependsOn = Annotated[
    list[str] | None, typer.Option(metavar="ID", help="Run it after this task; repeatable.", rich_help_panel=PARENTS)
]
OnParentFailure = Annotated[
    str | None, typer.Option(help="What to do if a task it depends on dies: cancel or run.", rich_help_panel=PARENTS)
]


def enqueue(
    broker: Broker,
    task_type: TaskPath,
    task: TaskFlags,
    delay: Annotated[float | None, seconds_option("--delay", about="Run it after this time.")] = None,
    deliver_at: Annotated[datetime | None, instant_option("--deliver-at", about="Run it at this time.")] = None,
    ttl: Annotated[
        float | None, seconds_option("--ttl", about="Drop it if no worker starts it within this time.")
    ] = None,
    task_id: NewTaskId = None,
    unique_key: UniqueKey = None,
    unique_for: UniqueFor = None,
    depends_on: DependsOn = None,
    on_parent_failure: OnParentFailure = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Pass the bytes of this file as first argument; - is standard input."),
    ] = None,
    wait: Annotated[float | None, seconds_option("--wait", about="Wait this long for the result and print it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Submit a task and print its id, or with --wait its result. It is durable when the command returns.

    `penstock enqueue shop:app.send a@b.c` imports the app, uses the queue, attempts and timeouts that the task
    declares, and checks the arguments. `penstock enqueue send a@b.c -q mail` needs no code.
    Arguments that are JSON are parsed: `penstock enqueue shop:app.add 1 2`, `-a urgent=true`.
    """
    policy = None if on_parent_failure is None else parent_policy(on_parent_failure)
    first = None if file is None else _content(file)
    if declared_tasks.is_path(task_type):
        declared = declared_tasks.load_task(task_type)
        options = {
            "delay": delay, "deliver_at": deliver_at, "ttl": ttl, "task_id": task_id, "unique_key": unique_key,
            "unique": unique_for, "depends_on": depends_on, "on_parent_failure": policy,
        }  # fmt: skip
        submission = declared_tasks.submission_of(declared, *task.arguments(), first, {**task.options(), **options})
        with declared_tasks.session_of(declared.app, broker) as session:
            declared.app.declarations.ensure(session, submission.queue)
            _submit(session, declared.app.sender.through(submission), wait, as_json=as_json)
        return
    submission = TaskSubmission(
        task_id=task_id or new_id(),
        is_named=task_id is not None,
        task_type=task_type,
        depends_on=tuple(depends_on or ()),
        on_parent_failure=policy or "cancel",
        unique_key=unique_key,
        unique_seconds=unique_for,
        delay_seconds=delay or 0.0,
        deliver_at=deliver_at,
        ttl_seconds=ttl,
        payload=first,
        **task.fields(),
    )
    with broker.opened(create=True) as ps:
        _submit(ps.session, submission, wait, as_json=as_json)


def new_id() -> str:
    """The id of a task that names none."""
    from penstock.envelopes import new_task_id

    return new_task_id(SystemClock().now())


def _submit(session: Session, submission: TaskSubmission, wait: float | None, *, as_json: bool) -> None:
    """Store a task, and print its id or its result."""
    from penstock import operations as ops
    from penstock.client._sync.task_calls import wait_task

    (submitted,) = session.execute(ops.SubmitTasks([submission]))
    if wait is not None:
        _write_result(wait_task(session, submitted.task_id, wait), wait, as_json=as_json)
    elif as_json:
        output.write_json({"task_id": submitted.task_id, "is_new": submitted.is_new})
    else:
        output.write_plain(submitted.task_id + ("" if submitted.is_new else " (already submitted: not stored again)"))
        if note := declared_tasks.unknown_type_note(session, submission.task_type):
            output.write_note(note)


def _content(file: Path) -> bytes:
    """The bytes of a file, no more than a message may have."""
    most = limits.payload_bytes_max
    try:
        if str(file) == "-":
            content = sys.stdin.buffer.read(most + 1)
        else:
            with file.open("rb") as source:
                content = source.read(most + 1)
    except OSError as error:
        raise CommandError(
            f"--file: {file} cannot be read: {error.strerror}", hint="give a readable file, or -"
        ) from None
    if len(content) > most:
        hint = "store it elsewhere and pass its address"
        raise CommandError(f"--file: {file} has more than {most:,} bytes, the limit of a message", hint=hint)
    return content


def parent_policy(text: str) -> ParentPolicy:
    """What a child does when a parent dies."""
    for policy in POLICIES:
        if text == policy:
            return policy
    raise CommandError(f"--on-parent-failure: {text!r} is not a policy", hint="use cancel or run")


def _write_result(view: TaskView, waited: float, *, as_json: bool) -> None:
    if not view.is_final:
        hint = f"it keeps running; check it with 'penstock tasks show {view.task_id}'"
        after = f" after {human.duration(waited)}" if waited else ""
        raise CommandError(f"task {view.task_id} is still {view.state}{after}", hint=hint, code="task_unfinished")
    if as_json:
        output.write_json(shapes.task(view))
    elif view.state is TaskState.COMPLETED and not view.result_error:
        if view.result_bytes is not None:
            output.write_bytes(view.result_bytes, end=b"")  # nothing that a file would not have
        else:
            output.write_bytes(view.result or b"null")
    if view.result_error:
        problem = f"task {view.task_id} is completed, but its result could not be stored: {view.result_error}"
        raise CommandError(
            problem, hint="make the task return less, or JSON", code="result_lost", exit_code=SERVER_ERROR
        )
    if view.state is not TaskState.COMPLETED:
        last = view.error.strip().splitlines()[-1:] or [""]
        hint = f"'penstock tasks show {view.task_id}' shows the details"
        code = f"task_{'died' if view.state is TaskState.DEAD else 'cancelled'}"
        raise CommandError(
            f"task {view.task_id} is {view.state}: {last[0]}", hint=hint, code=code, exit_code=SERVER_ERROR
        )


# arguments


def arguments(values: Sequence[str], named: Sequence[str], args: str | None, kwargs: str | None) -> tuple[bytes, bytes]:
    """The arguments of a task: words and name=word, or whole JSON."""
    if args is not None and values:
        raise CommandError("positional arguments are given twice", hint="give them as words or by --args, not both")
    if kwargs is not None and named:
        raise CommandError("named arguments are given twice", hint="give them by --arg or by --kwargs, not both")
    encode = msgspec.json.encode
    by_name = {name: value(word) for name, word in pairs(named, "--arg", "to=a@b.c").items()}
    return (
        _whole(args, list, "--args", "an array", """'[1, "a"]'""") or encode([value(word) for word in values]),
        _whole(kwargs, dict, "--kwargs", "an object", """'{"to": "a@b.c"}'""") or encode(by_name),
    )


def value(word: str) -> Any:
    """What a word means: JSON if it is that, otherwise its text."""
    try:
        return msgspec.json.decode(word)
    except msgspec.DecodeError:
        return word


def _whole(text: str | None, kind: type, flag: str, expected: str, example: str) -> bytes | None:
    if text is None:
        return None
    try:
        decoded = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise CommandError(f"{flag}: {text!r} is not JSON: {error}", hint=f"such as {example}") from None
    if not isinstance(decoded, kind):
        raise CommandError(f"{flag}: {text!r} is JSON, but not {expected}", hint=f"such as {example}")
    return text.encode()
