"""Steps of a replay: messages of the past, pushed to a queue again.

A step reads the next messages without the lock and pushes copies of those that match in one frame, which also says how
far the replay is. So every message is pushed once, wherever the process dies. A copy has a header that names the
message it came from, and a dedup key made of the operation and that message. When a message was due and until when it
was valid is left out. Partitions are replayed one after the other, each in its order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.batch import Batch
from penstock.delivery import admin
from penstock.delivery.entries import Entry, OperationSet
from penstock.delivery.push import decide_push
from penstock.errors import InvalidField, PenstockError, QueueNotFound, TaskConflict
from penstock.model import ContentType, Message, to_micros
from penstock.model_letters import DEAD_HEADERS, REPLAYED_FROM, MessageFilter
from penstock.replies import Piece
from penstock.shard import browse
from penstock.shard.bulk.book import (
    BYTES_MAX,
    SAMPLES,
    SLICES_MAX,
    Counted,
    Stepped,
    frozen_until,
    plan_of,
    progressed,
    running_named,
)
from penstock.shard.payload_rows import pieces_of

if TYPE_CHECKING:
    from penstock.shard.shard import Shard

CHUNK: Final = 1_000  # messages that are read at a time
Place = tuple[int, int]  # the number of a partition, and an offset


class ReplayWork:
    """Works on replays."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._seen: dict[str, Place] = {}  # how far a replay has looked since its last step

    def count(self, operation: OperationSet, until: int | None = None) -> Counted:
        """How many messages match."""
        filter, matched = frozen_filter(operation), 0
        samples: list[str] = []
        place: Place | None = (0, 0)
        while place is not None:
            if until is not None and self._shard.clock.monotonic() >= until:
                return Counted(matched, tuple(samples), is_exact=False)
            messages, place = self._some(operation, filter, place)
            for message in messages:
                if filter.matches(message):
                    matched += 1
                    if len(samples) < SAMPLES:
                        samples.append(str(message.id))
        return Counted(matched, tuple(samples))

    def step(self, operation: OperationSet, room: int) -> Stepped:
        """Push copies of the next messages that match."""
        filter = frozen_filter(operation)
        messages, place = self._next(operation, filter, room)
        if not messages:
            if place is None:
                self._seen.pop(operation.operation_id, None)
                return Stepped(0, is_over=True)
            self._seen[operation.operation_id] = place
            return Stepped(0, is_over=False)
        self._seen.pop(operation.operation_id, None)
        self._push(operation, messages, (len(operation.ends), 0) if place is None else place)
        return Stepped(len(messages), is_over=False)

    def _next(
        self, operation: OperationSet, filter: MessageFilter, room: int
    ) -> tuple[list[tuple[int, Message]], Place | None]:
        """The next messages that match with their partitions, and where to go on; None: nothing is left."""
        place: Place | None = max(operation.cursor or (0, 0), self._seen.get(operation.operation_id, (0, 0)))
        chosen: list[tuple[int, Message]] = []
        size = slices = 0
        while place is not None and not chosen and slices < SLICES_MAX:
            number = place[0]
            messages, place = self._some(operation, filter, place)
            slices += 1
            for message in messages:
                if filter.matches(message):
                    chosen.append((number, message))
                    size += len(message.payload)
                    if len(chosen) == room or size >= BYTES_MAX:
                        assert message.id is not None
                        return chosen, (number, message.id.offset + 1)
        return chosen, place

    def _some(
        self, operation: OperationSet, filter: MessageFilter, place: Place
    ) -> tuple[Iterator[Message], Place | None]:
        """The next messages of one partition, made one by one; and where to go on, None when nothing is left."""
        number, start = place
        if number >= len(operation.ends):
            return iter(()), None
        queue, end = plan_of(operation).queue, operation.ends[number]
        since = 0 if filter.since is None else to_micros(filter.since, "from")
        until = 0 if filter.until is None else to_micros(filter.until, "to")

        def question(now: int) -> list[Piece]:
            partition = admin.queue_named(self._shard.core, queue).partitions[number]
            first = max(start, partition.offset_at(since) if since else 0)
            last = min(end, partition.offset_at(until) if until else end)
            offsets = [offset for offset in partition.kept_from(first, CHUNK) if offset < last]
            return pieces_of(partition, offsets) if offsets else []

        pieces, _ = browse.look_and_load(self._shard, question)
        if not pieces:
            return iter(()), (number + 1, 0) if number + 1 < len(operation.ends) else None
        return browse.messages(queue, pieces), (number, pieces[-1].offsets[-1] + 1)

    def _push(self, operation: OperationSet, messages: list[tuple[int, Message]], place: Place) -> None:
        plan, shard = plan_of(operation), self._shard
        failures: list[tuple[str, PenstockError]] = []
        copies = [copy for _, message in messages if (copy := _copy(operation, message, failures)) is not None]
        batch = Batch.build(copies) if copies else None

        def decide(now: int) -> list[Entry]:
            known = running_named(shard, operation.operation_id)
            if known is None:
                return []
            entries: list[Entry] = []
            if batch is not None:
                target = admin.check_changeable(admin.queue_named(shard.core, plan.target))
                if target.is_shut:
                    raise shard.core.pauses.refuse(target)
                is_named = target.options.partitions == "named"
                names = [str(copy.partition) for copy in copies] if is_named else None
                entries = decide_push(shard.core, target, batch, now, names).entries
            return [*entries, progressed(known, now, len(copies), failures, place)]

        shard.check_space()
        shard.change(decide)


def frozen_filter(operation: OperationSet) -> MessageFilter:
    """Which messages are meant: none that came after the moment at which the filter is meant."""
    filter = plan_of(operation).messages
    assert filter is not None
    return msgspec.structs.replace(filter, until=frozen_until(operation, filter.until, "to"))


def _copy(operation: OperationSet, message: Message, failures: list[tuple[str, PenstockError]]) -> Message | None:
    """A message as it is pushed again; None for one that cannot be."""
    id = str(message.id)
    if message.content_type is ContentType.TASK:
        failures.append((id, TaskConflict("it is a task", hint="retry the task, or submit it again")))
        return None
    headers = {name: value for name, value in (message.headers or {}).items() if name not in DEAD_HEADERS}
    return Message(
        payload=message.payload,
        key=message.key,
        priority=message.priority,
        headers={**headers, REPLAYED_FROM: id},
        dedup_key=f"{operation.operation_id}/{id}",
        partition=message.partition,
        max_attempts=message.max_attempts,
        trace=message.trace,
        content_type=message.content_type,
    )


def check_replay(shard: Shard, queue: str, target: str) -> tuple[int, ...]:
    """Refuse what could not be replayed; returns where the partitions of the queue end. The lock is held."""
    core = shard.core
    source = admin.queue_named(core, queue)
    into = core.by_name.get(target)
    if into is None:
        raise QueueNotFound(f"target: there is no queue {target!r}", hint="create it first")
    admin.check_changeable(into)
    if source.options.encryption and not into.options.encryption:
        raise InvalidField(
            f"target: queue {queue!r} is encrypted, and {target!r} is not", hint="replay into an encrypted queue"
        )
    return tuple(partition.end for partition in source.partitions)
