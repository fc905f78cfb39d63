"""Who listens to live events, to what, and what waits for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any, Final, Literal, Protocol

import msgspec

from penstock.model import QueueStats
from penstock.model_tasks import TaskView, WorkerView

CHANGES_MAX: Final = 1_000  # that wait for one listener

Topic = Literal["queues", "tasks", "workers"]
QUEUES: Final[frozenset[Topic]] = frozenset({"queues"})


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of `CHANGES`, or `counters`, `task`, `worker`."""

    type: str
    at: datetime
    queue: str = ""
    group: str = ""
    counters: list[QueueStats] = []
    missed: int = 0  # changes before this event that the listener was too slow for
    task: TaskView | None = None  # without arguments, result and runs
    worker: WorkerView | None = None
    is_gone: bool = False  # of a worker that is not in the list any more
    forms: dict[str, Any] = msgspec.field(default_factory=dict)  # how protocols send it, made once for all listeners


class TasksWanted(msgspec.Struct, frozen=True):
    """Which tasks somebody wants to hear of; what is not set matches all."""

    task_types: frozenset[str] | None = None
    task_ids: frozenset[str] | None = None
    workflow: str | None = None

    def fits(self, task: TaskView) -> bool:
        """Whether this is one of them."""
        return (
            (self.task_types is None or task.task_type in self.task_types)
            and (self.task_ids is None or task.task_id in self.task_ids)
            and (self.workflow is None or task.workflow == self.workflow)
        )


ALL_TASKS: Final = TasksWanted()


class Hub(Protocol):
    """Where events come from."""

    def leave(self, listener: Listener) -> None: ...


class Counted(msgspec.Struct, frozen=True):
    """Counters at one moment, for all listeners that want the same. The number rises when something has changed."""

    number: int
    changed: Event  # since the number before
    everything: Event


class CounterSeries:
    """The counters of some queues, one interval after the other."""

    def __init__(self) -> None:
        self._number = 0
        self._known: dict[str, QueueStats] = {}

    def next(self, everything: Event) -> Counted:
        """The next moment. A queue that is gone is told of by its own event."""
        stats = everything.counters
        changed = [each for each in stats if self._known.get(each.name) != each]
        if changed or not self._number:
            self._number += 1
        self._known = {each.name: each for each in stats}
        if len(changed) == len(stats):
            return Counted(self._number, everything, everything)
        return Counted(self._number, Event("counters", everything.at, counters=changed), everything)


class Listener:
    """What waits for one listener. `wake` is called on the loop when there is something to take."""

    def __init__(
        self,
        hub: Hub,
        queues: frozenset[str] | None,
        interval_seconds: float,
        wake: Callable[[], None],
        topics: Collection[Topic] = QUEUES,
        wanted: TasksWanted = ALL_TASKS,
    ) -> None:
        self.queues = queues
        self.topics = frozenset(topics)
        self.wanted = wanted
        self.interval_seconds = interval_seconds
        self.due = 0.0
        self.is_ready = True  # nothing is missed from now on
        self._on_ready: Callable[[], None] = lambda: None
        self._hub = hub
        self._wake = wake
        self._changes: deque[Event] = deque()
        self._counters: Event | None = None
        self.is_counted = False  # it has been offered counters
        self._count = 0  # the number of the last of a series that were offered
        self._missed = 0

    def take(self) -> list[Event]:
        """All that waits: changes in their order, then the latest counters."""
        taken = list(self._changes)
        if self._counters is not None:
            taken.append(self._counters)
        if self._missed:
            taken[0] = msgspec.structs.replace(taken[0], missed=self._missed, forms={})
        self._changes.clear()
        self._counters, self._missed = None, 0
        return taken

    def close(self) -> None:
        """Hear no more."""
        self._hub.leave(self)

    def when_ready(self, call: Callable[[], None]) -> None:
        """Call this when nothing is missed any more, at once if that is so."""
        if self.is_ready:
            call()
        else:
            self._on_ready = call

    def be_ready(self) -> None:
        """It is so."""
        if not self.is_ready:
            self.is_ready = True
            self._on_ready()

    def wants(self, queue: str) -> bool:
        return self.queues is None or queue in self.queues

    def wants_task(self, task: TaskView) -> bool:
        return self.wants(task.queue) and self.wanted.fits(task)

    def offer_counters(self, count: Counted) -> None:
        """Counters, unless nothing has changed since the last; all of them to one that has not taken those before."""
        if count.number != self._count:
            has_those_before = self._counters is None and count.number == self._count + 1
            self._counters = count.changed if has_those_before else count.everything
            self._count = count.number
            self._wake()

    def offer(self, event: Event) -> None:
        """Never blocks, and never keeps more than it may."""
        if event.type == "counters":
            self._counters = event
            self.is_counted = True
        else:
            self._changes.append(event)
            if len(self._changes) > CHANGES_MAX:
                self._changes.popleft()
                self._missed += 1
        self._wake()
