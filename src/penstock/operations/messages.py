"""Operations on messages, and transactions. Push, lease and settle have paths of their own: they are hot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.model import Message, Reason
from penstock.operations.base import Action, Operation, Repeat, operation
from penstock.operations.types import IN_QUEUE, Id, Included, Instant, Limit, Offset, Partition, QueueName

ONE_MESSAGE: Final = ("queue_not_found", "message_not_found")


@operation(
    Action.READ,
    http="GET /queues/{queue}/messages",
    errors=(*IN_QUEUE, "invalid_field"),
    route="read_messages",
    reply="messages",
    example={"partition": "0", "offset": 100, "limit": 20},
)
class Read(Operation[list[Message]], frozen=True):
    """Browse a partition, from an offset or a time on."""

    queue: QueueName
    partition: Partition = 0
    offset: Offset | None = None
    timestamp: Instant | None = None
    limit: Limit = 100


@operation(
    Action.READ,
    http="GET /queues/{queue}/peek",
    errors=IN_QUEUE,
    route="peek_messages",
    reply="messages",
    example={"limit": 5},
)
class Peek(Operation[list[Message]], frozen=True):
    """The next messages of the default group; changes nothing."""

    queue: QueueName
    limit: Limit = 1


@operation(
    Action.READ,
    http="GET /queues/{queue}/delayed",
    errors=IN_QUEUE,
    route="list_delayed_messages",
    reply="messages",
    example={"limit": 5},
)
class Delayed(Operation[list[Message]], frozen=True):
    """Messages that are not due yet, soonest first.

    With `include` "retries", also those that wait for their next attempt: one row for each group in which they do, with
    `retry`, which says when it is due and how the last attempt ended. With "only_retries", these alone.
    """

    queue: QueueName
    limit: Limit = 100
    include: Included = ""


@operation(
    Action.MANAGE,
    http="DELETE /queues/{queue}/messages/{partition}/{offset}",
    repeat=Repeat.NEVER,
    errors=(*ONE_MESSAGE, "conflict"),
    route="delete_message",
)
class Cancel(Operation[None], frozen=True):
    """Cancel a message before it is delivered."""

    id: Id

    def queues(self) -> Iterable[str]:
        return (self.id.queue,)


@operation(
    Action.READ,
    http="GET /queues/{queue}/messages/{partition}/{offset}/why",
    errors=ONE_MESSAGE,
    route="explain_message",
    reply="reasons",
)
class Why(Operation[list[Reason]], frozen=True):
    """Why a message is not delivered, for each group."""

    id: Id

    def queues(self) -> Iterable[str]:
        return (self.id.queue,)
