"""A group: an independent reader of a queue, with its lanes, its leases and the limits of its leases.

A lane is one priority. `retries` holds messages that come back (retries, releases, delays that ended, redrives) in the
order in which they came due; `fresh` is a ring of the partitions that may have messages nobody has leased yet. Both are
indexes: they may name what is no longer ready, never the other way round.

A lease is volatile: its nonce, deadline and holder live in memory only, on the monotonic clock. What the journal keeps
of it is that its messages were leased; recovery closes them as interrupted. One lease covers runs of offsets, and is
settled whole in one step; only when its deliveries are settled one by one does it keep a byte for each.

A lease gets no more than the rate limits allow; an empty bucket is an empty reply. Every group has buckets of its own,
so that one reader does not use up what another may have.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from penstock import limits
from penstock.delivery.entries import Int64s, Span
from penstock.delivery.keys import KeyGate
from penstock.delivery.phases import LEASED
from penstock.delivery.progress import Progress, span_of
from penstock.delivery.rate_limits import QUEUE, Buckets, renewed
from penstock.model import ARCHIVE_GROUP, Outcome, QueueOptions, owned

if TYPE_CHECKING:
    from penstock.delivery.log import Partition, Queue
    from penstock.delivery.membership import Roster

DEFAULT: Final = limits.priority_default
BIT: Final = tuple(1 << priority for priority in range(limits.priority_max + 1))


@dataclass(slots=True, eq=False)
class LeaseLimits:
    """The buckets that leases of one group take from, and the gate of its keys."""

    queue: Buckets | None = None
    clients: Buckets | None = None
    gate: KeyGate | None = None
    armed_at: int = 0  # when a timer wakes those who wait

    @staticmethod
    def renewed(old: LeaseLimits | None, group: Group, options: QueueOptions, now: int) -> LeaseLimits | None:
        """The limits of these options, with the buckets of the old ones."""
        limits = old or LeaseLimits()
        limits.queue = renewed(limits.queue, options.lease_per_second, options.lease_burst, now)
        limits.clients = renewed(limits.clients, options.client_lease_per_second, options.client_lease_burst, now)
        keys = limits.gate.rates if limits.gate is not None else None
        keys = renewed(keys, options.key_lease_per_second, options.key_lease_burst, now)
        # In key order there is never more than one.
        held_max = options.key_max_in_flight if options.ordering == "none" else None
        if keys is not None or held_max is not None:
            limits.gate = limits.gate or KeyGate(group)
            limits.gate.set_limits(keys, held_max, now)
        elif limits.gate is not None:
            limits.gate.open()
            limits.gate = None
        buckets = (limits.queue, limits.clients, limits.gate)
        return None if buckets == (None, None, None) else limits

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


# leases


class Take(msgspec.Struct, gc=False):
    """Some offsets of one partition in a lease, ascending, with the number of each delivery.

    Takes are not watched by the garbage collector: there may be many. Nothing leaks by it, since a lease goes by its
    reference count when it is settled, and a shard clears all leases when it is closed.
    """

    progress: Progress
    offsets: Sequence[int]  # a range when they are consecutive
    attempts: int | list[int]  # one number when all are the same
    open: int  # deliveries not settled yet
    done: bytearray | None = None  # 1 for each delivery that was settled on its own

    def index_of(self, offset: int) -> int:
        """The index of an offset in this take; −1 when it is not there."""
        offsets = self.offsets
        if isinstance(offsets, range):
            return offset - offsets.start if offset in offsets else -1
        index = bisect_left(offsets, offset)
        return index if index < len(offsets) and offsets[index] == offset else -1

    def attempt_of(self, index: int) -> int:
        return self.attempts if isinstance(self.attempts, int) else self.attempts[index]

    def span(self, indexes: Sequence[int] | None = None) -> Span:
        """The take, or some of its deliveries, as a span with the number of each delivery."""
        offsets, attempts = self.offsets, self.attempts
        if indexes is None and isinstance(offsets, range) and isinstance(attempts, int):
            return Span(self.progress.partition.id, offsets.start, self.open, attempts)
        if indexes is not None and len(indexes) < len(offsets):
            offsets = [offsets[index] for index in indexes]
            attempts = attempts if isinstance(attempts, int) else [attempts[index] for index in indexes]
        if isinstance(attempts, int):
            return span_of(self.progress.partition.id, offsets, attempts)
        span = span_of(self.progress.partition.id, offsets, attempts[0])
        if len(set(attempts)) > 1:
            span.attempts = np.array(attempts, np.uint16).tobytes()
        return span

    def is_open(self, index: int) -> bool:
        return self.open > 0 if self.done is None else not self.done[index]

    def open_indexes(self) -> Sequence[int]:
        if self.done is None:
            return range(len(self.offsets) if self.open else 0)
        return [index for index, done in enumerate(self.done) if not done]

    def close(self, indexes: Sequence[int]) -> None:
        """These deliveries are settled."""
        if len(indexes) == self.open:
            self.open = 0
            self.done = None
            return
        if self.done is None:
            self.done = bytearray(len(self.offsets))
        for index in indexes:
            self.done[index] = 1
        self.open -= len(indexes)

    def close_ended(self) -> int:
        """Close the deliveries whose messages are no longer leased; how many."""
        indexes = self.open_indexes()
        progress, offsets = self.progress, self.offsets
        if progress.all_leased(offsets if len(indexes) == len(offsets) else [offsets[index] for index in indexes]):
            return 0
        ended = [index for index in indexes if progress.state_of(offsets[index]) != LEASED]
        self.close(ended)
        return len(ended)


class Lease(msgspec.Struct):
    """The time-limited right of one consumer to settle some deliveries."""

    nonce: int
    group: Group
    consumer: str
    at: int  # wall time, for the events table
    deadline: int  # monotonic
    takes: list[Take]
    count: int  # deliveries not settled yet
    spans: list[Span] = []  # the takes as the journal has them
    is_whole: bool = True  # nothing of it was settled on its own
    change_count: int = 0  # of the group when it was leased
    member: str = ""  # of the group, when a member leased it
    owner: str = ""  # the principal that has it; "" for the owner of the broker

    @property
    def holder(self) -> str:
        """The consumer, as its principal's own."""
        return owned(self.owner, self.consumer)

    def find(self, partition: str, offset: int) -> tuple[Take, int] | None:
        """The take and index of one delivery of this lease."""
        for take in self.takes:
            if take.progress.partition.name == partition:
                index = take.index_of(offset)
                if index >= 0:
                    return take, index
        return None

    def open_takes(self) -> Iterator[tuple[Take, Sequence[int]]]:
        for take in self.takes:
            if take.open:
                yield take, take.open_indexes()


# the group


@dataclass(slots=True, eq=False)
class Lane:
    """What is ready at one priority."""

    priority: int
    retries: deque[tuple[Progress, int | Int64s]] = field(default_factory=deque)
    fresh: deque[Progress] = field(default_factory=deque)
    # Messages that leases by task type have passed over, by their types: see `typed_selection`.
    passed: dict[str, deque[tuple[Progress, int | Int64s]]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.retries or self.fresh)

    def may_have(self, types: frozenset[str] | None) -> bool:
        """Whether there may be a message for a lease that names these types, or none."""
        if self.retries or self.fresh:
            return True
        return bool(self.passed) if types is None else any(name in types for name in self.passed)

    def copied(self) -> Lane:
        passed = {name: line.copy() for name, line in self.passed.items()}
        return Lane(self.priority, self.retries.copy(), self.fresh.copy(), passed)


@dataclass(slots=True, eq=False)
class Group:
    """`backlog` is the number of messages the group has not finished, over all partitions."""

    id: int
    name: str
    queue: Queue
    latest: bool = False  # partitions that appear later start at their end
    observes: bool = False
    progress: list[Progress] = field(default_factory=list)
    backlog: int = 0
    active_at: int = 0
    waiting: int = 0  # leases that wait for a message
    leases: dict[int, Lease] = field(default_factory=dict)
    roster: Roster | None = None  # its members, once there was one
    turn: int = 0
    # Deliveries and messages by how they ended, since the process started.
    outcomes: list[int] = field(default_factory=lambda: [0] * (max(Outcome) + 1))
    delivered: int = 0  # deliveries begun, since the process started
    change_count: int = 0  # times that messages were settled without their leases
    limits: LeaseLimits | None = None
    gate: KeyGate | None = None  # that of `limits`
    batch_max: int = 0  # how many messages a consumer should take at a time; 0: any number
    is_held: bool = field(init=False)  # delivery is paused
    lanes: dict[int, Lane] = field(init=False)
    order: list[int] = field(init=False)  # priorities with a lane, highest first
    deficits: list[float] = field(init=False)
    served_at: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.is_held = self.queue.is_held
        self.clear_lanes()
        self.set_limits(self.queue.options, 0)

    @property
    def is_archive(self) -> bool:
        """Whether retention waits for this group, and it never expires."""
        return self.name == ARCHIVE_GROUP and self.queue.options.retention_until_archived

    @property
    def is_load(self) -> bool:
        """Whether messages wait for this group: one that only observes may be late without filling the queue, and no
        message dies of waiting for it.
        """
        return not (self.observes or self.is_archive)

    def set_limits(self, options: QueueOptions, now: int) -> None:
        """The limits of leases, which the options of the queue name; buckets keep what is in them."""
        self.limits = LeaseLimits.renewed(self.limits, self, options, now)
        self.batch_max = 1 if options.is_singly() else 0
        self.gate = None if self.limits is None else self.limits.gate

    def clear_lanes(self) -> None:
        self.lanes = {}
        self.order = []
        self.deficits = [0.0] * 5
        self.served_at = [0] * 5

    def add_partition(self, partition: Partition, start: int | None = None) -> Progress:
        """Begin a partition: at `start`, or where the group's own rule says."""
        if start is None:
            start = partition.end if self.latest else partition.start
        progress = Progress(self, partition, start)
        self.progress.append(progress)
        return progress

    def lane(self, priority: int) -> Lane:
        lane = self.lanes.get(priority)
        if lane is None:
            lane = self.lanes[priority] = Lane(priority)
            self.order = sorted(self.lanes, reverse=True)
        return lane

    def offer(self, progress: Progress, priority: int = DEFAULT) -> None:
        """The partition may have fresh messages of this priority."""
        bit = BIT[priority]
        if not progress.offered & bit:
            progress.offered |= bit
            self.lane(priority).fresh.append(progress)

    def offer_all(self, progress: Progress) -> None:
        """The partition may have fresh messages of any priority: what held it back is over."""
        self.offer(progress)
        for priority in self.order:
            self.offer(progress, priority)

    def offer_retry(self, progress: Progress, offsets: int | Int64s, priority: int = DEFAULT) -> None:
        """Messages that come back to be leased."""
        self.lane(priority).retries.append((progress, offsets))

    def withdraw(self, progress: Progress) -> None:
        """Take a partition out of every lane: its progress was reset."""
        for lane in self.lanes.values():
            lane.retries = deque(item for item in lane.retries if item[0] is not progress)
            for name, line in list(lane.passed.items()):
                lane.passed[name] = deque(item for item in line if item[0] is not progress)
            if progress.offered & BIT[lane.priority]:
                lane.fresh.remove(progress)
        progress.offered = 0

    def reads_segments(self) -> bool:
        """Whether something the group has not finished lies in a sealed segment."""
        return any(progress.base < progress.partition.sealed_end for progress in self.progress if progress.offered)

    def in_flight(self, consumer: str) -> int:
        """Deliveries that one consumer holds."""
        return sum(lease.count for lease in self.leases.values() if lease.consumer == consumer)
