"""Deciding a push of which the good messages are stored and the others refused, each for itself.

What is wrong with a message, and not with the push, is found before anything is decided: its partition, its priority or
delay in an ordered queue, a task id that belongs to a task of another type, no room left in the queue. The rest is
decided as a push of its own (`push.py`), so whatever refuses that refuses everything: limits of rates, quotas, a full
disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from penstock.batch import Batch, layout
from penstock.delivery.core import DeliveryState
from penstock.delivery.log import Queue
from penstock.delivery.push import (
    PushDecision,
    check_allowed,
    check_partition,
    check_types,
    decide_push,
    duplicates_of,
)
from penstock.errors import PenstockError, QueueFull, StateError
from penstock.requests import PartitionChoice, Producer


class PartialDecision(NamedTuple):
    """The part of a push that may go ahead: `rows` are its places in the whole. The others failed."""

    decided: PushDecision
    batch: Batch
    rows: list[int]
    failures: dict[int, PenstockError]


def decide_partial(
    core: DeliveryState, queue: Queue, batch: Batch, now: int, partition: PartitionChoice, producer: Producer
) -> PartialDecision:
    """Say what a push does that skips the messages that cannot be stored. May raise `ColumnNotLoaded`."""
    failures = _wrong_partitions(queue, batch, partition) | _not_allowed(queue, batch)
    while True:
        rows = [row for row in range(batch.count) if row not in failures]
        part = batch if len(rows) == batch.count else batch.take(np.array(rows, np.int64))
        chosen = _chosen(partition, rows, batch.count)
        try:
            decided = decide_push(core, queue, part, now, chosen, producer)
        except QueueFull as error:
            failures |= dict.fromkeys(_without_room(queue, part, rows, now), error)
            continue
        conflicts = _conflicts(queue, part, decided, rows)
        if not conflicts:
            return PartialDecision(decided, part, rows, failures)
        failures |= conflicts


def _chosen(partition: PartitionChoice, rows: Sequence[int], count: int) -> PartitionChoice:
    if partition is None or isinstance(partition, int | str) or len(rows) == count:
        return partition
    return [partition[row] for row in rows]


def _wrong_partitions(queue: Queue, batch: Batch, partition: PartitionChoice) -> dict[int, PenstockError]:
    """Rows whose partition the queue does not have and cannot make."""
    if partition is None:
        return {}
    names = [partition] * batch.count if isinstance(partition, int | str) else list(partition)
    wrong: dict[int | str | None, PenstockError] = {}
    for name in dict.fromkeys(names):
        try:
            check_partition(queue, name)
        except PenstockError as error:
            wrong[name] = error
    return {row: wrong[name] for row, name in enumerate(names) if name in wrong}


def _not_allowed(queue: Queue, batch: Batch) -> dict[int, PenstockError]:
    """Rows that ask for what an ordered queue does not have."""
    try:
        check_allowed(queue, batch)
    except PenstockError:
        return _each(queue, batch)
    return {}


def _each(queue: Queue, batch: Batch) -> dict[int, PenstockError]:
    failures: dict[int, PenstockError] = {}
    for row in range(batch.count):
        try:
            check_allowed(queue, batch.take(np.array([row], np.int64)))
        except PenstockError as error:
            failures[row] = error
    return failures


def _without_room(queue: Queue, batch: Batch, rows: Sequence[int], now: int) -> list[int]:
    """Rows for which there is no room: the last ones. Duplicates need none."""
    assert queue.options.max_length is not None
    backlog = max(group.backlog for group in queue.groups.values() if group.is_load)
    room = max(0, queue.options.max_length - backlog)
    known = duplicates_of(queue, batch, now) if batch.flags & layout.DEDUP_KEY else {}
    new = [rows[place] for place in range(batch.count) if place not in known]
    return new[room:]


def _conflicts(queue: Queue, batch: Batch, decided: PushDecision, rows: Sequence[int]) -> dict[int, PenstockError]:
    """Tasks whose id belongs to a task of another type."""
    try:
        check_types(queue, batch, decided.duplicates)
    except StateError:
        pass
    else:
        return {}
    failures: dict[int, PenstockError] = {}
    for row, id in decided.duplicates.items():
        try:
            check_types(queue, batch, {row: id})
        except StateError as error:
            failures[rows[row]] = error
    return failures
