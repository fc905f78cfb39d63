"""Calls that are one operation each, and what differs in them from the rules of `transcoding`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from penstock import operations as ops
from penstock.broker.access import Client
from penstock.broker.broker import Broker
from penstock.errors import InvalidField
from penstock.model import DEFAULT_GROUP, MessageId, PartitionLag, QueueOptions, Receipt, check_name
from penstock.requests import Operation, PushOperation, SettleOperation
from penstock.server.grpc.generated import queues_pb2 as pb
from penstock.server.grpc.messages import batch_of, partition_of, settling
from penstock.server.grpc.transcoding import read, write, write_result
from penstock.server.grpc.values import convert, convert_many, plain_of, struct_of
from penstock.wire.json_options import OptionsChange, changes_of, view_of
from penstock.wire.json_reader import Reader
from penstock.wire.json_tasks import DEFAULT_QUEUE

_options: Final[Reader[Any]] = Reader(OptionsChange)


Unary = Callable[[Broker, Client, Any], Awaitable[Any]]


class Simple(NamedTuple):
    """One operation of the table. `defaults` are for fields of the request that are not set."""

    operation: type[ops.Operation[Any]]
    defaults: Mapping[str, Any] = {}
    answer: Callable[[Any, Any], Any] = write_result  # from the kind of message and the result


def simple_calls(messages: Any, service: str, table: Mapping[str, Simple]) -> dict[str, Unary]:
    """The calls of a service that a table declares; their answers are as the protocol buffers say."""
    methods = messages.DESCRIPTOR.services_by_name[service].methods_by_name
    return {
        name: partial(_call, simple, getattr(messages, methods[name].output_type.name))
        for name, simple in table.items()
    }


async def _call(simple: Simple, kind: Any, broker: Broker, client: Client, request: Any) -> Any:
    """Execute the operation that a request stands for, and answer with a message of this kind."""
    with broker.counting(""):
        operation: Any = await convert(read, simple.operation, request, defaults=simple.defaults)
    result = await broker.execute(client, operation)
    return await convert_many(len(result) if isinstance(result, list) else 1, simple.answer, kind, result)


def options_of(request: pb.CreateQueueRequest | pb.UpdateQueueRequest) -> dict[str, Any]:
    """The options that a request sets, as Python names them."""
    values = plain_of(request.options)
    try:
        return changes_of(msgspec.convert(values, OptionsChange))
    except msgspec.ValidationError as error:
        raise _options.refusal(error, values) from None


def queue_of(name: str, options: QueueOptions) -> pb.Queue:
    """A queue and all its options."""
    shown = msgspec.to_builtins(view_of(name, options))
    return pb.Queue(name=shown.pop("name"), options=struct_of(shown))


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


def _pushes(pushes: list[list[MessageId]]) -> pb.TransactResponse:
    return pb.TransactResponse(pushes=[pb.PushResponse(ids=map(str, ids)) for ids in pushes])


def _groups(kind: Any, groups: dict[str, list[PartitionLag]]) -> Any:
    return kind(
        groups=[
            pb.Group(name=name, partitions=[write(pb.PartitionLag, lag) for lag in lags])
            for name, lags in groups.items()
        ]
    )


_IN_DEFAULT: Final = {"group": DEFAULT_GROUP}
QUEUES: Final[Mapping[str, Simple]] = {
    "Read": Simple(ops.Read),
    "Peek": Simple(ops.Peek),
    "GetLatest": Simple(ops.Latest),
    "ListDelayed": Simple(ops.Delayed),
    "Why": Simple(ops.Why),
    "WhyQueue": Simple(ops.WhyQueue),
    "ListKeys": Simple(ops.MessageKeys),
    "GetAccount": Simple(ops.Account),
    "GetMessage": Simple(ops.GetMessage),
    "ListMessageEvents": Simple(ops.Events),
    "FindMessages": Simple(ops.FindMessages),
    "SearchMessages": Simple(ops.SearchMessages),
    "GetStats": Simple(ops.Stats),
    "DeleteQueue": Simple(ops.DeleteQueue),
    "ListQueues": Simple(ops.Queues),
    "ListLeases": Simple(ops.Leases),
    "Pause": Simple(ops.Pause),
    "Resume": Simple(ops.Resume),
    "ListPauses": Simple(ops.Pauses),
    "PauseBroker": Simple(ops.PauseBroker),
    "ResumeBroker": Simple(ops.ResumeBroker),
    "PauseNamespace": Simple(ops.PauseNamespace),
    "ResumeNamespace": Simple(ops.ResumeNamespace),
    "Purge": Simple(ops.Purge),
    "CompactQueue": Simple(ops.CompactQueue),
    "Cancel": Simple(ops.Cancel),
    "CreateGroup": Simple(ops.CreateGroup),
    "DeleteGroup": Simple(ops.DeleteGroup),
    "Seek": Simple(ops.Seek, _IN_DEFAULT),
    "PreviewSeek": Simple(ops.PreviewSeek, _IN_DEFAULT),
    "ListGroups": Simple(ops.Groups, answer=_groups),
    "Join": Simple(ops.Join, _IN_DEFAULT),
    "Heartbeat": Simple(ops.Heartbeat, _IN_DEFAULT),
    "Leave": Simple(ops.Leave, _IN_DEFAULT),
    "ListMembers": Simple(ops.Members),
    "ListDeadLetters": Simple(ops.DeadLetters, {"limit": 100}),
    "Redrive": Simple(ops.Redrive, {"limit": 2**62}),
    "PurgeDeadLetters": Simple(ops.PurgeDeadLetters),
}
TASKS: Final[Mapping[str, Simple]] = {
    "WhyTask": Simple(ops.WhyTask),
    "ListTasks": Simple(ops.ListTasks),
    "CancelTask": Simple(ops.CancelTask),
    "RetryTask": Simple(ops.RetryTask),
    "BeginOperation": Simple(ops.BeginOperation),
    "RedriveLetters": Simple(ops.RedriveLetters, {"limit": 2**62}),
    "DiscardLetters": Simple(ops.DiscardLetters, {"limit": 2**62}),
    "ReplayMessages": Simple(ops.ReplayMessages),
    "ContinueOperation": Simple(ops.ContinueOperation),
    "GetOperation": Simple(ops.FindOperation),
    "ListOperations": Simple(ops.ListOperations),
    "StopOperation": Simple(ops.StopOperation),
    "ForgetWorker": Simple(ops.ForgetWorker),
    "ListWorkers": Simple(ops.Workers),
    "QuietWorker": Simple(ops.QuietWorker),
    "ResumeWorker": Simple(ops.ResumeWorker),
    "StopWorker": Simple(ops.StopWorker),
    "RunSchedule": Simple(ops.RunSchedule),
    "ListTicks": Simple(ops.Ticks),
    "CountTasks": Simple(ops.CountTasks),
    "ListSchedules": Simple(ops.Schedules),
    "SetSchedule": Simple(ops.SetSchedule, {"queue": DEFAULT_QUEUE}),
    "DeleteSchedule": Simple(ops.DeleteSchedule),
}
