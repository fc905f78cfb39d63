"""`penstock tls`: an authority and certificates of one's own, and until when certificates are valid."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from penstock.access.certificates import CA, CA_KEY, DAYS_DEFAULT, DAYS_MAX, SERVER, SERVER_KEY
from penstock.cli import output
from penstock.cli.exits import SERVER_ERROR, CommandError
from penstock.cli.options import AsJson, command
from penstock.clock import SystemClock
from penstock.errors import InvalidField

if TYPE_CHECKING:
    from penstock.access.certificates import Authority, Maker

app = typer.Typer(help="Self-signed TLS certificates: init, status.", no_args_is_help=True)

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


@command(app)
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="The directory for the files; it is created.")],
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name or address of the broker; repeatable. [default: this machine's]"),
    ] = None,
    client: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Also create a certificate for this client; repeatable.")
    ] = None,
    days: Annotated[
        int, typer.Option(min=1, max=DAYS_MAX, help=f"How long certificates are valid. [default: {DAYS_DEFAULT}]")
    ] = DAYS_DEFAULT,
    renew: Annotated[
        bool, typer.Option("--renew", help="Replace the certificates; the existing CA signs the new ones.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create a certificate authority (CA) and certificates for a broker and its clients.

    Keys are P-256 and readable only by you. Prints the settings to paste. Nothing is overwritten without --renew.
    """
    from penstock.access.certificates import Maker

    clients = client or []
    _check_clients(clients)
    targets = [SERVER, SERVER_KEY, *(f"{name}{suffix}" for name in clients for suffix in (".pem", ".key"))]
    if not renew:
        _refuse_overwriting(directory, [CA, CA_KEY, *targets])
    maker = Maker(SystemClock())
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = _authority(directory, maker, renew=renew)
    names = tuple(dict.fromkeys([*(host or [socket.gethostname()]), *LOCAL_NAMES]))
    _write_pair(directory, "server", maker.signed(authority, names, days))
    for name in clients:
        _write_pair(directory, name, maker.signed(authority, [name], days, is_client=True))
    _say(directory, names, clients, as_json=as_json)


@command(app)
def status(
    files: Annotated[list[Path], typer.Argument(metavar="FILES...", help="Certificate files (PEM).")],
    as_json: AsJson = False,
) -> None:
    """Show when certificates expire. The exit code is 2 if one is not valid now."""
    from penstock.access.tls import validity_of

    now = SystemClock().now()
    rows: list[dict[str, Any]] = []
    for path in files:
        try:
            validity = validity_of(path.read_bytes())
        except ValueError:
            raise CommandError(
                f"{path} contains no PEM certificate", hint="give the certificate file, not the key"
            ) from None
        rows.append(
            {
                "file": str(path),
                "valid_from": validity.start_text,
                "valid_until": validity.end_text,
                "days_left": (validity.end - now) // 86_400_000_000,
                "is_valid": validity.start <= now < validity.end,
            }
        )
    if as_json:
        output.write_json(rows)
    else:
        shown = [
            (row["file"], row["valid_until"], row["days_left"] if row["is_valid"] else "not valid") for row in rows
        ]
        output.write(output.table(("file", "valid until", "days left"), shown, text_columns=2))
    if not all(row["is_valid"] for row in rows):
        raise typer.Exit(SERVER_ERROR)


def _check_clients(names: Sequence[str]) -> None:
    for name in names:
        if not name or name in {"ca", "server"} or Path(name).name != name or name.startswith("."):
            raise InvalidField(
                f"client: {name!r} cannot be the name of a client's files",
                hint="use a name such as billing; a certificate for a URI comes from your own authority",
            )


def _refuse_overwriting(directory: Path, names: Sequence[str]) -> None:
    existing = [name for name in names if (directory / name).exists()]
    if existing:
        raise CommandError(
            f"{directory} has {', '.join(existing)} already",
            hint="replace them with --renew, which keeps the CA, or choose another directory",
        )


def _authority(directory: Path, maker: Maker, *, renew: bool) -> Authority:
    from penstock.access.certificates import certificate_pem, key_pem, read_authority

    if renew and (directory / CA).exists():
        return read_authority((directory / CA).read_bytes(), (directory / CA_KEY).read_bytes())
    authority = maker.authority(f"Penstock authority of {socket.gethostname()}")
    _write(directory / CA_KEY, key_pem(authority.key), 0o600)
    _write(directory / CA, certificate_pem(authority.certificate), 0o644)
    return authority


def _write_pair(directory: Path, name: str, pair: tuple[bytes, bytes]) -> None:
    """The key first: a broker that looks in between sees a pair that does not fit, and looks again."""
    certificate, key = pair
    _write(directory / f"{name}.key", key, 0o600)
    _write(directory / f"{name}.pem", certificate, 0o644)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a file in one step; nobody else can read a key at any moment."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    draft.replace(path)


def _say(directory: Path, names: Sequence[str], clients: Sequence[str], *, as_json: bool) -> None:
    home = directory.absolute()
    settings = {"tls_certificate": str(home / SERVER), "tls_key": str(home / SERVER_KEY)}
    if clients:
        settings["tls_client_ca"] = str(home / CA)
    pairs = {name: {"certificate": str(home / f"{name}.pem"), "key": str(home / f"{name}.key")} for name in clients}
    if as_json:
        output.write_json({"names": names, "settings": settings, "ca": str(home / CA), "clients": pairs})
        return
    output.write(f"Certificates for {escape(', '.join(names))} are in {escape(str(home))}.\n")
    output.write("  Settings of the broker:")
    for name, path in settings.items():
        output.write(f'    {name} = "{escape(path)}"')
    output.write("\n  Clients:")
    output.write(f"    export PENSTOCK_TLS_CA={escape(shlex.quote(str(home / CA)))}")
    for name, pair in pairs.items():
        output.write(
            f"    {escape(name)}: tls_certificate {escape(pair['certificate'])}, tls_key {escape(pair['key'])}"
        )
    output.write(
        f"\n  Keep {CA_KEY} away from the broker: anyone who has it can create certificates that all clients trust."
    )
