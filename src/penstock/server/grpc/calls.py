"""Calls that are one operation of the broker each: how the request becomes arguments, and the result an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from penstock import limits
from penstock import operations as ops
from penstock.broker.access import Client
from penstock.broker.broker import Broker
from penstock.errors import InvalidField
from penstock.model import (
    Message,
    MessageId,
    PartitionLag,
    QueueOptions,
    QueueStats,
    Reason,
    Receipt,
    check_name,
    to_datetime,
    to_micros,
)
from penstock.replies import LeaseView, Member, Membership
from penstock.requests import LetterFilter, Operation, PushOperation, SettleOperation
from penstock.server.grpc.generated import queues_pb2 as pb
from penstock.server.grpc.messages import batch_of, partition_of, settling
from penstock.server.grpc.values import (
    group_of,
    maybe,
    micros,
    plain_of,
    position_of,
    seconds,
    start_of,
    struct_of,
    timestamp,
)
from penstock.validation import message_id
from penstock.wire.json_options import OptionsChange, changes_of, view_of
from penstock.wire.json_reader import Reader

READ_LIMIT: Final = 100
_options: Final[Reader[Any]] = Reader(OptionsChange)


class Simple(NamedTuple):
    """One operation of the table."""

    arguments: Callable[[Any], ops.Operation[Any]]
    answer: Callable[[Any], Any]


# requests


def options_of(request: pb.CreateQueueRequest | pb.UpdateQueueRequest) -> dict[str, Any]:
    """The options that a request sets, as Python names them."""
    try:
        return changes_of(msgspec.convert(plain_of(request.options), OptionsChange))
    except msgspec.ValidationError as error:
        raise _options.refusal(error) from None


def _start(request: pb.CreateGroupRequest) -> Any:
    return position_of(request.start, "start") if request.HasField("start") else "earliest"


def _read(request: pb.ReadRequest) -> ops.Read:
    moment = _instant(request, "timestamp")
    return ops.Read(
        request.queue, request.partition or 0, maybe(request, "offset"), moment, request.limit or READ_LIMIT
    )


def _filter(message: pb.LetterFilter, limit: int) -> LetterFilter:
    return LetterFilter(
        group=maybe(message, "group"),
        reason=maybe(message, "reason"),
        error_contains=maybe(message, "error_contains"),
        key=maybe(message, "key"),
        since=_instant(message, "since"),
        until=_instant(message, "until"),
        ids=frozenset(map(MessageId.parse, message.ids)) if message.ids else None,
        limit=limit,
    )


def _instant(message: Any, field: str) -> datetime | None:
    return to_datetime(micros(getattr(message, field), field)) if message.HasField(field) else None


def _redrive(request: pb.RedriveRequest) -> ops.Redrive:
    limit = request.limit if request.HasField("limit") else 2**62
    return ops.Redrive(request.queue, _filter(request.filter, limit), maybe(request, "per_second"))


def _join(request: pb.JoinRequest) -> ops.Join:
    session = seconds(request, "session_ms")
    patience = limits.session_seconds_default if session is None else session
    return ops.Join(request.queue, group_of(request), request.member, patience, start_of(request))


def _heartbeat(request: pb.HeartbeatRequest) -> ops.Heartbeat:
    return ops.Heartbeat(request.queue, group_of(request), request.member, request.generation, list(request.held))


async def transact(broker: Broker, client: Client, request: pb.TransactRequest) -> pb.TransactResponse:
    """Pushes and settlements, all or nothing."""
    steps = [step for operation in request.operations for step in _steps(operation)]
    return _pushes(await broker.transact(client, steps))


def _steps(operation: pb.Operation) -> Iterable[Operation]:
    if operation.WhichOneof("operation") == "push":
        queue = check_name(operation.push.queue)
        batch = batch_of(operation.push)
        where = partition_of(operation.push, batch)
        return [PushOperation(queue, batch, where)]
    settlement = operation.settle
    if settlement.lease_id or not settlement.receipts:
        raise InvalidField("settle: in a transaction deliveries are named by their receipts")
    how = settling(settlement)
    return [SettleOperation(Receipt.parse(receipt), how) for receipt in settlement.receipts]


# answers


def queue_of(name: str, options: QueueOptions) -> pb.Queue:
    """A queue and all its options."""
    shown = msgspec.to_builtins(view_of(name, options))
    return pb.Queue(name=shown.pop("name"), options=struct_of(shown))


def _messages(messages: list[Message]) -> pb.ReadResponse:
    return pb.ReadResponse(messages=map(_stored, messages))


def _stored(message: Message) -> pb.StoredMessage:
    assert isinstance(message.payload, bytes)
    return pb.StoredMessage(
        id=str(message.id),
        payload=message.payload,
        content_type=int(message.content_type or 0),  # type: ignore[arg-type]
        key=message.key,
        priority=int(message.priority),
        headers=message.headers,
        dedup_key=message.dedup_key,
        max_attempts=message.max_attempts,
        trace=message.trace,
        pushed_at=_moment(message.pushed_at),
        available_at=_moment(message.available_at),
        expires_at=_moment(message.expires_at),
    )


def _moment(instant: datetime | None) -> Any:
    return None if instant is None else timestamp(to_micros(instant, "at"))


def stats_of(stats: QueueStats) -> pb.GetStatsResponse:
    """The account of a queue."""
    groups = [
        pb.GroupStats(
            **{name: getattr(group, name) for name in _GROUP_FIELDS},
            oldest_unsettled_at=_moment(group.oldest_unsettled_at),
        )
        for group in stats.groups.values()
    ]
    return pb.GetStatsResponse(
        queue=stats.name,
        messages=stats.messages,
        partitions=stats.partitions,
        bytes_stored=stats.bytes_stored,
        paused=stats.paused,
        groups=groups,
    )


_GROUP_FIELDS: Final = (
    "name", "messages", "ready", "leased", "waiting", "acked", "dead", "dropped", "dropped_by", "lag",
)  # fmt: skip


def _groups(groups: dict[str, list[PartitionLag]]) -> pb.ListGroupsResponse:
    return pb.ListGroupsResponse(
        groups=[
            pb.Group(name=name, partitions=[pb.PartitionLag(**lag._asdict()) for lag in lags])
            for name, lags in groups.items()
        ]
    )


def _reasons(reasons: list[Reason]) -> pb.WhyResponse:
    return pb.WhyResponse(reasons=[pb.Reason(**reason._asdict()) for reason in reasons])


def _pushes(pushes: list[list[MessageId]]) -> pb.TransactResponse:
    return pb.TransactResponse(pushes=[pb.PushResponse(ids=map(str, ids)) for ids in pushes])


def _assignment(membership: Membership) -> pb.Assignment:
    return pb.Assignment(
        member=membership.member,
        generation=membership.generation,
        assigned=membership.assigned,
        revoking=membership.revoking,
        heartbeat_ms=round(membership.heartbeat_seconds * 1000),
    )


def _members(members: list[Member]) -> pb.ListMembersResponse:
    return pb.ListMembersResponse(
        members=[
            pb.Member(
                member=member.member,
                generation=member.generation,
                partitions=member.partitions,
                last_heartbeat_at=timestamp(to_micros(member.last_heartbeat_at, "last_heartbeat_at")),
            )
            for member in members
        ]
    )


def _leases(leases: list[LeaseView]) -> pb.ListLeasesResponse:
    shown = []
    for lease in leases:
        fields = msgspec.structs.asdict(lease)
        fields |= {"leased_at": _moment(lease.leased_at), "expires_at": _moment(lease.expires_at)}
        shown.append(pb.HeldLease(**fields))
    return pb.ListLeasesResponse(leases=shown)


def _nothing(kind: Any) -> Callable[[Any], Any]:
    return lambda _: kind()


SIMPLE: Final[Mapping[str, Simple]] = {
    "Read": Simple(_read, _messages),
    "Peek": Simple(lambda r: ops.Peek(r.queue, r.limit or 1), _messages),
    "ListDelayed": Simple(lambda r: ops.Delayed(r.queue, r.limit or READ_LIMIT), _messages),
    "Why": Simple(lambda r: ops.Why(message_id(r.id)), _reasons),
    "GetStats": Simple(lambda r: ops.Stats(r.queue), stats_of),
    "DeleteQueue": Simple(lambda r: ops.DeleteQueue(r.queue), _nothing(pb.DeleteQueueResponse)),
    "ListQueues": Simple(lambda r: ops.Queues(), lambda names: pb.ListQueuesResponse(queues=names)),
    "ListLeases": Simple(lambda r: ops.Leases(r.queue, maybe(r, "group"), r.limit or READ_LIMIT), _leases),
    "Pause": Simple(lambda r: ops.Pause(r.queue), _nothing(pb.PauseResponse)),
    "Resume": Simple(lambda r: ops.Resume(r.queue), _nothing(pb.ResumeResponse)),
    "Purge": Simple(lambda r: ops.Purge(r.queue), _nothing(pb.PurgeResponse)),
    "Cancel": Simple(lambda r: ops.Cancel(message_id(r.id)), _nothing(pb.CancelResponse)),
    "CreateGroup": Simple(
        lambda r: ops.CreateGroup(r.queue, r.group, _start(r), r.observes), _nothing(pb.CreateGroupResponse)
    ),
    "DeleteGroup": Simple(lambda r: ops.DeleteGroup(r.queue, r.group), _nothing(pb.DeleteGroupResponse)),
    "Seek": Simple(
        lambda r: ops.Seek(r.queue, group_of(r), position_of(r.to, "to"), maybe(r, "partition")),
        _nothing(pb.SeekResponse),
    ),
    "ListGroups": Simple(lambda r: ops.Groups(r.queue), _groups),
    "Join": Simple(_join, _assignment),
    "Heartbeat": Simple(_heartbeat, _assignment),
    "Leave": Simple(lambda r: ops.Leave(r.queue, group_of(r), r.member, r.generation), _nothing(pb.LeaveResponse)),
    "ListMembers": Simple(lambda r: ops.Members(r.queue, group_of(r)), _members),
    "ListDeadLetters": Simple(lambda r: ops.DeadLetters(r.queue, _filter(r.filter, r.limit or READ_LIMIT)), _messages),
    "Redrive": Simple(_redrive, lambda count: pb.RedriveResponse(count=count)),
    "PurgeDeadLetters": Simple(lambda r: ops.PurgeDeadLetters(r.queue), _nothing(pb.PurgeDeadLettersResponse)),
}
