"""Arguments of the public methods, checked once and turned into what a session takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from penstock import limits
from penstock.batch import encode_one_with
from penstock.errors import InvalidField
from penstock.model import Outcome, check_name, check_seconds, to_micros
from penstock.requests import LeaseRequest, Settling


def one(
    payload: Any,
    key: str | None,
    priority: int | str,
    delay: float,
    deliver_at: datetime | str | None,
    ttl: float | None,
    headers: Mapping[str, str] | None,
    dedup_key: str | None,
    max_attempts: int | None,
    trace: str | None,
) -> bytes:
    """A batch of one, with options."""
    return encode_one_with(
        payload,
        key=key,
        priority=priority,
        delay_us=round(check_seconds(delay, "delay") * 1_000_000) if delay else 0,
        deliver_at_us=0 if deliver_at is None else to_micros(deliver_at, "deliver_at"),
        ttl_us=0 if ttl is None else max(1, round(check_seconds(ttl, "ttl") * 1_000_000)),
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
) -> LeaseRequest:
    """What a lease asks for."""
    if isinstance(max, bool) or not isinstance(max, int) or not 1 <= max <= limits.lease_messages_max:
        raise InvalidField(f"max: {max!r} is outside 1 to {limits.lease_messages_max}")
    if lease_seconds is not None and not check_seconds(lease_seconds, "lease_seconds", limits.lease_seconds_max):
        raise InvalidField("lease_seconds: 0 would end the lease before it begins")
    if consumer:
        check_name(consumer, "consumer")
    return LeaseRequest(max, lease_seconds, consumer or "", None if partitions is None else tuple(partitions), auto_ack)


@lru_cache(maxsize=64, typed=True)
def lease_of(max: int) -> LeaseRequest:
    """A lease that asks for nothing but a number of messages."""
    return lease_request(max, None, None, None, False)


def wait_seconds(value: float) -> float:
    """How long a lease may wait."""
    return check_seconds(value, "wait", limits.wait_seconds_max)


def settling(outcome: Outcome, delay: float | None = None, error: str = "") -> Settling:
    """How a delivery ends. A message about an error is cut, not refused: settling must not fail over its text."""
    if delay is not None:
        delay = check_seconds(delay, "delay")
    # Names of files may hold what is no character; cutting bytes may halve one.
    text = str(error).encode(errors="replace")[: limits.error_bytes_max].decode(errors="ignore") if error else ""
    return Settling(outcome, delay, text)


def timestamp_micros(value: datetime | str | None) -> int | None:
    """An instant to read from."""
    return None if value is None else to_micros(value, "timestamp")


def read_limit(value: int) -> int:
    """How many messages to list."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limits.lease_messages_max:
        raise InvalidField(f"limit: {value!r} is outside 1 to {limits.lease_messages_max}")
    return value


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
