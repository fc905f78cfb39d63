"""`penstock verify`: check every checksum and account for every message."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from penstock.cli import output
from penstock.clock import SystemClock
from penstock.storage.findings import spelt

if TYPE_CHECKING:
    from penstock.verify import Account, Verification

WRONG = 2


def verify(
    directory: Annotated[Path, typer.Argument(help="The data directory; no process may have it open.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check every checksum and account for every message. Nothing is changed.

    For each group of each queue: messages = ready + leased + waiting + acked + dead + dropped, counted from the state
    of every single message; and each of them can be read in exactly one place.
    """
    found = examine(directory, is_shown=not as_json)
    if as_json:
        output.write_json(found)
    else:
        write_verification(found)
    if found.problems:
        raise typer.Exit(WRONG)


def examine(directory: Path, *, is_shown: bool) -> Verification:
    """Verify a directory under its lock."""
    from penstock.storage.doctor import require_data_directory
    from penstock.storage.readonly import ReadOnlyDisk
    from penstock.verify import verify as check

    disk = ReadOnlyDisk(directory)
    require_data_directory(disk)
    disk.lock()
    try:
        with output.progress("verifying", is_shown=is_shown) as tell:
            return check(disk, SystemClock().now(), tell)
    finally:
        disk.close()


def write_verification(found: Verification) -> None:
    """A verification for people."""
    name = escape(found.directory)
    for problem in found.problems:
        output.write(f"[red]✗[/] {escape(problem)}")
    for note in found.notes:
        output.write(f"[yellow]·[/] {escape(note)}")
    if found.problems:
        output.write(f"[red]✗[/] {name} does not add up. See what is affected with\n    penstock doctor {name}")
        return
    output.write(
        f"[green]✓[/] {name} adds up: {spelt(found.files, 'file')}, {spelt(found.frames, 'frame')}, "
        f"{spelt(found.sealed_messages, 'message')} in segments and {found.journal_messages:,} in the journal; every "
        "checksum matches, and every message is in exactly one place."
    )
    if found.accounts:
        output.write("")
        headings = ("queue", "group", "messages", "ready", "leased", "waiting", "acked", "dead", "dropped")
        output.write(output.table(headings, [_row(account) for account in found.accounts], text_columns=2))


def _row(account: Account) -> tuple[str, str, int, int, int, int, int, int, int]:
    return (
        account.queue,
        account.group,
        account.messages,
        account.ready,
        account.leased,
        account.waiting,
        account.acked,
        account.dead,
        account.dropped,
    )
