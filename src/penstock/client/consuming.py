"""Endless consumption: lease, hand out one by one, acknowledge on success, keep the lease alive meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock import limits
from penstock.client.batching import BatchSize
from penstock.client.keeping import keeper_of
from penstock.client.settlings import ACK, LEFT, RELEASE
from penstock.model import Position

if TYPE_CHECKING:
    from penstock.client.session import Session
    from penstock.client.sync import Queue
    from penstock.client.sync_delivery import Delivery, Leased

STOP_CHECK_SECONDS = 1.0  # how soon a stop is noticed while nothing comes


def consume(
    queue: Queue,
    session: Session,
    group: str,
    batch: int | None,
    start: Position | None,
    lease_seconds: float | None,
    consumer: str | None,
    idle_seconds: float | None,
    stop: threading.Event | None,
) -> Iterator[Delivery]:
    """See `Queue.consume`."""
    patience = limits.wait_seconds_max if stop is None else STOP_CHECK_SECONDS
    wait = patience if idle_seconds is None else min(patience, idle_seconds)
    idle = 0.0
    size = BatchSize(batch, session.clock)
    with keeper_of(session).consuming() as keeper:
        while stop is None or not stop.is_set():
            leased = queue.lease(size.size, wait, lease_seconds, group, consumer, start=start)
            start = None  # a group that is deleted from now on stays deleted
            idle = 0.0 if leased else idle + wait
            if idle_seconds is not None and idle >= idle_seconds:
                return
            if leased:
                size.begin()
                with keeper.holding(leased):
                    yield from _hand_out(leased, stop)
                size.end(leased)


def _hand_out(leased: Leased, stop: threading.Event | None) -> Iterator[Delivery]:
    """One by one. Acks are not waited for singly: the end of the lease confirms them all."""
    pipeline = leased.session.pipeline()
    current: Delivery | None = None
    deliveries = iter(leased)
    try:
        for delivery in deliveries:
            current = delivery
            yield delivery
            current = None
            if not delivery.settled:
                pipeline.settle((delivery.proof,), ACK)
            if stop is not None and stop.is_set():
                break
    finally:
        if current is not None and not current.settled:
            pipeline.settle((current.proof,), LEFT)
        # By their receipts, since settles may overtake each other: the lease as a whole would include the one at hand.
        if rest := [delivery.proof for delivery in deliveries]:
            pipeline.settle(rest, RELEASE)
        pipeline.confirm()
