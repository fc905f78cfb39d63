"""Live events: counters of queues at an interval, changes of queues, groups, tasks and workers as they happen.

Events are made and encoded once for equal listeners. A slow listener gets the latest counters and the number of
changes it missed; nobody waits for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, Protocol

import msgspec

from penstock import limits
from penstock import operations as ops
from penstock.access.grants import LOCAL, Principal
from penstock.broker.callbacks import awaited_answer_of
from penstock.broker.sampled_topics import SampledTopics
from penstock.delivery import entries
from penstock.embedded.session import Session
from penstock.errors import InvalidField, PenstockError, QueueNotFound
from penstock.journal.commit import Confirmer
from penstock.model import DEFAULT_GROUP, Outcome, QueueStats, owned, to_datetime
from penstock.model_tasks import TaskView, WorkerView
from penstock.operations.base import Action
from penstock.operations.tasks import visible_worker

CHANGES_MAX: Final = 1_000  # that wait for one listener
Shown = Callable[[Principal, TaskView], TaskView]  # a task as somebody may see it

Topic = Literal["queues", "tasks", "workers", "task_counts", "operations", "dead_letters", "schedules", "cluster"]
QUEUES: Final[frozenset[Topic]] = frozenset({"queues"})


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of `CHANGES`, or `counters`, `task`, `worker`, or a topic of `sampled_topics`."""

    type: str
    at: datetime
    queue: str = ""
    group: str = ""
    counters: list[QueueStats] = []
    missed: int = 0  # changes before this event that the listener was too slow for
    task: TaskView | None = None  # without arguments, result and runs
    worker: WorkerView | None = None
    is_gone: bool = False  # of a worker that is not in the list any more
    rows: tuple[Any, ...] = ()  # of a topic that is looked at, see `sampled_topics`
    gone: tuple[str, ...] = ()  # keys of rows that are not there any more
    forms: dict[str, Any] = msgspec.field(default_factory=dict)  # how protocols send it, made once for all listeners


class TasksWanted(msgspec.Struct, frozen=True):
    """Selects the tasks whose events a listener receives; what is not set matches all."""

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
        """The next moment. A deleted queue has an event of its own."""
        stats = everything.counters
        changed = [queue for queue in stats if self._known.get(queue.name) != queue]
        if changed or not self._number:
            self._number += 1
        self._known = {queue.name: queue for queue in stats}
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
        filter: TasksWanted = ALL_TASKS,
        principal: Principal = LOCAL,
    ) -> None:
        self.principal = principal  # its grants are asked for each event: they may change while it listens
        self.queues = queues
        self.topics = frozenset(topics)
        self.wanted = filter
        self.interval_seconds = interval_seconds
        self.due = 0.0
        self.is_ready = True  # nothing is missed from now on
        self.changed_only = True  # counters of queues that have changed; false: of all of them, each time
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
        """Receive no more events."""
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

    def wants(self, queue: str, action: Action = Action.MONITOR) -> bool:
        """Whether it wants events of a queue, and may see them."""
        return (self.queues is None or queue in self.queues) and self.principal.may(action, queue)

    def wants_task(self, task: TaskView) -> bool:
        return self.wants(task.queue, Action.READ) and self.wanted.fits(task)

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


FOLLOW_SECONDS: Final = 0.1
WORKERS_SECONDS: Final = 1.0
PROGRESS_BYTES_MAX: Final = limits.error_bytes_max


class TaskEvents:
    """Sends changes of tasks and workers to listeners. For the event loop of a broker only."""

    def __init__(self, session: Session, shown: Shown) -> None:
        self._session = session
        self._shown = shown
        self._loop = asyncio.get_running_loop()
        self._of_tasks: list[Listener] = []
        self._of_workers: list[Listener] = []
        self._following: asyncio.Task[None] | None = None
        self._is_following = False
        self._watching: asyncio.Task[None] | None = None
        self._known: dict[str, WorkerView] = {}

    def join(self, listener: Listener) -> None:
        """One more, if it wants any of this."""
        if "tasks" in listener.topics:
            self._of_tasks.append(listener)
            listener.is_ready = self._is_following
            if self._following is None:
                self._following = self._loop.create_task(self._follow_for_ever())
        if "workers" in listener.topics:
            self._of_workers.append(listener)
            for worker in self._known.values():  # as they are, for whoever comes later than the first
                self._offer_worker(listener, self._event(worker))
            if self._watching is None:
                self._watching = self._loop.create_task(self._watch_for_ever())

    def leave(self, listener: Listener) -> None:
        """The last to leave puts the light out."""
        for listeners in (self._of_tasks, self._of_workers):
            if listener in listeners:
                listeners.remove(listener)
        if not self._of_tasks and self._following is not None:
            self._following.cancel()
            self._following, self._is_following = None, False
        if not self._of_workers and self._watching is not None:
            self._watching.cancel()
            self._watching, self._known = None, {}

    def close(self) -> None:
        """Send no more events to anybody."""
        for listener in [*self._of_tasks, *self._of_workers]:
            self.leave(listener)

    # tasks

    async def _follow_for_ever(self) -> None:
        """A task index that cannot follow just now is tried again; nobody's stream ends for it."""
        end: Callable[[], None] | None = None
        try:
            while True:
                if end is None:
                    opened = await awaited_answer_of(asyncio.to_thread(self._session.tasks.caught_up))
                    if not isinstance(opened, PenstockError):
                        task_index, end = opened, opened.on_change(self._changed)
                        # Whoever follows for another reason may have begun before somebody listened.
                        await awaited_answer_of(asyncio.to_thread(task_index.catch_up))
                        self._begin()
                elif task_index.is_behind:
                    await awaited_answer_of(asyncio.to_thread(task_index.catch_up))
                await asyncio.sleep(FOLLOW_SECONDS)
        finally:
            if end is not None:
                end()

    def _begin(self) -> None:
        self._is_following = True
        for listener in self._of_tasks:
            listener.be_ready()

    def _changed(self, tasks: Sequence[TaskView]) -> None:
        """Called from any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(partial(self._tell, tasks))

    def _tell(self, tasks: Sequence[TaskView]) -> None:
        at = to_datetime(self._session.shard.clock.now())
        for task in tasks:
            plain: Event | None = None
            for listener in self._of_tasks:
                if listener.wants_task(task):
                    plain = plain or Event("task", at, task.queue, task=light(task))
                    shown = self._shown(listener.principal, task)
                    masked = None if shown is task else Event("task", at, task.queue, task=light(shown))
                    listener.offer(masked or plain)

    # workers

    async def _watch_for_ever(self) -> None:
        while True:
            answer = await awaited_answer_of(asyncio.to_thread(self._session.tasks.workers))
            if not isinstance(answer, PenstockError):
                self._compare({owned(worker.owner, worker.info.worker_id): worker for worker in answer})
            await asyncio.sleep(WORKERS_SECONDS)

    def _compare(self, workers: dict[str, WorkerView]) -> None:
        known, self._known = self._known, workers
        changed = [
            self._event(worker)
            for id, worker in workers.items()
            if id not in known or known[id].state != worker.state or known[id].first_seen_at != worker.first_seen_at
        ]
        gone = [self._event(worker, is_gone=True) for id, worker in known.items() if id not in workers]
        for event in (*changed, *gone):
            for listener in self._of_workers:
                self._offer_worker(listener, event)

    def _offer_worker(self, listener: Listener, event: Event) -> None:
        """An event of a worker, with those of its queues that the listener may see."""
        assert event.worker is not None
        worker = visible_worker(event.worker, partial(listener.principal.may, Action.MONITOR))
        if worker is event.worker:
            listener.offer(event)
        elif worker is not None:
            listener.offer(msgspec.structs.replace(event, worker=worker, forms={}))

    def _event(self, worker: WorkerView, is_gone: bool = False) -> Event:
        return Event("worker", to_datetime(self._session.shard.clock.now()), worker=worker, is_gone=is_gone)


def light(task: TaskView) -> TaskView:
    """What an event contains of a task: what may be large is asked for by those who want it."""
    progress = task.progress if task.progress is None or len(task.progress) <= PROGRESS_BYTES_MAX else None
    return msgspec.structs.replace(task, args=b"[]", kwargs=b"{}", result=None, progress=progress, runs=())


INTERVAL_SECONDS_MIN: Final = 0.1
INTERVAL_SECONDS_MAX: Final = 3600.0
INTERVAL_SECONDS_DEFAULT: Final = 1.0

CHANGES: Final = (
    "created", "updated", "deleted", "paused", "resumed", "purged", "group_created", "group_deleted", "group_moved",
)  # fmt: skip


# Queues, interval, and the patterns that one may monitor: listeners with the same get the same counters.
Wants = tuple[frozenset[str] | None, float, frozenset[str]]


def _wants(listener: Listener) -> Wants:
    return listener.queues, listener.interval_seconds, listener.principal.patterns(Action.MONITOR)


class Events:
    """The hub: one for a broker, made and used on its loop."""

    def __init__(self, session: Session, confirmer: Confirmer, shown: Shown = lambda principal, task: task) -> None:
        self._session = session
        self._shard = session.shard
        self._confirmed = confirmer.confirmed
        self._loop = asyncio.get_running_loop()
        self._listeners: list[Listener] = []
        self._noted: list[Event] = []  # not on_reply yet
        self._telling: asyncio.Task[None] | None = None
        self._sampling: asyncio.Task[None] | None = None
        self._sooner = asyncio.Event()
        self._series: dict[Wants, CounterSeries] = {}
        self._tasks = TaskEvents(session, shown)
        self._sampled = SampledTopics(session, Event)

    def listen(
        self,
        queues: Collection[str] | None,
        interval_seconds: float,
        wake: Callable[[], None],
        topics: Collection[Topic] = QUEUES,
        filter: TasksWanted = ALL_TASKS,
        principal: Principal = LOCAL,
    ) -> Listener:
        """Events of some queues, or of all; the first counters come at once."""
        if not INTERVAL_SECONDS_MIN <= interval_seconds <= INTERVAL_SECONDS_MAX:
            least, greatest = round(INTERVAL_SECONDS_MIN * 1000), round(INTERVAL_SECONDS_MAX * 1000)
            raise InvalidField(f"interval_ms: {round(interval_seconds * 1000)} is outside {least} to {greatest}")
        some = None if queues is None else frozenset(queues)
        listener = Listener(self, some, interval_seconds, wake, topics, filter, principal)
        self._tasks.join(listener)
        self._sampled.join(listener)
        if "queues" not in listener.topics:
            return listener
        self._listeners.append(listener)
        if len(self._listeners) == 1:
            self._watch(True)
            self._sampling = self._loop.create_task(self._sample_for_ever())
        self._sooner.set()
        return listener

    def leave(self, listener: Listener) -> None:
        """The last to leave puts the light out."""
        self._tasks.leave(listener)
        self._sampled.leave(listener)
        if listener in self._listeners:
            self._listeners.remove(listener)
            if not self._listeners:
                self._watch(False)
                if self._sampling is not None:
                    self._sampling.cancel()
                    self._sampling = None  # a cancelled task knows where it was, and with that who listened

    def close(self) -> None:
        """Send no more events to anybody."""
        for listener in [*self._listeners]:
            self.leave(listener)
        self._tasks.close()
        self._sampled.close()

    # changes

    def _watch(self, on: bool) -> None:
        noters: dict[type, Callable[[Any], None]] = {
            entries.QueueSet: self._queue_set,
            entries.QueueDeleted: self._queue_deleted,
            entries.GroupSet: self._group_set,
            entries.GroupDeleted: self._group_deleted,
            entries.Settled: self._settled,
        }
        self._shard.observe(noters, on)

    # These are called with the lock held, by any thread, just before the entry is applied.

    def _queue_set(self, change: entries.QueueSet) -> None:
        known = self._shard.queue_numbered(change.queue)
        if known is None:
            kind = "created"
        elif known.paused != change.paused:
            kind = "paused" if change.paused else "resumed"
        else:
            kind = "updated"
        self._note(kind, change.name, at=change.at)

    def _queue_deleted(self, deleted: entries.QueueDeleted) -> None:
        queue = self._shard.queue_numbered(deleted.queue)
        if queue is None:
            return
        self._note("deleted", queue.name)

    def _group_set(self, change: entries.GroupSet) -> None:
        queue = self._shard.queue_numbered(change.queue)
        if queue is None:
            return
        if change.group in queue.groups:
            self._note("group_moved", queue.name, change.name, change.at)
        elif change.name != DEFAULT_GROUP:
            self._note("group_created", queue.name, change.name, change.at)

    def _group_deleted(self, deleted: entries.GroupDeleted) -> None:
        queue = self._shard.queue_numbered(deleted.queue)
        group = None if queue is None else queue.groups.get(deleted.group)
        if queue is not None and group is not None:
            self._note("group_deleted", queue.name, group.name)

    def _settled(self, settled: entries.Settled) -> None:
        if settled.outcome == Outcome.PURGED and not settled.group:  # a purge settles in every group; once is enough
            queue = self._shard.queue_numbered(settled.queue)
            if queue is not None:
                self._note("purged", queue.name, at=settled.at)

    def _note(self, kind: str, queue: str, group: str = "", at: int = 0) -> None:
        instant = to_datetime(at or self._shard.clock.now())
        self._noted.append(Event(kind, instant, queue, group))
        if len(self._noted) == 1:
            with suppress(RuntimeError):  # the loop is closed: nobody is left to notify, and what happens must go on
                self._loop.call_soon_threadsafe(self._tell_soon)

    def _tell_soon(self) -> None:
        if self._telling is None:
            self._telling = self._loop.create_task(self._tell())

    async def _tell(self) -> None:
        """Send what was noted, when it is durable; a journal that failed makes it void."""
        try:
            while self._noted:
                with self._shard.locked():
                    noted, self._noted = self._noted, []
                    ticket = self._shard.read_ticket
                await self._confirmed(ticket)
                for event in noted:
                    for listener in self._listeners:
                        if listener.wants(event.queue):
                            listener.offer(event)
        except PenstockError:
            self._noted = []
        finally:
            self._telling = None

    # counters

    async def _sample_for_ever(self) -> None:
        while True:
            now = self._loop.time()
            due = [listener for listener in self._listeners if listener.due <= now]
            if due:
                await self._sample(due)
                for listener in due:
                    # Those with the same interval are due together, whenever they came.
                    listener.due = (now // listener.interval_seconds + 1) * listener.interval_seconds
            self._sooner.clear()
            next_at = min((listener.due for listener in self._listeners), default=now + INTERVAL_SECONDS_MAX)
            timer = self._loop.call_at(next_at, self._sooner.set)
            await self._sooner.wait()
            timer.cancel()

    async def _sample(self, due: list[Listener]) -> None:
        """One count for all of them. In a thread: of a sealed queue files may be read."""
        names = None
        if all(listener.queues is not None for listener in due):
            names = frozenset[str]().union(*(listener.queues or () for listener in due))
        try:
            counted, ticket = await asyncio.to_thread(partial(self._count, names))
            await self._confirmed(ticket)
        except PenstockError:
            return
        at = to_datetime(self._shard.clock.now())
        alike: dict[Wants, list[Listener]] = {}
        for listener in due:
            alike.setdefault(_wants(listener), []).append(listener)
        for wants, listeners in alike.items():
            counters = [stats for stats in counted if listeners[0].wants(stats.name)]
            self._offer(wants, listeners, Event("counters", at, counters=counters))
        self._series = {wants: self._series[wants] for wants in map(_wants, self._listeners) if wants in self._series}

    def _offer(self, wants: Wants, listeners: list[Listener], everything: Event) -> None:
        """Everything to those who are new; to those whose interval is over what has changed since the last one."""
        known = [listener for listener in listeners if listener.is_counted and listener.changed_only]
        for listener in listeners:
            if not (listener.is_counted and listener.changed_only):
                listener.offer(everything)
        if known:
            count = self._series.setdefault(wants, CounterSeries()).next(everything)
            for listener in known:
                listener.offer_counters(count)

    def _count(self, names: frozenset[str] | None) -> tuple[list[QueueStats], int]:
        counted, last = [], 0
        for name in self._session.run(ops.Queues())[0]:
            if names is None or name in names:
                try:
                    stats, ticket = self._session.run(ops.Stats(name))
                except QueueNotFound:  # deleted just now
                    continue
                counted.append(stats)
                last = max(last, ticket)
        return counted, last
