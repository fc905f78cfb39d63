"""`penstock operations`: purging or cancelling many tasks, in the background."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from penstock import operations as ops
from penstock.cli import human, output
from penstock.cli.exits import nothing_there
from penstock.cli.options import AsJson, ContextOption, Since, Until, Url, Yes
from penstock.cli.target import opened
from penstock.cli.tasks import (
    Argument,
    Error,
    InQueue,
    Schedule,
    Status,
    Type,
    Worker,
    Workflow,
    filter_of,
)
from penstock.client._sync.task_calls import new_operation
from penstock.model_tasks import OperationView, TaskFilter
from penstock.units import plural

if TYPE_CHECKING:
    from penstock.client.session import Session

app = typer.Typer(help="Operations on many tasks: begin, list, show, stop.", no_args_is_help=True)

OperationId = Annotated[str, typer.Argument(metavar="ID", help="As 'penstock operations list' prints it.")]
Action = Annotated[str, typer.Argument(metavar="ACTION", help="purge or cancel.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until it is over.")]
WAYS = {"purge": "Forget {}, and cancel those that wait?", "cancel": "Cancel {} that are not final?"}


@app.command()
def begin(
    action: Action,
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
    wait: Wait = False,
    url: Url = None,
    context: ContextOption = None,
    as_json: AsJson = False,
) -> None:
    """Purge or cancel all tasks that match. A broker goes on by itself; a directory is worked on until it is done."""
    from penstock import validation

    chosen = validation.operation_action(action)
    wanted = filter_of(status, task_type, queue, worker, workflow, schedule, argument, error, since, until)
    which = "all tasks" if wanted == TaskFilter() else "all tasks that match"
    output.confirm(WAYS[chosen.value].format(which), yes=yes)
    with opened(url, context) as ps:
        view = ps.session.execute(new_operation(chosen, wanted))
        if wait or hasattr(ps.session, "shard"):
            view = _over(ps.session, view)
    output.done(f"{view.operation_id}  {_account(view)}", shape(view), as_json=as_json)


@app.command(name="list")
def list_(url: Url = None, context: ContextOption = None, as_json: AsJson = False) -> None:
    """Operations that run, and those that did lately."""
    with opened(url, context) as ps:
        found = ps.session.execute(ops.ListOperations())
    if as_json:
        output.write_json([shape(view) for view in found])
        return
    if not found:
        raise nothing_there("no operations", "'penstock operations begin' and 'penstock tasks purge' make them")
    headings = ("id", "action", "state", "begun", "matched", "cancelled", "purged")
    rows = [(view.operation_id, view.action, view.state, human.age(view.started_at), *_counts(view)) for view in found]
    output.write(output.table(headings, rows, text_columns=4))


@app.command()
def show(operation_id: OperationId, url: Url = None, context: ContextOption = None, as_json: AsJson = False) -> None:
    """How far an operation is."""
    with opened(url, context) as ps:
        view = ps.session.execute(ops.FindOperation(operation_id))
    output.done(f"{view.operation_id}  {_account(view)}", shape(view), as_json=as_json)


@app.command()
def stop(operation_id: OperationId, url: Url = None, context: ContextOption = None, as_json: AsJson = False) -> None:
    """Stop an operation; what was done stays done."""
    with opened(url, context) as ps:
        view = ps.session.execute(ops.StopOperation(operation_id))
    output.done(f"{view.operation_id}  {_account(view)}", shape(view), as_json=as_json)


def shape(view: OperationView) -> dict[str, Any]:
    """An operation as JSON."""
    return {**msgspec.structs.asdict(view), "filter": msgspec.to_builtins(view.filter)}


def _over(session: Session, view: OperationView) -> OperationView:
    from penstock import validation

    pauses = validation.pauses()
    while not view.is_over:
        time.sleep(next(pauses))
        view = session.execute(ops.FindOperation(view.operation_id))
    return view


def _counts(view: OperationView) -> tuple[int, int, int]:
    return view.matched, view.cancelled, view.purged


def _account(view: OperationView) -> str:
    matched, cancelled, purged = _counts(view)
    did = f"{plural(matched, 'task')} matched, {cancelled:,} cancelled, {purged:,} purged"
    return f"{view.action} {view.state}: {did}{f': {view.error}' if view.error else ''}"
