"""`penstock groups` and `penstock seek`: who reads a queue, and from where."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from penstock.cli import human, output
from penstock.cli.options import AsJson, GroupName, Partition, QueueName, Yes, command
from penstock.cli.target import Broker

app = typer.Typer(help="Consumer groups: list, members, create, delete.", no_args_is_help=True)

POSITION_HELP = "earliest, latest, an offset, or a time; -1h is an hour ago."


@command(app, "list")
def list_(
    broker: Broker,
    queue: QueueName,
    partitions: Annotated[bool, typer.Option("--partitions", help="Show each partition on its own line.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the groups of a queue and how far behind they are."""
    with broker.opened() as ps:
        stats, lags = ps.queue(queue).stats().groups, ps.queue(queue).groups()
    if as_json:
        output.write_json(
            [
                {"name": name, "lag": stats[name].lag, "partitions": [row._asdict() for row in lags[name]]}
                for name in stats
            ]
        )
    elif partitions:
        headings: tuple[str, ...] = ("group", "partition", "start", "committed", "end", "lag")
        rows: list[tuple[Any, ...]] = [(name, row.partition, *row[1:]) for name in stats for row in lags[name]]
        output.write(output.table(headings, rows, text_columns=2))
    else:
        headings = ("group", "lag", "ready", "leased", "waiting", "dead", "oldest")
        rows = [
            (
                group.name,
                group.lag,
                group.ready,
                group.leased,
                group.waiting,
                group.dead,
                human.age(group.oldest_unsettled_at),
            )
            for group in stats.values()
        ]
        output.write(output.table(headings, rows))


@command(app)
def members(broker: Broker, queue: QueueName, group: GroupName, as_json: AsJson = False) -> None:
    """List the members of a group and their partitions."""
    with broker.opened() as ps:
        joined = ps.queue(queue).members(group)
    output.write_list(
        joined,
        ("member", "last seen", "partitions"),
        lambda member: (member.member, human.age(member.last_heartbeat_at), ", ".join(member.partitions)),
        as_json=as_json,
        nothing=(f"group {group!r} of {queue!r} has no members", "only consumers that subscribe are members"),
        text_columns=1,
        has_excerpt=True,
    )


@command(app)
def create(
    broker: Broker,
    queue: QueueName,
    group: GroupName,
    start: Annotated[
        Any, typer.Option("--start", parser=human.position, metavar="POSITION", help=POSITION_HELP)
    ] = "earliest",
    observes: Annotated[
        bool, typer.Option("--observes", help="Only track a read position: nothing is retained or delivered for it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create a group: an independent reader of the queue."""
    with broker.opened() as ps:
        ps.queue(queue).create_group(group, start, observes=observes)
    output.done(f"group {group} of {queue} exists", {"queue": queue, "name": group}, as_json=as_json)


@command(app)
def delete(
    broker: Broker,
    queue: QueueName,
    group: GroupName,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a group and its position. The messages stay."""
    with broker.opened() as ps:
        output.confirm(f"Delete group {group} of {queue}?", yes=yes)
        ps.queue(queue).delete_group(group)
    output.done(
        f"group {group} of {queue} is deleted", {"queue": queue, "name": group, "status": "deleted"}, as_json=as_json
    )


def seek(
    broker: Broker,
    queue: QueueName,
    group: GroupName,
    to: Annotated[Any, typer.Argument(parser=human.position, metavar="POSITION", help=POSITION_HELP)],
    partition: Partition = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would do.")] = False,
    as_json: AsJson = False,
) -> None:
    """Move a group to another position; its leases end.

    A time before now needs `--` before it: `penstock seek orders billing -- -1h`
    """
    with broker.opened() as ps:
        if dry_run:
            preview = ps.queue(queue).preview_seek(group, to, partition)
            effects = f"redeliver {preview.redelivered:,}, skip {preview.skipped:,}, end leases of {preview.leased:,}"
            output.done(f"would {effects}", msgspec.to_builtins(preview), as_json=as_json)
            return
        ps.queue(queue).seek(group, to, partition)
        lags = ps.queue(queue).groups()[group]
    lag = sum(row.lag for row in lags)
    value = {"queue": queue, "name": group, "lag": lag, "partitions": [row._asdict() for row in lags]}
    output.done(f"group {group} of {queue} has {lag:,} messages ahead of it", value, as_json=as_json)
