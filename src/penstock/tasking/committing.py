"""The frame of an operation on tasks: what was decided, and what it means for the children of those it is about."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.delivery.entries import Entry, Push, TaskHeld, entry_bytes
from penstock.delivery.freeing import ROOM, free_some
from penstock.engine import Ticket
from penstock.model import Durability
from penstock.shard import Shard


def commit(shard: Shard, created: Sequence[Entry], entries: list[Entry], now: int, level: Durability) -> Ticket:
    """Append and apply in one frame, with those that it frees. `created` is applied already. The lock is held."""
    core = shard.core
    if not core.tasks.awaited and not created and not any(isinstance(each, TaskHeld) for each in entries):
        ticket = shard.commit_frame([], entries, level)
        shard.changed(entries)
        return ticket
    sequence = shard.journal.sequence + 1
    core.apply(entries, sequence)
    freed: list[Entry] = []
    if core.tasks.ripe:
        freed = free_some(core, now, sequence, ROOM - sum(map(entry_bytes, [*created, *entries])))
    ticket = shard.commit_frame([*created, *entries, *freed], [], level)
    shard.changed([*entries, *freed])
    for queue in {each.queue for each in (*entries, *freed) if isinstance(each, Push)}:
        if core.queues[queue].near > 0:
            shard.delays_changed(core.queues[queue])
    return ticket
