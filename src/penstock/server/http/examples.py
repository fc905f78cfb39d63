"""An example of every route: its body, and the command that sends it. OpenAPI and the page at /docs show them."""

from __future__ import annotations

import json
from typing import Any, Final

RECEIPTS: Final = ["orders:0:7:1:6f2a90c44d1be803"]
LEASE: Final = "6f2a90c44d1be803"
TASK: Final = "0190f3a2-7b1c-7c00-8000-0123456789ab"
NAMES: Final = {
    "queue": "orders",
    "group": "billing",
    "member": "worker-1",
    "partition": "0",
    "offset": "7",
    "task_id": TASK,
    "worker": "worker-1",
    "schedule": "nightly",
    "operation": TASK,
}

BODIES: Final[dict[str, Any]] = {
    "create_queue": {"name": "orders", "partitions": 8, "lease_ms": 30000, "max_attempts": 5},
    "update_queue": {"max_attempts": 10},
    "push_messages": {"messages": [{"payload": {"order": 1}, "key": "ann"}, {"payload_base64": "AAEC"}]},
    "lease_messages": {"max": 10, "wait_ms": 20000, "group": "default"},
    "ack_messages": {"receipts": RECEIPTS},
    "nack_messages": {"receipts": RECEIPTS, "error": "no answer", "delay_ms": 5000},
    "reject_messages": {"receipts": RECEIPTS, "reason": "not an order"},
    "release_messages": {"lease_id": LEASE},
    "snooze_messages": {"receipts": RECEIPTS, "delay_ms": 60000},
    "extend_lease": {"lease_id": LEASE, "lease_ms": 30000},
    "commit_transaction": {
        "operations": [
            {"type": "ack", "receipts": RECEIPTS},
            {"type": "push", "queue": "invoices", "messages": [{"payload": {"order": 1}}]},
        ]
    },
    "register_producer": {"name": "shop-1"},
    "create_group": {"name": "billing", "start": "earliest"},
    "seek_group": {"to": "2030-01-31T12:00:00Z"},
    "join_group": {"member": "worker-1", "session_ms": 10000},
    "heartbeat_member": {"generation": 1, "held": ["0", "1"]},
    "redrive_dead_letters": {"error_contains": "timeout", "rate": 100},
    "search_dead_letters": {"ids": ["orders.dlq/0/3"], "from_offset": 0},
    "replace_dead_letters": {"ids": ["orders.dlq/0/3"], "messages": [{"payload": {"order": 1}}]},
    "submit_tasks": {"task_type": "send_email", "queue": "mail", "args": ["a@b.c"], "priority": "high"},
    "purge_tasks": {"status": ["completed"], "until": "2030-01-31T12:00:00Z"},
    "begin_operation": {"action": "purge", "status": ["completed"], "until": "2030-01-31T12:00:00Z"},
    "finish_tasks": {"receipt": RECEIPTS[0], "task_id": TASK, "outcome": "completed", "result": {"sent": 1}},
    "report_task_progress": {"receipt": RECEIPTS[0], "task_id": TASK, "progress": {"done": 0.5}},
    "heartbeat_worker": {"host": "web-1", "queues": ["mail"], "concurrency": 16, "running": 3},
    "set_schedule": {"cron": "0 3 * * *", "timezone": "Europe/Berlin", "task_type": "report"},
}
QUERIES: Final = {
    "list_tasks": "?status=failed,dead&task_type=send_email&limit=20",
    "get_task": "?wait_ms=5000",
    "get_task_result": "?wait_ms=5000",
    "get_worker_news": "?wait_ms=20000",
    "read_messages": "?partition=0&offset=100&limit=20",
    "peek_messages": "?limit=5",
    "list_delayed_messages": "?limit=5",
    "list_dead_letters": "?reason=rejected&limit=20",
    "leave_group": "?generation=1",
    "get_profile": "?seconds=5",
}


def command(operation: str, method: str, path: str) -> str:
    """The route as a line for a terminal."""
    address = "localhost:7711" + path.format_map(NAMES) + QUERIES.get(operation, "")
    words = ["curl", f"'{address}'" if "?" in address else address]
    body = BODIES.get(operation)
    if method != ("GET" if body is None else "POST"):
        words += ["-X", method]
    if body is not None:
        words += ["-d", f"'{json.dumps(body)}'"]
    return " ".join(words)
