"""Dead letters: messages that used up their attempts, or were rejected, and their way back.

A dead letter is a message of its own in `<queue>.dlq`: payload, key and content type copied, and headers that say
where it comes from and why it died. It is pushed in the frame that settles the original, so a message is never ready in
both queues and never in neither. Redrive makes the original ready again in the group where it died, and settles the
dead letter, again in one frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import msgspec
import numpy as np

from penstock import limits
from penstock.batch import Batch
from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import Entry, GroupSet, PartitionsAdded, Push, QueueSet, Revived, Settled
from penstock.delivery.log import Queue
from penstock.delivery.progress import Progress, span_of
from penstock.errors import MessageNotFound, TooLarge
from penstock.model import (
    DEFAULT_GROUP,
    DEFAULT_PARTITION,
    DLQ_SUFFIX,
    Message,
    MessageId,
    Outcome,
    QueueOptions,
    to_datetime,
)
from penstock.requests import (
    DEAD_AT,
    DEAD_ATTEMPTS,
    DEAD_CONSUMER,
    DEAD_ERROR,
    DEAD_FIRST_AT,
    DEAD_GROUP,
    DEAD_LAST_AT,
    DEAD_ORIGIN,
    DEAD_REASON,
)

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


def decide_dead(
    core: DeliveryState, queue: Queue, deliveries: Sequence[DeadDelivery], now: int, id_next: int | None = None
) -> list[Entry]:
    """Settle the originals and, unless the queue wants none, push their dead letters.

    `TooLarge` when they do not fit into one frame; `id_next` is the id of a dead-letter queue that is made for it.
    """
    if queue.is_dlq or not queue.options.dead_letter:
        return [_settled(queue, delivery, Outcome.DISCARDED) for delivery in deliveries]
    batches = _batches([_letter(queue, delivery) for delivery in deliveries])
    entries: list[Entry] = []
    dlq = core.by_name.get(queue.name + DLQ_SUFFIX)
    if dlq is None:
        number, end = id_next or core.queue_id_next, 0
        entries += create_queue_entries(number, queue.name + DLQ_SUFFIX, DLQ_OPTIONS, [DEFAULT_PARTITION], now)
    else:
        number, end = dlq.id, dlq.partitions[0].end
    entries += [_settled(queue, delivery, delivery.outcome) for delivery in deliveries]
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
        raise TooLarge("the dead letters do not fit into one frame", hint="settle fewer deliveries at a time")
    return batches


def create_queue_entries(
    number: int, name: str, options: QueueOptions, partitions: Sequence[str], now: int
) -> list[Entry]:
    """A queue, its partitions and its default group."""
    entries: list[Entry] = [QueueSet(number, name, msgspec.json.encode(options), False, now)]
    if partitions:
        entries.append(PartitionsAdded(number, 0, list(partitions)))
    entries.append(GroupSet(number, 0, DEFAULT_GROUP, now, []))
    return entries


def _settled(queue: Queue, delivery: DeadDelivery, outcome: Outcome) -> Settled:
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
        DEAD_REASON: delivery.outcome.name.lower(),
        DEAD_ERROR: delivery.error,
        DEAD_ATTEMPTS: str(delivery.attempts),
        DEAD_CONSUMER: delivery.consumer,
        DEAD_AT: to_datetime(delivery.at).isoformat(),
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
        place = (queue.id, progress.group.id, progress.partition.id, letter.origin.offset)
        revived.setdefault(place, now + round((first_seconds + len(revived) * gap_seconds) * 1_000_000))
    entries: list[Entry] = []
    for (queue_id, group_id, partition_id), places in groupby(sorted(revived), key=lambda place: place[:3]):
        chosen = list(places)
        span = span_of(partition_id, [place[3] for place in chosen])
        span.dues = np.array([revived[place] for place in chosen], np.int64).tobytes()
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
    if letter.origin.offset < partition.start:
        raise MessageNotFound(f"{letter.origin} is no longer kept", hint="redrive it with an edit to push it again")
    if progress.dead_offsets is None or letter.origin.offset not in progress.dead_offsets:
        raise MessageNotFound(f"{letter.origin} is no longer dead in group {letter.group!r}")
    return queue, progress
