"""Arguments of the public methods, checked once and turned into what a session takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from penstock import limits
from penstock.batch import encode_one_with, values
from penstock.errors import InvalidField
from penstock.model import MessageId, Outcome, check_name, check_seconds, to_micros
from penstock.requests import LeaseRequest, Settling

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
) -> LeaseRequest:
    """What a lease asks for."""
    if isinstance(max, bool) or not isinstance(max, int) or not 1 <= max <= limits.lease_messages_max:
        raise InvalidField(f"max: {max!r} is outside 1 to {limits.lease_messages_max}")
    if lease_seconds is not None and not check_seconds(lease_seconds, "lease_seconds", limits.lease_seconds_max):
        raise InvalidField("lease_seconds: 0 would end the lease before it begins")
    if consumer:
        check_name(consumer, "consumer")
    if member:
        check_name(member, "member")
    return LeaseRequest(max, lease_seconds, consumer or "", _some_partitions(partitions), auto_ack, member, generation)


def _some_partitions(value: Any) -> tuple[int | str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidField(f"partitions: {value!r} is not a list of partitions")
    return tuple(partition(each, "partitions") for each in value)


def partition(value: Any, name: str = "partition") -> int | str:
    """A partition by number or by name; whether there is one the queue knows."""
    if isinstance(value, bool) or not isinstance(value, int | str) or (isinstance(value, int) and value < 0):
        raise InvalidField(f"{name}: {value!r} is neither a number from 0 nor a name")
    return value


def message_id(value: MessageId | str) -> MessageId:
    """An id, or its text."""
    return value if isinstance(value, MessageId) else MessageId.parse(value)


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
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
        raise InvalidField(f"rate: {value!r} is not a number of messages per second above 0")
    return value


def offset(value: int | None) -> int | None:
    """An offset to read from."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise InvalidField(f"offset: {value!r} is not a whole number from 0")
    return value


def extension(value: float) -> float:
    """How long to hold a lease from now."""
    return check_seconds(value, "seconds", limits.lease_seconds_max)
