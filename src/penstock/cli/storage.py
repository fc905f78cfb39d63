"""`penstock doctor` and `penstock verify`: is a data directory sound, and what is affected if not?"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.markup import escape

from penstock.cli import output
from penstock.cli.exits import SERVER_ERROR, CommandError
from penstock.cli.options import AsJson
from penstock.clock import SystemClock
from penstock.model import is_store_url
from penstock.units import plural

if TYPE_CHECKING:
    from penstock.repair.directory import Report
    from penstock.repair.salvage import Loss
    from penstock.storage.disk import Disk
    from penstock.storage.doctor import Finding
    from penstock.verify import Verification


Directory = Annotated[
    str, typer.Argument(help="The data directory, or the URL of a PostgreSQL store; no process may have it open.")
]
ROLE: Final = "penstock doctor"


@contextmanager
def looked_at(location: str) -> Iterator[Disk]:
    """The files of a directory, which is locked, or of a store that nobody owns. Nothing can be changed."""
    from penstock.storage.disk import ReadOnlyDisk
    from penstock.storage.doctor import require_data_directory

    if is_store_url(location):
        from penstock.postgres.outside import unowned

        with unowned(location, ROLE) as store:
            yield store
        return
    disk = ReadOnlyDisk(location)
    require_data_directory(disk)
    disk.lock()
    try:
        yield disk
    finally:
        disk.close()


def doctor(
    directory: Directory,
    repair: Annotated[bool, typer.Option("--repair", help="Skip damaged parts, keeping a copy of them.")] = False,
    into: Annotated[
        Path | None,
        typer.Option("--into", metavar="DIR", help="With --repair of a PostgreSQL store: the new directory."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Examine a data directory: every journal frame, checkpoint part and segment file.

    Without --repair nothing is changed. With it, damaged parts are copied to `damaged/` in the directory, skipped, and
    named: which messages of which queues are lost. A store in PostgreSQL stays as it is: what can be read of it is
    repaired in a new directory.
    """
    report = examine(directory, repair=repair, is_shown=not as_json, into=into)
    if as_json:
        output.write_json(report)
    else:
        write_report(report)
    if not report.is_sound and not report.is_repaired:
        raise typer.Exit(SERVER_ERROR)


def examine(directory: Path | str, *, repair: bool, is_shown: bool, into: Path | None = None) -> Report:
    """Look at a directory under its lock, or at a store that nobody owns, and repair it if requested."""
    from penstock.repair.directory import diagnose

    if into is not None and not (repair and is_store_url(str(directory))):
        raise CommandError("--into is for --repair of a store in PostgreSQL", hint="leave it out")
    if repair and is_store_url(str(directory)):
        return _repaired_elsewhere(str(directory), into, is_shown=is_shown)
    if repair:
        return _repaired(directory, is_shown=is_shown)
    with looked_at(str(directory)) as disk, output.progress("examining", is_shown=is_shown) as on_progress:
        return diagnose(disk, SystemClock().now(), on_progress).report()


def _repaired_elsewhere(url: str, into: Path | None, *, is_shown: bool) -> Report:
    """Copy a store to a new directory and repair that. The store stays as it is."""
    from penstock.postgres.outside import copy_to, unowned
    from penstock.storage.disk import RealDisk

    if into is None:
        raise CommandError(
            "a store in PostgreSQL is not repaired in place",
            hint="give a new directory with --into DIR: what can be read is repaired there",
        )
    if into.exists() and any(into.iterdir()):
        raise CommandError(f"--into: {into} is not empty", hint="choose a directory that does not exist")
    with unowned(url, ROLE) as store, output.progress("copying", is_shown=is_shown) as on_progress:
        disk = RealDisk(into)
        disk.make_directory("")
        disk.lock()
        try:
            copy_to(store, disk, on_progress)
        finally:
            disk.close()
    return _repaired(into, is_shown=is_shown)


def _repaired(directory: Path | str, *, is_shown: bool) -> Report:
    from penstock.access.encryption import KeyRing, wrapper_of
    from penstock.repair.directory import diagnose
    from penstock.repair.directory import repair as repair_directory
    from penstock.storage.disk import RealDisk
    from penstock.storage.doctor import require_data_directory

    disk = RealDisk(directory)
    require_data_directory(disk)
    clock = SystemClock()
    disk.lock()
    try:
        with output.progress("examining", is_shown=is_shown) as on_progress:
            wrapper = wrapper_of()
            keys = None if wrapper is None else KeyRing(disk, wrapper, clock)
            diagnosis = diagnose(disk, clock.now(), on_progress, keys)
        return diagnosis.report() if diagnosis.is_sound else repair_directory(disk, diagnosis, clock, random.Random())
    finally:
        disk.close()


def write_report(report: Report) -> None:
    """A report for people."""
    output.write(_headline(report))
    for finding in report.findings:
        _write_finding(finding)
    certain = [loss for loss in report.losses if loss.is_certain]
    if certain:
        output.write("\n[bold]Lost[/]: no file holds these messages any more.")
        headings = ("queue", "partition", "offsets", "not settled yet by", "messages")
        output.write(output.table(headings, [_loss_row(loss) for loss in certain], text_columns=4))
    _write_passed_over([loss for loss in report.losses if not loss.is_certain])
    for note in report.notes:
        output.write(f"[yellow]·[/] {escape(note)}")
    output.write(_conclusion(report))


def _headline(report: Report) -> str:
    name = escape(report.directory)
    if report.is_sound:
        return f"[green]✓[/] {name} is intact: {_checked(report)}."
    wrong = sum(not finding.harmless for finding in report.findings)
    lost = sum(loss.end_offset - loss.first_offset for loss in report.losses if loss.is_certain)
    what = f"{plural(wrong, 'thing')} {'is' if wrong == 1 else 'are'} wrong"
    losing = f"{plural(lost, 'message')} {'is' if lost == 1 else 'are'} lost" if lost else "no message is lost"
    return f"[red]✗[/] {name}: {what}, {losing}. Examined: {_checked(report)}."


def _checked(report: Report) -> str:
    checked = report.checked
    return (
        f"{plural(checked.journal_files, 'journal file')} with {plural(checked.frames, 'frame')}, "
        f"{plural(checked.checkpoint_parts, 'checkpoint part')}, {plural(checked.segment_files, 'segment file')} with "
        f"{plural(checked.sealed_messages, 'message')}"
    )


def _write_finding(finding: Finding) -> None:
    mark = "[yellow]·[/]" if finding.harmless else "[red]✗[/]"
    where = "" if finding.position is None else f" at position {finding.position:,}"
    output.write(f"{mark} [bold]{escape(finding.file)}[/]{where}\n    {escape(finding.what)}")


def _loss_row(loss: Loss) -> tuple[str, str, str, str, int]:
    last = loss.end_offset - 1
    offsets = f"{loss.first_offset}" if loss.first_offset == last else f"{loss.first_offset} to {last}"
    groups = ", ".join(f"{name} ({count:,})" for name, count in loss.unsettled.items())
    return loss.queue, loss.partition, offsets, groups or "none: all groups had it", loss.end_offset - loss.first_offset


def _write_passed_over(losses: list[Loss]) -> None:
    if not losses:
        return
    queues = sorted({loss.queue for loss in losses})
    output.write(
        f"[yellow]·[/] in {plural(len(losses), 'partition')} of {escape(', '.join(queues))} it is unknown whether "
        "messages at the end are lost; offsets there are passed over, so that no id is ever used twice"
    )


def _conclusion(report: Report) -> str:
    if report.is_repaired:
        where = escape(f"{report.directory}/{report.kept_in}")
        return (
            f"\n[green]✓[/] repaired: the directory opens again. Copies of all that was replaced, and this report, are "
            f"in {where}; remove it when you no longer need it."
        )
    if report.is_sound:
        return ""
    return (
        "\nNothing was changed. Take a copy of the directory if you can, then skip what is damaged with\n"
        f"    penstock doctor {escape(report.directory)} --repair"
    )


def verify(directory: Directory, as_json: AsJson = False) -> None:
    """Check every checksum and account for every message. Nothing is changed.

    For each group of each queue: messages = ready + leased + waiting + acked + dead + dropped, counted from the state
    of every single message; and each of them can be read in exactly one place.
    """
    verification = verified(directory, is_shown=not as_json)
    if as_json:
        output.write_json(verification)
    else:
        write_verification(verification)
    if verification.problems:
        raise typer.Exit(SERVER_ERROR)


def verified(directory: Path | str, *, is_shown: bool) -> Verification:
    """Verify a directory under its lock, or a store that nobody owns."""
    from penstock.verify import verify as check

    with looked_at(str(directory)) as disk, output.progress("verifying", is_shown=is_shown) as on_progress:
        return check(disk, SystemClock().now(), on_progress)


def write_verification(verification: Verification) -> None:
    """A verification for people."""
    name = escape(verification.directory)
    for problem in verification.problems:
        output.write(f"[red]✗[/] {escape(problem)}")
    for note in verification.notes:
        output.write(f"[yellow]·[/] {escape(note)}")
    if verification.problems:
        output.write(f"[red]✗[/] {name} does not add up. See what is affected with\n    penstock doctor {name}")
        return
    output.write(
        f"[green]✓[/] {name} adds up: {plural(verification.files, 'file')}, {plural(verification.frames, 'frame')}, "
        f"{plural(verification.sealed_messages, 'message')} in segments and {verification.journal_messages:,} in the "
        "journal; every checksum matches, and every message is in exactly one place."
    )
    if verification.accounts:
        output.write("")
        headings = ("queue", "group", "messages", "ready", "leased", "waiting", "acked", "dead", "dropped")
        rows = [[getattr(account, name) for name in headings] for account in verification.accounts]
        output.write(output.table(headings, rows, text_columns=2))
