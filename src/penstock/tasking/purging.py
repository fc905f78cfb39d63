"""Many tasks that somebody stops, or has the catalogue forget: some at a time, in one frame.

The caller has looked them up; where they are by now, and whether they are final, is decided here with the lock held.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.delivery.entries import Entry, Settled, Span, TasksPurged
from penstock.delivery.freeing import cancelled
from penstock.delivery.phases import LEASED, SETTLED
from penstock.delivery.progress import Progress, span_of
from penstock.delivery.tasks import GROUP
from penstock.engine import Ticket
from penstock.model import Outcome
from penstock.requests import Target
from penstock.shard import Shard
from penstock.tasking.changing import WHY
from penstock.tasking.committing import commit

CHUNK: Final = 1_000  # tasks in one frame, and while the shard is held


class Ended(NamedTuple):
    """What was done about some tasks."""

    cancelled: list[Target]
    purged: int


class _Places:
    """Offsets by queue and partition."""

    def __init__(self) -> None:
        self._offsets: dict[int, dict[int, list[int]]] = {}

    def add(self, target: Target) -> None:
        assert target.partition is not None
        assert target.position is not None
        self._offsets.setdefault(target.queue, {}).setdefault(target.partition, []).append(target.position)

    def spans(self) -> dict[int, list[Span]]:
        return {
            queue: [span_of(number, sorted(offsets)) for number, offsets in by_partition.items()]
            for queue, by_partition in self._offsets.items()
        }


def cancel_waiting(shard: Shard, targets: Sequence[Target], *, purges: bool) -> tuple[Ended, Ticket]:
    """Cancel those that wait, and have them forgotten too unless somebody may ask for them. One frame."""
    return shard.run(lambda: _Ending(shard, purges=purges).run(targets, cancels=True))


def purge_final(shard: Shard, targets: Sequence[Target]) -> tuple[Ended, Ticket]:
    """Have those forgotten that are final. One frame."""
    return shard.run(lambda: _Ending(shard, purges=True).run(targets, cancels=False))


class _Ending:
    """One frame, with the lock held."""

    def __init__(self, shard: Shard, *, purges: bool) -> None:
        self._shard = shard
        self._core = shard.core
        self._purges = purges
        self._settled = _Places()
        self._purged = _Places()
        self._purged_ids: dict[int, list[bytes]] = {}
        self._cancelled: list[Target] = []
        self._purge_count = 0
        self._freed: list[Entry] = []

    def run(self, targets: Sequence[Target], *, cancels: bool) -> tuple[Ended, Ticket]:
        shard = self._shard
        now, monotonic = shard.begin()
        shard.tick(now, monotonic)
        for target in targets:
            self._take(target, now, cancels=cancels)
        entries: list[Entry] = [
            Settled(queue, GROUP, int(Outcome.CANCELLED), now, 0, "", WHY, spans)
            for queue, spans in self._settled.spans().items()
        ]
        entries += self._freed
        spans = self._purged.spans()
        for queue in {**spans, **self._purged_ids}:
            ids = b"".join(self._purged_ids.get(queue, ()))
            entries.append(TasksPurged(queue, now, spans.get(queue, []), ids))
        ended = Ended(self._cancelled, self._purge_count)
        if not entries:
            return ended, shard.read_ticket
        ticket = commit(shard, (), entries, now, shard.durability)
        shard.on_unreported()
        return ended, ticket

    def _take(self, target: Target, now: int, *, cancels: bool) -> None:
        phase = self._phase_of(target)
        if phase == LEASED or (phase != SETTLED and not cancels):
            return  # a worker was quicker, or it was brought back
        if phase != SETTLED:
            self._cancelled.append(target)
            if target.position is None:
                self._freed.append(cancelled(target.queue, target.task_id, WHY, now))
            else:
                self._settled.add(target)
        elif cancels:
            return  # it has come to an end by itself
        if self._purges and not target.has_open_child:
            self._purge_count += 1
            if target.position is None:
                self._purged_ids.setdefault(target.queue, []).append(target.task_id)
            else:
                self._purged.add(target)

    def _phase_of(self, target: Target) -> int:
        if target.position is None:
            return WAITS if target.task_id in self._core.tasks.held else SETTLED
        progress = self._progress_of(target)
        if progress is None or target.position < progress.start:
            return SETTLED
        return progress.state_of(target.position)

    def _progress_of(self, target: Target) -> Progress | None:
        queue = self._core.queues.get(target.queue)
        return None if queue is None or target.partition is None else queue.groups[GROUP].progress[target.partition]


WAITS: Final = -1  # for its parents
