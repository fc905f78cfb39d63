"""Live events of tasks and workers, for those who ask for them.

Changes of tasks come from the task index: while somebody listens it is kept close behind the journal, and says which
tasks have changed. They are sent as they are then: states that a task went through in between are left out. A listener
is ready when nothing will be missed from then on: opening a task index takes a moment. Workers are looked at every
second, and told when one came, changed its state or is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from penstock import limits
from penstock.broker.answers import awaited_answer_of
from penstock.broker.listening import Event, Listener
from penstock.embedded import Session
from penstock.errors import PenstockError
from penstock.model import to_datetime
from penstock.model_tasks import TaskView, WorkerView

FOLLOW_SECONDS: Final = 0.1
WORKERS_SECONDS: Final = 1.0
PROGRESS_BYTES_MAX: Final = limits.error_bytes_max


class TaskEvents:
    """See the module's rules. For the loop of a broker."""

    def __init__(self, session: Session) -> None:
        self._session = session
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
                listener.offer(self._event(worker))
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
        """Nobody hears anything any more."""
        for listener in [*self._of_tasks, *self._of_workers]:
            self.leave(listener)

    # tasks

    async def _follow_for_ever(self) -> None:
        """A task index that cannot follow just now is tried again; nobody's stream ends for it."""
        end: Callable[[], None] | None = None
        try:
            while True:
                if end is None:
                    found = await awaited_answer_of(asyncio.to_thread(self._session.tasks.caught_up))
                    if not isinstance(found, PenstockError):
                        task_index, end = found, found.on_change(self._changed)
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
            event: Event | None = None
            for listener in self._of_tasks:
                if listener.wants_task(task):
                    event = event or Event("task", at, task.queue, task=light(task))
                    listener.offer(event)

    # workers

    async def _watch_for_ever(self) -> None:
        while True:
            answer = await awaited_answer_of(asyncio.to_thread(self._session.tasks.workers))
            if not isinstance(answer, PenstockError):
                self._compare({worker.info.worker_id: worker for worker in answer})
            await asyncio.sleep(WORKERS_SECONDS)

    def _compare(self, found: dict[str, WorkerView]) -> None:
        known, self._known = self._known, found
        changed = [
            self._event(worker)
            for id, worker in found.items()
            if id not in known or known[id].state != worker.state or known[id].first_seen_at != worker.first_seen_at
        ]
        gone = [self._event(worker, is_gone=True) for id, worker in known.items() if id not in found]
        for event in (*changed, *gone):
            for listener in self._of_workers:
                listener.offer(event)

    def _event(self, worker: WorkerView, is_gone: bool = False) -> Event:
        return Event("worker", to_datetime(self._session.shard.clock.now()), worker=worker, is_gone=is_gone)


def light(task: TaskView) -> TaskView:
    """What an event tells of a task: what may be large is asked for by those who want it."""
    progress = task.progress if task.progress is None or len(task.progress) <= PROGRESS_BYTES_MAX else None
    return msgspec.structs.replace(task, args=b"[]", kwargs=b"{}", result=None, progress=progress, runs=())
