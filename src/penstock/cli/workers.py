"""`penstock workers`: who runs tasks, and how they are."""

from __future__ import annotations

from penstock.cli import human, output, task_shapes
from penstock.cli.exits import nothing_there
from penstock.cli.options import AsJson, ContextOption, Url
from penstock.cli.target import opened


def workers(url: Url = None, context: ContextOption = None, as_json: AsJson = False) -> None:
    """Workers that a broker hears of: what they run, how busy they are, when they were last heard from."""
    with opened(url, context) as ps:
        found, ticket = ps.session.workers()
        ps.session.confirm(ticket)
    if as_json:
        output.write_json([task_shapes.worker(view) for view in found])
        return
    if not found:
        raise nothing_there("no workers", "'penstock worker module:app' starts one")
    headings = ("worker", "state", "queues", "running", "abandoned", "done", "failed", "cpu", "memory", "heard")
    rows = [
        (
            view.info.worker_id,
            view.state,
            ",".join(view.info.queues) or human.EMPTY,
            f"{view.info.running}/{view.info.concurrency}",
            view.info.abandoned,
            view.info.completed,
            view.info.failed,
            f"{view.info.cpu_percent:.0f} %",
            human.size(view.info.memory_bytes),
            f"{human.age(view.last_heartbeat_at)} ago",
        )
        for view in found
    ]
    output.write(output.table(headings, rows, text_columns=3))
