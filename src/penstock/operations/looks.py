"""Operations for diagnosis: why something waits, which keys are blocked, whether every message is accounted for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec

from penstock import limits
from penstock.model import DEFAULT_GROUP, check_name
from penstock.model_backlog import KeyPage, QueueAccount, QueueWait, TaskWait
from penstock.operations.base import Action, Check, Operation, Repeat, operation
from penstock.operations.types import IN_QUEUE, GroupName, LookBack, Prefix, QueueName, TaskId, number
from penstock.replies import ClusterView, ConnectionPage, TraceView

StepLimit = Annotated[int, number(limits.trace_steps_max)]
ConnectionLimit = Annotated[int, number(limits.connections_listed_max)]
ReasonLimit = Annotated[int, number(limits.wait_reasons_max)]
KeyLimit = Annotated[int, number(limits.survey_keys_max)]
TraceId = Annotated[str, Check(check_name)]  # other texts can be looked for in one queue, with `?trace=`
ConnectionId = Annotated[str, Check(check_name)]


@operation(
    Action.MONITOR,
    http="GET /queues/{queue}/why",
    errors=(*IN_QUEUE, "group_not_found", "invalid_field"),
    route="explain_queue",
    example={"group": "default", "limit": 5},
)
class WhyQueue(Operation[QueueWait], frozen=True):
    """Explain why the messages of a queue are waiting: the reasons and their counts, for each group.

    The most frequent reasons come first, up to `limit` for each group; the rest are summed up in one entry. At most a
    million messages are examined, oldest first. Keys are shown only to callers that may read the queue.
    """

    queue: QueueName
    group: GroupName | None = None
    limit: ReasonLimit = 10


@operation(
    Action.READ,
    http="GET /tasks/{task_id}/why",
    errors=("task_not_found", "invalid_field"),
    route="explain_task",
    queues=(),
)
class WhyTask(Operation[TaskWait], frozen=True):
    """Explain why a task is not running, and list the parents that it is waiting for."""

    task_id: TaskId


@operation(
    Action.READ,
    http="GET /queues/{queue}/keys",
    errors=(*IN_QUEUE, "group_not_found", "invalid_field"),
    route="list_queue_keys",
    example={"group": "default", "limit": 20},
)
class MessageKeys(Operation[KeyPage], frozen=True):
    """List the keys of unsettled messages, with their backlog, messages in flight and the consumers that hold them.

    The keys with the largest backlog come first. `key` selects one key. `prefix` selects keys that begin with it, among
    the 1,000 keys with the largest backlog. At most a million messages are examined, oldest first.
    """

    queue: QueueName
    group: GroupName = DEFAULT_GROUP
    key: str | None = None
    prefix: Prefix = ""
    limit: KeyLimit = 50


@operation(
    Action.READ,
    http="GET /traces/{trace}",
    errors=("invalid_field",),
    example={"limit": 100, "look_back": 10000},
    queues=(),
)
class GetTrace(Operation[TraceView], frozen=True):
    """Get the messages and tasks of a trace in the order of their pushes, with their waiting and running times.

    The last `look_back` messages of each queue are searched; the reply says how far back that was. Queues that the
    caller may not read are omitted.
    """

    trace: TraceId
    limit: StepLimit = 200
    look_back: LookBack = 10_000

    def visible(self, reply: TraceView, may: Callable[[str], bool]) -> TraceView:
        steps = [step for step in reply.steps if may(step.queue)]
        return msgspec.structs.replace(
            reply,
            steps=steps,
            queues=[queue for queue in reply.queues if may(queue.queue)],
            began_at=steps[0].pushed_at if steps else None,
            ended_at=max((run.ended_at for step in steps for run in step.runs if run.ended_at), default=None),
        )


@operation(
    Action.OPERATE,
    http="GET /connections",
    route="list_connections",
    errors=("invalid_field",),
    example={"limit": 100},
)
class ListConnections(Operation[ConnectionPage], frozen=True):
    """List the connections to the broker, oldest first, with their principal, age and activity.

    Unary gRPC calls are not listed; gRPC streams are.
    """

    limit: ConnectionLimit = 1_000


@operation(
    Action.OPERATE,
    http="DELETE /connections/{connection_id}",
    errors=("connection_not_found",),
    repeat=Repeat.NEVER,
)
class EndConnection(Operation[None], frozen=True):
    """Close a connection. Its leases stay valid, and its client may reconnect."""

    connection_id: ConnectionId


@operation(
    Action.MONITOR,
    http="GET /cluster",
    route="get_cluster",
)
class Cluster(Operation[ClusterView], frozen=True):
    """Get the storage of the broker, its owner, and the nodes that share it."""


@operation(
    Action.MONITOR,
    http="GET /queues/{queue}/account",
    errors=IN_QUEUE,
    route="get_queue_account",
)
class Account(Operation[QueueAccount], frozen=True):
    """Check that every message of a queue is accounted for: accepted = acked + dead + dropped + open.

    The equation must hold in every group. `open` is counted again from the state of each message; the others are
    counters.
    """

    queue: QueueName
