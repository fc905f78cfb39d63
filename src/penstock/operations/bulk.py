"""Bulk operations: tasks, dead letters and past messages selected by a filter, processed in the background.

All of them take the same options (`BulkOptions`) and reply with the operation, even for a dry run. The filter selects
the items that match when the operation begins, or at `as_of`. Starting an operation again with the same id returns the
same operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final

import msgspec

from penstock import limits, validation
from penstock.errors import InvalidField
from penstock.model import to_datetime, to_micros
from penstock.model_letters import LetterFilter, MessageFilter
from penstock.model_tasks import BulkOptions, OperationView, TaskFilter
from penstock.operations.base import Action, Check, Operation, operation
from penstock.operations.types import IN_QUEUE, Letters, Messages, OperationId, QueueName, needs_of_filter

BULK: Final = ("invalid_field", "queue_full", "disk_full", "task_conflict")


def _options(options: Any, field: str) -> BulkOptions:
    """How an operation on many things is run; returned normalised."""
    if not isinstance(options, BulkOptions):
        raise InvalidField(f"options: {options!r} are not options of an operation")
    validation.flag(options.dry_run, "dry_run")
    validation.per_second(options.rate)
    canary = options.canary
    if canary is not None and (isinstance(canary, bool) or not isinstance(canary, int) or not 1 <= canary < 1 << 31):
        raise InvalidField(
            f"canary: {canary!r} is not a number from 1", hint="it is the number of items to process first"
        )
    as_of = None if options.as_of is None else to_datetime(to_micros(options.as_of, "as_of"))
    return msgspec.structs.replace(options, as_of=as_of)


def _edit(value: Any, field: str) -> bytes:
    """A JSON merge patch for payloads; empty for none."""
    if value == b"":
        return b""
    if not isinstance(value, bytes) or len(value) > limits.task_filter_bytes_max:
        raise InvalidField(f"{field}: not a JSON object of up to {limits.task_filter_bytes_max:,} bytes")
    try:
        changes = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        hint = 'give the fields to change, and null for those to remove: {"currency": "EUR", "old": null}'
        raise InvalidField(f"{field}: not a JSON object", hint=hint) from None
    if not changes:
        raise InvalidField(f"{field}: changes nothing", hint="omit it")
    return value


Options = Annotated[BulkOptions, Check(_options)]
Edit = Annotated[bytes, Check(_edit)]
OperationFilter = Annotated[TaskFilter, Check(lambda value, field: validation.operation_filter(value))]
TaskAction = Annotated[str, Check(lambda value, field: validation.task_action(value).value)]
NewOperationId = Annotated[str, Check(lambda value, field: "" if value == "" else validation.operation_id(value))]


@operation(
    Action.MANAGE,
    http="POST /operations",
    status=202,
    errors=BULK,
    example={"action": "purge", "status": ["completed"], "until": "2030-01-31T12:00:00Z"},
)
class BeginOperation(Operation[OperationView], frozen=True):
    """Purge, cancel or retry all matching tasks, in the background."""

    action: TaskAction
    filter: OperationFilter
    operation_id: NewOperationId = ""
    options: Options = BulkOptions()

    def queues(self) -> Iterable[str]:
        return (self.filter.queue or "",)

    def needs(self) -> Iterable[tuple[Action, str]]:
        return needs_of_filter(self.filter.queue or "", self.filter)


@operation(
    Action.MANAGE,
    http="POST /queues/{queue}/dlq/redrive",
    status=202,
    errors=(*IN_QUEUE, *BULK),
    route="redrive_dead_letters",
    example={"error_contains": "timeout", "rate": 100, "canary": 5},
)
class RedriveLetters(Operation[OperationView], frozen=True):
    """Send matching dead letters back to the groups in which they died, in the background.

    `edit` is a JSON merge patch for payloads. With it, edited messages are pushed instead, to all groups.
    """

    queue: QueueName
    filter: Letters = LetterFilter()
    edit: Edit = b""
    operation_id: NewOperationId = ""
    options: Options = BulkOptions()

    def needs(self) -> Iterable[tuple[Action, str]]:
        return [*needs_of_filter(self.queue, self.filter), *([(Action.PUSH, self.queue)] if self.edit else [])]

    @property
    def is_repeatable(self) -> bool:
        return bool(self.operation_id) or self.options.dry_run


@operation(
    Action.MANAGE,
    http="POST /queues/{queue}/dlq/purge",
    status=202,
    errors=(*IN_QUEUE, *BULK),
    route="discard_dead_letters",
    example={"reason": "expired", "until": "2030-01-31T12:00:00Z", "dry_run": True},
)
class DiscardLetters(Operation[OperationView], frozen=True):
    """Delete matching dead letters, in the background."""

    queue: QueueName
    filter: Letters = LetterFilter()
    operation_id: NewOperationId = ""
    options: Options = BulkOptions()

    def needs(self) -> Iterable[tuple[Action, str]]:
        return needs_of_filter(self.queue, self.filter)

    @property
    def is_repeatable(self) -> bool:
        return bool(self.operation_id) or self.options.dry_run


@operation(
    Action.MANAGE,
    http="POST /queues/{queue}/replay",
    status=202,
    errors=(*IN_QUEUE, *BULK),
    route="replay_messages",
    example={"from": "2030-01-31T12:00:00Z", "to": "2030-01-31T13:00:00Z", "target": "orders-again", "rate": 100},
)
class ReplayMessages(Operation[OperationView], frozen=True):
    """Push copies of past messages to a queue, once each, in the background.

    Settled messages are included. Without `target` the copies go to the same queue. A header of each copy names the
    original message.
    """

    queue: QueueName
    filter: Messages = MessageFilter()
    target: QueueName | None = None
    operation_id: NewOperationId = ""
    options: Options = BulkOptions()

    def queues(self) -> Iterable[str]:
        return (self.queue, self.target or self.queue)

    def needs(self) -> Iterable[tuple[Action, str]]:
        return [(Action.MANAGE, self.queue), (Action.READ, self.queue), (Action.PUSH, self.target or self.queue)]

    @property
    def is_repeatable(self) -> bool:
        return bool(self.operation_id) or self.options.dry_run


@operation(
    Action.MONITOR,
    http="GET /operations/{operation_id}",
    errors=("operation_not_found", "invalid_field"),
    route="get_operation",
    queues=(),
)
class FindOperation(Operation[OperationView], frozen=True):
    """Get the state and progress of an operation."""

    operation_id: OperationId


@operation(
    Action.MONITOR,
    http="GET /operations",
    reply="operations",
    queues=(),
)
class ListOperations(Operation[list[OperationView]], frozen=True):
    """List running and recently ended operations, newest first."""

    def visible(self, reply: list[OperationView], may: Callable[[str], bool]) -> list[OperationView]:
        return [operation for operation in reply if may(operation.queue or "")]


@operation(
    Action.MANAGE,
    http="POST /operations/{operation_id}/continue",
    errors=("operation_not_found", "task_conflict", "invalid_field"),
    queues=(),
)
class ContinueOperation(Operation[OperationView], frozen=True):
    """Continue an operation that is waiting after its canary."""

    operation_id: OperationId


@operation(
    Action.MANAGE,
    http="DELETE /operations/{operation_id}",
    errors=("operation_not_found", "task_conflict", "invalid_field"),
    queues=(),
)
class StopOperation(Operation[OperationView], frozen=True):
    """Stop an operation. Items that were already processed are not undone."""

    operation_id: OperationId
