"""The frame of an operation on tasks: what was decided, and what it means for the children of those it is about."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.delivery.entries import Entry, TaskHeld
from penstock.delivery.rate_limits import Bill, pay
from penstock.delivery.settle import Chosen
from penstock.model import Durability
from penstock.shard.engine import Ticket
from penstock.shard.shard import Shard


def commit(
    shard: Shard,
    entries: list[Entry],
    now: int,
    level: Durability,
    chosen: Sequence[Chosen] = (),
    bill: Bill | None = None,
) -> Ticket:
    """Apply and append one frame, with those that it frees. The lock is held."""
    if shard.core.tasks.awaited or any(isinstance(each, TaskHeld) for each in entries):
        ticket, entries = shard.commit_freeing(entries, now, level, chosen)
    else:
        ticket = shard.commit_frame(entries, level, chosen)
    if bill:
        pay(bill, now)
    shard.pushed(entries)
    shard.changed(entries)
    return ticket
