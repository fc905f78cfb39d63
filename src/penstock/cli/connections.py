"""`penstock connections`: who is connected to a broker; `penstock cluster`: its store and its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from penstock.cli import human, output
from penstock.cli.options import AsJson, command
from penstock.cli.target import Broker

if TYPE_CHECKING:
    from penstock.replies import ConnectionView, NodeView

app = typer.Typer(help="Client connections: list, end.", no_args_is_help=True)


@command(app, "list")
def list_(
    broker: Broker,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most this many, oldest first.")] = 1_000,
    as_json: AsJson = False,
) -> None:
    """List connections: who is on each, since when, and requests in flight."""
    from penstock import operations as ops

    with broker.opened() as ps:
        page = ps.session.execute(ops.ListConnections(limit))
    if as_json:
        output.write_json(page)
        return
    headings = ("id", "protocol", "principal", "address", "for", "streams", "in flight", "client")
    output.write(output.table(headings, list(map(_row, page.connections)), text_columns=4, has_excerpt=True))
    if len(page.connections) < page.total:
        output.write(f"[dim]{len(page.connections):,} of {page.total:,} connections[/]")


def _row(view: ConnectionView) -> tuple[Any, ...]:
    return (
        *(view.connection_id, view.protocol, view.principal or human.EMPTY, view.address or human.EMPTY),
        *(human.age(view.since), view.streams, view.in_flight, view.client or human.EMPTY),
    )


@command(app)
def end(
    broker: Broker,
    connection: Annotated[str, typer.Argument(metavar="ID", help="The id, from 'penstock connections list'.")],
    as_json: AsJson = False,
) -> None:
    """Close a connection. Its leases stay, and its client may reconnect."""
    from penstock import operations as ops

    with broker.opened() as ps:
        ps.session.execute(ops.EndConnection(connection))
    output.done(f"connection {connection} is closed", {"connection_id": connection, "status": "ended"}, as_json=as_json)


def cluster(broker: Broker, as_json: AsJson = False) -> None:
    """Show where the broker stores its data, which node owns it, and the other nodes."""
    from penstock import operations as ops

    with broker.opened() as ps:
        found = ps.session.execute(ops.Cluster())
    if as_json:
        output.write_json(found)
        return
    where = f" at {escape(found.location)}" if found.location else ""
    output.write(
        f"[bold]{found.store}[/]{where}: {found.status}" + (f", {escape(found.problem)}" if found.problem else "")
    )
    if not found.is_shared:
        output.write("[dim]there are no other nodes[/]")
        return
    headings = ("node", "role", "status", "address", "last seen")
    output.write(output.table(headings, list(map(_node_row, found.nodes)), text_columns=4))


def _node_row(node: NodeView) -> tuple[Any, ...]:
    age = node.heartbeat_age_seconds
    return node.node, node.role, node.state, node.address, human.EMPTY if age is None else f"{human.duration(age)} ago"
