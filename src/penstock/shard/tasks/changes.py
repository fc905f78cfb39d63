"""Tasks that somebody stops, or starts again.

The caller has looked the task up and says where it is; `Moved` says that it is not there, or not so, any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

import numpy as np

from penstock.delivery import admin
from penstock.delivery import settle as settle_rules
from penstock.delivery.child_release import cancelled
from penstock.delivery.dead_letters import DeadLetter, decide_redrive
from penstock.delivery.entries import Entry, Note, Revived, Settled, TasksNoted
from penstock.delivery.group import Group
from penstock.delivery.phases import LEASED, SETTLED, WAITING
from penstock.delivery.progress import Progress, span_of
from penstock.delivery.settle import Chosen
from penstock.delivery.tasks import GROUP, HELD, Place
from penstock.errors import TaskConflict
from penstock.model import DEFAULT_GROUP, DLQ_SUFFIX, MessageId, Outcome, to_micros
from penstock.model_tasks import TaskState
from penstock.replies import Piece
from penstock.requests import DEAD_GROUP, DEAD_ORIGIN, Settling
from penstock.shard.engine import Ticket
from penstock.shard.payload_rows import pieces_of
from penstock.shard.shard import Shard
from penstock.shard.tasks.checks import id_bytes
from penstock.shard.tasks.commit import commit
from penstock.shard.tasks.revival import Kin, decide_revived
from penstock.shard.tasks.submit import Moved

WHY: Final = "it was cancelled"
CHUNK: Final = 1_000
NO_KIN: Final = Kin()
RETRIED: Final = (TaskState.DEAD, TaskState.CANCELLED, TaskState.FAILED)
# What a task may have ended as that is neither done nor a dead letter, the likeliest first.
DROPPED: Final = (
    Outcome.CANCELLED, Outcome.DISCARDED, Outcome.EXPIRED, Outcome.EVICTED, Outcome.PURGED, Outcome.OVERFLOWED,
)  # fmt: skip


def cancel(shard: Shard, place: MessageId | None, task_id: str) -> tuple[Ticket, str]:
    """End a task wherever it stands; also who was running it, "" for nobody. May raise `Moved`."""
    task = id_bytes(task_id)

    def operation() -> tuple[Ticket, str]:
        now, monotonic = shard.begin()
        shard.tick(now, monotonic)
        if place is None:
            held = shard.core.tasks.held.get(task)
            if held is None:
                raise Moved
            return commit(shard, [cancelled(held.queue, task, WHY, now)], now, shard.durability), ""
        progress = _progress_of(shard, place)
        entries, chosen = _decide_cancel(shard, progress, place.offset, now)
        worker = chosen[0].lease.consumer if chosen else ""
        partition, queue = progress.partition, progress.partition.queue
        attempt = entries[0].spans[0].attempt if entries[0].leased_at else 0
        note = Note(task, partition.id, place.offset, attempt, Note.CANCELLED, WHY.encode())
        noted = TasksNoted(queue.id, now, worker, [note])
        level = queue.options.durability or shard.durability
        return commit(shard, [*entries, noted], now, level, chosen), worker

    return shard.run(operation)


def _decide_cancel(shard: Shard, progress: Progress, offset: int, now: int) -> tuple[list[Settled], list[Chosen]]:
    """The end of one message, also when it is in somebody's hands: then also the delivery that ends with it."""
    phase = progress.state_of(offset)
    if phase == SETTLED:
        raise Moved
    group, partition = progress.group, progress.partition
    chosen = _delivery_of(group, progress, offset) if phase == LEASED else None
    if chosen is not None:
        ended = settle_rules.decide_settle(shard.core, [chosen], Settling(Outcome.CANCELLED, error=WHY), now, shard.rng)
        return [each for each in ended if isinstance(each, Settled)], [chosen]
    span = span_of(partition.id, range(offset, offset + 1))
    return [Settled(partition.queue.id, group.id, int(Outcome.CANCELLED), now, 0, "", WHY, [span])], []


def _delivery_of(group: Group, progress: Progress, offset: int) -> Chosen | None:
    for lease in group.leases.values():
        for take in lease.takes:
            index = take.index_of(offset) if take.progress is progress else -1
            if index >= 0 and take.is_open(index):
                return Chosen(lease, take, [index])
    return None


def retry(
    shard: Shard,
    place: MessageId | None,
    task_id: str,
    state: TaskState,
    died_at: datetime | None = None,
    known: Kin = NO_KIN,
) -> Ticket:
    """Make a dead, cancelled or failed task pending again, with all its attempts. May raise `Moved`.

    Whoever was cancelled because of it waits for it again, in the same frame; one without a place waits for its
    parents. `known` is what the task index tells of those. `died_at` tells where among many dead letters to look for
    the one of this task.
    """
    if state not in RETRIED:
        raise TaskConflict(f"task {task_id} is {state}", hint="only dead, cancelled and failed ones can be retried")
    letter = _letter_of(shard, place, died_at) if place is not None and state is TaskState.DEAD else None

    def operation() -> Ticket:
        now, monotonic = shard.begin()
        shard.tick(now, monotonic)
        entries: list[Entry] = []
        where: Place | None = None
        if letter is not None:
            entries = _decide_redrive(shard, letter, now)
        elif place is not None:
            entries = _decide_retry(shard, place, task_id, state, now)
        if place is not None:
            partition = _progress_of(shard, place).partition
            where = partition.queue.id, partition.id, place.offset
        entries += decide_revived(shard.core, task_id, where, known, now)
        return commit(shard, entries, now, shard.durability)

    return shard.run(operation)


def _decide_redrive(shard: Shard, letter: DeadLetter, now: int) -> list[Entry]:
    progress = _progress_of(shard, letter.origin)
    dlq, offset = admin.queue_named(shard.core, letter.origin.queue + DLQ_SUFFIX), letter.origin.offset
    is_dead = offset < progress.partition.start or offset in (progress.dead_offsets or ())
    if not is_dead or dlq.groups[GROUP].progress[0].state_of(letter.offset) == SETTLED:
        raise Moved  # somebody else was quicker
    return decide_redrive(shard.core, dlq, [letter], now, 0.0, 0.0)


def _decide_retry(shard: Shard, place: MessageId, task_id: str, state: TaskState, now: int) -> list[Entry]:
    progress = _progress_of(shard, place)
    partition, phase = progress.partition, progress.state_of(place.offset)
    if phase != (WAITING if state is TaskState.FAILED else SETTLED):
        raise Moved
    if not any(offset == place.offset for offset in partition.kept_from(place.offset, 1)):
        raise TaskConflict(f"the message of task {task_id} is no longer kept", hint="submit it again")
    has_died = phase == WAITING or place.offset in (progress.dead_offsets or ())
    was = 0 if has_died else next((each for each in DROPPED if (progress.dropped or {}).get(each, 0) > 0), None)
    if was is None:
        raise Moved  # it was completed
    span = span_of(partition.id, range(place.offset, place.offset + 1))
    span.dues = np.array([now], np.int64).tobytes()
    return [Revived(partition.queue.id, GROUP, now, [span], int(was))]


def _progress_of(shard: Shard, place: MessageId) -> Progress:
    """The workers' progress through the partition of a message."""
    queue = shard.core.by_name.get(place.queue)
    partition = queue.by_name.get(place.partition) if queue is not None else None
    if queue is None or partition is None or not HELD < place.offset < partition.end:
        raise Moved
    return queue.groups[GROUP].progress[partition.id]


# the dead letter of a task


def _letter_of(shard: Shard, place: MessageId, died_at: datetime | None) -> DeadLetter | None:
    """The dead letter that waits for somebody to deal with it."""
    dlq = place.queue + DLQ_SUFFIX
    since = 0 if died_at is None else to_micros(died_at, "died_at")
    for piece in _letters(shard, dlq, since):
        for index, offset in enumerate(piece.offsets):
            headers = piece.batch.headers(piece.row(index)) or {}
            if headers.get(DEAD_ORIGIN) == str(place) and headers.get(DEAD_GROUP) == DEFAULT_GROUP:
                return DeadLetter(offset, place, DEFAULT_GROUP)
    return None


def _letters(shard: Shard, dlq: str, since: int) -> Iterator[Piece]:
    """Dead letters that nobody has dealt with, a chunk at a time: those that died at an instant, or all."""
    position = -1
    while True:
        pieces, position = shard.look(lambda now, start=position: _some_letters(shard, dlq, start, since))[0]  # type: ignore[misc]
        if not pieces:
            return
        yield from shard.loaded(pieces)


def _some_letters(shard: Shard, dlq: str, start: int, since: int) -> tuple[list[Piece], int]:
    queue = shard.core.by_name.get(dlq)
    if queue is None:
        return [], 0
    progress, partition = queue.groups[GROUP].progress[0], queue.partitions[0]
    end = partition.offset_at(since + 1) if since else partition.end
    if start < 0:
        start = partition.offset_at(since) if since else partition.start
    offsets: list[int] = []
    while start < end and len(offsets) < CHUNK:
        if progress.state_of(start) != SETTLED:
            offsets.append(start)
        start += 1
    return pieces_of(partition, offsets), start
