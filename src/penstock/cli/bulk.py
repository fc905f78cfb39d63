"""What commands on many things share: how they run, and what they say; and `penstock replay`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from penstock.cli import human, output
from penstock.cli.exits import nothing_there
from penstock.cli.options import AsJson, Flags, QueueName, Yes, instant_option, pairs
from penstock.cli.target import Broker
from penstock.model_tasks import OperationState, OperationView
from penstock.units import plural

if TYPE_CHECKING:
    from penstock import Penstock
    from penstock.client.session import Session
    from penstock.operations.base import Operation

NOUNS = {"redrive": "dead letter", "discard": "dead letter", "replay": "message"}
VERBS = {
    "purge": ("forgot", "would forget"),
    "cancel": ("cancelled", "would cancel"),
    "retry": ("retried", "would retry"),
    "redrive": ("sent back", "would send back"),
    "discard": ("threw away", "would delete"),
    "replay": ("pushed again", "would push again"),
}


@dataclass(frozen=True)
class BulkFlags(Flags):
    """How an operation on many things runs."""

    panel = "Execution"
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what matches and show a few examples.")] = False
    rate: Annotated[float | None, typer.Option(metavar="N", help="At most this many per second.")] = None
    canary: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Process this many first; the rest after 'penstock operations continue'."
        ),
    ] = None

    def options(self) -> dict[str, Any]:
        """The options of a request."""
        return {"dry_run": self.dry_run, "rate": self.rate, "canary": self.canary}


def run_bulk(ps: Penstock, operation: Operation[OperationView], nothing: str, *, as_json: bool) -> OperationView:
    """Begin an operation, wait until it is over or its canary is through, and say what it came to."""
    view = wait_for(ps.session, ps.session.execute(operation))
    if not view.matched and not view.done and not view.failed:
        raise nothing_there(nothing)
    action, count = view.action.value, view.matched if view.state is OperationState.COUNTED else view.done
    verb = VERBS[action][view.state is OperationState.COUNTED]
    least = "" if view.is_exact else "at least "
    text = f"{verb} {least}{plural(count, NOUNS.get(action, 'task'))}"
    if view.failed:
        text += f", {view.failed:,} failed: {view.errors[-1].message}"
    if view.state is OperationState.WAITING:
        text += f"; check them, then 'penstock operations continue {view.operation_id}' or 'stop'{time_left(view)}"
    if view.state is OperationState.COUNTED and view.samples:
        text += ", among them\n" + "\n".join(f"  {sample}" for sample in view.samples)
    output.done(text, shape(view), as_json=as_json)
    return view


def time_left(view: OperationView) -> str:
    """When an operation that waits after its canary stops by itself; "" for others."""
    return "" if view.expires_at is None else f"; it stops by itself {human.until(view.expires_at)}"


def shape(view: OperationView) -> dict[str, Any]:
    """An operation as JSON."""
    plain: dict[str, Any] = msgspec.to_builtins(view, enc_hook=str)
    plain["errors"] = [error._asdict() for error in view.errors]
    if view.letters is not None and view.letters.ids is not None:
        plain["letters"]["ids"] = sorted(map(str, view.letters.ids))
    return plain


def wait_for(session: Session, view: OperationView) -> OperationView:
    """An operation when it is over, or waits to be continued."""
    from penstock import operations as ops
    from penstock import validation

    pauses = validation.pauses()
    while view.state is OperationState.RUNNING:
        time.sleep(next(pauses))
        view = session.execute(ops.FindOperation(view.operation_id))
    return validation.succeeded(view)


def replay(
    broker: Broker,
    queue: QueueName,
    bulk: BulkFlags,
    since: Annotated[datetime | None, instant_option("--from", about="Pushed at or after this time.")] = None,
    until: Annotated[datetime | None, instant_option("--to", about="Pushed before this time.")] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Messages with this key.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Messages with this header; repeatable.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="The payload contains this text.")] = None,
    trace: Annotated[str | None, typer.Option(help="Messages with this trace id.")] = None,
    target: Annotated[str | None, typer.Option(help="The queue to push to. [default: the same queue]")] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Push copies of a queue's messages again, including settled ones. A header names the original."""
    from penstock import operations as ops
    from penstock.client.values import bulk_options
    from penstock.model_letters import MessageFilter

    headers = pairs(header, "--header", "tenant=acme") if header else None
    filter = MessageFilter(since=since, until=until, key=key, headers=headers, text=text, trace=trace)
    if not bulk.dry_run:
        output.confirm(f"Push copies of the messages of {queue} to {target or queue}?", yes=yes)
    with broker.opened() as ps:
        operation = ops.ReplayMessages(queue, filter, target, *bulk_options(bulk.options()))
        run_bulk(ps, operation, f"no messages in {queue!r} that match", as_json=as_json)
