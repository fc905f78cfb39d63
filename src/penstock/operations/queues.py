"""Operations on queues and their dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from penstock.errors import InvalidField
from penstock.model import Freed, Message, MessageId, QueueOptions, QueueStats
from penstock.model_letters import LetterFilter, SignatureReport
from penstock.operations.base import Action, Operation, Repeat, operation
from penstock.operations.types import (
    IN_PUSH,
    IN_QUEUE,
    Flag,
    GroupName,
    Letters,
    Limit,
    Options,
    Paused,
    PauseReason,
    QueueName,
    Rate,
    needs_of_filter,
)
from penstock.replies import LeaseView


@operation(
    Action.MONITOR,
    http="GET /queues",
    route="list_queues",
    reply="queues",
    queues=(),
)
class Queues(Operation[list[str]], frozen=True):
    """List the queues."""

    def visible(self, reply: list[str], may: Callable[[str], bool]) -> list[str]:
        return [queue for queue in reply if may(queue)]


@operation(
    Action.MANAGE,
    http="POST /queues",
    repeat=Repeat.NEVER,
    errors=("invalid_name", "invalid_field", "queue_exists", "disk_full"),
    status=201,
    example={"name": "orders", "partitions": 8, "lease_ms": 30000, "max_attempts": 5},
)
class CreateQueue(Operation[None], frozen=True):
    """Create a queue.

    With `exist_ok`, it is not an error if a queue with the same name and options exists.
    """

    queue: QueueName
    options: Options = msgspec.field(default_factory=dict)
    exist_ok: Flag = False

    @property
    def is_repeatable(self) -> bool:
        return self.exist_ok


@operation(
    Action.MANAGE,
    http="PATCH /queues/{queue}",
    errors=(*IN_QUEUE, "invalid_field", "conflict"),
    example={"max_attempts": 10},
)
class UpdateQueue(Operation[None], frozen=True):
    """Change the options of a queue."""

    queue: QueueName
    changes: Options


@operation(Action.MANAGE, http="DELETE /queues/{queue}", repeat=Repeat.NEVER, errors=IN_QUEUE)
class DeleteQueue(Operation[None], frozen=True):
    """Delete a queue with its messages and dead letters."""

    queue: QueueName


@operation(
    Action.MONITOR,
    http="GET /queues/{queue}",
    errors=IN_QUEUE,
    is_for_leases=True,
    route="get_queue",
)
class GetOptions(Operation[QueueOptions], frozen=True):
    """Get a queue and its options."""

    queue: QueueName


@operation(
    Action.MONITOR,
    http="GET /queues/{queue}/stats",
    errors=IN_QUEUE,
    route="get_queue_stats",
)
class Stats(Operation[QueueStats], frozen=True):
    """Get the counters of a queue and of its groups."""

    queue: QueueName


@operation(
    Action.MONITOR,
    http="GET /queues/{queue}/leases",
    errors=(*IN_QUEUE, "group_not_found"),
    route="list_leases",
    reply="leases",
    example={"group": "default", "limit": 20},
)
class Leases(Operation[list[LeaseView]], frozen=True):
    """List the active leases, oldest first, with their consumer, start, expiry and number of messages.

    At most `limit` leases are listed.
    """

    queue: QueueName
    group: GroupName | None = None
    limit: Limit = 100


@operation(
    Action.MANAGE,
    http="POST /queues/{queue}/pause",
    errors=(*IN_QUEUE, "group_not_found", "invalid_field"),
    route="pause_queue",
    example={"what": "delivery", "reason": "the database is moved"},
)
class Pause(Operation[None], frozen=True):
    """Pause a queue, or the delivery to one of its groups.

    `what` is `delivery`, `push` or `all`. Consumers that wait for messages keep waiting; pushes fail with
    `push_paused`.
    """

    queue: QueueName
    what: Paused = "delivery"
    group: GroupName | None = None
    reason: PauseReason = ""


@operation(
    Action.MANAGE,
    http="POST /queues/{queue}/resume",
    errors=(*IN_QUEUE, "group_not_found", "invalid_field"),
    route="resume_queue",
    example={"what": "all"},
)
class Resume(Operation[None], frozen=True):
    """Resume a queue or one of its groups.

    `what` is `delivery`, `push` or `all`. A pause of the namespace or of the broker stays in effect.
    """

    queue: QueueName
    what: Paused = "all"
    group: GroupName | None = None


@operation(
    Action.MANAGE,
    http="POST /queues/{queue}/purge",
    repeat=Repeat.NEVER,
    errors=IN_QUEUE,
    route="purge_queue",
)
class Purge(Operation[None], frozen=True):
    """Drop all unsettled messages, in every group."""

    queue: QueueName


@operation(
    Action.MANAGE,
    http="POST /queues/{queue}/compact",
    errors=IN_QUEUE,
    route="compact_queue",
)
class CompactQueue(Operation[Freed], frozen=True):
    """Keep only the latest sealed message of each key, and return what was freed.

    Only messages that all groups have read are removed.
    """

    queue: QueueName


# dead letters


@operation(
    Action.READ,
    http="GET /queues/{queue}/dlq",
    errors=IN_QUEUE,
    route="list_dead_letters",
    reply="messages",
    example={"reason": "rejected", "limit": 20},
)
class DeadLetters(Operation[list[Message]], frozen=True):
    """List the dead letters that were not redriven or deleted, oldest first."""

    queue: QueueName
    filter: Letters = LetterFilter()


@operation(
    Action.READ,
    http="GET /queues/{queue}/dlq/signatures",
    errors=(*IN_QUEUE, "invalid_field"),
    route="list_signatures",
    example={"limit": 20},
)
class LetterSignatures(Operation[SignatureReport], frozen=True):
    """Group the dead letters of a queue by the signature of their errors.

    For each signature, the reply shows what its letters have in common that healthy messages do not.
    """

    queue: QueueName
    limit: Limit = 50


@operation(
    Action.READ,
    http="GET /dlq/signatures",
    errors=("invalid_field",),
    route="list_all_signatures",
    example={"limit": 20},
    queues=(),
)
class AllSignatures(Operation[SignatureReport], frozen=True):
    """Group the dead letters of all queues that the caller may read by the signature of their errors."""

    limit: Limit = 50

    def visible(self, reply: SignatureReport, may: Callable[[str], bool]) -> SignatureReport:
        return msgspec.structs.replace(
            reply,
            signatures=[signature for signature in reply.signatures if may(signature.queue)],
            queues=[sampled for sampled in reply.queues if may(sampled.queue)],
        )


@operation(Action.MANAGE, repeat=Repeat.NEVER, errors=(*IN_QUEUE, "invalid_field", "conflict"))
class Redrive(Operation[int], frozen=True):
    """Send dead letters back to the groups in which they died, at most `rate` per second. Returns when it is done."""

    queue: QueueName
    filter: Letters = LetterFilter()
    rate: Rate | None = None

    def needs(self) -> Iterable[tuple[Action, str]]:
        return needs_of_filter(self.queue, self.filter)


@operation(
    Action.MANAGE,
    http="POST /queues/{queue}/dlq/replace",
    repeat=Repeat.NEVER,
    errors=(*IN_QUEUE, *IN_PUSH, "message_not_found"),
    route="replace_dead_letters",
    example={"ids": ["orders.dlq/0/3"], "messages": [{"payload": {"order": 1}}]},
)
class ReplaceLetters(Operation[None], frozen=True):
    """Push edited messages in place of dead letters, in one transaction."""

    queue: QueueName
    ids: list[MessageId]
    batch: bytes

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ids:
            raise InvalidField("ids: none is given", hint="name the dead letters that the messages replace")

    def needs(self) -> Iterable[tuple[Action, str]]:
        return [(Action.MANAGE, self.queue), (Action.PUSH, self.queue)]


@operation(Action.MANAGE, http="DELETE /queues/{queue}/dlq", repeat=Repeat.NEVER, errors=IN_QUEUE)
class PurgeDeadLetters(Operation[None], frozen=True):
    """Delete all dead letters of a queue."""

    queue: QueueName
