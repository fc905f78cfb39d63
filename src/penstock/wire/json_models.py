"""JSON whose shape is written out: requests and replies of the hot routes, transactions, and small replies.

Requests are decoded by these models, and OpenAPI is made from them. Durations are `*_ms`, instants RFC 3339 `*_at`,
names those of the glossary. A field that is not known is refused. Everything else is derived: see `json_shapes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from penstock import limits
from penstock.model import DEFAULT_GROUP, Durability, Outcome, QueueStats

ONE_PAYLOAD: Final = {"oneOf": [{"required": ["payload"]}, {"required": ["payload_base64"]}]}

Instant = Annotated[datetime, Meta(tz=True)]
Delay = Annotated[float, Meta(ge=0, le=limits.delay_seconds_max * 1000)]
Ttl = Annotated[float, Meta(ge=0.001, le=limits.delay_seconds_max * 1000)]
LeaseMs = Annotated[float, Meta(ge=limits.lease_seconds_min * 1000, le=limits.lease_seconds_max * 1000)]
PriorityName = Literal["background", "low", "normal", "high", "critical"]
Priority = Annotated[int, Meta(ge=0, le=limits.priority_max)] | PriorityName
Partition = Annotated[int, Meta(ge=0, le=2**31 - 1)] | str
Limit = Annotated[int, Meta(ge=1, le=limits.lease_messages_max)]
Offset = Annotated[int, Meta(ge=0, le=2**62)]
Receipts = Annotated[list[str], Meta(min_length=1, max_length=limits.lease_messages_max)]
# 64 bits, which not every JSON number can hold.
Hex64 = Annotated[str, Meta(pattern="^[0-9a-f]{16}$", description="16 hexadecimal digits.")]
MediaType = Literal[
    "application/octet-stream",
    "application/json",
    "text/plain",
    "application/vnd.penstock.task+json",
    "application/vnd.penstock.tombstone+json",
]
Id63 = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Position = str | Offset | dict[str, Offset]  # earliest, latest or an instant; an offset; an offset for each partition
Ids = Annotated[list[str], Meta(max_length=limits.lease_messages_max)]
Wait = Annotated[float, Meta(ge=0, le=limits.wait_seconds_max * 1000)]
Count = Annotated[int, Meta(ge=0, le=2**62)]
SessionMs = Annotated[float, Meta(ge=limits.session_seconds_min * 1000, le=limits.session_seconds_max * 1000)]
Attempts = Annotated[int, Meta(ge=1, le=limits.attempts_max)]
TaskId = Annotated[str, Meta(pattern="^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", description="A UUID.")]
TASK_TYPE_WORDS: Final = "The name of a task: 1 to 200 letters, digits, dots, underscores and hyphens."
TaskType = Annotated[str, Meta(pattern="^[A-Za-z0-9._-]{1,200}$", description=TASK_TYPE_WORDS)]
JsonArray = Annotated[Raw, Meta(extra_json_schema={"type": "array"})]
JsonObject = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]

# The types that fields of requests have in JSON, with their ranges, by the names that they have in Python.
RANGES: Final[dict[str, Any]] = {
    "cpu_percent": Annotated[float, Meta(ge=0, le=1e9)],
    "delay_seconds": Delay,
    "depends_on": Annotated[list[TaskId], Meta(max_length=limits.task_parents_max)],
    "from_offset": Offset,
    "generation": Id63,
    "held": Annotated[list[str], Meta(max_length=limits.partitions_max)],
    "ids": Ids,
    "limit": Limit,
    "max_attempts": Attempts,
    "offset": Offset,
    "partition": Partition,
    "rate": Annotated[float, Meta(ge=limits.per_second_min, le=limits.per_second_max)],
    "run_seconds": Annotated[float, Meta(ge=0, le=1e15)],
    "session_seconds": SessionMs,
    "start": Position,
    "task_id": TaskId,
    "task_type": TaskType,
    "to": Position,
    "wait_seconds": Wait,
    **dict.fromkeys(("timeout_seconds", "ttl_seconds", "unique_seconds"), Ttl),
    **dict.fromkeys(("pid", "concurrency", "running", "abandoned", "completed", "failed", "memory_bytes"), Count),
}


class Request(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of a request."""


# pushing


class PlainMessage(Struct, forbid_unknown_fields=True, gc=False):
    """A message that has only a JSON payload, which is the most frequent case."""

    payload: Raw


class NewMessage(Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A message to push, with either `payload` (JSON, stored byte for byte) or `payload_base64` (bytes)."""

    payload: Raw | UnsetType = UNSET
    payload_base64: bytes | None = None
    key: str | None = None
    priority: Priority = limits.priority_default
    delay_ms: Delay = 0.0
    deliver_at: Instant | None = None
    ttl_ms: Ttl | None = None
    headers: dict[str, str] | None = None
    dedup_key: str | None = None
    partition: Partition | None = None
    max_attempts: Attempts | None = None
    trace: str | None = None
    content_type: MediaType | None = None


Messages = Annotated[
    list[Annotated[NewMessage, Meta(extra_json_schema=ONE_PAYLOAD)]],
    Meta(max_length=limits.batch_messages_max),
]


class ProducerSequence(Request):
    """The producer and the sequence number of this push. A push that is sent again is not stored twice."""

    id: Hex64
    epoch: Id63
    sequence: Id63


class PlainPush(Struct, forbid_unknown_fields=True, gc=False):
    """Messages that have only JSON payloads."""

    messages: list[PlainMessage]
    producer: ProducerSequence | None = None


OnError = Literal["fail", "skip"]


class Push(Request):
    """Messages for one queue. All are stored, or none; with `"on_error": "skip"`, all valid ones are stored."""

    messages: Messages
    durability: Durability | None = None
    producer: ProducerSequence | None = None
    on_error: OnError = "fail"


class SkippingPush(Request):
    """A push with `"on_error": "skip"`, in which each message is still undecoded."""

    messages: Annotated[list[Raw], Meta(max_length=limits.batch_messages_max)]
    durability: Durability | None = None
    producer: ProducerSequence | None = None
    on_error: OnError = "fail"


# leasing and settling


TaskTypes = Annotated[list[TaskType], Meta(min_length=1, max_length=limits.worker_names_max)]


class Lease(Request):
    """A request to lease messages of one queue."""

    max: Limit = 1
    wait_ms: Wait = 0.0
    lease_ms: LeaseMs | None = None
    group: str = DEFAULT_GROUP
    consumer: str = ""
    partitions: Annotated[list[Partition], Meta(max_length=limits.partitions_max)] | None = None
    auto_ack: bool = False
    member: str = ""
    generation: Id63 = 0
    start: Position | None = None
    task_types: TaskTypes | None = None  # tasks of these types only


QueueOrder = Literal["fair", "listed"]
QueueNames = Annotated[list[str], Meta(min_length=1, max_length=limits.lease_names_max)]


class LeaseQueues(Request):
    """A request to lease messages of several queues. `queues` are names, and prefixes that end with `*`."""

    queues: QueueNames
    order: QueueOrder = "fair"
    max: Limit = 1
    wait_ms: Wait = 0.0
    lease_ms: LeaseMs | None = None
    group: str = DEFAULT_GROUP
    consumer: str = ""
    auto_ack: bool = False
    start: Position | None = None
    task_types: TaskTypes | None = None


class Settle(Request):
    """The deliveries to settle: their receipts, or a lease for all deliveries that it still holds."""

    outcome: ClassVar[Outcome]
    receipts: Receipts | None = None
    lease_id: Hex64 | None = None


class Ack(Settle):
    """Deliveries that were processed successfully."""

    outcome = Outcome.ACKED


class Nack(Settle):
    """Deliveries to retry, after `delay_ms` or after the queue's backoff."""

    outcome = Outcome.RETRIED
    delay_ms: Delay | None = None
    error: str = ""


class Reject(Settle):
    """Deliveries to move to the dead letters immediately."""

    outcome = Outcome.REJECTED
    reason: str = ""


class Release(Settle):
    """Deliveries to release. The attempt is not counted."""

    outcome = Outcome.RELEASED


class Snooze(Settle, kw_only=True):
    """Deliveries to deliver again after `delay_ms`. The attempt is not counted."""

    outcome = Outcome.SNOOZED
    delay_ms: Delay


class Extend(Settle, kw_only=True):
    """Deliveries to hold for another `lease_ms`, counted from now."""

    lease_ms: LeaseMs


# transactions


class PushPart(Request, tag_field="type", tag="push"):
    """Messages for one queue."""

    queue: str
    messages: Messages


class SettlePart(Request):
    """Deliveries to settle."""

    outcome: ClassVar[Outcome]
    receipts: Receipts


class AckPart(SettlePart, tag_field="type", tag="ack"):
    """Deliveries that were processed successfully."""

    outcome = Outcome.ACKED


class NackPart(SettlePart, tag_field="type", tag="nack"):
    """Deliveries to retry."""

    outcome = Outcome.RETRIED
    delay_ms: Delay | None = None
    error: str = ""


class RejectPart(SettlePart, tag_field="type", tag="reject"):
    """Deliveries to move to the dead letters."""

    outcome = Outcome.REJECTED
    reason: str = ""


class ReleasePart(SettlePart, tag_field="type", tag="release"):
    """Deliveries to release."""

    outcome = Outcome.RELEASED


class SnoozePart(SettlePart, tag_field="type", tag="snooze"):
    """Deliveries to deliver again later, without counting the attempt."""

    outcome = Outcome.SNOOZED
    delay_ms: Delay


Part = PushPart | AckPart | NackPart | RejectPart | ReleasePart | SnoozePart


class Transaction(Request):
    """Pushes and settlements in any queues. All of them take effect, or none."""

    operations: Annotated[list[Part], Meta(min_length=1, max_length=limits.lease_messages_max)]
    producer: ProducerSequence | None = None


# dead letters


class LetterReplacement(Request):
    """Messages to push in place of dead letters. The dead letters are settled."""

    ids: Annotated[list[str], Meta(min_length=1, max_length=limits.lease_messages_max)]
    messages: Messages


class ErrorFields(Struct):
    """An error: a stable code, a sentence that names the offending value, and a hint on what to do next."""

    code: str
    message: str
    hint: str
    retry_after_ms: float | UnsetType = UNSET
    address: str | UnsetType = UNSET


class ErrorView(Struct):
    """The body of every error."""

    error: ErrorFields


class PushResult(Struct):
    """The result for one message: its id, the id of the earlier message if it is a duplicate, or an error."""

    status: Literal["queued", "duplicate", "failed"]
    id: str | UnsetType = UNSET
    error: ErrorFields | UnsetType = UNSET


class PushResults(Struct):
    """One result for each message, in order."""

    results: list[PushResult]


class DeliveryView(Struct, kw_only=True):
    """A message delivered to this consumer, which settles it with the receipt."""

    id: str
    payload: Any | UnsetType = UNSET
    payload_base64: bytes | UnsetType = UNSET
    content_type: MediaType
    key: str | None
    headers: dict[str, str]
    priority: int
    attempt: int
    receipt: str
    pushed_at: datetime
    expires_at: datetime
    trace: str | UnsetType = UNSET
    dedup_key: str | UnsetType = UNSET


class LeaseView(Struct):
    """The lease. If there were no messages, `lease_id` is null and `messages` is empty."""

    lease_id: str | None
    expires_at: datetime | None
    messages: list[DeliveryView]
    lease_ms: float = 0.0
    batch_max: int = 0


class QueueLeaseView(Struct):
    """The lease on one queue."""

    queue: str
    lease_id: str
    expires_at: datetime
    messages: list[DeliveryView]
    lease_ms: float
    batch_max: int


class LeasesView(Struct):
    """One lease for each queue that had messages."""

    leases: list[QueueLeaseView]


class SettleResult(Struct, kw_only=True):
    """The result for one receipt, or for a whole lease."""

    receipt: str | UnsetType = UNSET
    lease_id: str | UnsetType = UNSET
    status: Literal["ok", "error"]
    error: ErrorFields | UnsetType = UNSET
    expires_at: datetime | UnsetType = UNSET


class SettleResults(Struct):
    """One result for each receipt, in order. If nothing could be settled, the status is that of the first error."""

    results: list[SettleResult]


class RetryView(Struct, kw_only=True):
    """The next attempt at a message in one group, and how the last one ended."""

    group: str
    attempt: int
    due_at: datetime
    reason: str
    error: str
    failed_at: datetime | None


class MessageView(Struct, kw_only=True):
    """A message in its queue. `retry` is set only in a list of retries."""

    id: str
    partition: str
    offset: int
    payload: Raw | UnsetType = UNSET
    payload_base64: bytes | UnsetType = UNSET
    content_type: MediaType
    key: str | None
    headers: Mapping[str, str]
    priority: int
    dedup_key: str | None
    max_attempts: int | None
    trace: str | None
    pushed_at: datetime
    available_at: datetime
    expires_at: datetime | None
    retry: RetryView | UnsetType = UNSET


class QueueName(Struct):
    """The name of a queue or of a group."""

    name: str


class ListedQueue(Struct):
    """A queue, and whether delivery or pushes are paused: directly, by its namespace or by the broker."""

    name: str
    paused: bool = False
    push_paused: bool = False


class QueuesView(Struct):
    """All queues."""

    queues: list[ListedQueue]


class StatsView(Struct):
    """The counters of all queues."""

    queues: list[QueueStats]


class OperationView(Struct):
    """The result of one operation of a transaction. A push has `ids`."""

    type: str
    ids: list[str] | UnsetType = UNSET


class TransactionView(Struct):
    """One result for each operation, in order."""

    results: list[OperationView]


class ProducerView(Struct):
    """The id of a producer, and its epoch, which fences earlier epochs."""

    id: str
    epoch: int


class StatusView(Struct):
    """A status."""

    status: str


def producer_view(id: int, epoch: int) -> ProducerView:
    """A producer that was registered."""
    return ProducerView(f"{id:016x}", epoch)


# SQL over the history


class HistoryQuery(Request):
    """A read-only SQL statement. `since` and `until` limit the period that it sees."""

    query: Annotated[str, Meta(min_length=1, max_length=100_000)]
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    since: Instant | None = None
    until: Instant | None = None


class PastQuery(Request):
    """A moment in the past, and a queue. Without a queue, all queues that the caller may see."""

    at: Instant
    queue: str | None = None


class QueryColumn(Struct):
    """A column of a result."""

    name: str
    type: str


class QueryResult(Struct):
    """Rows as lists of values, in the order of the columns. `is_cut` means there were more rows than `limit`."""

    columns: list[QueryColumn]
    rows: list[list[Any]]
    is_cut: bool = False
