"""`penstock stats`: the account of every queue, or of every group of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from penstock.cli import human, output, shapes
from penstock.cli.completion import complete_queue
from penstock.cli.options import AsJson, ContextOption, Url
from penstock.cli.target import opened
from penstock.errors import QueueNotFound
from penstock.model import DLQ_SUFFIX, QueueStats
from penstock.storage.findings import spelt

if TYPE_CHECKING:
    from penstock import Penstock

ACCOUNT = ("group", "messages", "ready", "leased", "waiting", "acked", "dead", "dropped", "lag", "oldest")


def stats(
    queue: Annotated[
        str | None,
        typer.Argument(metavar="[QUEUE]", help="One queue; all if not given.", autocompletion=complete_queue),
    ] = None,
    url: Url = None,
    context: ContextOption = None,
    as_json: AsJson = False,
) -> None:
    """What is ready, leased, waiting, acked, dead and dropped: of each group of a queue, or of everything."""
    with opened(url, context) as ps:
        found = sampled(ps, with_dead_letters=True) if queue is None else [ps.queue(queue).stats()]
    if queue is not None:
        if as_json:
            output.write_json(shapes.queue(found[0]))
        else:
            write_queue(found[0])
    elif as_json:
        output.write_json({"totals": totals(found), "queues": [shapes.queue(each) for each in found]})
    else:
        _write_all(found)


def sampled(ps: Penstock, *, with_dead_letters: bool) -> list[QueueStats]:
    """Every queue's account; a queue that goes meanwhile is left out."""
    found = []
    for name in ps.queues():
        if with_dead_letters or not name.endswith(DLQ_SUFFIX):
            try:
                found.append(ps.queue(name).stats())
            except QueueNotFound:
                continue
    return found


def totals(found: list[QueueStats]) -> dict[str, int]:
    """Sums over queues; of groups, those that are called default."""
    names = ("ready", "leased", "waiting", "acked", "dead")
    live = [each for each in found if not each.name.endswith(DLQ_SUFFIX)]
    return {
        "queues": len(live),
        "messages": sum(each.messages for each in found),
        "bytes_stored": sum(each.bytes_stored for each in found),
        **{name: sum(getattr(each, name) for each in live) for name in names},
    }


def write_queue(found: QueueStats) -> None:
    """A queue for people."""
    about = [
        spelt(found.messages, "message"),
        spelt(found.partitions, "partition"),
        f"{human.size(found.bytes_stored)} stored",
        *(["[yellow]paused[/]"] if found.paused else []),
    ]
    output.write(f"[bold]{escape(found.name)}[/]: {', '.join(about)}\n")
    output.write(output.table(ACCOUNT, [_group_row(each) for each in found.groups.values()]))


def _group_row(group: Any) -> tuple[Any, ...]:
    counts = (getattr(group, name) for name in ACCOUNT[1:-1])
    return (group.name, *counts, human.age(group.oldest_unsettled_at))


def _write_all(found: list[QueueStats]) -> None:
    sums = totals(found)
    rows = [(name, human.size(count) if name == "bytes_stored" else count) for name, count in sums.items()]
    output.write(output.table(("", "total"), [(name.replace("_", " "), value) for name, value in rows]))
