"""Every page of the dashboard: what it shows, what fills it, and what it says in each state.

`test_every_page.py` runs each of its checks on every row. The addresses are those of `web/src/routes.ts`: a
page without a row fails a test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.support.dashboard import ROOT

ROUTES = ROOT / "web" / "src" / "routes.ts"
TRACE = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01"
NO_TASK = "00000000-0000-7000-8000-000000000000"


class Many(NamedTuple):
    """A list of which 10,000 rows are shown, made by repeating the first row of a real reply."""

    request: str  # a pattern of its address below /api/v1
    rows: str  # where the list is in the reply: names and indexes with dots
    key: str  # the field by which rows differ; "" where a row has none
    table: str  # the name of the table on the page


class PageRow(NamedTuple):
    """A page."""

    route: str  # as in routes.ts, with its tab
    path: str  # one of its addresses in the broker of `Shop`; {task} is the id of a task there
    heading: str
    shows: str  # a text of its content
    request: str | None = None  # a pattern of the request that fills it, below /api/v1; None: it needs none
    empty: tuple[str, str] | None = None  # where it is empty, and its title then
    actions: tuple[str, ...] = ()  # buttons that change something
    viewer: str | None = None  # what a viewer is told, who lacks a grant; None: a viewer sees the page
    many: Many | None = None


# Buttons of the head of a queue's page.
HEAD = ("Push", "Pause", "Purge", "Delete")
READ = "read:shop.orders"
ANY = "You may not read any queue"


def _queue(tab: str, shows: str, request: str, **more: object) -> PageRow:
    path = f"queues/shop.orders/{tab}".rstrip("/")
    return PageRow(f"queues/{{queue}}/{tab}".rstrip("/"), path, "shop.orders", shows, request, **more)  # type: ignore[arg-type]


PAGES = [
    PageRow("", "", "Overview", "3 messages failed for good", r"/health$", ("", "No queues yet")),
    PageRow(
        "queues", "queues", "Queues", "shop.orders", r"/stats$", ("queues", "No queues yet"),
        ("Create a queue",),
    ),
    _queue(
        "", "Why it waits", r"/queues/shop\.orders/why$", empty=("queues/nowhere", "There is no such queue"),
        actions=HEAD,
    ),
    _queue(
        "messages", "Payload", r"/queues/shop\.orders/messages\?", empty=("queues/idle/messages", "No messages here"),
        actions=HEAD, viewer=READ, many=Many(r"/queues/shop\.orders/messages\?", "messages", "id", "Messages"),
    ),
    _queue(
        "groups", "billing", r"/queues/shop\.orders/groups$", actions=(*HEAD, "Create a group"),
        many=Many(r"/queues/shop\.orders/groups$", "groups.0.partitions", "partition", "Partitions of default"),
    ),
    _queue(
        "dlq", "TypeError", r"/queues/shop\.orders/dlq/signatures", empty=("queues/idle/dlq", "No dead letters"),
        actions=(*HEAD, "Redrive all that match", "Discard all that match"), viewer=READ,
        many=Many(r"/queues/shop\.orders/dlq\?", "messages", "id", "Dead letters"),
    ),
    _queue(
        "keys", "ann", r"/queues/shop\.orders/keys", empty=("queues/idle/keys", "No keys with open messages"),
        actions=HEAD, viewer=READ, many=Many(r"/queues/shop\.orders/keys", "keys", "key", "Keys"),
    ),
    _queue(
        "leases", "checkout-1", r"/queues/shop\.orders/leases", empty=("queues/idle/leases", "Nothing is leased"),
        actions=HEAD, many=Many(r"/queues/shop\.orders/leases", "leases", "lease_id", "Leases"),
    ),
    _queue("history", "Messages per second", r"/history/series", actions=HEAD),
    _queue("options", "max_attempts", r"/queues/shop\.orders$", actions=(*HEAD, "Edit")),
    PageRow(
        "messages/{queue}/{partition}/{offset}", "messages/shop.orders/0/0", "shop.orders/0/0", "Timeline",
        r"/queues/shop\.orders/messages/0/0$", ("messages/shop.orders/0/999999", "Not found"),
        ("Push again", "Cancel"), READ,
    ),
    PageRow(
        "dlq", "dlq", "Dead letters", "TypeError", r"/dlq/signatures", ("dlq", "No dead letters"), ("Redrive",), READ,
        many=Many(r"/dlq/signatures", "signatures", "signature", "Causes"),
    ),
    PageRow(
        "tasks", "tasks", "Tasks", "send_mail", r"/tasks\?", ("tasks", "No tasks yet"),
        many=Many(r"/tasks\?", "tasks", "task_id", "Tasks"),
    ),
    PageRow(
        "tasks/{task}", "tasks/{task}", "send_mail", "Arguments", r"/tasks/{task}$", (f"tasks/{NO_TASK}", "Not found"),
        ("Cancel",), "a grant for its queue is missing",
    ),
    PageRow(
        "workflows", "workflows", "Workflows", "wf-shop", r"/workflows\?", ("workflows", "No workflows yet"),
        viewer=ANY, many=Many(r"/workflows\?", "workflows", "workflow", "Workflows"),
    ),
    PageRow(
        "workflows/{workflow}", "workflows/wf-shop", "Workflow wf-shop", "Critical path", r"/workflows/wf-shop$",
        ("workflows/none", "Not found"), ("Cancel",), "none of its tasks is kept",
        many=Many(r"/workflows/wf-shop$", "tasks", "task_id", "Tasks of the workflow"),
    ),
    PageRow(
        "workers", "workers", "Workers", "worker-1", r"/workers$", ("workers", "No workers"),
        many=Many(r"/workers$", "workers", "worker_id", "Workers"),
    ),
    PageRow(
        "workers/{worker}", "workers/worker-1", "worker-1", "Slots in use", r"/workers$",
        ("workers/none", "This worker is not there"), ("Quiet", "Stop"),
    ),
    PageRow(
        "schedules", "schedules", "Schedules", "nightly", r"/schedules$", ("schedules", "No schedules"),
        ("Run now", "Pause"), many=Many(r"/schedules$", "schedules", "name", "Schedules"),
    ),
    PageRow(
        "schedules/{schedule}", "schedules/nightly", "nightly", "Next ticks", r"/schedules/nightly$",
        ("schedules/none", "Not found"), ("Run now", "Pause", "Edit", "Delete"),
    ),
    PageRow("history", "history", "History", "Messages per second", r"/history/series"),
    PageRow("traces", "traces", "Traces", "Open a trace", None, ("traces", "Open a trace")),
    PageRow(
        "traces/{trace}", f"traces/{TRACE}", TRACE, "traced/0/0", r"/traces/",
        ("traces/none", "Nothing of this trace was found"), viewer=ANY, many=Many(r"/traces/", "steps", "id", "Steps"),
    ),
    PageRow(
        "query", "query?query=select+1+as+one", "Query", "1 row", r"/history/query", viewer="read:<queue>",
        many=Many(r"/history/query", "rows", "", "Result"),
    ),
    PageRow("query", "query", "Query", "Examples"),
    PageRow(
        "pipelines", "pipelines", "Pipelines", "run-1", r"/pipelines$", ("pipelines", "No pipelines have run"),
        many=Many(r"/pipelines$", "pipelines.0.runs", "run", "Runs of rollup"),
    ),
    PageRow(
        "pipelines/{pipeline}/{run}", "pipelines/rollup/run-1", "run-1", "Report", r"/pipelines/rollup/runs/run-1$",
        ("pipelines/rollup/none", "Not found"),
    ),
    PageRow(
        "operations", "operations", "Operations", "cancel", r"/operations$", ("operations", "No operations"),
        many=Many(r"/operations$", "operations", "operation_id", "Operations"),
    ),
    PageRow(
        "audit", "audit", "Audit", "create_queue", r"/audit\?", ("audit?who=none", "No record matches"),
        viewer="operate:*", many=Many(r"/audit\?", "records", "sequence", "Audit log"),
    ),
    PageRow("broker", "broker", "Broker", "Durability", r"/health$", None, ("Seal", "Compact")),
    PageRow(
        "broker/connections", "broker/connections", "Broker", "Protocol", r"/connections", None,
        ("Seal", "Compact", "Close"), "operate:*",
        many=Many(r"/connections", "connections", "connection_id", "Connections"),
    ),
    PageRow(
        "broker/cluster", "broker/cluster", "Broker", "This node", r"/cluster", None, ("Seal", "Compact"),
        many=Many(r"/cluster", "nodes", "node", "Nodes"),
    ),
]  # fmt: skip


def routes() -> Iterator[str]:
    """The addresses in the table of the router, with those of tabs."""
    for line in ROUTES.read_text().splitlines():
        if (path := re.search(r'\{ path: "([^"]*)"', line)) is None:
            continue
        yield path[1]
        tabs = re.search(r"tabs: \[([^\]]*)\]", line)
        for tab in re.findall(r'"([^"]+)"', tabs[1]) if tabs else ():
            yield f"{path[1]}/{tab}"
