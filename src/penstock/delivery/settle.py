"""Deciding the end of deliveries: ack, nack, reject, release, snooze, and the leases that run out.

A delivery is settled with proof: a receipt whose lease is alive and holds it still. Everything in one call is
checked before anything is decided, so a refused call changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from penstock import limits
from penstock.batch import layout
from penstock.delivery.core import DeliveryState
from penstock.delivery.dead_letters import DeadDelivery, decide_dead
from penstock.delivery.entries import AttemptsLost, Entry, Settled
from penstock.delivery.group import Lease, Take
from penstock.delivery.log import Queue
from penstock.delivery.phases import AFTER, COUNTED, LEASED, WAITING
from penstock.errors import LeaseLost, TooLarge
from penstock.model import Outcome, Receipt
from penstock.requests import Settling

if TYPE_CHECKING:
    import random

MAY_KILL: Final = frozenset({Outcome.REJECTED, *COUNTED})
LOST: Final = frozenset({Outcome.TIMED_OUT, Outcome.INTERRUPTED})  # it was not the message's doing, or nobody knows


class Chosen(msgspec.Struct):
    """Deliveries of one take that a call is about: indexes into the take, ascending."""

    lease: Lease
    take: Take
    indexes: Sequence[int]


def find_receipts(core: DeliveryState, receipts: Iterable[Receipt]) -> list[Chosen]:
    """The deliveries behind some receipts; refuses all of them when one is stale, forged or named twice."""
    chosen: dict[int, tuple[Lease, Take, set[int]]] = {}
    for receipt in receipts:
        lease = core.leases.get(receipt.nonce)
        place = lease.find(receipt.partition, receipt.offset) if lease is not None else None
        if lease is None or place is None or lease.deadline <= core.over_at or lease.group.queue.name != receipt.queue:
            raise LeaseLost(f"receipt {receipt} is not held by a live lease")
        take, index = place
        if take.attempt_of(index) != receipt.attempt or not _is_held(take, index):
            raise LeaseLost(f"receipt {receipt} was settled already or belongs to another attempt")
        indexes = chosen.setdefault(id(take), (lease, take, set()))[2]
        if index in indexes:
            raise LeaseLost(f"receipt {receipt} is named twice in one call")
        indexes.add(index)
    return [Chosen(lease, take, sorted(indexes)) for lease, take, indexes in chosen.values()]


def decide_ack_whole(core: DeliveryState, nonce: int, now: int) -> tuple[Lease, Settled] | None:
    """The short way for a lease of which nothing has been settled yet; None when it has to be looked at closely."""
    lease = core.leases.get(nonce)
    if (
        lease is None
        or not lease.is_whole
        or lease.deadline <= core.over_at
        or lease.change_count != lease.group.change_count
    ):
        return None
    group = lease.group
    settled = Settled(group.queue.id, group.id, int(Outcome.ACKED), now, lease.at, lease.consumer, "", lease.spans)
    return lease, settled


def find_lease(core: DeliveryState, nonce: int) -> list[Chosen]:
    """All that a lease still holds."""
    lease = core.leases.get(nonce)
    if lease is None or lease.deadline <= core.over_at:
        raise LeaseLost("the lease expired or everything in it was settled")
    chosen = [Chosen(lease, take, indexes) for take, indexes in lease.open_takes()]
    for part in chosen:
        take, indexes = part.take, part.indexes
        offsets = take.offsets if len(indexes) == len(take.offsets) else [take.offsets[index] for index in indexes]
        if not take.progress.all_leased(offsets):
            # A purge or a cancel ended some of them under the consumer's hands.
            raise LeaseLost("some deliveries of this lease were purged")
    return chosen


def _is_held(take: Take, index: int) -> bool:
    return take.is_open(index) and take.progress.state_of(take.offsets[index]) == LEASED


def decide_settle(
    core: DeliveryState, chosen: Sequence[Chosen], how: Settling, now: int, rng: random.Random
) -> list[Entry]:
    """Entries that end these deliveries in one way. May raise `ColumnNotLoaded` for the payload of a dead letter."""
    return decide_settles(core, [(part, how) for part in chosen], now, rng)


def decide_settles(
    core: DeliveryState,
    chosen: Iterable[tuple[Chosen, Settling]],
    now: int,
    rng: random.Random,
    id_next: int | None = None,
) -> list[Entry]:
    """Entries that end each of these deliveries in its own way; `id_next` is the id of a queue made for them."""
    entries: list[Entry] = []
    dead_by_queue: dict[Queue, list[DeadDelivery]] = {}
    for part, how in chosen:
        outcome = how.outcome if how.outcome == Outcome.REJECTED else Outcome.DEAD
        lease, take, indexes = part.lease, part.take, part.indexes
        queue = lease.group.queue
        dying = dying_indexes(queue, take, indexes, how.outcome) if how.outcome in MAY_KILL else ()
        if dying:
            dead_by_queue.setdefault(queue, []).extend(
                _dead_delivery(lease, take, index, outcome, how.error, now) for index in dying
            )
            last = set(dying)
            indexes = [index for index in indexes if index not in last]
        if indexes:
            entries.append(_settled(lease, take, indexes, how, now, rng))
            lost = [index for index in indexes if is_task(take, index)] if how.outcome in LOST else ()
            if lost:
                entries.append(AttemptsLost(queue.id, lease.group.id, now, [take.span(lost)]))
    for made, (queue, dead) in enumerate(dead_by_queue.items()):
        entries += decide_dead(core, queue, dead, now, (id_next or core.queue_id_next) + made)
    return entries


def decide_what_fits(
    core: DeliveryState, chosen: Sequence[Chosen], how: Settling, now: int, rng: random.Random
) -> tuple[list[Entry], Sequence[Chosen]]:
    """Entries that end as many of these as fit into one frame, since dead letters bring their payloads along."""
    while True:
        try:
            return decide_settle(core, chosen, how, now, rng), chosen
        except TooLarge:
            chosen = _fewer(chosen)


def _fewer(chosen: Sequence[Chosen]) -> Sequence[Chosen]:
    if len(chosen) > 1:
        return chosen[: len(chosen) // 2]
    (only,) = chosen
    assert len(only.indexes) > 1  # a dead letter always fits into a frame of its own
    return [Chosen(only.lease, only.take, only.indexes[: len(only.indexes) // 2])]


def close_chosen(core: DeliveryState, chosen: Sequence[Chosen]) -> None:
    """Called when the entries are applied: the leases close what was settled."""
    for part in chosen:
        part.take.close(part.indexes)
        part.lease.is_whole = False
        core.close_deliveries(part.lease, len(part.indexes))


def dying_indexes(queue: Queue, take: Take, indexes: Sequence[int], outcome: Outcome) -> list[int]:
    """Which of these deliveries were the last chance of their message.

    An attempt at a task that was lost with its worker counts apart, with a limit of its own: what brought the worker
    down may have been another task.
    """
    if outcome == Outcome.REJECTED:
        return list(indexes)
    progress = take.progress
    partition = progress.partition
    dying = []
    for index in indexes:
        offset = take.offsets[index]
        lost = progress.lost_of(offset)
        if outcome in LOST and is_task(take, index):
            if lost + 1 >= limits.task_attempts_lost_max:
                dying.append(index)
            continue
        own = partition.extent_at(offset).attempts_max(offset) if partition.flags else 0
        if take.attempt_of(index) - lost >= (own or queue.options.max_attempts):
            dying.append(index)
    return dying


def is_task(take: Take, index: int) -> bool:
    """Whether a delivery is one of a task; may raise `ColumnNotLoaded`."""
    partition, offset = take.progress.partition, take.offsets[index]
    return bool(partition.flags & layout.CONTENT_TYPE) and partition.extent_at(offset).is_task(offset)


def _dead_delivery(lease: Lease, take: Take, index: int, outcome: Outcome, error: str, now: int) -> DeadDelivery:
    attempts = take.attempt_of(index)
    return DeadDelivery(take.progress, take.offsets[index], attempts, outcome, error, lease.consumer, lease.at, now)


def _settled(lease: Lease, take: Take, indexes: Sequence[int], how: Settling, now: int, rng: random.Random) -> Settled:
    group = lease.group
    whole = take.done is None and len(indexes) == take.open
    span = take.span(None if whole else indexes)
    if AFTER[how.outcome] == WAITING:
        dues = [_due(group.queue, take.attempt_of(index), how, now, rng) for index in indexes]
        span.dues = np.array(dues, np.int64).tobytes()
    return Settled(group.queue.id, group.id, int(how.outcome), now, lease.at, lease.consumer, how.error, [span])


def _due(queue: Queue, attempt: int, how: Settling, now: int, rng: random.Random) -> int:
    if how.delay_seconds is not None:
        return now + round(how.delay_seconds * 1_000_000)
    return now + backoff(queue, attempt, rng)


def backoff(queue: Queue, attempt: int, rng: random.Random) -> int:
    """µs to wait before the next attempt: min(base · multiplier^(attempt−1), max) ± jitter."""
    options = queue.options
    exponent = min(attempt - 1, 64)
    seconds = min(options.backoff_base_seconds * options.backoff_multiplier**exponent, options.backoff_max_seconds)
    return round(seconds * (1 + options.backoff_jitter * rng.uniform(-1, 1)) * 1_000_000)
