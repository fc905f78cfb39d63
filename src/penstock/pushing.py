"""The pushes of a shard: batches, single messages, and single messages of many that are folded into one batch.

Each is decide → append → apply with the lock held, and answers with the ticket that must be durable before the reply
may be told. A queue that is not there is made in the same frame; a refused push leaves no trace of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.batch import Batch, layout
from penstock.delivery import admin, delays
from penstock.delivery.entries import Entry, QueueDeleted, QueueSet, encode_push_one
from penstock.delivery.log import SPECIAL, Queue
from penstock.delivery.push import Decided, decide_push
from penstock.engine import Engine, Ticket
from penstock.errors import DiskFull
from penstock.model import Durability, MessageId, QueueOptions
from penstock.replies import PushReply
from penstock.requests import PartitionChoice, Producer

NOBODY: Final[Producer] = (0, 0, 0)
Folded = tuple[str | list[str], Sequence[int]]  # where the messages went; a list when some are known from elsewhere


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
        queue, created = self.queue_for_push(name, now)
        if queue.options.max_length is not None:
            self.tick(now, self.clock.monotonic())  # what has expired makes room
        decided = self._decide_push(queue, created, batch, now, partition, producer or NOBODY, client)
        ticket = self._commit_push(queue, created, decided, durability)
        return self.push_reply(queue, batch, decided), ticket

    def push_folded(
        self, name: str, payloads: Sequence[bytes], producers: Sequence[Producer | None], client: str = ""
    ) -> tuple[Folded, Ticket]:
        """Single messages that came together, as one batch to one partition; refused as a whole, leaving no trace."""
        reply, ticket = self.push(name, Batch.build(payloads), client=client)
        ((partition, count, first, _),) = reply.parts
        return (partition, range(first, first + count)), ticket

    def push_one(self, name: str, data: bytes, durability: Durability | None = None) -> tuple[MessageId, Ticket]:
        """The short path for one message that leaves nothing to decide: no priority, delay, ttl or dedup key."""
        if not self.throttle.is_set():
            self.throttle.wait()
        with self.lock:
            queue = self.core.by_name.get(name)
            flags = layout.flags_of(data)
            is_plain = queue is not None and queue.plain and not flags & (SPECIAL | layout.DEDUP_KEY)
            if queue is not None and is_plain and not self.is_closed and not self.journal.disk_full:
                partition = queue.partitions[0]
                offset, now = partition.end, self.clock.now()
                level = durability or queue.options.durability or self.durability
                sequence = self.append_frame(encode_push_one(queue.id, now, 0, offset, data), b"", level)
                self.core.push_one(queue, data, flags, now, sequence)
                if self.waiters:
                    self.waiters.wake(queue.id, len(queue.groups))
                return MessageId(name, partition.name, offset), sequence if level == "fsync" else 0
        reply, ticket = self.push(name, Batch(data), None, durability)
        return reply.ids()[0], ticket

    def begin_push(self) -> int:
        """The same for pushes, which a nearly full disk refuses too."""
        if self.journal.disk_full:
            raise DiskFull("the disk is nearly full; pushes are refused until space is free again")
        return self.begin()[0]

    def queue_for_push(self, name: str, now: int) -> tuple[Queue, list[Entry]]:
        """The queue, and the entries that made it if it is new. They are applied, not yet appended."""
        queue = self.core.by_name.get(name)
        if queue is not None:
            if queue.is_dlq:
                raise admin.reserved_name(name)
            return queue, []
        entries = admin.decide_create_queue(self.core, name, QueueOptions(), now)
        self.core.apply(entries, self.journal.sequence + 1)
        return self.core.by_name[name], entries

    def _decide_push(
        self,
        queue: Queue,
        created: list[Entry],
        batch: Batch,
        now: int,
        partition: PartitionChoice,
        producer: Producer,
        client: str,
    ) -> Decided:
        try:
            return decide_push(self.core, queue, batch, now, partition, producer, client)
        except Exception:
            self.undo_create(created)
            raise

    def undo_create(self, created: Iterable[Entry]) -> None:
        """Queues made for an operation that was refused: nothing of them is in the journal."""
        gone = [QueueDeleted(each.queue) for each in created if isinstance(each, QueueSet)]
        # The state must not claim a frame that was not appended: a checkpoint would take its word for it.
        self.core.apply(gone, self.journal.sequence)

    def _commit_push(
        self, queue: Queue, created: list[Entry], decided: Decided, durability: Durability | None
    ) -> Ticket:
        level = durability or queue.options.durability or self.durability
        read = self._must_sync if decided.duplicates else 0
        if not decided.entries and not created:
            return read
        ticket = self.commit_frame(created, decided.entries, level)
        if self.waiters:
            # Every group may have each of them.
            self.waiters.wake(queue.id, len(queue.groups) * sum(count for _, count, _ in decided.push.parts))
        if queue.near > 0:
            self._delays_changed(queue)
        return ticket or read

    def _delays_changed(self, queue: Queue) -> None:
        if delays.crowded(queue):
            delays.shrink(self.core, queue)
        next_at = self.core.wheel.next_at()
        if next_at is not None:
            self.on_deadline(next_at)

    def push_reply(self, queue: Queue, batch: Batch, decided: Decided) -> PushReply:
        push = decided.push
        parts = [
            (queue.partitions[number].name, count, first, rows)
            for (number, count, first), rows in zip(push.parts, push.rows_by_part() if push.parts else [], strict=True)
        ]
        return PushReply(queue.name, batch.count, parts, decided.duplicates)
