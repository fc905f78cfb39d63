"""Operations on groups and their members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock import limits
from penstock.model import DEFAULT_GROUP, PartitionLag
from penstock.operations.base import Action, Operation, Repeat, operation
from penstock.operations.types import (
    IN_QUEUE,
    Flag,
    GroupName,
    MemberName,
    Partition,
    Position,
    QueueName,
    SessionSeconds,
)
from penstock.replies import Member, Membership, SeekPreview

IN_GROUP: Final = ("queue_not_found", "group_not_found")
MEMBER: Final = (*IN_GROUP, "member_fenced", "invalid_field")


@operation(
    Action.MONITOR,
    http="GET /queues/{queue}/groups",
    errors=IN_QUEUE,
    route="list_groups",
    reply="groups",
)
class Groups(Operation[dict[str, list[PartitionLag]]], frozen=True):
    """List the groups of a queue, with their position in each partition."""

    queue: QueueName


@operation(
    Action.MANAGE,
    http="POST /queues/{queue}/groups",
    repeat=Repeat.NEVER,
    errors=(*IN_QUEUE, "invalid_name", "group_exists"),
    status=201,
    example={"name": "billing", "start": "earliest"},
)
class CreateGroup(Operation[None], frozen=True):
    """Create a group. Each group reads the queue independently."""

    queue: QueueName
    group: GroupName
    start: Position = "earliest"
    observes: Flag = False


@operation(
    Action.MANAGE,
    http="DELETE /queues/{queue}/groups/{group}",
    repeat=Repeat.NEVER,
    errors=(*IN_GROUP, "conflict"),
)
class DeleteGroup(Operation[None], frozen=True):
    """Delete a group."""

    queue: QueueName
    group: GroupName


@operation(
    Action.MANAGE,
    http="POST /queues/{queue}/groups/{group}/seek",
    repeat=Repeat.NEVER,
    errors=(*IN_GROUP, "invalid_field"),
    route="seek_group",
    example={"to": "2030-01-31T12:00:00Z"},
)
class Seek(Operation[None], frozen=True):
    """Move a group to a position, in one partition or in all of them."""

    queue: QueueName
    group: GroupName
    to: Position
    partition: Partition | None = None


@operation(Action.MANAGE, errors=(*IN_GROUP, "invalid_field"))
class PreviewSeek(Operation[SeekPreview], frozen=True):
    """Preview the effect of a seek on each partition, without changing anything."""

    queue: QueueName
    group: GroupName
    to: Position
    partition: Partition | None = None


# members


@operation(
    Action.MONITOR,
    http="GET /queues/{queue}/groups/{group}/members",
    errors=IN_GROUP,
    route="list_members",
    reply="members",
)
class Members(Operation[list[Member]], frozen=True):
    """List the members of a group."""

    queue: QueueName
    group: GroupName = DEFAULT_GROUP


@operation(
    Action.CONSUME,
    http="POST /queues/{queue}/groups/{group}/members",
    errors=MEMBER,
    route="join_group",
    example={"member": "worker-1", "session_ms": 10000},
)
class Join(Operation[Membership], frozen=True):
    """Join a group as a member.

    A member that sends no heartbeat for `session_seconds` is removed. With `start`, the group is created if it does not
    exist.
    """

    queue: QueueName
    group: GroupName
    member: MemberName
    session_seconds: SessionSeconds = limits.session_seconds_default
    start: Position | None = None


@operation(
    Action.CONSUME,
    http="POST /queues/{queue}/groups/{group}/members/{member}/heartbeat",
    errors=MEMBER,
    route="heartbeat_member",
    example={"generation": 1, "held": ["0", "1"]},
)
class Heartbeat(Operation[Membership], frozen=True):
    """Send a heartbeat of a member. `held` lists the partitions that it is still processing."""

    queue: QueueName
    group: GroupName
    member: MemberName
    generation: int
    held: Sequence[str] = ()


@operation(
    Action.CONSUME,
    http="DELETE /queues/{queue}/groups/{group}/members/{member}",
    repeat=Repeat.NEVER,
    errors=MEMBER,
    route="leave_group",
    example={"generation": 1},
)
class Leave(Operation[None], frozen=True):
    """Leave a group."""

    queue: QueueName
    group: GroupName
    member: MemberName
    generation: int
