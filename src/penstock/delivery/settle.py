"""Deciding the end of deliveries: ack, nack, reject, release, snooze, leases that run out; and dead letters.

A delivery is settled by a receipt whose lease is alive and still holds it. Everything in one call is checked before
anything is decided, so a refused call changes nothing.

A message that used up its attempts, or was rejected, becomes a dead letter: a message of its own in `<queue>.dlq`, with
payload, key and content type copied, and headers that say where it comes from and why it died. It is pushed in the
frame that settles the original, so a message is never ready in both queues and never in neither. Redrive makes the
original ready again in the group where it died, and settles the dead letter, again in one frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from penstock import limits
from penstock.batch import Batch, layout
from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import AttemptsLost, Entry, Push, Revived, Settled
from penstock.delivery.group import Lease, Take
from penstock.delivery.log import Queue, create_queue_entries
from penstock.delivery.phases import AFTER, COUNTED, LEASED, WAITING
from penstock.delivery.progress import Progress, span_of
from penstock.errors import LeaseLost, MessageNotFound, TooLarge
from penstock.model import (
    DEFAULT_PARTITION,
    DLQ_SUFFIX,
    Message,
    MessageId,
    Outcome,
    QueueOptions,
    Receipt,
    to_datetime,
)
from penstock.model_letters import (
    DEAD_AT,
    DEAD_ATTEMPTS,
    DEAD_CONSUMER,
    DEAD_ERROR,
    DEAD_FIRST_AT,
    DEAD_GROUP,
    DEAD_LAST_AT,
    DEAD_ORIGIN,
    DEAD_PUSHED_AT,
    DEAD_REASON,
)
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
        position = lease.find(receipt.partition, receipt.offset) if lease is not None else None
        if (
            lease is None
            or position is None
            or lease.deadline <= core.over_at
            or lease.group.queue.name != receipt.queue
        ):
            raise LeaseLost(f"receipt {receipt} is not held by a live lease")
        take, index = position
        if take.attempt_of(index) != receipt.attempt or not _is_held(take, index):
            raise LeaseLost(f"receipt {receipt} is already settled or belongs to another attempt")
        indexes = chosen.setdefault(id(take), (lease, take, set()))[2]
        if index in indexes:
            raise LeaseLost(f"receipt {receipt} appears twice in one call")
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


# A dead letter stays until someone deals with it: no attempts to use up, no retention.
DLQ_OPTIONS: Final = QueueOptions(
    max_attempts=limits.attempts_max, dead_letter=False, retention_seconds=None, retention_bytes=None
)


class DeadDelivery(NamedTuple):
    """One message that dies now."""

    progress: Progress
    offset: int
    attempts: int
    outcome: Outcome
    error: str
    consumer: str
    leased_at: int
    at: int
    reason: str = ""  # why it died, where the outcome does not say


def decide_dead(
    core: DeliveryState, queue: Queue, deliveries: Sequence[DeadDelivery], now: int, id_next: int | None = None
) -> list[Entry]:
    """Settle the originals and, unless the queue wants none, push their dead letters.

    `TooLarge` when they do not fit into one frame; `id_next` is the id of a dead-letter queue that is made for it.
    """
    if queue.is_dlq or not queue.options.dead_letter:
        return [_dead_settled(queue, delivery, Outcome.DISCARDED) for delivery in deliveries]
    batches = _batches([_letter(queue, delivery) for delivery in deliveries])
    entries: list[Entry] = []
    dlq = core.by_name.get(queue.name + DLQ_SUFFIX)
    if dlq is None:
        number, end = id_next or core.queue_id_next, 0
        options = msgspec.structs.replace(DLQ_OPTIONS, encryption=queue.options.encryption)
        entries += create_queue_entries(number, queue.name + DLQ_SUFFIX, options, [DEFAULT_PARTITION], now)
    else:
        number, end = dlq.id, dlq.partitions[0].end
    entries += [_dead_settled(queue, delivery, delivery.outcome) for delivery in deliveries]
    for letters in batches:
        entries.append(Push(number, now, [(0, letters.count, end)], letters.data, columns=letters))
        end += letters.count
    return entries


def _batches(letters: list[Message]) -> list[Batch]:
    """Dead letters in as few batches as their limit allows."""
    try:
        return [Batch.build(letters)]
    except TooLarge:
        if len(letters) == 1:
            raise
    half = len(letters) // 2
    batches = _batches(letters[:half]) + _batches(letters[half:])
    if sum(batch.nbytes for batch in batches) > limits.frame_bytes_max - limits.MIB:
        raise TooLarge("the dead letters do not fit into one frame", hint="settle fewer deliveries per call")
    return batches


def _dead_settled(queue: Queue, delivery: DeadDelivery, outcome: Outcome) -> Settled:
    span = span_of(delivery.progress.partition.id, range(delivery.offset, delivery.offset + 1), delivery.attempts)
    group = delivery.progress.group
    return Settled(
        queue.id, group.id, int(outcome), delivery.at, delivery.leased_at, delivery.consumer, delivery.error, [span]
    )


def _letter(queue: Queue, delivery: DeadDelivery) -> Message:
    progress, offset = delivery.progress, delivery.offset
    batch, row = progress.partition.extent_at(offset).message(offset)
    tried = (progress.attempts or {}).get(offset)
    headers = {
        DEAD_ORIGIN: str(MessageId(queue.name, progress.partition.name, offset)),
        DEAD_GROUP: progress.group.name,
        DEAD_REASON: delivery.reason or delivery.outcome.name.lower(),
        DEAD_ERROR: delivery.error,
        DEAD_ATTEMPTS: str(delivery.attempts),
        DEAD_CONSUMER: delivery.consumer,
        DEAD_AT: to_datetime(delivery.at).isoformat(),
        DEAD_PUSHED_AT: to_datetime(progress.partition.pushed_time(offset)).isoformat(),
    }
    if delivery.leased_at:
        headers[DEAD_FIRST_AT] = to_datetime(tried.first_at if tried else delivery.leased_at).isoformat()
        headers[DEAD_LAST_AT] = to_datetime(delivery.leased_at).isoformat()
    return Message(
        payload=batch.payload(row),
        key=batch.key(row),
        headers=_joined(batch.headers(row) or {}, headers),
        trace=batch.trace(row),
        content_type=batch.content_type_of(row),
    )


def _joined(own: Mapping[str, str], ours: dict[str, str]) -> dict[str, str]:
    """A message's own headers and ours. Those that do not fit beside ours stay behind: dying must not be refused."""
    room = limits.headers_bytes_max - sum(_bytes_of(*item) for item in ours.items())
    joined: dict[str, str] = {}
    for name, text in own.items():
        if name not in ours and _bytes_of(name, text) <= room:
            joined[name] = text
            room -= _bytes_of(name, text)
    return joined | ours


def _bytes_of(name: str, text: str) -> int:
    return len(name.encode()) + len(text.encode())


class DeadLetter(NamedTuple):
    """A dead letter as redrive needs it: its own offset, and its origin."""

    offset: int
    origin: MessageId
    group: str


def decide_redrive(
    core: DeliveryState, dlq: Queue, letters: Sequence[DeadLetter], now: int, first_seconds: float, gap_seconds: float
) -> list[Entry]:
    """Make the originals ready again, the first one after a while, the others spaced out; settle the dead letters."""
    # A message that died, was sought again and died once more has two letters; it comes back once.
    revived: dict[tuple[int, int, int, int], int] = {}
    for letter in letters:
        queue, progress = origin_of(core, letter)
        position = (queue.id, progress.group.id, progress.partition.id, letter.origin.offset)
        revived.setdefault(position, now + round((first_seconds + len(revived) * gap_seconds) * 1_000_000))
    entries: list[Entry] = []
    for (queue_id, group_id, partition_id), positions in groupby(sorted(revived), key=lambda position: position[:3]):
        chosen = list(positions)
        span = span_of(partition_id, [position[3] for position in chosen])
        span.dues = np.array([revived[position] for position in chosen], np.int64).tobytes()
        entries.append(Revived(queue_id, group_id, now, [span]))
    offsets = sorted(letter.offset for letter in letters)
    entries.append(Settled(dlq.id, 0, int(Outcome.REDRIVEN), now, 0, "", "", [span_of(0, offsets)]))
    return entries


def origin_of(core: DeliveryState, letter: DeadLetter) -> tuple[Queue, Progress]:
    """Where a dead letter came from, if it can go back."""
    queue = core.by_name.get(letter.origin.queue)
    partition = queue.by_name.get(letter.origin.partition) if queue else None
    number = queue.group_ids.get(letter.group) if queue else None
    if queue is None or partition is None or number is None:
        raise MessageNotFound(f"the origin {letter.origin} of a dead letter, or its group {letter.group!r}, is gone")
    progress = queue.groups[number].progress[partition.id]
    if letter.origin.offset < partition.start or letter.origin.offset in partition.removed:
        raise MessageNotFound(f"{letter.origin} is no longer kept", hint="redrive it with an edit to push it again")
    if progress.dead_offsets is None or letter.origin.offset not in progress.dead_offsets:
        raise MessageNotFound(f"{letter.origin} is no longer dead in group {letter.group!r}")
    return queue, progress
