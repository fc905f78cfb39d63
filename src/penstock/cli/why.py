"""`penstock why`: why a message, a task or a whole queue waits; and the keys and the account of a queue."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.markup import escape

from penstock.cli import human, output
from penstock.cli.options import AsJson, QueueName
from penstock.cli.target import Broker
from penstock.model import DEFAULT_GROUP, MessageId, Reason

if TYPE_CHECKING:
    from penstock.model_backlog import GroupAccount, GroupWait, KeyBacklog, TaskWait

ERROR_CHARACTERS: Final = 200
_TASK_ID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_HEADINGS: Final = ("group", "code", "why", "last error")


def why(
    broker: Broker,
    what: Annotated[
        str, typer.Argument(metavar="ID|QUEUE", help="A message id (queue/partition/offset), a task id or a queue.")
    ],
    group: Annotated[str | None, typer.Option("--group", "-g", help="For a queue: only this group.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="For a queue: at most this many reasons per group.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Explain why a message is not delivered, a task does not run, or the messages of a queue wait."""
    if "/" in what:
        _message(broker, MessageId.parse(what), as_json=as_json)
    elif _TASK_ID.fullmatch(what):
        _task(broker, what, as_json=as_json)
    else:
        _queue(broker, what, group, limit, as_json=as_json)


def _message(broker: Broker, id: MessageId, *, as_json: bool) -> None:
    with broker.opened() as ps:
        reasons = ps.queue(id.queue).why(id)
    if as_json:
        output.write_json([reason._asdict() for reason in reasons])
    else:
        output.write(output.table(_HEADINGS, list(map(_row, reasons)), text_columns=4))


def _row(reason: Reason) -> tuple[str, ...]:
    error = human.excerpt(reason.error.encode(errors="replace"), ERROR_CHARACTERS) or human.EMPTY
    return reason.group, reason.code, reason.text, error


def _task(broker: Broker, task_id: str, *, as_json: bool) -> None:
    with broker.opened() as ps:
        found = ps.why_task(task_id)
    if as_json:
        output.write_json(_task_json(found))
        return
    output.write(output.table(_HEADINGS, list(map(_row, found.reasons)), text_columns=4))
    if found.parents:
        rows = [(parent.task_id, parent.task_type, parent.state) for parent in found.parents]
        output.write("")
        output.write(output.table(("waits for", "type", "status"), rows, text_columns=3))


def _task_json(found: TaskWait) -> dict[str, Any]:
    fields = msgspec.structs.asdict(found)
    return {**fields, "reasons": [reason._asdict() for reason in found.reasons]}


def _queue(broker: Broker, name: str, group: str | None, limit: int, *, as_json: bool) -> None:
    with broker.opened() as ps:
        found = ps.queue(name).why_waiting(group, limit)
    if as_json:
        output.write_json(found)
        return
    for index, waits in enumerate(found.groups):
        if index:
            output.write("")
        _write_group(waits)


def _write_group(waits: GroupWait) -> None:
    eta = "" if waits.eta_seconds is None else f", done in {human.duration(waits.eta_seconds)} at this rate"
    rate = "" if waits.settled_per_second is None else f", {human.rate(waits.settled_per_second)}/s settled{eta}"
    output.write(f"[bold]{escape(waits.group)}[/]: {waits.open:,} open, {waits.leased:,} leased{rate}")
    if not waits.reasons:
        output.write("[dim]nothing waits[/]")
        return
    rows = [(reason.code, reason.count, reason.text) for reason in waits.reasons]
    output.write(output.table(("code", "messages", "why"), rows, text_columns=1, has_excerpt=True))
    if not waits.is_complete:
        output.write(f"[dim]only the oldest {waits.examined:,} messages were examined[/]")


def keys(
    broker: Broker,
    queue: QueueName,
    group: Annotated[str, typer.Option("--group", "-g", help="Whose backlog.")] = DEFAULT_GROUP,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Only this key.")] = None,
    prefix: Annotated[
        str, typer.Option("--prefix", help="Keys with this prefix, among the 1,000 with the largest backlog.")
    ] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most this many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List keys with unsettled messages: backlog, messages in flight and who holds them, largest first."""
    with broker.opened() as ps:
        page = ps.queue(queue).keys(group, key=key, prefix=prefix, limit=limit)
    if as_json:
        output.write_json(page)
        return
    if not page.keys:
        output.write(f"[dim]no key of {escape(queue)} has messages that are not settled[/]")
        return
    headings = ("key", "backlog", "in flight", "waiting", "oldest", "held up", "held by")
    output.write(output.table(headings, list(map(_key_row, page.keys)), text_columns=1, has_excerpt=True))
    if len(page.keys) < page.distinct:
        output.write(f"[dim]{len(page.keys):,} of {page.distinct:,} keys[/]")


def _key_row(row: KeyBacklog) -> tuple[Any, ...]:
    most = "" if row.in_flight_max is None else f" of {row.in_flight_max:,}"
    holders = ", ".join(sorted({holder.consumer or "unnamed" for holder in row.holders}))
    return (
        *(row.key, row.backlog, f"{row.in_flight:,}{most}", row.waiting, human.age(row.oldest_at)),
        *(row.code or human.EMPTY, holders or human.EMPTY),
    )


def account(broker: Broker, queue: QueueName, as_json: AsJson = False) -> None:
    """Check that every message is accounted for: accepted = acked + dead + dropped + open, in every group."""
    with broker.opened() as ps:
        found = ps.queue(queue).account()
    if as_json:
        groups = [{**msgspec.structs.asdict(group), "difference": group.difference} for group in found.groups]
        output.write_json({**msgspec.structs.asdict(found), "groups": groups})
    else:
        headings = ("group", "accepted", "acked", "dead", "dropped", "open", "missing")
        output.write(output.table(headings, list(map(_account_row, found.groups)), text_columns=1))
    if not found.is_balanced:
        raise typer.Exit(1)


def _account_row(row: GroupAccount) -> tuple[Any, ...]:
    return row.group, row.accepted, row.acked, row.dead, row.dropped, row.open, row.difference
