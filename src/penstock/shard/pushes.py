"""The pushes of a shard: batches, single messages, and single messages of many that are folded into one batch.

Each happens with the lock held, in the order that `engine` tells, and answers with the ticket that must be durable
before the reply may be told. A queue that is not there is made in the same frame; a refused push leaves no trace of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock import limits
from penstock.batch import Alike, Batch, layout, one_with_ttl
from penstock.delivery import timers
from penstock.delivery.admin import queue_to_push
from penstock.delivery.entries import Entry, Int64s, PartitionsAdded, Push, encode_push_one
from penstock.delivery.inspection import ready_of_push
from penstock.delivery.log import DUE, Queue
from penstock.delivery.producers import NOBODY, answer_bytes_max, answered, check_producer, ids_of
from penstock.delivery.push import PushDecision, decide_coalesced, decide_push
from penstock.delivery.rate_limits import Bill, decide_bill, pay
from penstock.delivery.repeats import COMPARED_MAX, check_same, check_types, used_otherwise
from penstock.errors import DiskFull, TooLarge
from penstock.model import ContentType, Durability, MessageId
from penstock.replies import PushReply
from penstock.requests import PartitionChoice, Producer
from penstock.shard.engine import Engine, Ticket

DECIDED: Final = DUE | layout.PRIORITY | layout.DEDUP_KEY  # columns that leave something to decide about a push


class Pushing(Engine):
    """What can be pushed to a shard."""

    def push(
        self,
        name: str,
        batch: Batch,
        partition: PartitionChoice = None,
        durability: Durability | None = None,
        producer: Producer | None = None,
        client: str = "",
    ) -> tuple[PushReply, Ticket]:
        """Append a batch to a queue, which is made when it is not there."""
        self.throttle.wait()
        return self.run(lambda: self._push(name, batch, partition, durability, producer, client))

    def _push(
        self,
        name: str,
        batch: Batch,
        partition: PartitionChoice,
        durability: Durability | None,
        producer: Producer | None,
        client: str,
    ) -> tuple[PushReply, Ticket]:
        now = self.begin_push()
        if producer is not None:
            known = self._pushed_before(name, check_producer(producer), batch)
            if known is not None:
                return known, self._must_sync
        queue, created = queue_to_push(self.core, name, now)
        if queue.options.max_length is not None:
            self.tick(now, self.clock.monotonic())  # what has expired makes room
        decided = decide_push(self.core, queue, batch, now, partition, producer or NOBODY)
        if decided.duplicates:
            check_types(queue, batch, decided.duplicates)
        if producer is not None and decided.duplicates:
            _check_frame(queue, decided.push)
        bill = decide_bill([(queue, decided.push)], client, now) if queue.push_limits is not None else None
        reply = self.push_reply(queue, batch, decided)
        if producer is not None and decided.duplicates and decided.entries:
            decided.entries.append(answered(queue.id, producer, now, [reply.ids()]))
        read = self._must_sync if decided.duplicates else 0
        if not decided.entries and not created:
            return reply, read
        entries = [*created, *decided.entries] if created else decided.entries
        return reply, self._commit_push(queue, entries, durability, bill, now) or read

    def _pushed_before(self, name: str, producer: Producer, batch: Batch) -> PushReply | None:
        """What a producer was told when it pushed the same before."""
        queue = self.core.by_name.get(name)
        answer = self.core.producers.find(producer, 0 if queue is None else queue.id)
        if answer is None or queue is None:
            return None
        if answer.pushes:
            ids = [id for push in answer.pushes for id in ids_of(push)]
            if len(ids) != batch.count:  # some of them are duplicates, so there is nothing else to compare
                raise used_otherwise(producer)
            return PushReply(name, len(ids), (), dict(enumerate(ids)))
        rows = answer.row_array()
        push = Push(queue.id, 0, answer.parts, b"", rows)
        count = answer.parts[0][1] if rows is None else len(rows)
        if count != batch.count:
            raise used_otherwise(producer)
        compared = min(count, COMPARED_MAX)
        partitions, offsets = push.places(count)
        places = list(zip(partitions[:compared].tolist(), offsets[:compared].tolist(), strict=True))
        check_same(queue, producer, places, [batch.payload(row) for row in range(compared)])
        return PushReply(name, count, _named_parts(queue, push, ()), {})

    def push_folded(
        self,
        name: str,
        payloads: Sequence[bytes],
        producers: Sequence[Producer | None],
        client: str = "",
        content: ContentType | Alike = ContentType.BYTES,
    ) -> tuple[tuple[str, Sequence[int]], Ticket]:
        """Single messages that came together, as one batch to one partition: its name, and the offset of each.

        They are refused as a whole, and nothing has happened then: each alone may still be accepted.
        """
        if not self.throttle.is_set():
            self.throttle.wait()
        return self.run(lambda: self._push_folded(name, payloads, producers, client, content))

    def _push_folded(
        self,
        name: str,
        payloads: Sequence[bytes],
        producers: Sequence[Producer | None],
        client: str,
        content: ContentType | Alike,
    ) -> tuple[tuple[str, Sequence[int]], Ticket]:
        now = self.begin_push()
        queue, created = queue_to_push(self.core, name, now)
        if queue.options.max_length is not None:
            self.tick(now, self.clock.monotonic())
        entries, number, offsets = decide_coalesced(self.core, queue, payloads, producers, now, content)
        bill = None
        if queue.push_limits is not None:
            bill = decide_bill([(queue, each) for each in entries if isinstance(each, Push)], client, now)
        read = 0 if type(offsets) is range else self._must_sync
        entries = [*created, *entries] if created else entries
        ticket = self._commit_push(queue, entries, None, bill, now) if entries else 0
        return (queue.partitions[number].name, offsets), ticket or read

    def push_one(self, name: str, data: bytes, durability: Durability | None = None) -> tuple[MessageId, Ticket]:
        """The short path for one message that leaves nothing to decide: no priority, delay or dedup key."""
        if not self.throttle.is_set():
            self.throttle.wait()
        flags = layout.flags_of(data)
        try:
            with self.lock:
                queue = self.core.by_name.get(name)
                is_plain = queue is not None and queue.plain and not flags & DECIDED
                if queue is not None and is_plain and not (self.is_closed or self.changing or self.journal.disk_full):
                    partition = queue.partitions[0]
                    offset, now, life = partition.end, self.clock.now(), 0
                    if queue.ttl_us or flags & layout.TTL:
                        data, life = one_with_ttl(data, flags, queue.ttl_us)
                        flags |= layout.TTL
                    level = durability or queue.options.durability or self.durability
                    frame = encode_push_one(queue.id, now, 0, offset, data)
                    self.changing = True
                    self.core.push_one(queue, data, flags, now, self.journal.sequence + 1)
                    if life:
                        self.core.expire_one(queue, now + life, offset)
                    sequence = self.append_frame(frame, b"", level)
                    if self.waiters:
                        self.waiters.wake(queue.id, 1)  # in every group
                    self.changing = False
                    return MessageId(name, partition.name, offset), sequence if level == "fsync" else 0
        except BaseException:
            self.notice()
            raise
        reply, ticket = self.push(name, Batch(data), None, durability)
        return reply.ids()[0], ticket

    def begin_push(self) -> int:
        """The same for pushes, which a nearly full disk refuses too."""
        if self.journal.disk_full:
            self.check_space()
        return self.begin()[0]

    def check_space(self) -> None:
        if self.journal.disk_full:
            raise DiskFull("the disk is nearly full; pushes are refused until space is free again")

    def _commit_push(
        self,
        queue: Queue,
        entries: list[Entry],
        durability: Durability | None,
        bill: Bill | None,
        now: int,
    ) -> Ticket:
        ticket = self.commit_frame(entries, durability or queue.options.durability or self.durability)
        if bill:
            pay(bill, now)
        queue = self.core.queues[queue.id]  # one that was made was only imagined before
        if self.waiters:
            self._wake_for(queue, entries)
        if queue.near > 0:
            self.delays_changed(queue)
        self.changing = False
        return ticket

    def _wake_for(self, queue: Queue, entries: Sequence[Entry]) -> None:
        count = sum(ready_of_push(queue, each) for each in entries if isinstance(each, Push))
        if count:
            self.waiters.wake(queue.id, count)

    def delays_changed(self, queue: Queue) -> None:
        """After a push to a queue that has messages waiting for their time."""
        if timers.has_too_many_delays(queue):
            timers.drop_far_delays(self.core, queue)
        self.mind_timers()

    def push_reply(
        self, queue: Queue, batch: Batch, decided: PushDecision, made: Sequence[str] | None = None
    ) -> PushReply:
        """What a push is answered; `made` are the partitions that its frame makes, if it is not alone in it."""
        parts = _named_parts(queue, decided.push, decided.entries, made)
        return PushReply(queue.name, batch.count, parts, decided.duplicates)


def _check_frame(queue: Queue, push: Push) -> None:
    """The ids of duplicates go into the frame too."""
    size = len(push.batch) + answer_bytes_max(queue, push)
    if size > limits.frame_bytes_max - limits.MIB:
        raise TooLarge(f"the batch and the ids of its messages take {size:,} bytes", hint="split it into smaller ones")


def _named_parts(
    queue: Queue, push: Push, entries: Sequence[Entry], made: Sequence[str] | None = None
) -> list[tuple[str, int, int, Int64s | None]]:
    known = queue.partitions
    end = len(known)
    if made is None and push.parts and push.parts[-1][0] >= end:  # they are in order
        added = (each for each in entries if isinstance(each, PartitionsAdded) and each.queue == queue.id)
        made = [name for each in added for name in each.names]
    return [
        (known[number].name if number < end else (made or ())[number - end], count, first, rows)
        for (number, count, first), rows in zip(push.parts, push.rows_by_part() if push.parts else (), strict=True)
    ]
