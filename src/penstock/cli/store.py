"""`penstock store` and `penstock node`: a store in PostgreSQL, and the nodes that share it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from penstock.cli import output
from penstock.cli.options import AsJson, command
from penstock.errors import BadSettings, InvalidField

if TYPE_CHECKING:
    from penstock.postgres.admin import NodeStatus
    from penstock.postgres.schema import Status
    from penstock.postgres.target import Target

app = typer.Typer(help="A store in PostgreSQL: init, status, migrate.", no_args_is_help=True)
nodes = typer.Typer(help="Nodes that share a store: list, drain.", no_args_is_help=True)

Url = Annotated[
    str, typer.Argument(metavar="[URL]", help="postgresql://…, without a password. [default: PENSTOCK_STORE]")
]
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="The name of the node, from 'penstock node list'.")]
StoreOption = Annotated[
    str, typer.Option("--store", metavar="URL", help="postgresql://…, without a password. [default: PENSTOCK_STORE]")
]
PasswordFile = Annotated[
    str, typer.Option("--password-file", metavar="FILE", help="File with the password of the store.")
]


@command(app)
def init(
    url: Url = "",
    deployment: Annotated[
        str, typer.Option(metavar="NAME", help="The name of the deployment. [default: penstock]")
    ] = "",
    replicated: Annotated[
        bool, typer.Option("--replicated", help="Refuse a server without synchronous standbys.")
    ] = False,
    password_file: PasswordFile = "",
    as_json: AsJson = False,
) -> None:
    """Check a server and create the tables of a store. Nodes do this themselves if they have the rights."""
    from penstock.postgres import admin

    target = _target(url, password_file)
    _say_version(target, admin.init(target, deployment, replicated=replicated), as_json=as_json)


@command(app)
def migrate(url: Url = "", password_file: PasswordFile = "", as_json: AsJson = False) -> None:
    """Upgrade the tables of a store to this version. Stop nodes of older versions first."""
    from penstock.postgres import admin

    target = _target(url, password_file)
    _say_version(target, admin.init(target), as_json=as_json)


@command(app)
def status(url: Url = "", password_file: PasswordFile = "", as_json: AsJson = False) -> None:
    """Show the version of a store, the owner of its shard, and live nodes. Takes two seconds."""
    from penstock.postgres import admin

    found = admin.status(_target(url, password_file))
    if as_json:
        output.write_json(found)
        return
    owner = f"owned by {found.owner}" if found.owner else "no owner"
    output.write(
        f"[bold]{escape(found.store)}[/]  version {found.version}, deployment {escape(found.deployment)},"
        f" {found.bytes_stored / (1 << 20):.1f} MiB; {escape(owner)} in term {found.term}"
    )
    _write_nodes(found.nodes)


@command(nodes, "list")
def list_nodes(store: StoreOption = "", password_file: PasswordFile = "", as_json: AsJson = False) -> None:
    """List the nodes of a store. Takes two seconds: a node silent for that long is dead."""
    from penstock.postgres import admin

    found = admin.status(_target(store, password_file))
    if as_json:
        output.write_json(found.nodes)
    else:
        _write_nodes(found.nodes)


@command(nodes)
def drain(
    node: NodeName,
    store: StoreOption = "",
    password_file: PasswordFile = "",
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return at once.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a node finish its requests and hand the shard to another node.

    From then on it is a spare; it can own the shard again only after a restart.
    """
    from penstock.postgres import admin

    owner = admin.drain(_target(store, password_file), node, wait=not no_wait)
    if as_json:
        output.write_json({"node": node, "owner": owner})
    else:
        output.write(f"{escape(node)} is drained; the owner is {escape(owner or 'not elected yet')}.")


def _target(url: str, password_file: str) -> Target:
    from penstock.postgres.target import parse_store_url, read_password

    text = url or os.environ.get("PENSTOCK_STORE", "")
    if not text:
        raise BadSettings("store: no URL is given", hint="pass postgresql://…, or set PENSTOCK_STORE")
    target = parse_store_url(text, read_password(password_file) if password_file else None)
    if url and target.has_password and not password_file:
        raise InvalidField(
            "store: a password in the arguments of a process is visible to every user of this machine",
            hint="use PENSTOCK_STORE, --password-file or PGPASSFILE",
        )
    return target


def _say_version(target: Target, found: Status, *, as_json: bool) -> None:
    if as_json:
        output.write_json({"store": target.shown, "version": found.version, "deployment": found.deployment})
        return
    about = f"version {found.version}, deployment {escape(found.deployment)}"
    output.write(f"{escape(target.shown)} is a store: {about}.")


def _write_nodes(found: list[NodeStatus]) -> None:
    rows = [
        (each.node, each.role, "alive" if each.is_alive else "dead", " ".join(sorted(each.addresses.values())))
        for each in found
    ]
    output.write(output.table(("node", "role", "state", "addresses"), rows, text_columns=4))
