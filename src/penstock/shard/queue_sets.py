"""Leases over several queues: which queues a poll takes from, and which of them may have something.

A poll names queues and prefixes. All polls that ask for the same share one `QueueSet`. It holds the queues that may
have something, so that a poll looks at those and at no others: a queue is added by whatever makes one of its messages
ready (`Waiters.wake`), and removed when a poll finds nothing in it. A queue that is created later joins with its first
message.

A set is an index of what is in memory, and rebuilt from it when it was dropped: it is kept for a minute after its last
use. The shard's lock guards it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock import limits
from penstock.model import DLQ_SUFFIX, RESERVED_PREFIX
from penstock.requests import LeaseRequest, QueueChoice

if TYPE_CHECKING:
    from penstock.delivery.core import DeliveryState
    from penstock.delivery.log import Queue

# What is asked for, for which group, whether it creates that, which types of tasks, and by whom.
SetKey = tuple[QueueChoice, str, bool, frozenset[str] | None, Any]


def set_key(choice: QueueChoice, group: str, request: LeaseRequest, who: Any = None) -> SetKey:
    """Which set answers a poll: those who may not get the same messages do not share one."""
    return choice, group, request.start is not None, request.task_types, who


@dataclass(slots=True, eq=False)
class SetWaiter:
    """One call that waits for messages of a set. `wake` must not block and may be called from any thread."""

    queue_set: QueueSet
    wake: Callable[[], object]
    since: int  # the last wake-up before it came
    woken: int = 0  # the wake-up that it got


class QueueSet:
    """The queues of one kind of poll. `rings` hold the numbers of those that may have something, in their turn."""

    def __init__(self, choice: QueueChoice, group: str) -> None:
        self.group = group
        self._names = {name: place for place, name in enumerate(choice.names) if not name.endswith("*")}
        self._prefixes = [(name[:-1], place) for place, name in enumerate(choice.names) if name.endswith("*")]
        self._is_listed = choice.order == "listed"
        self.rings: list[OrderedDict[int, None]] = [
            OrderedDict() for _ in range(len(choice.names) if self._is_listed else 1)
        ]
        self.line: deque[SetWaiter] = deque()
        self.denied: set[int] = set()  # queues that a prefix matches and that may not be consumed
        self.joined: set[int] = set()  # queues in which the group was seen
        self.missing: set[str] = set()  # names of no queue
        self.users = 0  # that wait
        self.used_at = 0  # monotonic
        self.is_checked = False  # whoever polls may consume the queues that are named

    def is_named(self, name: str) -> bool:
        """Whether the list has this very name: then the queue and its group must exist."""
        return name in self._names

    def ring_of(self, name: str) -> OrderedDict[int, None] | None:
        """Where a queue takes its turn; None when it is not of this set."""
        place = self._place(name)
        return None if place is None else self.rings[place if self._is_listed else 0]

    def _place(self, name: str) -> int | None:
        named = self._names.get(name)
        matches = [] if named is None else [named]
        if not name.endswith(DLQ_SUFFIX):  # dead letters are consumed by who names their queue
            is_reserved = name.startswith(RESERVED_PREFIX)
            matches += [
                place
                for prefix, place in self._prefixes
                if name.startswith(prefix) and (not is_reserved or prefix.startswith(RESERVED_PREFIX))
            ]
        return min(matches, default=None)

    @property
    def names(self) -> Collection[str]:
        """The queues that are named, not matched by a prefix."""
        return self._names

    def find_missing(self, core: DeliveryState) -> None:
        """Look again for the queues that are named."""
        self.missing = {name for name in self._names if name not in core.by_name}

    def has_more(self) -> bool:
        """Whether some queue may have something."""
        return any(self.rings)

    def wake(self, count: int, number: int) -> None:
        """Wake the first `count` of those who waited before the wake-up of this number."""
        line = self.line
        while line and count > 0 and line[0].since < number:
            waiter = line.popleft()
            waiter.woken = number
            with suppress(RuntimeError):  # its loop is closed: the next one is woken
                waiter.wake()
                count -= 1


class QueueSets:
    """All sets of a shard."""

    def __init__(self, core: DeliveryState) -> None:
        self._core = core
        self.by_key: OrderedDict[SetKey, QueueSet] = OrderedDict()  # the one that was used last is last
        self._of_queue: dict[int, list[tuple[QueueSet, OrderedDict[int, None]]]] = {}

    def waiting(self) -> int:
        """How many polls wait."""
        return sum(len(queue_set.line) for queue_set in list(self.by_key.values()))

    def of(self, key: SetKey, monotonic: int) -> QueueSet:
        """The set that answers polls of this key."""
        queue_set = self.by_key.get(key)
        if queue_set is None:
            self._drop_idle(monotonic)
            queue_set = self.by_key[key] = self._build(key)
        else:
            self.by_key.move_to_end(key)
        queue_set.used_at = monotonic
        return queue_set

    def _build(self, key: SetKey) -> QueueSet:
        choice, group, *_ = key
        queue_set = QueueSet(choice, group)
        core = self._core
        queue_set.find_missing(core)
        for queue in core.queues.values():
            ring = queue_set.ring_of(queue.name)
            if ring is not None:
                if queue.id not in self._of_queue:
                    self._of_queue[queue.id] = self._sets_of(queue)
                self._of_queue[queue.id].append((queue_set, ring))
                if _may_have(queue, group, key[3]):
                    ring[queue.id] = None
        return queue_set

    def _sets_of(self, queue: Queue) -> list[tuple[QueueSet, OrderedDict[int, None]]]:
        rings = ((queue_set, queue_set.ring_of(queue.name)) for queue_set in self.by_key.values())
        return [(queue_set, ring) for queue_set, ring in rings if ring is not None]

    def _drop_idle(self, monotonic: int) -> None:
        """Forget sets that nobody has used for a while, and the oldest when there are too many."""
        since = monotonic - round(limits.queue_set_seconds * 1_000_000)
        idle = [key for key, queue_set in self.by_key.items() if not queue_set.users]
        room = len(self.by_key) - limits.queue_sets_max + 1
        dropped = [key for place, key in enumerate(idle) if place < room or self.by_key[key].used_at < since]
        if dropped:
            for key in dropped:
                del self.by_key[key]
            kept = set(self.by_key.values())
            self._of_queue = {
                number: [(queue_set, ring) for queue_set, ring in sets if queue_set in kept]
                for number, sets in self._of_queue.items()
                if number in self._core.queues
            }

    def mark(self, number: int, count: int, group: int | None, wake_number: int) -> None:
        """A queue may have something for a group, or for all: its sets look at it, and one who waits is woken."""
        sets = self._of_queue.get(number)
        queue = self._core.queues.get(number)
        if sets is None:
            if queue is None:
                return
            sets = self._of_queue[number] = self._sets_of(queue)
        for queue_set, ring in sets:
            if number in queue_set.denied or not _concerns(queue_set, queue, group):
                continue
            ring[number] = None
            queue_set.wake(count, wake_number)

    def touch(self, now: int) -> None:
        """The groups that polls wait for are in use, although nothing was leased."""
        for queue_set in self.by_key.values():
            for number in queue_set.joined if queue_set.users else ():
                queue = self._core.queues.get(number)
                group = None if queue is None else queue.group_ids.get(queue_set.group)
                if queue is not None and group is not None:
                    queue.groups[group].active_at = now

    def leave(self, waiter: SetWaiter, *, served: bool) -> None:
        """The call is over. A wake-up that it did not use goes to the next in line, if a queue may have something."""
        queue_set = waiter.queue_set
        queue_set.users -= 1
        if not waiter.woken:
            queue_set.line.remove(waiter)
        elif not served and queue_set.has_more():
            queue_set.wake(1, waiter.woken)

    def wake_all(self, number: int) -> None:
        """Wake everyone, to look at every queue: the shard is over, its clock has jumped, or much was resumed."""
        for queue, sets in self._of_queue.items():
            for queue_set, ring in sets:
                if queue not in queue_set.denied:
                    ring[queue] = None
        for queue_set in list(self.by_key.values()):
            queue_set.wake(len(queue_set.line), number)


def _concerns(queue_set: QueueSet, queue: Queue | None, group: int | None) -> bool:
    return group is None or queue is None or queue.group_ids.get(queue_set.group) == group


def _may_have(queue: Queue, group: str, types: frozenset[str] | None) -> bool:
    number = queue.group_ids.get(group)
    return number is None or any(lane.may_have(types) for lane in queue.groups[number].lanes.values())
