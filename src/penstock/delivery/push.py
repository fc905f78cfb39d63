"""Deciding a push: where each message of a batch goes, which are duplicates, whether there is room."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from penstock.batch import Batch, layout
from penstock.delivery.core import Delivery
from penstock.delivery.dedup import digests
from penstock.delivery.entries import Entry, Int32s, PartitionsAdded, Push, Settled
from penstock.delivery.group import Group
from penstock.delivery.log import DUE, Queue
from penstock.delivery.phases import FRESH, READY, WAITING
from penstock.delivery.progress import Progress, span_of
from penstock.errors import InvalidField, QueueFull
from penstock.model import DEFAULT_PARTITION, MessageId, Outcome, check_name
from penstock.requests import PartitionChoice, Producer

UNHELD: Final = (FRESH, READY, WAITING)
Aged = tuple[int, int, int]  # pushed at, partition, offset


class Decided(NamedTuple):
    """A push that may go ahead: its entries, and the duplicates among its rows. It has no parts when nothing is new."""

    entries: list[Entry]
    push: Push
    duplicates: dict[int, MessageId]


def decide_push(
    core: Delivery,
    queue: Queue,
    batch: Batch,
    now: int,
    partition: PartitionChoice = None,
    producer: Producer = (0, 0, 0),
    *,
    is_promised: bool = False,
) -> Decided:
    """Refuse a push, or say what it does. What was promised its place before is pushed however full the queue is."""
    check_allowed(queue, batch)
    if not batch.count:
        return Decided([], Push(queue.id, now, [], b""), {})
    if queue.options.ttl_seconds is not None:
        batch = batch.with_ttl(round(queue.options.ttl_seconds * 1_000_000))
    entries: list[Entry] = []
    if queue.options.partitions == 1 and partition is None and not batch.flags & layout.DEDUP_KEY:
        rows: Int32s | None = None
        parts = [(0, batch.count, queue.partitions[0].end)]
    else:
        rows, added = _rows(queue, batch, partition)
        entries += added
        has_keys = batch.flags & layout.DEDUP_KEY and not is_promised
        duplicates = _duplicates(queue, batch, now) if has_keys else {}
        if duplicates:
            rows = np.array(rows if rows.size > 1 else np.full(batch.count, rows[0]), np.int32)
            rows[list(duplicates)] = -1
        rows, parts = _parts(queue, rows, batch.count)
        return _decided(core, queue, batch, now, entries, rows, parts, producer, duplicates, is_promised)
    return _decided(core, queue, batch, now, entries, rows, parts, producer, {}, is_promised)


def check_allowed(queue: Queue, batch: Batch) -> None:
    """Per-message priority and delay make no sense where order is promised."""
    if queue.ordered and batch.flags & (DUE | layout.PRIORITY):
        field = "priority" if batch.flags & layout.PRIORITY else "delay"
        raise InvalidField(
            f"{field}: queue {queue.name!r} is ordered by {queue.options.ordering}, so its messages cannot have one",
            hint="use a queue with ordering='none', or set delay_seconds on the queue",
        )


def _decided(
    core: Delivery,
    queue: Queue,
    batch: Batch,
    now: int,
    entries: list[Entry],
    rows: Int32s | None,
    parts: list[tuple[int, int, int]],
    producer: Producer,
    duplicates: dict[int, MessageId],
    is_promised: bool,
) -> Decided:
    push = Push(queue.id, now, parts, batch.data, rows, producer, batch)
    if not parts:
        return Decided(entries, push, duplicates)
    if queue.options.max_length is None or is_promised:
        return Decided([*entries, push], push, duplicates)
    before, after = _make_room(queue, parts, queue.options.max_length, now)
    return Decided([*entries, *before, push, *after], push, duplicates)


def _rows(queue: Queue, batch: Batch, choice: PartitionChoice) -> tuple[Int32s, list[Entry]]:
    """Partition of each row (one element when all go to the same), and the entry that makes new partitions."""
    if choice is None and queue.options.partitions != "named":
        return _by_key(queue, batch), []
    names = [choice] if choice is None or isinstance(choice, int | str) else list(choice)
    added: dict[str, int] = {}
    places = {name: _number(queue, name, added) for name in dict.fromkeys(names)}
    numbers = np.fromiter(map(places.__getitem__, names), np.int32, len(names))
    if queue.options.partitions != "named" and None in names:
        unnamed = [index for index, name in enumerate(names) if name is None]
        numbers[unnamed] = np.broadcast_to(_by_key(queue, batch), (len(names),))[unnamed]
    entries: list[Entry] = [PartitionsAdded(queue.id, len(queue.partitions), list(added))] if added else []
    return numbers, entries


def _by_key(queue: Queue, batch: Batch) -> Int32s:
    count = len(queue.partitions)
    if count == 1:
        return np.zeros(1, np.int32)
    # Messages without a key go to one partition per batch, in turn.
    queue.spread = (queue.spread + 1) % count
    hashes = batch.key_hashes()
    if hashes is None:
        return np.array([queue.spread], np.int32)
    return np.where(hashes == 0, queue.spread, hashes % count).astype(np.int32)


def _number(queue: Queue, name: int | str | None, added: dict[str, int]) -> int:
    """The id of a partition by name; named queues make new ones."""
    named = queue.options.partitions == "named"
    if name is None:
        if not named:
            return 0
        name = DEFAULT_PARTITION
    text = str(name)
    known = queue.by_name.get(text)
    if known is not None:
        return known.id
    if not named:
        raise InvalidField(
            f"partition: {name!r} is not one of the {len(queue.partitions)} partitions of {queue.name!r}",
            hint=f"use 0 to {len(queue.partitions) - 1}, or create the queue with partitions='named'",
        )
    check_name(text, "partition")
    return added.setdefault(text, len(queue.partitions) + len(added))


def _duplicates(queue: Queue, batch: Batch, now: int) -> dict[int, MessageId]:
    """Rows whose dedup key is known already, or stands twice in this batch (the later row has no id yet: offset −1)."""
    keys = digests(batch)
    places = [None] * batch.count if queue.dedup is None else queue.dedup.find_all(keys, now)
    found: dict[int, MessageId] = {}
    seen: dict[bytes, int] = {}
    for row, (key, place) in enumerate(zip(keys, places, strict=True)):
        if key is None:
            continue
        if place is not None:
            found[row] = MessageId(queue.name, queue.partitions[place.partition].name, place.offset)
        elif (first := seen.setdefault(key, row)) != row:
            found[row] = MessageId(queue.name, "", first)
    return found


def _parts(queue: Queue, rows: Int32s, count: int) -> tuple[Int32s | None, list[tuple[int, int, int]]]:
    if rows.size == 1:
        number = int(rows[0])
        if number < 0:
            return np.full(count, -1, np.int32), []
        end = queue.partitions[number].end if number < len(queue.partitions) else 0
        return None, [(number, count, end)]
    numbers, counts = np.unique(rows[rows >= 0], return_counts=True)
    known = queue.partitions
    parts = [
        (number, many, known[number].end if number < len(known) else 0)
        for number, many in zip(numbers.tolist(), counts.tolist(), strict=True)
    ]
    if len(parts) == 1 and parts[0][1] == count:
        return None, parts
    return rows, parts


def _make_room(
    queue: Queue, parts: list[tuple[int, int, int]], max_length: int, now: int
) -> tuple[list[Entry], list[Entry]]:
    """Refuse, or drop the oldest, when a group would have more than `max_length` messages before it.

    What is dropped comes from what waits already, before the push, and then from the batch itself, after it.
    """
    accepted = sum(count for _, count, _ in parts)
    before: list[Entry] = []
    after: list[Entry] = []
    for group in queue.groups.values():
        excess = group.backlog + accepted - max_length
        if excess <= 0 or not group.is_load:
            continue
        if queue.options.overflow == "reject_new":
            raise QueueFull(f"queue {queue.name!r} holds {group.backlog} messages; max_length is {max_length}")
        oldest = list(islice(_oldest_unheld(group), excess))
        before += _overflowed(group, oldest, now)
        pushed = ((now, number, offset) for number, count, first in parts for offset in range(first, first + count))
        after += _overflowed(group, list(islice(pushed, excess - len(oldest))), now)
    return before, after


def _oldest_unheld(group: Group) -> Iterator[Aged]:
    """What nobody holds, over all partitions."""
    return heapq.merge(*map(_unheld, group.progress))


def _unheld(progress: Progress) -> Iterator[Aged]:
    partition = progress.partition
    for offset in sorted(progress.sparse or ()):
        if progress.state_of(offset) in UNHELD:
            yield partition.extent_at(offset).pushed_at, partition.id, offset
    for extent in partition.extents_from(progress.base):
        for offset in range(max(extent.first, progress.base), extent.end):
            if progress.state_of(offset) in UNHELD:
                yield extent.pushed_at, partition.id, offset


def _overflowed(group: Group, dropped: list[Aged], now: int) -> list[Entry]:
    by_partition: dict[int, list[int]] = {}
    for _, number, offset in dropped:
        by_partition.setdefault(number, []).append(offset)
    spans = [span_of(number, sorted(offsets)) for number, offsets in by_partition.items()]
    return [Settled(group.queue.id, group.id, int(Outcome.OVERFLOWED), now, 0, "", "", spans)] if spans else []
