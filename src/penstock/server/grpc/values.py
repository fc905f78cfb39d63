"""Values between protocol buffers and Penstock: instants, durations, names, errors; and large messages in pieces.

Reading and writing a large message takes long, and the event loop has other clients to serve. A request over
`LARGE_BYTES` is read in a thread, and so is whatever is made of it. The parser holds the interpreter until it is done,
so a large request is parsed a piece at a time: bytes that follow each other in a message are merged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final, ParamSpec, TypeVar

from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from penstock import limits
from penstock.errors import BadReceipt, BadRequest, InvalidField, PenstockError
from penstock.model import DEFAULT_GROUP, DURABILITIES, Durability, to_datetime
from penstock.server.grpc.generated import queues_pb2 as pb
from penstock.wire.errors import to_reply
from penstock.wire.json_protocols import CLAIMED_MAX, QUEUES_MAX
from penstock.wire.json_reader import LARGE_BYTES
from penstock.wire.json_tasks import TASKS_MAX

_MICROS: Final = 1_000_000


def timestamp(micros: int) -> Timestamp:
    """µs UTC as a timestamp."""
    seconds, rest = divmod(micros, _MICROS)
    return Timestamp(seconds=seconds, nanos=rest * 1000)


def micros(value: Timestamp, name: str) -> int:
    """A timestamp as µs UTC."""
    total = value.seconds * _MICROS + value.nanos // 1000
    if not 0 <= total <= limits.instant_us_max or not 0 <= value.nanos < 1_000_000_000:
        raise InvalidField(f"{name}: {value.seconds} s and {value.nanos} ns is not an instant from 1970 to 9999")
    return total


def maybe(message: Any, field: str) -> Any:
    """The value of an optional field; None when it is not set."""
    return getattr(message, field) if message.HasField(field) else None


def seconds(message: Any, field: str) -> float | None:
    """A duration in milliseconds as seconds; None when it is not set."""
    return getattr(message, field) / 1000 if message.HasField(field) else None


def group_of(message: Any) -> str:
    """The group that a request names."""
    return message.group or DEFAULT_GROUP


def durability_of(value: int) -> Durability | None:
    """What the producer asks for."""
    if not 0 <= value <= len(DURABILITIES):
        raise InvalidField(f"durability: {value} is not a level")
    level: Durability | None = (None, *DURABILITIES)[value]
    return level


def nonce_of(lease_id: str) -> int:
    """A lease by its name."""
    try:
        return int(lease_id, 16)
    except ValueError:
        raise BadReceipt(f"lease_id: {lease_id!r} is not the name of a lease") from None


def error_of(error: PenstockError) -> pb.Error:
    """An error as part of an answer."""
    reply = to_reply(error)
    after = round(reply.retry_after_seconds * 1000)
    return pb.Error(code=reply.code, message=reply.message, hint=reply.hint, retry_after_ms=after)


def plain_of(struct: Struct) -> dict[str, Any]:
    """What a Struct holds; its numbers are floats, of which whole ones were meant as integers."""
    return {name: _plain(value) for name, value in struct.fields.items()}


def _plain(value: Value) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return plain_of(value.struct_value)
    if kind == "list_value":
        return [_plain(item) for item in value.list_value.values]
    if kind in (None, "null_value"):
        return None
    number = getattr(value, kind)
    return int(number) if isinstance(number, float) and number.is_integer() else number


def struct_of(values: dict[str, Any]) -> Struct:
    """A mapping of plain values as a Struct."""
    struct = Struct()
    struct.update(values)
    return struct


def position_of(position: pb.Position, name: str) -> Any:
    """A place in a queue."""
    match position.WhichOneof("position"):
        case "earliest" | "latest" as word:
            return word
        case "offset":
            return position.offset
        case "timestamp":
            return to_datetime(micros(position.timestamp, name)).isoformat()
        case "offsets":
            return dict(position.offsets.offsets)
        case _:
            raise InvalidField(
                f"{name}: no position is set", hint="set earliest, latest, an offset, a timestamp or offsets"
            )


def start_of(request: Any) -> Any:
    """Where a group begins if the request makes it; None when it must exist."""
    return position_of(request.start, "start") if request.HasField("start") else None


P = ParamSpec("P")
T = TypeVar("T")

PIECE_BYTES: Final = 256 * 1024  # parsed in one go
FIELDS_MAX: Final = limits.batch_messages_max + 100  # of one request, not counting those inside others
LARGE_COUNT: Final = 2000  # values whose conversion takes some milliseconds
TURN_COUNT: Final = 100  # values that are dealt with in one turn of the loop
_FIXED: Final = {1: 8, 5: 4}  # bytes by wire type
_VARINT, _BYTES = 0, 2
# How many values a field of a request may have, as in JSON. Those of a push, a settlement and an extension are counted
# where they are read, together.
COUNTS_MAX: Final[Mapping[str, Mapping[str, int]]] = {
    "ClaimTasksRequest": {"queues": QUEUES_MAX, "task_types": limits.grpc_names_max},
    "FinishTasksRequest": {"finishes": limits.lease_messages_max},
    "GetTaskStatsRequest": {"queues": limits.grpc_names_max},
    "HeartbeatRequest": {"held": limits.partitions_max},
    "HeartbeatWorkerRequest": {"receipts": limits.lease_messages_max, "progress": CLAIMED_MAX},
    "LeaseRequest": {"partitions": limits.partitions_max, "task_types": limits.grpc_names_max},
    "LeaseQueuesRequest": {"queues": limits.grpc_names_max, "task_types": limits.grpc_names_max},
    "NewTask": {"depends_on": limits.task_parents_max},
    "ReplaceDeadLettersRequest": {"ids": limits.lease_messages_max, "messages": limits.lease_messages_max},
    "StreamOpen": {"partitions": limits.partitions_max, "queues": limits.grpc_names_max},
    "StreamTaskUpdatesRequest": dict.fromkeys(("task_ids", "task_types", "queues"), limits.grpc_names_max),
    "SubmitTasksRequest": {"tasks": TASKS_MAX},
    "TransactRequest": {"operations": limits.lease_messages_max},
    "WatchEventsRequest": {"queues": limits.grpc_names_max},
}

_is_large: ContextVar[bool] = ContextVar("is_large", default=False)  # the request that is being answered


async def parse(kind: Any, data: bytes) -> Any:
    """A message from outside. `convert` in the same task knows whether it is large."""
    is_large = len(data) > LARGE_BYTES
    _is_large.set(is_large)
    message = await asyncio.to_thread(_parsed, kind, data) if is_large else _parsed(kind, data)
    if (counts := COUNTS_MAX.get(kind.DESCRIPTOR.name)) is not None:
        _check_counts(message, counts)
    return message


async def convert(work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """The result of `work`; in a thread when the request is large."""
    if _is_large.get():
        return await asyncio.to_thread(work, *arguments, **options)
    return work(*arguments, **options)


async def convert_many(count: int, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """The result of `work` on `count` values; in a thread when they are many."""
    if count > LARGE_COUNT:
        return await asyncio.to_thread(work, *arguments, **options)
    return work(*arguments, **options)


def _check_counts(message: Any, counts: Mapping[str, int]) -> None:
    for field, count_max in counts.items():
        count = len(getattr(message, field))
        if count > count_max:
            hint = "send several requests"
            raise InvalidField(f"{field}: {count:,} values is over the limit of {count_max:,}", hint=hint)


def _parsed(kind: Any, data: bytes) -> Any:
    message, start = kind(), 0
    try:
        for end in _cuts(kind, data) if len(data) > LARGE_BYTES else (len(data),):
            message.MergeFromString(data[start:end])
            start = end
    except BadRequest:
        raise
    except Exception as error:
        raise BadRequest(f"{kind.DESCRIPTOR.name}: these bytes are not such a message") from error
    return message


def _cuts(kind: Any, data: bytes) -> Iterator[int]:
    """Where the pieces of a message end: between two of its fields."""
    at = last = count = 0
    while at < len(data):
        tag, at = _varint(data, at)
        if tag & 7 == _BYTES:
            length, at = _varint(data, at)
            at += length
        elif tag & 7 == _VARINT:
            _, at = _varint(data, at)
        elif tag & 7 in _FIXED:
            at += _FIXED[tag & 7]
        else:
            break  # the parser will refuse it, or knows better
        count += 1
        if count > FIELDS_MAX:
            raise BadRequest(f"{kind.DESCRIPTOR.name}: it has more than {FIELDS_MAX:,} values", hint="send several")
        if at - last >= PIECE_BYTES and at < len(data):
            yield at
            last = at
    yield len(data)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while (byte := data[at]) > 127:
        number |= (byte & 127) << shift
        shift += 7
        at += 1
    return number | byte << shift, at + 1
