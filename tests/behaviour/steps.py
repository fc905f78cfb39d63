"""Small steps that many scenarios share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import Delivery, PenstockError, Queue
from tests.support.readable import check_readable

TICK = 0.003  # timers round up to a tick of about a millisecond: never early, hardly late


def take(queue: Queue, max: int = 100, **options: Any) -> list[bytes]:
    """Payloads of one lease, which stays open."""
    return queue.lease(max, **options).payloads()


def drain(queue: Queue, max: int = 100, **options: Any) -> list[bytes]:
    """Lease and acknowledge until nothing comes; the payloads in the order of delivery."""
    seen: list[bytes] = []
    while leased := queue.lease(max, **options):
        seen += leased.payloads()
        leased.ack()
    return seen


def lease_one(queue: Queue, **options: Any) -> Delivery:
    """The one delivery of a lease of one."""
    (delivery,) = queue.lease(1, **options)
    return delivery


def fail(queue: Queue, clock: Any, times: int, **options: Any) -> None:
    """Let the next message fail so many times, without waiting for its backoff."""
    for _ in range(times):
        lease_one(queue, **options).nack(delay=0, error="no luck")
        clock.advance(TICK)


def numbered(count: int, prefix: str = "") -> list[bytes]:
    """Payloads 0, 1, 2 …"""
    return [f"{prefix}{number}".encode() for number in range(count)]


def refuse(error: type[PenstockError], call: Callable[[], object], *words: str) -> None:
    """The call raises exactly this error, which has a code, names what is wrong and is in plain words."""
    with pytest.raises(PenstockError) as caught:
        call()
    assert type(caught.value) is error
    assert caught.value.code == error.code
    check_readable(caught.value.message, caught.value.hint)
    for word in words:
        assert word in caught.value.message


def kill(queue: Queue, count: int = 1, reason: str = "", **options: Any) -> None:
    """Reject the next messages."""
    for delivery in queue.lease(count, **options):
        delivery.reject(reason)
