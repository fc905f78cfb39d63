"""`penstock audit`: who did what, and whether anybody has tampered with the record of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from penstock.cli import output
from penstock.cli.options import AsJson, Flags, Since, command, expanded
from penstock.cli.target import Broker
from penstock.model import AUDIT_QUEUE
from penstock.model_audit import AuditRecord, AuditVerification, verify_chain
from penstock.units import plural

app = typer.Typer(help="The audit log: list, verify.", invoke_without_command=True)

BROKEN = 2


@dataclass(frozen=True)
class RecordFlags(Flags):
    """Which records to list."""

    who: Annotated[str | None, typer.Option("--who", metavar="PRINCIPAL", help="Only records of this principal.")] = (
        None
    )
    what: Annotated[
        str | None,
        typer.Option(
            "--what", metavar="OPERATION", help="Only this operation, such as delete_queue, denied or failed_login."
        ),
    ] = None
    outcome: Annotated[
        str | None,
        typer.Option("--outcome", metavar="OUTCOME", help="Only this outcome: ok, failed, or an error code."),
    ] = None
    since: Since = None
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="COUNT", help="At most this many.")] = 50


def audit(broker: Broker, ctx: typer.Context, records: RecordFlags, as_json: AsJson = False) -> None:
    """The audit log: list, verify. Without a command: list."""
    if ctx.invoked_subcommand is None:
        list_(broker, records, as_json)


app.callback()(expanded(audit))


@command(app, "list")
def list_(broker: Broker, records: RecordFlags, as_json: AsJson = False) -> None:
    """List who did what, newest first."""
    with broker.opened() as ps:
        listed = ps.audit.list(**asdict(records))
    headings = ("at", "who", "from", "what", "on", "outcome", "count")
    nothing = ("no records", "a broker with access control writes them; so does audit = 'on'")
    output.write_list(listed, headings, _row, as_json=as_json, nothing=nothing, text_columns=6)


def _row(record: AuditRecord) -> tuple[str, str, str, str, str, str, int]:
    whence = " ".join(filter(None, (record.address, record.protocol)))
    at = record.at[:19].replace("T", " ")
    return at, record.who, whence, record.what, record.queue or _target(record), record.outcome, record.count


def _target(record: AuditRecord) -> str:
    """What an operation without a queue was about: its first argument, in the order of its declaration.

    Records are stored with sorted names, and what is not an operation has no declaration.
    """
    from penstock.operations.base import TABLE

    operation = TABLE.get(record.what)
    names = (*(operation.__struct_fields__ if operation else ()), *record.arguments)
    return next((str(record.arguments[name]) for name in names if name in record.arguments), "")


@command(app)
def verify(
    broker: Broker,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Read this data directory instead of asking a broker.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify the audit log. The exit code is 2 if a record was changed, removed or moved."""
    if data is not None:
        verification = verified(data)
    else:
        with broker.opened() as ps:
            verification = ps.audit.verify()
    if as_json:
        output.write_json(verification)
    else:
        _write(verification)
    if verification.problems:
        raise typer.Exit(BROKEN)


def verified(directory: Path) -> AuditVerification:
    """Check the audit log of a data directory, which may be in use. Nothing is changed."""
    from penstock.history.history import open_history
    from penstock.shard.audit import read_anchor
    from penstock.storage.disk import ReadOnlyDisk

    history = open_history(directory)
    try:
        moment = history.look()
        anchor = read_anchor(ReadOnlyDisk(directory))
        known = moment.queues.get(AUDIT_QUEUE)
        extents = [(view.start, view.end) for view in known.partitions.values()] if known else [(0, 0)]
        start, end = extents[0]
        ranges = moment.everything(AUDIT_QUEUE) if known else []
        batches = history.read(history.plan(moment, ranges), ("offset", "payload"))
        first = anchor.first_of(start)
        return verify_chain((row for batch in batches for row in _rows(batch) if row[0] >= first), first, end, anchor)
    finally:
        history.close()


def _rows(batch: Any) -> Iterator[tuple[int, bytes]]:
    return zip(batch.column("offset").to_pylist(), batch.column("payload").to_pylist(), strict=True)


def _write(verification: AuditVerification) -> None:
    for problem in verification.problems:
        output.write(f"[red]✗[/] {escape(problem)}")
    for name, record in (("first", verification.first), ("last", verification.last)):
        if record is not None:
            output.write(f"{name:<6} {record.sequence:>8,}  {escape(record.at)}  {escape(record.who)}  {record.what}")
    output.write(f"head   {verification.head}")
    if verification.problems:
        output.write(f"[red]✗[/] the audit log was tampered with ({plural(verification.count, 'record')})")
    else:
        output.write(f"[green]✓[/] the audit log is intact: {plural(verification.count, 'record')}")
