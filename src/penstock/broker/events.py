"""Live events: what happens to queues and groups, and their counters at an interval, for whoever listens.

Tasks and workers are topics of their own (`task_events`): who watches queues is not flooded with them. While nobody
listens nothing is watched and nothing is counted. Changes are noted where entries are applied, and told once they are
durable. Counters are taken from the state once per interval for all listeners. A listener that does not keep up is
never waited for: it finds the latest counters instead of all of them, and of the changes the last ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any, Final

from penstock import operations as ops
from penstock.broker.listening import ALL_TASKS, QUEUES, CounterSeries, Event, Listener, TasksWanted, Topic
from penstock.broker.task_events import TaskEvents
from penstock.delivery import entries
from penstock.embedded import Session
from penstock.errors import InvalidField, PenstockError, QueueNotFound
from penstock.model import DEFAULT_GROUP, Outcome, QueueStats, to_datetime

INTERVAL_SECONDS_MIN: Final = 0.1
INTERVAL_SECONDS_MAX: Final = 3600.0
INTERVAL_SECONDS_DEFAULT: Final = 1.0

CHANGES: Final = (
    "created", "updated", "deleted", "paused", "resumed", "purged", "group_created", "group_deleted", "group_moved",
)  # fmt: skip


Wants = tuple[frozenset[str] | None, float]  # queues and interval: listeners with the same get the same counters


def _wants(listener: Listener) -> Wants:
    return listener.queues, listener.interval_seconds


class Events:
    """The hub: one for a broker, made and used on its loop."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._shard = session.shard
        self._loop = asyncio.get_running_loop()
        self._listeners: list[Listener] = []
        self._noted: list[Event] = []  # not told yet
        self._telling: asyncio.Task[None] | None = None
        self._sampling: asyncio.Task[None] | None = None
        self._sooner = asyncio.Event()
        self._series: dict[Wants, CounterSeries] = {}
        self._tasks = TaskEvents(session)

    def listen(
        self,
        queues: Collection[str] | None,
        interval_seconds: float,
        wake: Callable[[], None],
        topics: Collection[Topic] = QUEUES,
        wanted: TasksWanted = ALL_TASKS,
    ) -> Listener:
        """Events of some queues, or of all; the first counters come at once."""
        if not INTERVAL_SECONDS_MIN <= interval_seconds <= INTERVAL_SECONDS_MAX:
            least, greatest = round(INTERVAL_SECONDS_MIN * 1000), round(INTERVAL_SECONDS_MAX * 1000)
            raise InvalidField(f"interval_ms: {round(interval_seconds * 1000)} is outside {least} to {greatest}")
        some = None if queues is None else frozenset(queues)
        listener = Listener(self, some, interval_seconds, wake, topics, wanted)
        self._tasks.join(listener)
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
        if listener in self._listeners:
            self._listeners.remove(listener)
            if not self._listeners:
                self._watch(False)
                if self._sampling is not None:
                    self._sampling.cancel()
                    self._sampling = None  # a cancelled task knows where it was, and with that who listened

    def close(self) -> None:
        """Nobody hears anything any more."""
        for listener in [*self._listeners]:
            self.leave(listener)
        self._tasks.close()

    # changes

    def _watch(self, on: bool) -> None:
        core = self._shard.core
        noters: dict[type, Callable[[Any], None]] = {
            entries.QueueSet: self._queue_set,
            entries.QueueDeleted: self._queue_deleted,
            entries.GroupSet: self._group_set,
            entries.GroupDeleted: self._group_deleted,
            entries.Settled: self._settled,
        }
        with self._shard.lock:
            self._shard.check()
            for kind, note in noters.items():
                (core.observe if on else core.stop_observing)(kind, note)

    # These are called with the lock held, by any thread, just before the entry is applied.

    def _queue_set(self, change: entries.QueueSet) -> None:
        known = self._shard.core.queues.get(change.queue)
        if known is None:
            kind = "created"
        elif known.paused != change.paused:
            kind = "paused" if change.paused else "resumed"
        else:
            kind = "updated"
        self._note(kind, change.name, at=change.at)

    def _queue_deleted(self, deleted: entries.QueueDeleted) -> None:
        queue = self._shard.core.queues.get(deleted.queue)
        if queue is None:
            return
        self._note("deleted", queue.name)

    def _group_set(self, change: entries.GroupSet) -> None:
        queue = self._shard.core.queues.get(change.queue)
        if queue is None:
            return
        if change.group in queue.groups:
            self._note("group_moved", queue.name, change.name, change.at)
        elif change.name != DEFAULT_GROUP:
            self._note("group_created", queue.name, change.name, change.at)

    def _group_deleted(self, deleted: entries.GroupDeleted) -> None:
        queue = self._shard.core.queues.get(deleted.queue)
        group = None if queue is None else queue.groups.get(deleted.group)
        if queue is not None and group is not None:
            self._note("group_deleted", queue.name, group.name)

    def _settled(self, settled: entries.Settled) -> None:
        if settled.outcome == Outcome.PURGED and not settled.group:  # a purge settles in every group; once is enough
            queue = self._shard.core.queues.get(settled.queue)
            if queue is not None:
                self._note("purged", queue.name, at=settled.at)

    def _note(self, kind: str, queue: str, group: str = "", at: int = 0) -> None:
        instant = to_datetime(at or self._shard.clock.now())
        self._noted.append(Event(kind, instant, queue, group))
        if len(self._noted) == 1:
            with suppress(RuntimeError):  # the loop is closed: nobody is left to tell, and what happens must go on
                self._loop.call_soon_threadsafe(self._tell_soon)

    def _tell_soon(self) -> None:
        if self._telling is None:
            self._telling = self._loop.create_task(self._tell())

    async def _tell(self) -> None:
        """Tell what was noted, when it is durable; a journal that failed makes it void."""
        try:
            while self._noted:
                with self._shard.lock:
                    self._shard.check()
                    noted, self._noted = self._noted, []
                    ticket = self._shard.read_ticket
                await self._shard.confirmed(ticket)
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
        wanted = None
        if all(listener.queues is not None for listener in due):
            wanted = frozenset[str]().union(*(listener.queues or () for listener in due))
        try:
            counted, ticket = await asyncio.to_thread(partial(self._count, wanted))
            await self._shard.confirmed(ticket)
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
        known = [listener for listener in listeners if listener.is_counted]
        for listener in listeners:
            if not listener.is_counted:
                listener.offer(everything)
        if known:
            count = self._series.setdefault(wants, CounterSeries()).next(everything)
            for listener in known:
                listener.offer_counters(count)

    def _count(self, wanted: frozenset[str] | None) -> tuple[list[QueueStats], int]:
        counted, last = [], 0
        for name in self._session.run(ops.Queues())[0]:
            if wanted is None or name in wanted:
                try:
                    stats, ticket = self._session.run(ops.Stats(name))
                except QueueNotFound:  # deleted just now
                    continue
                counted.append(stats)
                last = max(last, ticket)
        return counted, last
