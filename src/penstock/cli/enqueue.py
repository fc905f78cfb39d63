"""`penstock enqueue`: a task for whichever worker knows its type."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli import output, task_shapes
from penstock.cli.exits import SERVER_ERROR, CommandError
from penstock.cli.options import AsJson, ContextOption, Url, instant_option, seconds_option
from penstock.cli.target import opened
from penstock.cli.task_options import Arg, Args, Key, Kwargs, MaxAttempts, Priority, Queue, TaskType, Timeout, Values
from penstock.clock import SystemClock
from penstock.model import check_priority
from penstock.model_tasks import ParentPolicy, TaskState, TaskSubmission, TaskView

if TYPE_CHECKING:
    from penstock.client.session import Session

PARENTS = "Depending on others"
ONCE = "Only once"
POLICIES: Final[tuple[ParentPolicy, ...]] = ("cancel", "run")


TaskId = Annotated[str | None, typer.Option(help="A UUID: a second task with it is not stored.", rich_help_panel=ONCE)]
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
    task_id: TaskId = None,
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

    given_args, given_kwargs = task_shapes.arguments(values or [], arg or [], args, kwargs)
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
        (submitted,), ticket = ps.session.submit_tasks([submission])
        ps.session.confirm(ticket)
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
    view, ticket = session.wait_task(task_id, seconds)
    session.confirm(ticket)
    return view


def _write_result(view: TaskView, *, as_json: bool) -> None:
    if not view.is_final:
        hint = f"it goes on; 'penstock tasks show {view.task_id}' tells how far it is"
        raise CommandError(f"task {view.task_id} is {view.state} still", hint=hint, code="task_unfinished")
    if as_json:
        output.write_json(task_shapes.task(view))
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
