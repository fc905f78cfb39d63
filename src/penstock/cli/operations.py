"""`penstock operations`: work on many tasks, dead letters or messages, which the broker does in the background."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli import human, output
from penstock.cli.bulk import BulkFlags, shape, time_left, wait_for
from penstock.cli.options import AsJson, Yes, command
from penstock.cli.target import Broker
from penstock.cli.tasks import FilterFlags
from penstock.model_tasks import OperationView
from penstock.units import plural

app = typer.Typer(help="Bulk operations: begin, list, show, continue, stop.", no_args_is_help=True)

OperationId = Annotated[str, typer.Argument(metavar="ID", help="The id, from 'penstock operations list'.")]
Action = Annotated[str, typer.Argument(metavar="ACTION", help="purge, cancel or retry.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until it has finished.")]
QUESTIONS = {
    "purge": "Delete all {}, and cancel those that wait?",
    "cancel": "Cancel all {} that are not final?",
    "retry": "Run all dead, cancelled and failed {} again?",
}


@command(app)
def begin(
    broker: Broker,
    action: Action,
    filters: FilterFlags,
    bulk: BulkFlags,
    yes: Yes = False,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Purge, cancel or retry all matching tasks. With a broker, this runs in the background."""
    from penstock import validation
    from penstock.client._sync.task_calls import new_operation

    chosen, filter = validation.task_action(action), filters.filter()
    if not bulk.dry_run:
        output.confirm(QUESTIONS[chosen.value].format(filters), yes=yes)
    with broker.opened() as ps:
        view = ps.session.execute(new_operation(chosen, filter, **bulk.options()))
        if wait or hasattr(ps.session, "shard"):
            view = wait_for(ps.session, view)
    _write(view, as_json=as_json)


@command(app, "list")
def list_(broker: Broker, as_json: AsJson = False) -> None:
    """List running and recent operations."""
    from penstock import operations as ops

    with broker.opened() as ps:
        views = ps.session.execute(ops.ListOperations())
    headings = ("id", "action", "state", "queue", "who", "begun", "matched", "done", "failed")
    nothing = ("no operations", "'penstock tasks retry', 'penstock dlq redrive' and 'penstock replay' start one")
    output.write_list(views, headings, _row, as_json=as_json, nothing=nothing, shape=shape, text_columns=6)


def _row(view: OperationView) -> tuple[Any, ...]:
    about = (view.operation_id, view.action, view.state, view.queue or "", view.who, human.age(view.started_at))
    return *about, view.matched, view.done, view.failed


@command(app)
def show(broker: Broker, operation_id: OperationId, as_json: AsJson = False) -> None:
    """Show the progress of an operation."""
    _execute(broker, operation_id, "FindOperation", as_json=as_json)


@command(app, "continue")
def continue_(broker: Broker, operation_id: OperationId, as_json: AsJson = False) -> None:
    """Continue an operation after its canary."""
    _execute(broker, operation_id, "ContinueOperation", as_json=as_json)


@command(app)
def stop(broker: Broker, operation_id: OperationId, as_json: AsJson = False) -> None:
    """Stop an operation. What it has done stays done."""
    _execute(broker, operation_id, "StopOperation", as_json=as_json)


def _execute(broker: Broker, operation_id: str, name: str, *, as_json: bool) -> None:
    from penstock import operations as ops

    with broker.opened() as ps:
        view = ps.session.execute(getattr(ops, name)(operation_id))
        if name == "ContinueOperation" and hasattr(ps.session, "shard"):
            view = wait_for(ps.session, view)
        _write(view, as_json=as_json)


def _write(view: OperationView, *, as_json: bool) -> None:
    counts = f"{plural(view.matched, 'item')} matched, {view.done:,} done, {view.failed:,} failed"
    error = f": {view.error}" if view.error else ""
    text = f"{view.operation_id}  {view.action} {view.state}: {counts}{error}{time_left(view)}".lstrip()
    output.done(text, shape(view), as_json=as_json)
