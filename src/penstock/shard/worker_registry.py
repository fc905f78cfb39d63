"""Who works here: workers, by what they report of themselves, and the news that is for them.

It is volatile, and time is an argument. A worker reports every `worker_heartbeat_seconds`; one that was silent
for `worker_dead_seconds` is dead: whoever calls `overdue` ends its leases. It is shown as dead for a while, then
forgotten. One that comes back is alive again; its leases are not.

Workers are kept by their id as their principal's own (`model.owned`): nobody ends, or gets the news of, another's.

What an operator wants of a worker, to be quiet or to stop, is part of every answer; a change of it wakes whoever waits
for news. A broker that was restarted learns from a worker that it is quiet. Of another process of the same id nothing
is wanted.

News are runs to break off. Waiting for news receives each once; a heartbeat receives again what is younger than
`worker_news_seconds`, since the answer before it may have been lost on its way. Nothing is lost with news but
time: what a worker still reports about a cancelled task is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from penstock import limits
from penstock.errors import InvalidField, StateError, WorkerNotFound
from penstock.model import owned, to_datetime
from penstock.model_tasks import WorkerInfo, WorkerNews, WorkerRequest, WorkerView

NEVER: Final = 1 << 62
DEAD_US: Final = round(limits.worker_dead_seconds * 1_000_000)
SHOWN_US: Final = round(limits.worker_shown_seconds * 1_000_000)
NEWS_US: Final = round(limits.worker_news_seconds * 1_000_000)


@dataclass(slots=True)
class Worker:
    """One that has sent a heartbeat."""

    info: WorkerInfo
    first_at: int  # wall time, µs
    last_at: int
    heard: int  # the same instant by the monotonic clock
    owner: str = ""  # its principal; "" for the owner of the broker
    is_dead: bool = False
    requested: WorkerRequest = ""
    requested_at: int = 0
    grace_seconds: float | None = None

    def state(self) -> Literal["alive", "stuck", "quiet", "stopping", "dead"]:
        if self.is_dead:
            return "dead"
        if self.info.is_stopping:
            return "stopping"
        return "stuck" if self.info.is_stuck else "quiet" if self.info.is_quiet else "alive"

    def report(self, info: WorkerInfo) -> None:
        """Take what it says of itself."""
        if (self.info.host, self.info.pid) != (info.host, info.pid):
            self.requested, self.requested_at, self.grace_seconds = "", 0, None
        self.info = info

    def news(self, cancelled: tuple[str, ...] = ()) -> WorkerNews:
        return WorkerNews(cancelled, self.requested, self.grace_seconds)

    def view(self) -> WorkerView:
        return WorkerView(
            info=self.info,
            owner=self.owner,
            state=self.state(),
            first_seen_at=to_datetime(self.first_at),
            last_heartbeat_at=to_datetime(self.last_at),
            requested=self.requested,
            requested_at=to_datetime(self.requested_at) if self.requested_at else None,
        )

    def ends(self) -> int:
        """When it changes by itself: it dies, or it is forgotten."""
        return self.heard + DEAD_US + (SHOWN_US if self.is_dead else 0)


@dataclass(slots=True)
class Mailbox:
    """What will be sent to a worker."""

    cancelled: dict[str, int] = field(default_factory=dict)  # task id → when, by the monotonic clock
    unsent: set[str] = field(default_factory=set)  # those that `worker_news` has not answered with
    has_request: bool = False  # what an operator wants has changed, and nobody was notified yet
    wakes: list[Callable[[], object]] = field(default_factory=list)


class Registry:
    """All workers of a shard. Safe to share between threads; nothing in here waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: dict[str, Worker] = {}
        self._mail: dict[str, Mailbox] = {}
        self.look_at = NEVER  # `overdue` has nothing to do before, by the monotonic clock

    # workers

    def heartbeat(self, info: WorkerInfo, now: int, monotonic: int, owner: str = "") -> WorkerNews:
        """A worker is there; answers with its news."""
        worker_id = owned(owner, info.worker_id)
        with self._lock:
            known = self._workers.get(worker_id)
            if known is None:
                if len(self._workers) >= limits.workers_max:
                    raise InvalidField(
                        f"worker_id: {info.worker_id!r} would be more than {limits.workers_max:,} workers",
                        hint="use one id for the whole life of a worker",
                    )
                known = self._workers[worker_id] = Worker(info, now, now, monotonic, owner)
                if info.is_quiet:
                    known.requested, known.requested_at = "quiet", now
            else:
                known.report(info)
                known.last_at, known.heard, known.is_dead = now, monotonic, False
            self.look_at = min(self.look_at, monotonic + DEAD_US)
            box = self._mail.get(worker_id)
            if box is None:
                return known.news()
            self._drop_old(box, monotonic)
            box.unsent.clear()
            box.has_request = False
            return known.news(tuple(box.cancelled))

    def forget(self, worker_id: str) -> None:
        """A worker has said goodbye."""
        with self._lock:
            self._forget(worker_id)

    def forget_owner(self, owner: str) -> None:
        """A principal is gone, and its workers with it."""
        with self._lock:
            for worker_id in [id for id, worker in self._workers.items() if worker.owner == owner]:
                self._forget(worker_id)

    def _forget(self, worker_id: str) -> None:
        self._workers.pop(worker_id, None)
        if (box := self._mail.get(worker_id)) is not None:
            box.cancelled.clear()
            box.unsent.clear()
            self._drop_mail(worker_id)

    def overdue(self, monotonic: int) -> list[str]:
        """Let time happen; the workers that have died of it."""
        died: list[str] = []
        if monotonic < self.look_at:
            return died
        with self._lock:
            for worker_id, worker in list(self._workers.items()):
                if worker.ends() > monotonic:
                    continue
                if not worker.is_dead:
                    worker.is_dead = True
                    died.append(worker_id)
                if worker.ends() <= monotonic:
                    del self._workers[worker_id]
            for worker_id, box in list(self._mail.items()):
                self._drop_old(box, monotonic)
                if not box.cancelled:
                    self._drop_mail(worker_id)
            ends = [worker.ends() for worker in self._workers.values()]
            ends += [min(box.cancelled.values()) + NEWS_US for box in self._mail.values() if box.cancelled]
            self.look_at = min(ends, default=NEVER)
        return died

    def workers(self) -> list[WorkerView]:
        """In the order in which they came."""
        with self._lock:
            return [worker.view() for worker in self._workers.values()]

    # what operators want

    def named(self, worker_id: str, owner: str | None) -> list[WorkerView]:
        """The workers of an id: those of one principal, or of all."""
        with self._lock:
            return [worker.view() for worker in self._named(worker_id, owner)]

    def _named(self, worker_id: str, owner: str | None) -> list[Worker]:
        if owner is not None:
            known = self._workers.get(owned(owner, worker_id))
            return [] if known is None else [known]
        return [worker for worker in self._workers.values() if worker.info.worker_id == worker_id]

    def request(
        self, worker_id: str, owner: str | None, requested: WorkerRequest, now: int, grace_seconds: float | None = None
    ) -> WorkerView:
        """Have a worker be quiet, work again or stop. It does so when it hears of it."""
        with self._lock:
            workers = self._named(worker_id, owner)
            worker = _the_one(worker_id, workers)
            if worker.is_dead:
                hint = "'penstock workers' lists live workers"
                raise StateError(f"worker {worker_id!r} is dead: no heartbeat for too long", hint=hint)
            if requested != "stop" and (worker.requested == "stop" or worker.info.is_stopping):
                raise StateError(f"worker {worker_id!r} is stopping", hint="start another")
            worker.requested, worker.requested_at = requested, now if requested else 0
            worker.grace_seconds = grace_seconds
            view = worker.view()
            box = self._mail.setdefault(owned(worker.owner, worker_id), Mailbox())
            box.has_request = True
            wakes = list(box.wakes)
        for wake in wakes:
            wake()
        return view

    def requested(self, worker_id: str) -> WorkerRequest:
        """What an operator wants of a worker, by its id as its principal's own."""
        with self._lock:
            worker = self._workers.get(worker_id)
            return "" if worker is None or worker.is_dead else worker.requested

    # news

    def cancelled(self, worker_id: str, task_id: str, monotonic: int) -> None:
        """A task that a worker runs was cancelled."""
        with self._lock:
            box = self._mail.setdefault(worker_id, Mailbox())
            box.cancelled[task_id] = monotonic
            box.unsent.add(task_id)
            self.look_at = min(self.look_at, monotonic + NEWS_US)
            wakes = list(box.wakes)
        for wake in wakes:
            wake()

    def revived(self, task_id: str) -> None:
        """A cancelled task may run again: nobody shall break it off now."""
        with self._lock:
            for box in self._mail.values():
                box.cancelled.pop(task_id, None)
                box.unsent.discard(task_id)

    def news(self, worker_id: str) -> WorkerNews:
        """What was not sent to the worker yet, and what is wanted of it."""
        return self.take_news(worker_id)[0]

    def take_news(self, worker_id: str) -> tuple[WorkerNews, bool]:
        """The news of a worker, and whether there is anything new in it."""
        with self._lock:
            box, worker = self._mail.get(worker_id), self._workers.get(worker_id)
            cancelled: tuple[str, ...] = ()
            is_new = False
            if box is not None:
                cancelled = tuple(task_id for task_id in box.cancelled if task_id in box.unsent)
                is_new = bool(cancelled) or box.has_request
                box.unsent.clear()
                box.has_request = False
            return (WorkerNews(cancelled) if worker is None else worker.news(cancelled)), is_new

    def listen(self, worker_id: str, wake: Callable[[], object]) -> None:
        """Have `wake` called when there is news; it must not block. Look after listening, so that none is missed."""
        with self._lock:
            self._mail.setdefault(worker_id, Mailbox()).wakes.append(wake)

    def unlisten(self, worker_id: str, wake: Callable[[], object]) -> None:
        with self._lock:
            box = self._mail.get(worker_id)
            if box is not None and wake in box.wakes:
                box.wakes.remove(wake)
                if not box.cancelled:
                    self._drop_mail(worker_id)

    def wake_all(self) -> None:
        """Time has jumped, or all is over: whoever listens looks again."""
        with self._lock:
            wakes = [wake for box in self._mail.values() for wake in box.wakes]
        for wake in wakes:
            wake()

    def _drop_old(self, box: Mailbox, monotonic: int) -> None:
        for task_id in [task_id for task_id, at in box.cancelled.items() if at + NEWS_US <= monotonic]:
            del box.cancelled[task_id]
            box.unsent.discard(task_id)

    def _drop_mail(self, worker_id: str) -> None:
        """Unless somebody still listens there, or has to be notified."""
        box = self._mail.get(worker_id)
        if box is not None and not box.wakes and not (box.has_request and worker_id in self._workers):
            del self._mail[worker_id]


def _the_one(worker_id: str, workers: list[Worker]) -> Worker:
    if not workers:
        raise WorkerNotFound(f"there is no worker {worker_id!r}")
    if len(workers) > 1:
        owners = ", ".join(repr(worker.owner) for worker in workers)
        raise StateError(f"{len(workers)} principals have a worker {worker_id!r}", hint=f"set owner to one of {owners}")
    return workers[0]
