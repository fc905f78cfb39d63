"""`penstock operations`: purging or cancelling many tasks, in the background."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from penstock.cli import human, output
from penstock.cli.options import AsJson, Yes, command
from penstock.cli.target import Broker
from penstock.cli.tasks import FilterFlags
from penstock.model_tasks import OperationView
from penstock.units import plural

if TYPE_CHECKING:
    from penstock.client.session import Session

app = typer.Typer(help="Operations on many tasks: begin, list, show, stop.", no_args_is_help=True)

OperationId = Annotated[str, typer.Argument(metavar="ID", help="As 'penstock operations list' prints it.")]
Action = Annotated[str, typer.Argument(metavar="ACTION", help="purge or cancel.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until it is over.")]
QUESTIONS = {"purge": "Forget all {}, and cancel those that wait?", "cancel": "Cancel all {} that are not final?"}


@command(app)
def begin(
    broker: Broker,
    action: Action,
    filters: FilterFlags,
    yes: Yes = False,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Purge or cancel all tasks that match. A broker goes on by itself; a directory is worked on until it is done."""
    from penstock import validation
    from penstock.client._sync.task_calls import new_operation

    chosen, filter = validation.operation_action(action), filters.filter()
    output.confirm(QUESTIONS[chosen.value].format(filters), yes=yes)
    with broker.opened() as ps:
        view = ps.session.execute(new_operation(chosen, filter))
        if wait or hasattr(ps.session, "shard"):
            view = _wait_for(ps.session, view)
    _write(view, as_json=as_json)


@command(app, "list")
def list_(broker: Broker, as_json: AsJson = False) -> None:
    """Operations that run, and those that did lately."""
    from penstock import operations as ops

    with broker.opened() as ps:
        views = ps.session.execute(ops.ListOperations())
    headings = ("id", "action", "state", "begun", "matched", "cancelled", "purged")
    nothing = ("no operations", "'penstock operations begin' and 'penstock tasks purge' make them")
    output.write_list(views, headings, _row, as_json=as_json, nothing=nothing, shape=shape, text_columns=4)


def _row(view: OperationView) -> tuple[Any, ...]:
    return view.operation_id, view.action, view.state, human.age(view.started_at), *_counts(view)


@command(app)
def show(broker: Broker, operation_id: OperationId, as_json: AsJson = False) -> None:
    """How far an operation is."""
    from penstock import operations as ops

    with broker.opened() as ps:
        _write(ps.session.execute(ops.FindOperation(operation_id)), as_json=as_json)


@command(app)
def stop(broker: Broker, operation_id: OperationId, as_json: AsJson = False) -> None:
    """Stop an operation; what was done stays done."""
    from penstock import operations as ops

    with broker.opened() as ps:
        _write(ps.session.execute(ops.StopOperation(operation_id)), as_json=as_json)


def shape(view: OperationView) -> dict[str, Any]:
    """An operation as JSON."""
    return {**msgspec.structs.asdict(view), "filter": msgspec.to_builtins(view.filter)}


def _wait_for(session: Session, view: OperationView) -> OperationView:
    from penstock import operations as ops
    from penstock import validation

    pauses = validation.pauses()
    while not view.is_over:
        time.sleep(next(pauses))
        view = session.execute(ops.FindOperation(view.operation_id))
    return view


def _counts(view: OperationView) -> tuple[int, int, int]:
    return view.matched, view.cancelled, view.purged


def _write(view: OperationView, *, as_json: bool) -> None:
    matched, cancelled, purged = _counts(view)
    counts = f"{plural(matched, 'task')} matched, {cancelled:,} cancelled, {purged:,} purged"
    error = f": {view.error}" if view.error else ""
    text = f"{view.operation_id}  {view.action} {view.state}: {counts}{error}"
    output.done(text, shape(view), as_json=as_json)
