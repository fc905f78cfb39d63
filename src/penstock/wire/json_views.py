"""What JSON responses hold. Like the requests' models, these are what OpenAPI is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, cast

from msgspec import UNSET, Raw, Struct, UnsetType

from penstock.model import CONTENT_TYPE_NAMES, ContentType, Message, PartitionLag, QueueStats
from penstock.wire.json_models import MediaType
from penstock.wire.json_replies import is_json


class ErrorFields(Struct):
    """What went wrong: a code that stays the same, a sentence that names the value, and what to do next."""

    code: str
    message: str
    hint: str
    retry_after_ms: float | UnsetType = UNSET


class ErrorView(Struct):
    """The body of every error."""

    error: ErrorFields


class PushResult(Struct):
    """Where a message went. A duplicate has the id of the message that came first."""

    id: str
    status: Literal["queued", "duplicate"]


class PushResults(Struct):
    """One result for each message, in order."""

    results: list[PushResult]


class DeliveryView(Struct, kw_only=True):
    """A message handed to this consumer, who settles it with the receipt."""

    id: str
    payload: Any | UnsetType = UNSET
    payload_base64: bytes | UnsetType = UNSET
    content_type: MediaType | UnsetType = UNSET
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
    """What was leased: `lease_id` null and no messages when there was nothing to be had."""

    lease_id: str | None
    expires_at: datetime | None
    messages: list[DeliveryView]
    lease_ms: float = 0.0
    batch_max: int = 0


class SettleResult(Struct, kw_only=True):
    """What became of one receipt, or of a whole lease."""

    receipt: str | UnsetType = UNSET
    lease_id: str | UnsetType = UNSET
    status: Literal["ok", "error"]
    error: ErrorFields | UnsetType = UNSET
    expires_at: datetime | UnsetType = UNSET


class SettleResults(Struct):
    """One result for each receipt, in order. When nothing could be settled, the status is that of the first error."""

    results: list[SettleResult]


class MessageView(Struct, kw_only=True):
    """A message as it lies in its queue."""

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


class QueueName(Struct):
    """A queue by its name."""

    name: str


class QueuesView(Struct):
    """All queues."""

    queues: list[QueueName]


class StatsView(Struct):
    """The accounts of all queues."""

    queues: list[QueueStats]


class LagView(Struct):
    """Where a group stands in one partition."""

    partition: str
    start_offset: int
    committed_offset: int
    end_offset: int
    lag: int


class GroupView(Struct):
    """A group, and where it stands in each partition."""

    name: str
    partitions: list[LagView]


class GroupsView(Struct):
    """All groups of a queue."""

    groups: list[GroupView]


class OperationView(Struct):
    """What one operation of a transaction did; a push has ids."""

    type: str
    ids: list[str] | UnsetType = UNSET


class TransactionView(Struct):
    """One result for each operation, in order."""

    results: list[OperationView]


class ProducerView(Struct):
    """A producer's id, and the epoch that fences those before it."""

    id: str
    epoch: int


class StatusView(Struct):
    """Whether it is well."""

    status: str


def message_view(message: Message) -> MessageView:
    """A message that was read."""
    assert message.id is not None
    assert message.pushed_at is not None
    kind = message.content_type or ContentType.BYTES
    payload = cast(bytes, message.payload)  # of a message that was read
    shown: dict[str, Any] = {"payload_base64": payload}
    if kind in (ContentType.JSON, ContentType.TASK) and is_json(payload):
        shown = {"payload": Raw(payload)}
    return MessageView(
        id=str(message.id),
        partition=message.id.partition,
        offset=message.id.offset,
        content_type=cast(MediaType, CONTENT_TYPE_NAMES[kind]),
        key=message.key,
        headers=message.headers or {},
        priority=int(message.priority),
        dedup_key=message.dedup_key,
        max_attempts=message.max_attempts,
        trace=message.trace,
        pushed_at=message.pushed_at,
        available_at=message.available_at or message.pushed_at,
        expires_at=message.expires_at,
        **shown,
    )


def groups_view(groups: Mapping[str, Sequence[PartitionLag]]) -> GroupsView:
    """Where each group stands."""
    return GroupsView([GroupView(name, [LagView(*lag) for lag in lags]) for name, lags in groups.items()])


def producer_view(id: int, epoch: int) -> ProducerView:
    """A producer that was registered."""
    return ProducerView(f"{id:016x}", epoch)
