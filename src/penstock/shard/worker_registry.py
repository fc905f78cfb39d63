"""Who works here: workers, by what they report of themselves, and the news that is for them.

It is volatile, and time is an argument. A worker reports every `worker_heartbeat_seconds`; one that was silent
for `worker_dead_seconds` is dead: whoever calls `overdue` ends its leases. It is shown as dead for a while, then
forgotten. One that comes back is alive again; its leases are not.

Workers are kept by their id as their principal's own (`model.owned`): nobody ends, or gets the news of, another's.

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
from penstock.errors import InvalidField
from penstock.model import owned, to_datetime
from penstock.model_tasks import WorkerInfo, WorkerNews, WorkerView

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

    def state(self) -> Literal["alive", "stuck", "stopping", "dead"]:
        if self.is_dead:
            return "dead"
        return "stopping" if self.info.is_stopping else "stuck" if self.info.is_stuck else "alive"

    def ends(self) -> int:
        """When it changes by itself: it dies, or it is forgotten."""
        return self.heard + DEAD_US + (SHOWN_US if self.is_dead else 0)


@dataclass(slots=True)
class Mailbox:
    """What will be sent to a worker."""

    cancelled: dict[str, int] = field(default_factory=dict)  # task id → when, by the monotonic clock
    unsent: set[str] = field(default_factory=set)  # those that `worker_news` has not answered with
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
                self._workers[worker_id] = Worker(info, now, now, monotonic, owner)
            else:
                known.info, known.last_at, known.heard, known.is_dead = info, now, monotonic, False
            self.look_at = min(self.look_at, monotonic + DEAD_US)
            box = self._mail.get(worker_id)
            if box is None:
                return WorkerNews()
            self._drop_old(box, monotonic)
            box.unsent.clear()
            return WorkerNews(tuple(box.cancelled))

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
            return [
                WorkerView(
                    info=worker.info,
                    owner=worker.owner,
                    state=worker.state(),
                    first_seen_at=to_datetime(worker.first_at),
                    last_heartbeat_at=to_datetime(worker.last_at),
                )
                for worker in self._workers.values()
            ]

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
        """What was not sent to the worker yet."""
        with self._lock:
            box = self._mail.get(worker_id)
            if box is None or not box.unsent:
                return WorkerNews()
            cancelled = tuple(task_id for task_id in box.cancelled if task_id in box.unsent)
            box.unsent.clear()
            return WorkerNews(cancelled)

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
        """Unless somebody still listens there."""
        box = self._mail.get(worker_id)
        if box is not None and not box.wakes:
            del self._mail[worker_id]
