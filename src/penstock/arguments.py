"""Arguments of the public methods, checked once and turned into what a session takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from penstock import limits
from penstock.batch import encode_one_with, values
from penstock.errors import InvalidField
from penstock.model import MessageId, Outcome, Position, check_name, check_seconds, to_micros
from penstock.requests import LeaseRequest, LetterFilter, Settling

PushOptions = tuple[
    str | None,  # key
    int | str,  # priority
    float,  # delay
    datetime | str | None,  # deliver_at
    float | None,  # ttl
    Mapping[str, str] | None,  # headers
    str | None,  # dedup_key
    int | None,  # max_attempts
    str | None,  # trace
]
_OFFSET_MAX: Final = 2**62
PLAIN: Final[PushOptions] = (None, limits.priority_default, 0, None, None, None, None, None, None)


def one(payload: Any, options: PushOptions) -> bytes:
    """A batch of one message."""
    if options == PLAIN:
        return encode_one_with(payload)
    key, priority, delay, deliver_at, ttl, headers, dedup_key, max_attempts, trace = options
    return encode_one_with(
        payload,
        key=key,
        priority=priority,
        delay_us=values.delay_us(delay),
        deliver_at_us=values.deliver_at_us(deliver_at),
        ttl_us=values.ttl_us(ttl),
        headers=headers,
        dedup_key=dedup_key,
        max_attempts=max_attempts,
        trace=trace,
    )


def lease_request(
    max: int,
    lease_seconds: float | None,
    consumer: str | None,
    partitions: Sequence[int | str] | None,
    auto_ack: bool,
    member: str = "",
    generation: int = 0,
    start: Position | None = None,
) -> LeaseRequest:
    """What a lease asks for."""
    if isinstance(max, bool) or not isinstance(max, int) or not 1 <= max <= limits.lease_messages_max:
        raise InvalidField(f"max: {max!r} is outside 1 to {limits.lease_messages_max}")
    if lease_seconds is not None:
        _lease_length(lease_seconds, "lease_seconds")
    if consumer:
        check_name(consumer, "consumer")
    if member:
        check_name(member, "member")
    flag(auto_ack, "auto_ack")
    request = LeaseRequest(
        max, lease_seconds, consumer or "", _some_partitions(partitions), auto_ack, member, generation
    )
    return request if start is None else msgspec.structs.replace(request, start=position(start, "start"))


def _some_partitions(value: Any) -> tuple[int | str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidField(f"partitions: {value!r} is not a list of partitions")
    return tuple(partition(each, "partitions") for each in value)


def partition(value: Any, name: str = "partition") -> int | str:
    """A partition by number or by name; whether there is one the queue knows."""
    if isinstance(value, str):
        return check_name(value, name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise InvalidField(f"{name}: {value!r} is neither a number from 0 nor a name")
    return value


def message_id(value: Any) -> MessageId:
    """An id, or its text."""
    found = value if isinstance(value, MessageId) else MessageId.parse(value)
    check_name(found.queue)
    check_name(found.partition, "partition")
    if isinstance(found.offset, bool) or not isinstance(found.offset, int) or not 0 <= found.offset <= _OFFSET_MAX:
        raise InvalidField(f"id: {found.offset!r} is not an offset", hint="an id reads queue/partition/offset")
    return found


def position(value: Any, name: str) -> Position:
    """A place in a queue: a word, an offset, an instant, or an offset for each partition."""
    if isinstance(value, str):
        if value not in ("earliest", "begin", "latest", "end"):
            to_micros(value, name)
        return value
    if isinstance(value, datetime):
        to_micros(value, name)
        return value
    if isinstance(value, Mapping) and value:
        return {str(partition(each, name)): _position_offset(offset, name) for each, offset in value.items()}
    return _position_offset(value, name)


def _position_offset(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _OFFSET_MAX:
        hint = "use earliest, latest, an offset, a time, or an offset for each partition"
        raise InvalidField(f"{name}: {value!r} is not a position", hint=hint)
    return value


def flag(value: Any, name: str) -> bool:
    """True or False, and nothing that may pass for it."""
    if not isinstance(value, bool):
        raise InvalidField(f"{name}: {value!r} is neither True nor False")
    return value


def letter_filter(
    limit: int,
    *,
    ids: Iterable[MessageId | str] | None = None,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    **texts: str | None,
) -> LetterFilter:
    """Which dead letters are meant; `texts` are group, reason, error_contains and key."""
    for name, value in texts.items():
        if value is not None:
            _text(value, name)
    if isinstance(ids, str | MessageId) or not isinstance(ids, Iterable | None):
        raise InvalidField(f"ids: {ids!r} is not a list of ids", hint="pass the ids of dead letters in a list")
    chosen = None if ids is None else frozenset(map(message_id, ids))
    return LetterFilter(limit=limit, ids=chosen, since=since, until=until, **texts)  # type: ignore[arg-type]


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidField(f"{name}: {value!r} is not text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidField(f"{name}: {value!r} is not valid text: {error.reason}") from None
    return value


@lru_cache(maxsize=64, typed=True)
def lease_of(max: int) -> LeaseRequest:
    """A lease that asks for nothing but a number of messages."""
    return lease_request(max, None, None, None, False)


def wait_seconds(value: float) -> float:
    """How long a lease may wait."""
    return check_seconds(value, "wait", limits.wait_seconds_max)


def settling(outcome: Outcome, delay: float | None = None, error: str = "") -> Settling:
    """How a delivery ends. A message about an error is cut, not refused: settling must not fail over its text."""
    if delay is not None or outcome == Outcome.SNOOZED:
        delay = check_seconds(delay, "delay")
    # Names of files may hold what is no character; cutting bytes may halve one.
    text = str(error).encode(errors="replace")[: limits.error_bytes_max].decode(errors="ignore") if error else ""
    return Settling(outcome, delay, text)


def timestamp_micros(value: datetime | str | None) -> int | None:
    """An instant to read from."""
    return None if value is None else to_micros(value, "timestamp")


def read_limit(value: int, greatest: int = limits.lease_messages_max) -> int:
    """How many messages to list."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= greatest:
        raise InvalidField(f"limit: {value!r} is outside 1 to {greatest}")
    return value


def redrive_limit(value: int) -> int:
    """How many dead letters to send back."""
    return read_limit(value, 2**62)


def per_second(value: float | None) -> float | None:
    """A rate."""
    least, greatest = limits.per_second_min, limits.per_second_max
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= greatest
    ):
        raise InvalidField(f"rate: {value!r} is not a number of messages per second from {least:g} to {greatest:g}")
    return value


def offset(value: int | None) -> int | None:
    """An offset to read from."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _OFFSET_MAX):
        raise InvalidField(f"offset: {value!r} is not a whole number from 0 to 2⁶²")
    return value


def extension(value: float) -> float:
    """How long to hold a lease from now."""
    return _lease_length(value, "seconds")


def _lease_length(value: Any, name: str) -> float:
    if check_seconds(value, name, limits.lease_seconds_max) < limits.lease_seconds_min:
        raise InvalidField(f"{name}: {value!r} is under {limits.lease_seconds_min:g}, too short to be of use")
    return float(value)
