"""The history of clients in many threads, and what it must look like: promises that hold over a network.

Rows are added when an operation is begun, and completed when the client is told. What is done at the same time has no
order, so the checkers here look at what is certain: attempts that count up, and an operation that was begun after
another was over. Those of the simulation that do not look at order are used as they are.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from penstock.clock import SystemClock
from penstock.errors import Closed, LeaseLost, OutcomeUnknown, Unavailable
from penstock.model import MessageId
from tests.simulation.checkers import conservation, no_corruption, no_invention, offsets_agree
from tests.simulation.history import OK, UNKNOWN, History, Place, Row, Sent

POSSIBLE = (OK, UNKNOWN)
PATIENCE_SECONDS = 100.0
Checker = Callable[[History], Iterator[str]]


class Record:
    """A history that many threads write. What goes wrong in one of them is in `failures`."""

    def __init__(self, *queues: str) -> None:
        self.history = History({queue: {} for queue in queues})
        self.failures: list[BaseException] = []
        self._clock = SystemClock()
        self._changed = threading.Condition()
        self._told = 0

    @contextmanager
    def doing(self, client: str, op: str, **args: Any) -> Iterator[Row]:
        """One operation. Lost leases and lost brokers are what happens here; any other error is a failure."""
        row = self.begun(client, op, **args)
        outcome = UNKNOWN
        try:
            yield row
            outcome = OK
        except (Unavailable, Closed, LeaseLost, OutcomeUnknown) as error:
            row.error = repr(error)
        finally:
            self.completed(row, outcome)

    def begun(self, client: str, op: str, **args: Any) -> Row:
        """What happens to it is not known until it is told."""
        with self._changed:
            return self.history.add(self._clock.monotonic(), client, op, **args)

    def completed(self, row: Row, outcome: str) -> None:
        with self._changed:
            row.outcome = outcome
            row.notified_at = self._clock.monotonic()
            self._told += 1
            self._changed.notify_all()

    def failed(self, error: BaseException) -> None:
        with self._changed:
            self.failures.append(error)
            self._changed.notify_all()

    def until(self, more: int) -> None:
        """Return when so many more operations are over."""
        with self._changed:
            enough = self._told + more
            assert self._changed.wait_for(lambda: self._told >= enough or self.failures, PATIENCE_SECONDS)
        self.raise_failure()

    def raise_failure(self) -> None:
        if self.failures:
            raise self.failures[0]


def place_of(id: MessageId) -> Place:
    return Place(id.queue, id.partition, id.offset)


def sent(*payloads: bytes) -> list[Sent]:
    return [Sent(payload) for payload in payloads]


def problems(history: History, *more: Checker) -> list[str]:
    """What contradicts the promises."""
    return [line for checker in (*PROMISES, *more) for line in checker(history)]


def stored_once(history: History) -> Iterator[str]:
    """One message for a push that was answered, where the answer says; one or none for others; batches are whole."""
    kept: defaultdict[tuple[str, bytes], list[Place]] = defaultdict(list)
    for row in history.of("read"):
        for place, payload, *_ in row.result:
            kept[place.queue, payload].append(place)
    for row in history.of("push", "transact", outcomes=POSSIBLE):
        found = [kept[queue, each.payload] for queue, messages in row.args["pushes"] for each in messages]
        if any(len(places) > 1 for places in found):
            yield f"stored twice: {row}"
        if len({len(places) for places in found}) > 1:
            yield f"stored in part: {row}"
        reported = [[place] for places in row.result for place in places] if row.outcome == OK else found
        if found != reported:
            yield f"stored at {found}: {row}"


def no_loss(history: History) -> Iterator[str]:
    """What was confirmed was delivered to every group."""
    delivered = {(group, got.place) for _, group, got in history.deliveries()}
    for row, place, _ in history.placed():
        for group in history.queues[place.queue]["groups"]:
            if (group, place) not in delivered:
                yield f"{place} was never delivered to {group}: {row}"


def no_delivery_after_ack(history: History) -> Iterator[str]:
    """An attempt after the acknowledged one, or one that was asked for when that was over."""
    acks = {(s.group, s.got.place): (row, s.got) for row, s in history.settles() if s.how == "ack"}
    for row, group, got in history.deliveries():
        if (group, got.place) in acks:
            ack, settled = acks[group, got.place]
            later = got.nonce != settled.nonce and row.args["asked"] and row.at > ack.notified_at
            if later or got.attempt > settled.attempt:
                yield f"{got.place} in {group} was delivered by {row} after {ack}"


def one_ack(history: History) -> Iterator[str]:
    """A message is acknowledged once."""
    counts = Counter((s.group, s.got.place) for _, s in history.settles() if s.how == "ack")
    for (group, place), times in counts.items():
        if times > 1:
            yield f"{place} was acknowledged {times} times in {group}"


def order_of_producers(history: History) -> Iterator[str]:
    """Whoever pushes one after the other finds the messages in that order in each partition."""
    last: dict[tuple[str, str, str], tuple[int, Row]] = {}
    for row, place, _ in history.placed():
        line = (row.client, place.queue, place.partition)
        offset, before = last.get(line, (-1, row))
        if place.offset <= offset:
            yield f"{row} comes before {before}"
        last[line] = (place.offset, row)


def no_gaps(history: History) -> Iterator[str]:
    """Offsets count up from 0, without holes."""
    found: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for row in history.of("read"):
        for place, *_ in row.result:
            found[place.queue, place.partition].add(place.offset)
    for line, offsets in found.items():
        if offsets != set(range(len(offsets))):
            yield f"{line} has holes"


def attempts_have_causes(history: History) -> Iterator[str]:
    """Without faults: every attempt was seen, and each but the first follows a negative acknowledgement."""
    attempts: defaultdict[tuple[str, Place], list[int]] = defaultdict(list)
    for _, group, got in history.deliveries():
        attempts[group, got.place].append(got.attempt)
    nacks = {(s.group, s.got.place, s.got.attempt) for _, s in history.settles(*POSSIBLE) if s.how == "nack"}
    for (group, place), found in attempts.items():
        found.sort()
        if found != list(range(1, len(found) + 1)):
            yield f"{place} in {group} was seen in attempts {found}"
        for before, _ in pairwise(found):
            if (group, place, before) not in nacks:
                yield f"{place} in {group} was delivered again after attempt {before}, and nobody asked for it"


PROMISES: tuple[Checker, ...] = (
    stored_once,
    no_loss,
    no_invention,
    no_corruption,
    no_delivery_after_ack,
    one_ack,
    order_of_producers,
    offsets_agree,
    no_gaps,
    conservation,
)
