"""Topics of live events that are sampled: counts of tasks, operations, dead letters, schedules, the cluster.

Each is a set of rows with a key and a queue. A listener gets all rows that it may see at once, and from then on those
that have changed, with the keys of those that are gone; nothing while nothing changes. Listeners that may see the same
get the same event, which is encoded once. Looks at a topic take a fiftieth of a processor at most.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penstock.embedded.session import Session
from penstock.errors import PenstockError
from penstock.model import DLQ_SUFFIX, to_datetime
from penstock.operations import Cluster, ListOperations, Schedules
from penstock.operations.base import Action

if TYPE_CHECKING:
    from penstock.broker.events import Event, Listener

SECONDS: Final = 0.5  # between two looks
REST: Final = 50  # a look that computes for 10 ms is followed by half a second without one
# What a look waits for, such as a lock or a disk, says little about its cost. A busy broker makes every look wait:
# an operation must not fall silent for minutes because it runs.
WAIT_REST: Final = 2
AT_ONCE: Final = 0.0  # when a topic is due that somebody new listens to


class Row(NamedTuple):
    """One row of a topic, and the queue whose rights decide who sees it; "" is the broker as a whole."""

    queue: str
    value: Any


class DeadCount(msgspec.Struct, frozen=True):
    """How many dead letters of a queue wait."""

    queue: str
    dead: int


Rows = Mapping[str, Row]


def _task_counts(session: Session) -> Rows:
    return {counts.queue: Row(counts.queue, counts) for counts in session.tasks.counts()}


def _operations(session: Session) -> Rows:
    views, ticket = session.run(ListOperations())
    session.confirm(ticket)
    return {view.operation_id: Row(view.queue or "", view) for view in views}


def _dead_letters(session: Session) -> Rows:
    core = session.shard.core

    def question(now: int) -> Rows:
        return {
            origin: Row(origin, DeadCount(origin, queue.groups[0].backlog))
            for name, queue in core.by_name.items()
            if name.endswith(DLQ_SUFFIX) and (origin := name.removesuffix(DLQ_SUFFIX)) in core.by_name
        }

    rows, ticket = session.shard.look(question)
    session.confirm(ticket)
    return rows


def _schedules(session: Session) -> Rows:
    views, ticket = session.run(Schedules())
    session.confirm(ticket)
    # Arguments are for who may read the queue; whoever wants them asks for the schedule.
    plain = (
        msgspec.structs.replace(view, spec=msgspec.structs.replace(view.spec, args=b"[]", kwargs=b"{}"))
        for view in views
    )
    return {view.spec.name: Row(view.spec.queue, view) for view in plain}


def _cluster(session: Session) -> Rows:
    view, _ = session.run(Cluster())
    return {"": Row("", msgspec.structs.replace(view, location=""))}  # which is for who may operate the broker


SAMPLES: Final[dict[str, Callable[[Session], Rows]]] = {
    "task_counts": _task_counts,
    "operations": _operations,
    "dead_letters": _dead_letters,
    "schedules": _schedules,
    "cluster": _cluster,
}


class Looked(NamedTuple):
    """What a look has found, None if that was not possible, and how long it computed."""

    rows: Rows | None
    seconds: float


def _look_at(topic: str, session: Session) -> Looked:
    started = time.thread_time()
    try:
        rows = SAMPLES[topic](session)
    except PenstockError:
        return Looked(None, time.thread_time() - started)
    return Looked(rows, time.thread_time() - started)


class SampledTopics:
    """Looks at the topics that somebody listens to. For the event loop of a broker only."""

    def __init__(self, session: Session, new_event: Callable[..., Event]) -> None:
        self._session = session
        self._new_event = new_event
        self._loop = asyncio.get_running_loop()
        self._listeners: dict[str, list[Listener]] = {}
        self._known: dict[str, Rows] = {}
        self._due: dict[str, float] = {}
        self._new: dict[str, set[Listener]] = {}  # of a topic: those that have not got all its rows yet
        self._looking: asyncio.Task[None] | None = None

    def join(self, listener: Listener) -> None:
        """One more, if it wants any of this."""
        topics = [topic for topic in SAMPLES if topic in listener.topics]
        for topic in topics:
            self._listeners.setdefault(topic, []).append(listener)
            self._new.setdefault(topic, set()).add(listener)
            self._due[topic] = AT_ONCE
        if topics and self._looking is None:
            self._looking = self._loop.create_task(self._look_for_ever())

    def leave(self, listener: Listener) -> None:
        """When the last has left, nothing is looked at."""
        for topic, listeners in list(self._listeners.items()):
            if listener in listeners:
                listeners.remove(listener)
                self._new.get(topic, set()).discard(listener)
            if not listeners:
                del self._listeners[topic]
                self._known.pop(topic, None)
        if not self._listeners and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def close(self) -> None:
        """Look at nothing any more."""
        for listeners in list(self._listeners.values()):
            for listener in list(listeners):
                self.leave(listener)

    async def _look_for_ever(self) -> None:
        while True:
            for topic in [topic for topic in self._listeners if self._loop.time() >= self._due[topic]]:
                await self._look(topic)
            if not any(self._due[topic] == AT_ONCE for topic in self._listeners):
                await asyncio.sleep(SECONDS)

    async def _look(self, topic: str) -> None:
        new = self._new.pop(topic, set())
        started = self._loop.time()
        rows, computed = await asyncio.to_thread(_look_at, topic, self._session)
        now = self._loop.time()
        later = self._new.get(topic, set())  # they came during this look, and get all rows with the next
        if not later:
            self._due[topic] = now + max(REST * computed, WAIT_REST * (now - started))
        listeners = self._listeners.get(topic, [])
        firsts = [listener for listener in listeners if listener in new]
        if rows is None:
            self._new.setdefault(topic, set()).update(firsts)
            return
        known = self._known.get(topic, {})
        self._known[topic] = rows
        changed = {key: row for key, row in rows.items() if known.get(key) != row}
        gone = [key for key in known if key not in rows]
        self._offer(topic, rows, (), firsts, is_first=True)
        if changed or gone:
            others = [listener for listener in listeners if listener not in new and listener not in later]
            self._offer(topic, changed, [(key, known[key].queue) for key in gone], others)

    def _offer(
        self,
        topic: str,
        rows: Rows,
        gone: Iterable[tuple[str, str]],
        listeners: Iterable[Listener],
        *,
        is_first: bool = False,
    ) -> None:
        """One event for all listeners that may see the same."""
        alike: dict[Any, Event | None] = {}
        at = to_datetime(self._session.shard.clock.now())
        for listener in listeners:
            key = listener.queues, listener.principal.patterns(Action.MONITOR)
            if key not in alike:
                seen = [row.value for row in rows.values() if _wants(listener, row.queue)]
                left = [id for id, queue in gone if _wants(listener, queue)]
                has_news = is_first or seen or left
                alike[key] = self._new_event(topic, at, rows=tuple(seen), gone=tuple(left)) if has_news else None
            event = alike[key]
            if event is not None:
                listener.offer(event)


def _wants(listener: Listener, queue: str) -> bool:
    """Whether a listener wants rows of a queue and may see them. What is about all queues is for who may see all."""
    return (queue == "" or listener.queues is None or queue in listener.queues) and listener.principal.may(
        Action.MONITOR, queue
    )
