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
    "post_queues": {"name": "orders", "partitions": 8, "lease_ms": 30000, "max_attempts": 5},
    "patch_queues_queue": {"max_attempts": 10},
    "post_queues_queue_messages": {"messages": [{"payload": {"order": 1}, "key": "ann"}, {"payload_base64": "AAEC"}]},
    "post_queues_queue_lease": {"max": 10, "wait_ms": 20000, "group": "default"},
    "post_ack": {"receipts": RECEIPTS},
    "post_nack": {"receipts": RECEIPTS, "error": "no answer", "delay_ms": 5000},
    "post_reject": {"receipts": RECEIPTS, "reason": "not an order"},
    "post_release": {"lease_id": LEASE},
    "post_snooze": {"receipts": RECEIPTS, "delay_ms": 60000},
    "post_extend": {"lease_id": LEASE, "lease_ms": 30000},
    "post_transactions": {
        "operations": [
            {"type": "ack", "receipts": RECEIPTS},
            {"type": "push", "queue": "invoices", "messages": [{"payload": {"order": 1}}]},
        ]
    },
    "post_producers": {"name": "shop-1"},
    "post_queues_queue_groups": {"name": "billing", "start": "earliest"},
    "post_queues_queue_groups_group_seek": {"to": "2030-01-31T12:00:00Z"},
    "post_queues_queue_groups_group_members": {"member": "worker-1", "session_ms": 10000},
    "post_queues_queue_groups_group_members_member_heartbeat": {"generation": 1, "held": ["0", "1"]},
    "post_queues_queue_dlq_redrive": {"error_contains": "timeout", "rate": 100},
    "post_queues_queue_dlq_search": {"ids": ["orders.dlq/0/3"], "from_offset": 0},
    "post_queues_queue_dlq_replace": {"ids": ["orders.dlq/0/3"], "messages": [{"payload": {"order": 1}}]},
    "post_tasks": {"task_type": "send_email", "queue": "mail", "args": ["a@b.c"], "priority": "high"},
    "post_tasks_purge": {"status": ["completed"], "until": "2030-01-31T12:00:00Z"},
    "post_operations": {"action": "purge", "status": ["completed"], "until": "2030-01-31T12:00:00Z"},
    "post_tasks_finish": {"receipt": RECEIPTS[0], "task_id": TASK, "outcome": "completed", "result": {"sent": 1}},
    "post_tasks_progress": {"receipt": RECEIPTS[0], "task_id": TASK, "progress": {"done": 0.5}},
    "post_workers_worker_heartbeat": {"host": "web-1", "queues": ["mail"], "concurrency": 16, "running": 3},
    "put_schedules_schedule": {"cron": "0 3 * * *", "timezone": "Europe/Berlin", "task_type": "report"},
}
QUERIES: Final = {
    "get_tasks": "?status=failed,dead&task_type=send_email&limit=20",
    "get_tasks_task_id": "?wait_ms=5000",
    "get_tasks_task_id_result": "?wait_ms=5000",
    "get_workers_worker_news": "?wait_ms=20000",
    "get_queues_queue_messages": "?partition=0&offset=100&limit=20",
    "get_queues_queue_peek": "?limit=5",
    "get_queues_queue_delayed": "?limit=5",
    "get_queues_queue_dlq": "?reason=rejected&limit=20",
    "delete_queues_queue_groups_group_members_member": "?generation=1",
    "get_debug_profile": "?seconds=5",
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
