"""Operations on messages, and transactions. Push, lease and settle have paths of their own: they are hot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock import limits
from penstock.model import DEFAULT_GROUP, Message, Reason
from penstock.model_letters import MessageFilter
from penstock.operations.base import Action, Operation, Repeat, operation
from penstock.operations.types import (
    IN_QUEUE,
    GroupName,
    Id,
    Included,
    Instant,
    Limit,
    LookBack,
    MessageKey,
    Messages,
    Offset,
    Partition,
    QueueName,
    SearchLimit,
    StateName,
)
from penstock.replies import MessageDetails, MessageEvent, MessagePage, MessageSearch

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
    http="GET /queues/{queue}/latest",
    errors=(*IN_QUEUE, "invalid_field"),
    route="get_latest_message",
    reply="messages",
    example={"key": "customer-7"},
)
class Latest(Operation[list[Message]], frozen=True):
    """The newest message of a key, in a queue with `compaction` "latest"; none after a tombstone, or without one."""

    queue: QueueName
    key: MessageKey


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
    http="GET /queues/{queue}/messages/{partition}/{offset}",
    errors=ONE_MESSAGE,
)
class GetMessage(Operation[MessageDetails], frozen=True):
    """One message, and its state in each group."""

    id: Id

    def queues(self) -> Iterable[str]:
        return (self.id.queue,)


@operation(
    Action.READ,
    http="GET /queues/{queue}/messages/{partition}/{offset}/events",
    errors=ONE_MESSAGE,
    route="list_message_events",
    reply="events",
    example={"limit": 100},
)
class Events(Operation[list[MessageEvent]], frozen=True):
    """What happened to a message, oldest first: pushed, leased by whom, retried why, settled, dead, redriven.

    The last `limit` events. Those of a message that is no longer kept are there as long as its queue keeps others of
    its age.
    """

    id: Id
    limit: Limit = 1_000

    def queues(self) -> Iterable[str]:
        return (self.id.queue,)


@operation(
    Action.READ,
    http="GET /queues/{queue}/events",
    errors=(*IN_QUEUE, "invalid_field"),
    route="search_messages",
    example={"key": "customer-7", "limit": 5},
)
class FindMessages(Operation[MessageSearch], frozen=True):
    """The newest messages with a key or a trace id, and what happened to each.

    Looks at the last `look_back` messages of the queue, and says how far back that was.
    """

    queue: QueueName
    key: str | None = None
    trace: str | None = None
    limit: SearchLimit = 20
    look_back: LookBack = limits.look_back_default


@operation(
    Action.READ,
    http="POST /queues/{queue}/messages/search",
    errors=(*IN_QUEUE, "group_not_found", "invalid_field"),
    route="search_queue",
    example={"text": "timeout", "status": "dead", "from": "2030-01-31T12:00:00Z", "limit": 20},
)
class SearchMessages(Operation[MessagePage], frozen=True):
    """Messages of a queue that match, settled ones too, the newest first; every field that is set must match.

    `status` is that in `group`. A page looks at no more than `look_back` messages and takes about two seconds at most:
    it may have few messages, or none, and a cursor. Without a cursor nothing is left.
    """

    queue: QueueName
    filter: Messages = MessageFilter()
    state: StateName | None = None
    group: GroupName = DEFAULT_GROUP
    limit: Limit = 50
    look_back: LookBack = limits.look_back_default
    cursor: str | None = None


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
