"""Operations on messages, and transactions. Push, lease and settle are not here: they have faster paths."""

from __future__ import annotations

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
    """Browse the messages of a partition, starting at an offset or a time."""

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
    """Show the next messages of the default group, without leasing them."""

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
    """Get the newest message of a key, in a queue with `compaction` "latest".

    The list is empty if the key has no message, or if its newest message is a tombstone.
    """

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
    """List the messages that are not due yet, earliest first.

    `include` "retries" adds the messages that wait for their next attempt: one row for each group, in which `retry`
    says when the attempt is due and how the last one ended. "only_retries" lists only those.
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


@operation(
    Action.READ,
    http="GET /queues/{queue}/messages/{partition}/{offset}",
    errors=ONE_MESSAGE,
)
class GetMessage(Operation[MessageDetails], frozen=True):
    """Get one message and its state in each group."""

    id: Id


@operation(
    Action.READ,
    http="GET /queues/{queue}/messages/{partition}/{offset}/events",
    errors=ONE_MESSAGE,
    route="list_message_events",
    reply="events",
    example={"limit": 100},
)
class Events(Operation[list[MessageEvent]], frozen=True):
    """List the events of a message, oldest first: pushed, leased, retried, settled, dead, redriven.

    Returns the last `limit` events. After a message was removed by retention, its events are kept as long as its queue
    has other messages of the same age.
    """

    id: Id
    limit: Limit = 1_000


@operation(
    Action.READ,
    http="GET /queues/{queue}/events",
    errors=(*IN_QUEUE, "invalid_field"),
    route="search_messages",
    example={"key": "customer-7", "limit": 5},
)
class FindMessages(Operation[MessageSearch], frozen=True):
    """Find the newest messages with a key or a trace id, and the events of each.

    The last `look_back` messages of the queue are searched; the reply says how far back that was.
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
    """Search the messages of a queue, including settled ones, newest first.

    A message must match every field that is set. `status` is the state in `group`. A page examines at most `look_back`
    messages and takes about two seconds at most, so it can have few messages, or none, and still have a `cursor`. The
    search is complete when there is no `cursor`.
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
    """Explain why a message is not delivered, for each group."""

    id: Id
