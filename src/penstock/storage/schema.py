"""The columns of the sealed tables, and the names that their rows show for ids. docs/formats/segments.md explains each.

Files hold plain types only (no dictionaries, no unsigned integers, int32 offsets), because Spark takes nothing else.
A column may be added at the end; none is ever renamed, retyped or given a new meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

FORMAT: Final = 1
MESSAGES: Final = "messages"
EVENTS: Final = "events"
TASKS: Final = "tasks"

TIME: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.map_(pa.string(), pa.string())


def _always(name: str, type: pa.DataType) -> pa.Field:
    return pa.field(name, type, nullable=False)


SCHEMAS: Final[dict[str, pa.Schema]] = {
    MESSAGES: pa.schema(
        [
            _always("queue", pa.string()),
            _always("incarnation", pa.int64()),
            _always("partition", pa.string()),
            _always("partition_id", pa.int32()),
            _always("offset", pa.int64()),
            _always("pushed_at", TIME),
            pa.field("available_at", TIME),
            pa.field("expires_at", TIME),
            pa.field("key", pa.string()),
            _always("priority", pa.int16()),
            pa.field("headers", HEADERS),
            _always("payload", pa.binary()),
            _always("content_type", pa.string()),
            pa.field("dedup_key", pa.string()),
            pa.field("trace_id", pa.string()),
            pa.field("max_attempts", pa.int32()),
            pa.field("producer", pa.int64()),
        ]
    ),
    EVENTS: pa.schema(
        [
            _always("queue", pa.string()),
            _always("incarnation", pa.int64()),
            pa.field("group", pa.string()),
            _always("partition", pa.string()),
            _always("first_offset", pa.int64()),
            _always("last_offset", pa.int64()),
            _always("count", pa.int32()),
            _always("outcome", pa.string()),
            _always("attempt", pa.int32()),
            pa.field("consumer", pa.string()),
            pa.field("leased_at", TIME),
            _always("settled_at", TIME),
            pa.field("error", pa.string()),
        ]
    ),
    TASKS: pa.schema(
        [
            _always("task_id", pa.string()),
            _always("task_type", pa.string()),
            _always("queue", pa.string()),
            _always("incarnation", pa.int64()),
            pa.field("partition", pa.string()),
            pa.field("partition_id", pa.int32()),
            pa.field("offset", pa.int64()),
            _always("state", pa.string()),
            _always("at", TIME),
            pa.field("outcome", pa.string()),
            pa.field("attempt", pa.int32()),
            pa.field("worker", pa.string()),
            pa.field("started_at", TIME),
            pa.field("due_at", TIME),
            pa.field("args", pa.string()),
            pa.field("kwargs", pa.string()),
            pa.field("result", pa.string()),
            pa.field("progress", pa.string()),
            pa.field("error", pa.string()),
            pa.field("priority", pa.int16()),
            pa.field("max_attempts", pa.int32()),
            pa.field("timeout_seconds", pa.float64()),
            pa.field("depends_on", pa.string()),
            pa.field("workflow", pa.string()),
            pa.field("schedule", pa.string()),
            pa.field("key", pa.string()),
            pa.field("trace_id", pa.string()),
            _always("number", pa.int64()),
        ]
    ),
}

# How the writer stores them. A dictionary pays where values repeat; offsets grow by one, so their deltas take no room;
# statistics are kept where a reader may prune by them, and never over payloads, where they would cost more than help.
WRITING: Final[dict[str, dict[str, Any]]] = {
    MESSAGES: {
        "use_dictionary": [
            "queue", "incarnation", "partition", "partition_id", "pushed_at", "key", "priority",
            "headers.key_value.key", "content_type", "producer",
        ],
        "column_encoding": {"offset": "DELTA_BINARY_PACKED"},
        "write_statistics": [
            "queue", "incarnation", "partition", "partition_id", "offset", "pushed_at", "available_at", "expires_at",
            "key", "priority",
        ],
    },
    EVENTS: {
        "use_dictionary": ["queue", "incarnation", "group", "partition", "outcome", "attempt", "consumer", "error"],
        "write_statistics": ["queue", "incarnation", "partition", "first_offset", "last_offset", "settled_at"],
    },
    TASKS: {
        "use_dictionary": [
            "task_type", "queue", "incarnation", "partition", "partition_id", "state", "outcome", "attempt", "worker",
            "kwargs", "error", "priority", "max_attempts", "timeout_seconds", "workflow", "schedule", "key",
        ],
        "write_statistics": ["task_id", "task_type", "queue", "incarnation", "state", "at"],
    },
}  # fmt: skip

# Tables of events, not of messages, with the column that says when. Each of their files has a summary by queue.
EVENT_TIMES: Final = {EVENTS: "settled_at", TASKS: "at"}
EVENT_ROWS_AT_ONCE: Final = 8_192  # rows kept as Python objects until they become a table, which takes less room


def table_of(kind: str, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """A table of one kind from its rows."""
    schema = SCHEMAS[kind]
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


class Names(NamedTuple):
    """A queue that is not listed is gone, and with it all that it held."""

    queues: Mapping[int, tuple[str, Mapping[int, str]]]  # queue id → (name, {partition id → name})
    groups: Mapping[tuple[int, int], str]  # (queue id, group id) → name

    def partition(self, queue: int, partition: int) -> str:
        """A partition that was never named is called by its number."""
        return self.queues[queue][1].get(partition) or str(partition)
