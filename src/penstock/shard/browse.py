"""Looking without touching: reading by offset and time, delayed messages, statistics; and finding where to seek."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from heapq import nsmallest
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np

from penstock import limits
from penstock.batch.layout import DUE
from penstock.delivery import admin
from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import Entry, GroupSet
from penstock.delivery.group import Lease
from penstock.delivery.inspection import group_stats, lags, lease_of, next_attempt, preview, why
from penstock.delivery.log import Partition, Queue, ask_each
from penstock.delivery.phases import SETTLED
from penstock.delivery.progress import Progress
from penstock.delivery.typed_selection import type_of
from penstock.errors import GroupExists, MessageNotFound
from penstock.model import (
    DEFAULT_GROUP,
    Message,
    MessageId,
    PartitionLag,
    Position,
    QueueStats,
    Reason,
    Retry,
    to_datetime,
)
from penstock.replies import LeaseView, PartitionSeek, Piece, SeekPreview
from penstock.shard.payload_rows import fetch_times, pieces_of, pieces_of_takes, sealed_extents
from penstock.storage.extents import Extent as SealedExtent

if TYPE_CHECKING:
    from penstock.shard.engine import Ticket
    from penstock.shard.shard import Shard


def read(
    shard: Shard, queue: str, partition: int | str, offset: int | None, timestamp: int | None, limit: int
) -> tuple[list[Message], Ticket]:
    """Messages of one partition from an offset or an instant on; changes nothing."""

    def question(now: int) -> list[Piece]:
        where = admin.partition_named(admin.queue_named(shard.core, queue), partition)
        first = max(where.start, offset or 0)
        if timestamp is not None:
            first = max(first, where.offset_at(timestamp))
        return pieces_of(where, where.kept_from(first, limit))

    pieces, ticket = look_and_load(shard, question)
    return list(messages(queue, pieces)), ticket


def look_and_load(shard: Shard, question: Callable[[int], list[Piece]]) -> tuple[Sequence[Piece], Ticket]:
    """Ask where messages are, and load them; again, if compaction or retention has removed some meanwhile."""
    before: list[SealedExtent] | None = None
    while True:
        known = shard.core.compactions
        pieces, ticket = shard.look(question)
        try:
            loaded = shard.loaded(pieces)
            fetch_times(loaded)
        except MessageNotFound:
            asked = sealed_extents(pieces)
            if asked == before:  # nothing has moved in the state, so that asking again would go on for ever
                raise
            before = asked
        else:
            if shard.core.compactions == known:
                return loaded, ticket


def peek(shard: Shard, queue: str, limit: int) -> tuple[list[Message], Ticket]:
    """What the default group would lease next, in that order; then what is held, waits or is not due, oldest first."""

    def question(now: int) -> list[Piece]:
        group = admin.queue_named(shard.core, queue).groups[0]
        selection = preview(shard.core, group, limit, now)
        pieces = pieces_of_takes(selection.takes)
        listed = {(progress.partition.id, offset) for progress, gone in selection.expired for offset in gone}
        listed |= {(take.progress.partition.id, offset) for take in selection.takes for offset in take.offsets}
        left = limit - selection.count
        for progress in group.progress:
            offsets = list(islice(_unsettled(progress, listed), left))
            pieces += pieces_of(progress.partition, offsets)
            left -= len(offsets)
        return pieces

    pieces, ticket = look_and_load(shard, question)
    return list(messages(queue, pieces)), ticket


def _unsettled(progress: Progress, listed: set[tuple[int, int]]) -> Iterator[int]:
    """Offsets of a partition that are not settled, oldest first, without those that are listed already."""
    number = progress.partition.id
    for offset in chain(sorted(progress.sparse or ()), range(progress.base, progress.partition.end)):
        if progress.state_of(offset) != SETTLED and (number, offset) not in listed:
            yield offset


def messages(queue: str, pieces: Sequence[Piece]) -> Iterator[Message]:
    """Rows as messages."""
    for piece in pieces:
        for index, offset in enumerate(piece.offsets):
            yield message(queue, piece, index, offset)


def message(queue: str, piece: Piece, index: int, offset: int) -> Message:
    """One row as a message."""
    batch, row, pushed_at = piece.batch, piece.row(index), piece.pushed(index)
    due = _due(piece, row, pushed_at)
    ttl = 0 if batch.ttl is None else int(batch.ttl[row])
    return Message(
        payload=batch.payload(row),
        key=batch.key(row),
        priority=limits.priority_default if batch.priority is None else int(batch.priority[row]),
        headers=batch.headers(row),
        dedup_key=batch.dedup_key(row),
        partition=piece.partition(index),
        max_attempts=(int(batch.max_attempts[row]) or None) if batch.max_attempts is not None else None,
        trace=batch.trace(row),
        content_type=batch.content_type_of(row),
        id=MessageId(queue, piece.partition(index), offset),
        pushed_at=to_datetime(pushed_at),
        available_at=to_datetime(due or pushed_at),
        expires_at=to_datetime(pushed_at + ttl) if ttl else None,
    )


def _due(piece: Piece, row: int, pushed_at: int) -> int:
    batch = piece.batch
    delay = 0 if batch.delay is None else int(batch.delay[row])
    deliver_at = 0 if batch.deliver_at is None else int(batch.deliver_at[row])
    return max(pushed_at + delay if delay else 0, deliver_at)


def payload_of(message: Message) -> bytes:
    """The payload of a message that was read, which is always bytes."""
    assert isinstance(message.payload, bytes)
    return message.payload


Waiting = tuple[int, Partition, int, Retry | None]  # due, and the message


def delayed(shard: Shard, queue: str, limit: int, include: str = "") -> tuple[list[Message], Ticket]:
    """Messages that are not due yet, soonest first; with `include`, those that wait for a retry too, or alone."""

    def question(now: int) -> list[Waiting]:
        rows: list[Waiting] = []
        target = admin.queue_named(shard.core, queue)
        for partition in target.partitions if include != "only_retries" else ():
            if partition.flags & DUE:
                rows += _delayed_in(partition, now)
        if include:
            rows += _next_attempts(target, limit)
        return nsmallest(limit, rows, key=lambda row: (row[0], row[2]))

    rows, ticket = shard.look(question)
    listed = []
    for due, partition, offset, retry in rows:
        for message in read(shard, queue, partition.name, offset, None, 1)[0]:
            if message.id is None or message.id.offset != offset:
                continue  # retention was quicker
            is_retried = retry is not None
            listed.append(replace(message, available_at=to_datetime(due), retry=retry) if is_retried else message)
    return listed, ticket


def _next_attempts(queue: Queue, limit: int) -> Iterator[Waiting]:
    """The attempts that are due first, of each group and partition."""
    for group in queue.groups.values():
        for progress in group.progress:
            dues = progress.dues or {}
            for offset in nsmallest(limit, dues, key=dues.__getitem__):
                yield dues[offset], progress.partition, offset, next_attempt(progress, offset)


def _delayed_in(partition: Partition, now: int) -> Iterator[Waiting]:
    groups = partition.queue.groups.values()
    for extent in partition.extents:
        dues = extent.dues()
        for index in () if dues is None else np.flatnonzero(dues > now).tolist():
            offset = extent.first + index
            if any(group.progress[partition.id].state_of(offset) != SETTLED for group in groups):
                yield int(dues[index]), partition, offset, None  # type: ignore[index]


def why_waiting(shard: Shard, id: MessageId) -> tuple[list[Reason], Ticket]:
    """One reason per group."""
    return shard.look(lambda now: why(shard.core, admin.partition_of(shard.core, id), id.offset, now))


def lease_end(shard: Shard, id: MessageId) -> int | None:
    """When the lease ends under which the default group has a message, µs; None when nobody has it."""

    def question(now: int) -> int | None:
        queue = shard.core.by_name.get(id.queue)
        partition = None if queue is None else queue.by_name.get(id.partition)
        if queue is None or partition is None:
            return None
        group = queue.groups[queue.group_ids[DEFAULT_GROUP]]
        lease = lease_of(group, group.progress[partition.id], id.offset)
        return None if lease is None else now + lease.deadline - shard.clock.monotonic()

    return shard.look(question)[0]


def task_type(shard: Shard, id: MessageId) -> str | None:
    """The type of a task; None when it cannot be read, and "" when the message is none."""

    def question(now: int) -> str | None:
        return type_of(admin.partition_of(shard.core, id).extent_at(id.offset), id.offset)

    return shard.look(question)[0]


def stats(shard: Shard, name: str) -> tuple[QueueStats, Ticket]:
    """The account of a queue and of each group."""

    def question(now: int) -> QueueStats:
        queue = admin.queue_named(shard.core, name)
        groups, reached = queue.groups.values(), shard.core.wheel.reached
        sealed = sum(e.sealed.bytes for p in queue.partitions for e in p.extents if e.sealed is not None)
        tail = sum(e.batch.nbytes for p in queue.partitions for e in p.extents if e.batch is not None)
        return QueueStats(
            name=name,
            messages=queue.messages(),
            partitions=len(queue.partitions),
            bytes_stored=sealed + tail,
            paused=queue.is_held,
            push_paused=queue.is_shut,
            groups={view.name: view for view in ask_each(lambda group: group_stats(group, reached), groups)},
        )

    return shard.look(question)


def groups(shard: Shard, name: str) -> tuple[dict[str, list[PartitionLag]], Ticket]:
    """Where each group stands in each partition."""
    return shard.look(
        lambda now: {group.name: lags(group) for group in admin.queue_named(shard.core, name).groups.values()}
    )


def decide_create_group(
    core: DeliveryState, queue: str, group: str, start: Position, now: int, *, observes: bool
) -> list[Entry]:
    """A new group at a position."""
    target = admin.queue_named(core, queue)
    if group in target.group_ids:
        raise GroupExists(f"queue {queue!r} has a group {group!r} already")
    return admin.decide_create_group(
        target, group, admin.start_at(target, start, field="start"), now, observes=observes
    )


def decide_seek(
    core: DeliveryState, queue: str, group: str, to: Position, partition: int | str | None, now: int
) -> list[Entry]:
    """A group moved to a position."""
    target = admin.queue_named(core, queue)
    return admin.decide_seek(admin.group_named(target, group), admin.start_at(target, to, partition), now)


def preview_seek(
    core: DeliveryState, queue: str, group: str, to: Position, partition: int | str | None, now: int
) -> SeekPreview:
    """What moving a group to a position would do."""
    (entry,) = decide_seek(core, queue, group, to, partition, now)
    assert isinstance(entry, GroupSet)
    progress = admin.group_named(admin.queue_named(core, queue), group).progress
    moved = [_moved(progress[number], start) for number, start in entry.starts]
    return SeekPreview(
        redelivered=sum(row.redelivered for row in moved),
        skipped=sum(row.skipped for row in moved),
        leased=sum(row.leased for row in moved),
        partitions=moved,
    )


def _moved(progress: Progress, start: int) -> PartitionSeek:
    partition = progress.partition
    left = progress.unsettled_between(start, partition.end)
    return PartitionSeek(
        partition=partition.name,
        from_offset=min(progress.sparse or (), default=progress.base),
        to_offset=start,
        redelivered=partition.count_kept(start, partition.end) - left,
        skipped=progress.unsettled_between(partition.start, start),
        leased=progress.leased,
    )


def leases(shard: Shard, queue: str, group: str | None, limit: int) -> tuple[list[LeaseView], Ticket]:
    """Leases that are held, the oldest first; of one group, or of all."""

    def question(now: int) -> list[LeaseView]:
        target = admin.queue_named(shard.core, queue)
        groups = list(target.groups.values()) if group is None else [admin.group_named(target, group)]
        monotonic = shard.clock.monotonic()
        held = (lease for holder in groups for lease in holder.leases.values() if lease.deadline > monotonic)
        return [_lease_view(lease, now - monotonic) for lease in nsmallest(limit, held, key=lambda lease: lease.at)]

    return shard.look(question)


def _lease_view(lease: Lease, wall_offset: int) -> LeaseView:
    return LeaseView(
        lease_id=f"{lease.nonce:016x}",
        group=lease.group.name,
        consumer=lease.consumer,
        leased_at=to_datetime(lease.at),
        expires_at=to_datetime(lease.deadline + wall_offset),
        messages=lease.count,
        partitions=sorted({take.progress.partition.name for take, _ in lease.open_takes()}),
    )
