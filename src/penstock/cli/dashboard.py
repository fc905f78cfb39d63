"""`penstock dashboard`: a one-time link that signs a browser in; `penstock key file`: what curl needs to be let in."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from penstock.access import discovery
from penstock.cli import output
from penstock.cli.exits import CommandError, nothing_there
from penstock.cli.options import AsJson
from penstock.cli.target import CLIENT, Broker
from penstock.remote.settings import Address, addresses, settings

if TYPE_CHECKING:
    from penstock.remote.connection import Connection

_LINKS_PATH: Final = "/api/v1/sessions/links"


class _Link(msgspec.Struct):
    path: str


def new_link(url: str, client: str, token: Callable[[], str] | None = None) -> str:
    """A link that signs in, once and within 10 minutes, as whoever this client is. `url` is that of HTTP."""
    with _connected(url, client, token) as (connection, address):
        link = msgspec.json.decode(connection.post(_LINKS_PATH, b"{}"), type=_Link)
    return f"{address}{link.path}"


def warn_if_not_built(url: str, client: str, token: Callable[[], str] | None = None) -> bool:
    """Whether the broker has no dashboard; a note then says how to get it."""
    with _connected(url, client, token) as (connection, address):
        is_missing = connection.get_status("/ui/") == HTTPStatus.SERVICE_UNAVAILABLE
    if is_missing:
        output.write_note(
            f"the broker at {address} has no dashboard: it was installed from a clone without Node; "
            "install Node 20 or newer there, run 'make setup' and restart the broker"
        )
    return is_missing


@contextmanager
def _connected(url: str, client: str, token: Callable[[], str] | None) -> Iterator[tuple[Connection, Address]]:
    from penstock.remote.connection import Connection, Shared

    shared = Shared(settings(url, client=client, token=token))
    connection = Connection(shared)
    try:
        connection.open(shared.micros(shared.settings.connect_seconds))
        yield connection, shared.route.current
    finally:
        connection.close()


HTTP_PORT: Final = 7711
_SCHEMES: Final = {"penstock": "http", "penstocks": "https"}


def dashboard(
    broker: Broker,
    open_it: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open it in a browser. [default: ask]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a link that signs you in to the dashboard. It works once, for 10 minutes.

    The link is made over HTTP: for a TCP URL, the same host with port 7711.
    """
    url = str(_http_address(broker))
    link = new_link(url, CLIENT, broker.token())
    is_missing = warn_if_not_built(url, CLIENT, broker.token())
    if as_json:
        output.write_json({"url": link})
        return
    output.write_plain(link)
    if is_missing:
        return
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if open_it or (open_it is None and is_terminal and typer.confirm("Open it in a browser?", default=True)):
        webbrowser.open(link)


def header_file(broker: Broker, as_json: AsJson = False) -> None:
    """Print the path of the header file for curl, for a broker that you started on this machine.

    curl -H @"$(penstock key file)" localhost:7711/api/v1/queues
    """
    address = _http_address(broker)
    path = discovery.find_header(_hosts(address), address.port, os.environ)
    if path is None:
        raise nothing_there(
            f"no broker of yours is running at {address}",
            "start one with 'penstock serve', or create a key with 'penstock key create'; auth = \"off\" needs none",
        )
    if as_json:
        output.write_json({"path": str(path)})
    else:
        output.write_plain(str(path))


def _hosts(address: Address) -> tuple[str, ...]:
    return ("127.0.0.1", "::1") if address.host == "localhost" else (address.host,)


def _http_address(broker: Broker) -> Address:
    """Where the broker speaks HTTP."""
    if broker.is_directory:
        raise CommandError(
            f"{broker.address} is a directory, not a broker", hint="name it: --url http://localhost:7711"
        )
    address = addresses(broker.address)[0]
    return address if address.is_http else Address(_SCHEMES[address.scheme], address.host, HTTP_PORT)
