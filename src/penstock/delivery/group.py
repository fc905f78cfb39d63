"""A group: an independent reader of a queue, and the lanes in which its messages stand ready.

A lane is one priority. `again` holds messages that come back (retries, releases, delays that ended, redrives) in the
order in which they came due; `fresh` is a ring of the partitions that may have messages nobody has leased yet. Both are
indexes: they may name what is no longer ready, never the other way round.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from penstock import limits
from penstock.delivery.entries import Int64s
from penstock.delivery.lease_limits import LeaseLimits
from penstock.delivery.progress import Progress
from penstock.model import ARCHIVE_GROUP, Outcome, QueueOptions

if TYPE_CHECKING:
    from penstock.delivery.gate import KeyGate
    from penstock.delivery.leases import Lease
    from penstock.delivery.log import Partition, Queue
    from penstock.delivery.membership import Roster

DEFAULT: Final = limits.priority_default
BIT: Final = tuple(1 << priority for priority in range(limits.priority_max + 1))


class Lane:
    """What stands ready at one priority."""

    __slots__ = ("again", "fresh", "priority")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.again: deque[tuple[Progress, int | Int64s]] = deque()
        self.fresh: deque[Progress] = deque()

    def __bool__(self) -> bool:
        return bool(self.again or self.fresh)

    def copied(self) -> Lane:
        copy = Lane(self.priority)
        copy.again, copy.fresh = self.again.copy(), self.fresh.copy()
        return copy


class Group:
    """`backlog` is the number of messages the group has not finished, over all partitions."""

    __slots__ = (
        "active_at",
        "backlog",
        "batch_max",
        "change_count",
        "deficits",
        "gate",
        "id",
        "lanes",
        "latest",
        "leases",
        "limits",
        "name",
        "observes",
        "order",
        "outcomes",
        "progress",
        "queue",
        "roster",
        "served_at",
        "turn",
        "waiting",
    )

    def __init__(self, id: int, name: str, queue: Queue, *, latest: bool = False, observes: bool = False) -> None:
        self.id = id
        self.name = name
        self.queue = queue
        self.latest = latest  # partitions that appear later start at their end
        self.observes = observes
        self.progress: list[Progress] = []
        self.backlog = 0
        self.active_at = 0
        self.waiting = 0  # leases that wait for a message
        self.leases: dict[int, Lease] = {}
        self.roster: Roster | None = None  # its members, once it has had one
        self.turn = 0
        self.outcomes = [0] * (max(Outcome) + 1)  # deliveries and messages by how they ended, since the process started
        self.change_count = 0  # times that messages were settled without their leases being asked
        self.limits: LeaseLimits | None = None
        self.batch_max = 0  # how many messages a consumer should take at a time; 0: any number
        self.clear_lanes()
        self.set_limits(queue.options, 0)

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
        self.gate: KeyGate | None = None if self.limits is None else self.limits.gate

    def clear_lanes(self) -> None:
        self.lanes: dict[int, Lane] = {}
        self.order: list[int] = []  # priorities with a lane, highest first
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

    def offer_again(self, progress: Progress, offsets: int | Int64s, priority: int = DEFAULT) -> None:
        """Messages that come back to be leased."""
        self.lane(priority).again.append((progress, offsets))

    def withdraw(self, progress: Progress) -> None:
        """Take a partition out of every lane: its progress was reset."""
        for lane in self.lanes.values():
            lane.again = deque(item for item in lane.again if item[0] is not progress)
            if progress.offered & BIT[lane.priority]:
                lane.fresh.remove(progress)
        progress.offered = 0

    def reads_segments(self) -> bool:
        """Whether something the group has not finished lies in a sealed segment."""
        return any(progress.base < progress.partition.sealed_end for progress in self.progress if progress.offered)

    def in_flight(self, consumer: str) -> int:
        """Deliveries that one consumer holds."""
        return sum(lease.count for lease in self.leases.values() if lease.consumer == consumer)
