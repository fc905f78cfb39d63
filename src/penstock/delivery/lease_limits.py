"""Limits of leases: how many messages a client of a group may have now, and when there is more.

A lease gets no more than the buckets hold; an empty bucket is an empty reply. Every group has buckets of its own, so
that one reader does not use up what another may have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.delivery.buckets import Buckets
from penstock.delivery.gate import KeyGate
from penstock.delivery.rates import QUEUE, renewed
from penstock.model import QueueOptions

if TYPE_CHECKING:
    from penstock.delivery.group import Group


class LeaseLimits:
    """The buckets that leases of one group take from, and the gate of its keys."""

    __slots__ = ("armed_at", "clients", "gate", "queue")

    def __init__(self) -> None:
        self.queue: Buckets | None = None
        self.clients: Buckets | None = None
        self.gate: KeyGate | None = None
        self.armed_at = 0  # when a timer wakes those who wait

    @staticmethod
    def renewed(old: LeaseLimits | None, group: Group, options: QueueOptions, now: int) -> LeaseLimits | None:
        """The limits that these options ask for, with the buckets of the old ones."""
        found = old or LeaseLimits()
        found.queue = renewed(found.queue, options.lease_per_second, options.lease_burst, now)
        found.clients = renewed(found.clients, options.client_lease_per_second, options.client_lease_burst, now)
        keys = found.gate.rates if found.gate is not None else None
        keys = renewed(keys, options.key_lease_per_second, options.key_lease_burst, now)
        # In key order there is never more than one.
        held_max = options.key_max_in_flight if options.ordering == "none" else None
        if keys is not None or held_max is not None:
            found.gate = found.gate or KeyGate(group)
            found.gate.set_limits(keys, held_max, now)
        elif found.gate is not None:
            found.gate.open()
            found.gate = None
        limits = (found.queue, found.clients, found.gate)
        return None if limits == (None, None, None) else found

    def room(self, client: str, now: int, count_max: int) -> int:
        """How many messages a client may have now, of `count_max`."""
        if self.queue is not None:
            count_max = min(count_max, self.queue.available(QUEUE, now))
        if self.clients is not None:
            count_max = min(count_max, self.clients.available(client, now))
        return count_max

    def take(self, client: str, count: int, now: int) -> None:
        if self.queue is not None:
            self.queue.take(QUEUE, count, now)
        if self.clients is not None:
            self.clients.take(client, count, now)

    def more_at(self, client: str, now: int) -> int | None:
        """When a client that has used up what there is may have more; None when it has not."""
        waits = [
            0 if self.queue is None else self.queue.wait(QUEUE, 1, now),
            0 if self.clients is None else self.clients.wait(client, 1, now),
        ]
        if any(waits):
            return now + max(waits)
        return None if self.gate is None else self.gate.next_at()
