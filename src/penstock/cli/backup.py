"""`penstock backup` and `penstock restore`.

`penstock backup PLACE` is short for `penstock backup create PLACE`; a directory that is called like a command is spelt
`./list`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.markup import escape
from typer.core import TyperGroup

from penstock.cli import human, output
from penstock.cli.exits import SERVER_ERROR, CommandError
from penstock.cli.options import AsJson, command
from penstock.cli.target import Broker
from penstock.clock import SystemClock
from penstock.units import plural

if TYPE_CHECKING:
    from penstock.backup import BackupSet, Moment
    from penstock.backup.destinations import Destination

PASSPHRASE: Final = "PENSTOCK_BACKUP_PASSPHRASE"  # noqa: S105 - its name

Place = Annotated[
    str, typer.Argument(metavar="PLACE", help="The backup set: a directory, or a URL such as s3://bucket/path.")
]
WithAccess = Annotated[
    bool,
    typer.Option(
        "--with-access", help=f"Include keys and users, encrypted. The passphrase comes from {PASSPHRASE} or a prompt."
    ),
]


class _Shortened(TyperGroup):
    """A word that names no command is a place."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = [word for word in args if not word.startswith("-")]
        if words and words[0] not in self.commands and not {"-h", "--help"}.intersection(args[: args.index(words[0])]):
            args = ["create", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    help="Backups: create (or just a place), list, verify, prune.",
    no_args_is_help=True,
    cls=_Shortened,
)


@command(app)
def create(
    broker: Broker,
    place: Place,
    keep: Annotated[
        int | None, typer.Option("--keep", min=1, help="Afterwards remove all moments but this many of the newest.")
    ] = None,
    with_access: WithAccess = False,
    as_json: AsJson = False,
) -> None:
    """Back up a running broker, or a data directory that nobody has open (--url DIR). Pushes continue.

    It contains everything confirmed so far. Files already in the set are not copied again; where the set is on the
    same file system, hard links take no space.
    """
    passphrase = _passphrase(is_new=True) if with_access else ""
    if broker.is_directory:
        moment = _back_up_directory(Path(broker.readable_address()).expanduser(), place, keep, passphrase, not as_json)
        id, sequence = moment.id, moment.sequence
    else:
        with broker.opened() as ps, output.progress("backing up", is_shown=not as_json) as tell:
            state = ps.backup(_destination(broker.address, place), keep=keep, passphrase=passphrase, on_progress=tell)
        id, sequence = state.moment, state.sequence
    output.done(
        f"{place} now has the moment {id}", {"place": place, "moment": id, "sequence": sequence}, as_json=as_json
    )


def _destination(address: str, place: str) -> str:
    """A path as the broker understands it: on this machine it is made absolute, elsewhere it must be."""
    from penstock.access.discovery import is_loopback
    from penstock.remote.settings import addresses

    if "://" in place:
        return place
    is_here = all(url.host == "localhost" or is_loopback(url.host) for url in addresses(address))
    return os.path.abspath(os.path.expanduser(place)) if is_here else place


def _back_up_directory(directory: Path, place: str, keep: int | None, passphrase: str, is_shown: bool) -> Moment:
    from penstock.backup import BackupSet, open_target, snapshot_of
    from penstock.backup.access_bundle import pack_access
    from penstock.storage.disk import ReadOnlyDisk
    from penstock.storage.doctor import require_data_directory

    disk = ReadOnlyDisk(directory)
    require_data_directory(disk)
    backup_set = BackupSet(open_target(place))
    if Path(place).absolute().is_relative_to(directory.absolute()):
        raise CommandError(f"{place} is in the data directory", hint="choose a place outside")
    disk.lock()
    try:
        with backup_set.changing(), output.progress("backing up", is_shown=is_shown) as tell:
            access = pack_access(disk, passphrase) if passphrase else None
            moment = backup_set.add(snapshot_of(disk, SystemClock().now()), access=access, on_progress=tell)
            backup_set.prune(keep)
            return moment
    finally:
        disk.close()


@command(app, "list")
def list_(place: Place, as_json: AsJson = False) -> None:
    """List the moments of a backup set, oldest first."""
    backup_set = _opened(place)
    moments = [backup_set.moment(id) for id in backup_set.moments()]
    if as_json:
        output.write_json([_as_json(moment) for moment in moments])
    elif moments:
        seen: set[str] = set()
        rows = []
        for moment in moments:
            new = sum(file.bytes for file in moment.files if file.stored not in seen)
            seen |= {file.stored for file in moment.files}
            rows.append((moment.id, moment.incarnation[:8], human.size(moment.bytes), human.size(new), moment.sequence))
        output.write(output.table(("moment", "incarnation", "size", "new", "sequence"), rows, text_columns=4))
    else:
        output.write_nothing(f"no moments in {place}", "'penstock backup' takes one")


@command(app)
def verify(place: Place, as_json: AsJson = False) -> None:
    """Check every file of a backup set against its checksum."""
    backup_set = _opened(place)
    with output.progress("verifying", is_shown=not as_json) as tell:
        problems = backup_set.verify(tell)
    if as_json:
        output.write_json({"place": place, "moments": backup_set.moments(), "problems": problems})
    else:
        for problem in problems:
            output.write(f"[red]✗[/] {escape(problem)}")
        if not problems:
            output.write(f"[green]✓[/] {escape(place)} is intact: {plural(len(backup_set.moments()), 'moment')}")
    if problems:
        raise typer.Exit(SERVER_ERROR)


@command(app)
def prune(
    place: Place,
    keep: Annotated[int, typer.Option("--keep", min=1, help="How many of the newest moments to keep.")],
    as_json: AsJson = False,
) -> None:
    """Remove old moments, and the files that no moment needs."""
    backup_set = _opened(place)
    with backup_set.changing():
        gone = backup_set.prune(keep)
    left = len(backup_set.moments())
    output.done(f"removed {plural(len(gone), 'moment')}, {left} left", {"removed": gone, "left": left}, as_json=as_json)


def restore(
    source: Annotated[str, typer.Argument(metavar="PLACE", help="The backup set: a directory or a URL.")],
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="The new data directory; it must be empty.")
    ] = None,
    store: Annotated[
        str,
        typer.Option(
            "--store", metavar="URL", help="An empty PostgreSQL store instead; the password comes from PGPASSFILE."
        ),
    ] = "",
    at: Annotated[
        str | None, typer.Option("--at", metavar="MOMENT", help="A moment, or a time: the last moment before it.")
    ] = None,
    with_access: WithAccess = False,
    as_json: AsJson = False,
) -> None:
    """Restore a backup to a new data directory or PostgreSQL store, and verify it.

    The result is a new incarnation: streaming queries and archives of the old data refuse to continue on it.
    """
    from penstock.backup import restore as restore_moment
    from penstock.backup.moments import is_moment_id
    from penstock.cli.storage import verified, write_verification

    if (data is None) == (not store):
        raise CommandError("restore needs either --data DIR or --store URL", hint="such as --data ./restored")
    backup_set = _opened(source)
    moment_at = at if at is None or is_moment_id(at) else human.instant(at)
    passphrase = _passphrase(is_new=False) if with_access else ""
    with output.progress("restoring", is_shown=not as_json) as tell:
        destination = _destination_of(data, store)
        moment = restore_moment(backup_set, destination, at=moment_at, passphrase=passphrase, on_progress=tell)
    where = store or str(data)
    found = verified(where, is_shown=not as_json)
    if as_json:
        output.write_json({"data": where, **_as_json(moment), "problems": found.problems})
    else:
        output.write(f"[green]✓[/] {escape(where)} holds the moment {moment.id}")
        write_verification(found)
    if found.problems:
        raise typer.Exit(SERVER_ERROR)


def _destination_of(data: Path | None, store: str) -> Destination:
    from penstock.backup import DirectoryDestination, StoreDestination
    from penstock.storage.disk import RealDisk

    if data is not None:
        return DirectoryDestination(RealDisk(data))
    from penstock.postgres.store import PostgresStore
    from penstock.postgres.target import parse_store_url

    if parse_store_url(store, None).has_password:
        raise CommandError(
            "--store: a password in the arguments of a process is visible to every user of this machine",
            hint="put it in PGPASSFILE",
        )
    return StoreDestination(PostgresStore(store))


def _opened(place: str) -> BackupSet:
    from penstock.backup import BackupSet, open_target

    return BackupSet(open_target(place))


def _as_json(moment: Moment) -> dict[str, Any]:
    return {
        "moment": moment.id,
        "taken_at": moment.taken_at,
        "incarnation": moment.incarnation,
        "sequence": moment.sequence,
        "files": len(moment.files),
        "bytes": moment.bytes,
    }


def _passphrase(*, is_new: bool) -> str:
    """From the environment, or typed."""
    found = os.environ.get(PASSPHRASE, "")
    if found:
        return found
    if not sys.stdin.isatty():
        raise CommandError("--with-access needs a passphrase", hint=f"set {PASSPHRASE}")
    typed: str = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=is_new, err=True)
    return typed
