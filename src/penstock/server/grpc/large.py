"""Large requests and answers: reading and writing them takes long, and the event loop has other clients to serve.

A request over `LARGE_BYTES` is read in a thread, and so is whatever is made of it. The parser holds the interpreter
until it is done, so a large request is parsed a piece at a time: bytes that follow each other in a message are merged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final, ParamSpec, TypeVar

from penstock import limits
from penstock.errors import BadRequest, InvalidField
from penstock.wire.json_frames import CLAIMED_MAX, QUEUES_MAX
from penstock.wire.json_pieces import LARGE_BYTES
from penstock.wire.json_tasks import TASKS_MAX

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
    "ClaimTasksRequest": {"queues": QUEUES_MAX},
    "FinishTasksRequest": {"finishes": limits.lease_messages_max},
    "GetTaskStatsRequest": {"queues": limits.grpc_names_max},
    "HeartbeatRequest": {"held": limits.partitions_max},
    "HeartbeatWorkerRequest": {"receipts": limits.lease_messages_max, "progress": CLAIMED_MAX},
    "LeaseRequest": {"partitions": limits.partitions_max},
    "NewTask": {"depends_on": limits.task_parents_max},
    "StreamOpen": {"partitions": limits.partitions_max},
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
        raise BadRequest(f"{kind.DESCRIPTOR.name}: these bytes are no such message") from error
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
