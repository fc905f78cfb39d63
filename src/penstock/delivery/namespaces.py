"""Namespaces: all queues whose names begin with a prefix, and what they may use together.

Quotas are settings, not state: they are declared to the shard when it is opened and whenever they change. What is used
is counted as entries are applied, so a queue that belongs to no namespace costs nothing.

A frame is admitted whole or refused before anything has changed, whichever way it came: `admit` looks at its entries.
Only what is new can be refused: queues, groups, messages and tasks that wait for others. Dead letters, and tasks that
are released, follow from what was admitted before; they are counted, and may exceed a quota. Settling and leasing never
ask. A push that is larger than what a rate allows in a second is admitted when the bucket is full, and the next one
waits until the bucket has recovered: otherwise it would never be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.batch.layout import plain_bytes
from penstock.delivery.entries import Entry, GroupSet, Push, QueueSet, TaskHeld
from penstock.delivery.rate_limits import Buckets, renewed
from penstock.errors import QueueFull, RateLimited
from penstock.model import DLQ_SUFFIX
from penstock.model_access import Quotas

if TYPE_CHECKING:
    from penstock.delivery.core import DeliveryState
    from penstock.delivery.log import Queue

DEFAULT: Final = 0  # the group that belongs to every queue, and counts with it
HINT_RAISE: Final = "or raise its quota with `penstock namespace create`"


class Namespace:
    """What the queues of one namespace use, and may use. Dead-letter queues and default groups come with their queue:
    they are not counted as queues and groups, but what they hold is.
    """

    __slots__ = ("_messages", "_volume", "bytes", "group_count", "name", "queue_count", "queues", "quotas")

    def __init__(self, name: str) -> None:
        self.name = name
        self.quotas = Quotas()
        self.queues: dict[int, Queue] = {}
        self.queue_count = 0
        self.group_count = 0
        self.bytes = 0  # of all messages, and of tasks that wait for others
        self._messages: Buckets | None = None
        self._volume: Buckets | None = None

    def set_quotas(self, quotas: Quotas, now: int) -> None:
        """Other quotas; the buckets keep what is in them."""
        self.quotas = quotas
        self._messages = renewed(self._messages, quotas.messages_rate, None, now)
        self._volume = renewed(self._volume, quotas.bytes_rate, None, now)

    def add(self, queue: Queue) -> None:
        """A queue that is new, or whose namespace is."""
        self.queues[queue.id] = queue
        self.queue_count += not queue.is_dlq
        self.group_count += _counted_groups(queue)
        self.bytes += queue.stored_bytes
        queue.set_namespace(self)

    def remove(self, queue: Queue) -> None:
        """A queue that is deleted, or whose namespace is."""
        del self.queues[queue.id]
        self.queue_count -= not queue.is_dlq
        self.group_count -= _counted_groups(queue)
        self.bytes -= queue.stored_bytes
        queue.set_namespace(None)

    def check(self, demand: Demand) -> None:
        """Refuse what the quotas do not allow now."""
        quotas = self.quotas
        self._check_total("queues", quotas.queues, self.queue_count, demand.queues, "delete queues")
        self._check_total("groups", quotas.groups, self.group_count, demand.groups, "delete groups")
        free = "lower the retention, purge or delete queues"
        self._check_total("bytes", quotas.bytes, self.bytes, demand.bytes, free)
        if demand.messages:
            self._check_rate("messages_rate", quotas.messages_rate, self._messages, demand.messages, demand.at)
            self._check_rate("bytes_rate", quotas.bytes_rate, self._volume, demand.bytes, demand.at)

    def _check_total(self, quota: str, limit: int | None, used: int, more: int, free: str) -> None:
        if limit is not None and more and used + more > limit:
            message = f"namespace {self.name!r} has {used:,} of {limit:,} {quota} and needs {more:,} more"
            raise QueueFull(f"{message}: quota {quota!r}", hint=f"{free}, {HINT_RAISE}")

    def _check_rate(self, quota: str, rate: float | None, buckets: Buckets | None, count: int, now: int) -> None:
        if rate is None or buckets is None:
            return
        wait = buckets.wait(self.name, min(count, buckets.rate.burst), now)
        if wait:
            what = quota.removesuffix("_rate")
            raise RateLimited(
                f"namespace {self.name!r} is limited to {rate:,g} {what} per second: quota {quota!r}",
                retry_after_seconds=wait / 1_000_000,
            )

    def take(self, demand: Demand) -> None:
        """Pay for messages that are admitted."""
        if self._messages is not None:
            self._messages.take(self.name, demand.messages, demand.at)
        if self._volume is not None:
            self._volume.take(self.name, demand.bytes, demand.at)

    def usage(self, now: int) -> dict[str, int]:
        """What is used, by the name of the quota. Of rates, what is missing from a full bucket."""
        used = {"queues": self.queue_count, "groups": self.group_count, "bytes": self.bytes}
        for quota, buckets in (("messages_rate", self._messages), ("bytes_rate", self._volume)):
            if buckets is not None:
                used[quota] = buckets.rate.burst - buckets.available(self.name, now)
        return used


class Demand:
    """What a frame asks of one namespace."""

    __slots__ = ("at", "bytes", "groups", "messages", "queues")

    def __init__(self) -> None:
        self.queues = self.groups = self.messages = self.bytes = 0
        self.at = 0


class Namespaces:
    """Those that are declared, by name."""

    def __init__(self, by_name: Mapping[str, Namespace]) -> None:
        self.by_name = by_name

    def of(self, queue: str) -> Namespace | None:
        """The namespace that a name belongs to."""
        first, dot, _ = queue.partition(".")
        return self.by_name.get(first) if dot else None

    def add(self, queue: Queue) -> None:
        """A queue was made."""
        namespace = self.of(queue.name)
        if namespace is not None:
            namespace.add(queue)

    def admit(self, core: DeliveryState, entries: Iterable[Entry]) -> None:
        """Refuse a frame, or pay for it. The caller applies it then."""
        demands = self.check(core, entries)
        for namespace, demand in demands.items():
            if demand.messages:
                namespace.take(demand)

    def check(self, core: DeliveryState, entries: Iterable[Entry]) -> dict[Namespace, Demand]:
        """What a frame asks for; refused when it is over a quota."""
        frame = _Frame(self, core)
        for entry in entries:
            measure = _MEASURES.get(type(entry))
            if measure is not None:
                measure(frame, entry)
        for namespace, demand in frame.demands.items():
            namespace.check(demand)
        return frame.demands


class _Frame:
    """Adds up what the entries of a frame ask for."""

    def __init__(self, namespaces: Namespaces, core: DeliveryState) -> None:
        self.demands: dict[Namespace, Demand] = {}
        self._namespaces = namespaces
        self._core = core
        self._made: dict[int, Namespace | None] = {}  # of queues that the frame makes

    def queue_set(self, entry: QueueSet) -> None:
        if entry.queue in self._core.queues:
            return
        is_asked = not entry.name.endswith(DLQ_SUFFIX)
        namespace = self._made[entry.queue] = self._namespaces.of(entry.name) if is_asked else None
        if namespace is not None:
            self._demand(namespace, entry.at).queues += 1

    def group_set(self, entry: GroupSet) -> None:
        queue = self._core.queues.get(entry.queue)
        if queue is None or queue.namespace is None or entry.group in queue.groups or entry.group == DEFAULT:
            return
        self._demand(queue.namespace, entry.at).groups += 1

    def push(self, entry: Push) -> None:
        namespace = self._namespace(entry.queue)
        if namespace is None or not entry.parts:
            return
        demand = self._demand(namespace, entry.pushed_at)
        messages = sum(count for _, count, _ in entry.parts)
        size, rows = plain_bytes(entry.batch)
        demand.messages += messages
        demand.bytes += size if messages == rows else size * messages // rows

    def held(self, entry: TaskHeld) -> None:
        namespace = self._namespace(entry.queue)
        if namespace is not None:
            demand = self._demand(namespace, entry.at)
            demand.messages += 1
            demand.bytes += len(entry.batch)

    def _namespace(self, number: int) -> Namespace | None:
        queue = self._core.queues.get(number)
        if queue is None:
            return self._made.get(number)
        return None if queue.is_dlq else queue.namespace

    def _demand(self, namespace: Namespace, now: int) -> Demand:
        demand = self.demands.get(namespace)
        if demand is None:
            demand = self.demands[namespace] = Demand()
            demand.at = now
        return demand


_MEASURES: Final[dict[type, Callable[[_Frame, Any], None]]] = {
    QueueSet: _Frame.queue_set,
    GroupSet: _Frame.group_set,
    Push: _Frame.push,
    TaskHeld: _Frame.held,
}


def declare(core: DeliveryState, quotas: Mapping[str, Quotas], now: int) -> None:
    """From now on these namespaces have these quotas. The lock is held."""
    known = {} if core.namespaces is None else core.namespaces.by_name
    by_name = {name: known.get(name) or Namespace(name) for name in quotas}
    for name, namespace in by_name.items():
        namespace.set_quotas(quotas[name], now)
    namespaces = Namespaces(by_name)
    joined = []
    for queue in core.queues.values():
        namespace_now = namespaces.of(queue.name)
        if queue.namespace is namespace_now:
            continue
        if queue.namespace is not None:
            queue.namespace.remove(queue)
        if namespace_now is not None:
            joined.append(queue)
    if joined:
        _count(core, joined)
        for queue in joined:
            namespaces.add(queue)
    core.namespaces = namespaces if by_name else None


def _count(core: DeliveryState, queues: Iterable[Queue]) -> None:
    """Add up what queues hold: from then on it is counted as it changes."""
    for queue in queues:
        queue.stored_bytes = sum(partition.stored_bytes() for partition in queue.partitions)
    numbers = {queue.id: queue for queue in queues}
    for held in core.tasks.held.values():
        if held.queue in numbers:
            numbers[held.queue].stored_bytes += len(held.batch)


def _counted_groups(queue: Queue) -> int:
    return len(queue.groups) - (DEFAULT in queue.groups)
