"""`penstock pause`, `resume` and `pauses`: of all queues, or of those of a namespace."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.cli import human, output
from penstock.cli.options import AsJson
from penstock.cli.queues import Reason, What
from penstock.cli.target import Broker

Namespace = Annotated[str | None, typer.Option("--namespace", help="Only queues of this namespace.")]


def pause(
    broker: Broker, what: What = "all", namespace: Namespace = None, reason: Reason = "", as_json: AsJson = False
) -> None:
    """Pause delivery, pushes or both, for all queues or those of a namespace."""
    with broker.opened() as ps:
        ps.pause(what, namespace=namespace, reason=reason)
    whose = f"namespace {namespace}" if namespace else "the broker"
    shown = "is paused" if what == "all" else f"is paused: {what}"
    output.done(f"{whose} {shown}", {"namespace": namespace, "what": what, "status": "paused"}, as_json=as_json)


def resume(broker: Broker, what: What = "all", namespace: Namespace = None, as_json: AsJson = False) -> None:
    """Resume all queues, or those of a namespace. Queues and groups paused individually stay paused."""
    with broker.opened() as ps:
        ps.resume(what, namespace=namespace)
    whose = f"namespace {namespace}" if namespace else "the broker"
    output.done(f"{whose} is resumed", {"namespace": namespace, "what": what, "status": "resumed"}, as_json=as_json)


def pauses(broker: Broker, as_json: AsJson = False) -> None:
    """List what is paused, since when and why: the broker, namespaces, queues and groups."""
    with broker.opened() as ps:
        found = ps.pauses()
    if as_json:
        output.write_json([msgspec.structs.asdict(pause) for pause in found])
    elif found:
        rows = [
            (
                pause.scope,
                pause.queue or pause.namespace or human.EMPTY,
                pause.group or human.EMPTY,
                "all" if pause.push and pause.delivery else "push" if pause.push else "delivery",
                human.age(pause.since),
                pause.reason or human.EMPTY,
            )
            for pause in found
        ]
        headings = ("scope", "name", "group", "what", "since", "reason")
        output.write(output.table(headings, rows, text_columns=6, has_excerpt=True))
    else:
        output.write_nothing("nothing is paused")
