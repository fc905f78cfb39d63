"""`penstock queues` and `penstock stats`: queues, their options and their statistics."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer
from rich.markup import escape

from penstock.cli import human, output, shapes
from penstock.cli.options import DEFAULTS, AsJson, QueueFlags, QueueName, Yes, command, complete_queue, expanded, shown
from penstock.cli.target import Broker
from penstock.errors import QueueNotFound
from penstock.model import DLQ_SUFFIX, QueueStats
from penstock.units import plural

if TYPE_CHECKING:
    from penstock import Penstock
    from penstock.replies import LeaseView


ACCOUNT = ("group", "messages", "ready", "leased", "waiting", "acked", "dead", "dropped", "lag", "oldest")


def stats(
    broker: Broker,
    queue: Annotated[
        str | None,
        typer.Argument(metavar="[QUEUE]", help="The name of the queue. [default: all]", autocompletion=complete_queue),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count ready, leased, waiting, acked, dead and dropped messages, by group of a queue or for all queues."""
    with broker.opened() as ps:
        sample = sampled(ps, with_dead_letters=True) if queue is None else [ps.queue(queue).stats()]
    if queue is not None:
        if as_json:
            output.write_json(shapes.queue(sample[0]))
        else:
            write_queue(sample[0])
    elif as_json:
        output.write_json({"totals": totals(sample), "queues": [shapes.queue(queue_stats) for queue_stats in sample]})
    else:
        _write_all(sample)


def sampled(ps: Penstock, *, with_dead_letters: bool) -> list[QueueStats]:
    """Every queue's account; a queue that goes meanwhile is left out."""
    sample = []
    for name in ps.queues():
        if with_dead_letters or not name.endswith(DLQ_SUFFIX):
            try:
                sample.append(ps.queue(name).stats())
            except QueueNotFound:
                continue
    return sample


def totals(sample: list[QueueStats]) -> dict[str, int]:
    """Sums over queues; of groups, those that are called default."""
    names = ("ready", "leased", "waiting", "acked", "dead")
    live = [queue for queue in sample if not queue.name.endswith(DLQ_SUFFIX)]
    return {
        "queues": len(live),
        "messages": sum(queue.messages for queue in sample),
        "bytes_stored": sum(queue.bytes_stored for queue in sample),
        **{name: sum(getattr(queue, name) for queue in live) for name in names},
    }


def write_queue(queue: QueueStats) -> None:
    """A queue for people."""
    about = [
        plural(queue.messages, "message"),
        plural(queue.partitions, "partition"),
        f"{human.size(queue.bytes_stored)} stored",
        *(["[yellow]paused[/]"] if queue.paused else []),
    ]
    output.write(f"[bold]{escape(queue.name)}[/]: {', '.join(about)}\n")
    output.write(output.table(ACCOUNT, [_group_row(group) for group in queue.groups.values()]))


def _group_row(group: Any) -> tuple[Any, ...]:
    counts = (getattr(group, name) for name in ACCOUNT[1:-1])
    return (group.name, *counts, human.age(group.oldest_unsettled_at))


def _write_all(sample: list[QueueStats]) -> None:
    sums = totals(sample)
    rows = [(name, human.size(count) if name == "bytes_stored" else count) for name, count in sums.items()]
    output.write(output.table(("", "total"), [(name.replace("_", " "), value) for name, value in rows]))


app = typer.Typer(help="Queues: list, show, create, update, delete, pause, resume, purge.", invoke_without_command=True)

HEADINGS = ("queue", "groups", "ready", "leased", "waiting", "dead", "lag", "oldest", "stored", "state")
All = Annotated[bool, typer.Option("--all", "-a", help="Include dead-letter queues.")]


def queues(broker: Broker, ctx: typer.Context, everything: All = False, as_json: AsJson = False) -> None:
    """Queues: list, show, create, update, delete, pause, resume, purge. Without a command: list."""
    if ctx.invoked_subcommand is None:
        list_(broker, everything, as_json)


app.callback()(expanded(queues))


@command(app, "list")
def list_(broker: Broker, everything: All = False, as_json: AsJson = False) -> None:
    """List queues. Counts are of the default group; lag and oldest of the group furthest behind."""
    with broker.opened() as ps:
        sample = sampled(ps, with_dead_letters=everything)
    if as_json:
        output.write_json([shapes.queue(queue) for queue in sample])
    elif sample:
        now = datetime.now(UTC)
        output.write(output.table(HEADINGS, [_row(queue, now) for queue in sample]))
    else:
        output.write_nothing("no queues yet", "a push creates one, or 'penstock queues create'")


@command(app)
def show(broker: Broker, queue: QueueName, as_json: AsJson = False) -> None:
    """Show the counts and options of a queue."""
    with broker.opened() as ps:
        found, options = ps.queue(queue).stats(), msgspec.structs.asdict(ps.queue(queue).options())
    if as_json:
        output.write_json({**shapes.queue(found), "options": options})
        return
    write_queue(found)
    changed = {name: value for name, value in options.items() if value != DEFAULTS[name]}
    output.write("")
    if changed:
        rows = [(name, shown(name, value), shown(name, DEFAULTS[name])) for name, value in changed.items()]
        output.write(output.table(("option", "value", "default"), rows, text_columns=3))
    else:
        output.write("[dim]all options have their defaults[/]")


@command(app)
def leases(
    broker: Broker,
    queue: QueueName,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="Only leases of this group. [default: all]")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most this many, oldest first.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List leases: who holds them, since when, until when, and how many messages."""
    with broker.opened() as ps:
        held = ps.queue(queue).leases(group, limit)
    headings = ("lease", "group", "consumer", "messages", "held for", "expires in", "partitions")
    nothing = (f"no leases in {queue!r}", "'penstock stats' shows how many messages are ready")
    output.write_list(held, headings, _lease_row, as_json=as_json, nothing=nothing, text_columns=3, has_excerpt=True)


def _lease_row(lease: LeaseView) -> tuple[Any, ...]:
    return (
        *(lease.lease_id, lease.group, lease.consumer or human.EMPTY, lease.messages),
        *(human.age(lease.leased_at), human.until(lease.expires_at), ", ".join(lease.partitions)),
    )


@command(app)
def create(
    broker: Broker,
    options: QueueFlags,
    queue: QueueName,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Succeed if it exists with the same options.")] = False,
    as_json: AsJson = False,
) -> None:
    """Create a queue. Options that are not given have their defaults."""
    with broker.opened(create=True) as ps:
        existed = exist_ok and queue in ps.queues()
        ps.create_queue(queue, exist_ok=exist_ok, **options.values)
        actual = msgspec.structs.asdict(ps.queue(queue).options())
    text = f"queue {queue} exists already; nothing changed" if existed else f"queue {queue} is created"
    output.done(text, {"name": queue, "options": actual}, as_json=as_json)


@command(app)
def update(broker: Broker, options: QueueFlags, queue: QueueName, as_json: AsJson = False) -> None:
    """Change options of a queue; others stay. Partitions can be added, not removed."""
    with broker.opened() as ps:
        ps.update_queue(queue, **options.values)
        actual = msgspec.structs.asdict(ps.queue(queue).options())
    text = f"queue {queue}: {plural(len(options.values), 'option')} set"
    output.done(text, {"name": queue, "options": actual}, as_json=as_json)


@command(app)
def delete(broker: Broker, queue: QueueName, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete a queue, its messages and its dead letters."""
    with broker.opened() as ps:
        count = ps.queue(queue).stats().messages
        output.confirm(f"Delete queue {queue} with {plural(count, 'message')}?", yes=yes)
        ps.delete_queue(queue)
    output.done(f"queue {queue} is deleted", {"name": queue, "status": "deleted"}, as_json=as_json)


What = Annotated[
    Literal["delivery", "push", "all"], typer.Option("--what", help="What to pause or resume: delivery, push or all.")
]
PausedGroup = Annotated[str | None, typer.Option("--group", "-g", help="Only delivery to this group.")]
Reason = Annotated[str, typer.Option("--reason", help="A note for other operators.")]


@command(app)
def pause(
    broker: Broker,
    queue: QueueName,
    what: What = "delivery",
    group: PausedGroup = None,
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Pause a queue until 'resume': delivery, pushes or both."""
    with broker.opened() as ps:
        ps.queue(queue).pause(what, group=group, reason=reason)
    whose = f"group {group} of queue {queue}" if group else f"queue {queue}"
    shown = "is paused" if what == "delivery" else f"is paused: {what}"
    output.done(f"{whose} {shown}", {"name": queue, "status": "paused"}, as_json=as_json)


@command(app)
def resume(
    broker: Broker, queue: QueueName, what: What = "all", group: PausedGroup = None, as_json: AsJson = False
) -> None:
    """Resume a paused queue."""
    with broker.opened() as ps:
        ps.queue(queue).resume(what, group=group)
    whose = f"group {group} of queue {queue}" if group else f"queue {queue}"
    output.done(f"{whose} is resumed", {"name": queue, "status": "resumed"}, as_json=as_json)


@command(app)
def purge(broker: Broker, queue: QueueName, yes: Yes = False, as_json: AsJson = False) -> None:
    """Drop all unsettled messages, in every group."""
    with broker.opened() as ps:
        lag = max((group.lag for group in ps.queue(queue).stats().groups.values()), default=0)
        output.confirm(f"Drop all unsettled messages of {queue}, up to {plural(lag, 'message')}?", yes=yes)
        ps.queue(queue).purge()
    output.done(f"queue {queue} is purged", {"name": queue, "status": "purged"}, as_json=as_json)


def compact(
    broker: Broker,
    queue: Annotated[
        str | None,
        typer.Argument(metavar="[QUEUE]", help="A queue with compaction=latest.", autocompletion=complete_queue),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Keep only the latest message of each key of a queue; without a queue, apply retention to all."""
    with broker.opened() as ps:
        freed = ps.compact() if queue is None else ps.queue(queue).compact()
    what = f"{plural(freed.messages_removed, 'message')} removed, {human.size(freed.bytes_freed)} freed"
    output.done(what, msgspec.structs.asdict(freed), as_json=as_json)


def paused_text(stats: QueueStats) -> str:
    """What of a queue is paused, in a word or two."""
    if stats.paused:
        return "paused (all)" if stats.push_paused else "paused"
    if stats.push_paused:
        return "paused (push)"
    groups = sum(group.paused for group in stats.groups.values())
    return f"paused ({plural(groups, 'group')})" if groups else ""


def _row(queue: QueueStats, now: datetime) -> tuple[Any, ...]:
    groups = list(queue.groups.values())
    oldest = min((group.oldest_unsettled_at for group in groups if group.oldest_unsettled_at is not None), default=None)
    return (
        queue.name,
        len(groups),
        queue.ready,
        queue.leased,
        queue.waiting,
        queue.dead,
        max(group.lag for group in groups),
        human.age(oldest, now),
        human.size(queue.bytes_stored),
        paused_text(queue) or human.EMPTY,
    )
