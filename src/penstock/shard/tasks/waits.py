"""Looking for many tasks at once: those who ask while a look is under way are answered by the next one, together.

For callers that must not block. `ask` says whether somebody has to `lead`, in a thread that may: it looks, and goes on
until nobody asks any more. Nothing is missed: an answer is from a look that began after the question.

Who waits for a task to be final.

A waiter is woken when an entry of its task is applied: by its result, which is at hand then, or by something after
which the task index has to be asked. It is woken too when the task index has learned that its task is final in another
way: its time is over, its queue is gone. Register first and look second, and no wake-up is lost. Nothing in here waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.delivery.entries import Note, TaskFreed, TasksNoted
from penstock.errors import Internal, PenstockError, TaskNotFound
from penstock.model import MessageId, to_datetime
from penstock.model_tasks import TaskState, TaskView

logger: Final = logging.getLogger("penstock.shard")

OnView = Callable[[TaskView | PenstockError], object]  # called from any thread; it must not block


def not_found(task_id: str) -> TaskNotFound:
    """What is said of a task that is not there."""
    return TaskNotFound(f"there is no task {task_id}")


class Looks:
    """Looks up many tasks at once. `views` returns the existing tasks among some ids."""

    def __init__(self, views: Callable[[Collection[str]], Iterable[TaskView]]) -> None:
        self._views = views
        self._lock = threading.Lock()
        self._asked: dict[str, list[OnView]] = {}
        self._is_led = False

    def ask(self, task_id: str, on_view: OnView) -> bool:
        """Have `on_view` called with the task as it is now; returns whether `lead` must be called for that."""
        with self._lock:
            self._asked.setdefault(task_id, []).append(on_view)
            must_lead, self._is_led = not self._is_led, True
        return must_lead

    def lead(self) -> None:
        """Look until everybody is answered."""
        while callbacks := self._take():
            views = self._look(callbacks)
            for task_id, callers in callbacks.items():
                answer = views if isinstance(views, PenstockError) else views.get(task_id) or not_found(task_id)
                for on_view in callers:
                    with suppress(RuntimeError):  # its loop is closed: nobody is left to notify
                        on_view(answer)

    def _look(self, task_ids: Collection[str]) -> dict[str, TaskView] | PenstockError:
        try:
            return {view.task_id: view for view in self._views(task_ids)}
        except PenstockError as error:
            return error
        except Exception:  # whoever asks next must find somebody who leads
            logger.exception("internal error in the task index")
            return Internal("the task index failed")

    def _take(self) -> dict[str, list[OnView]]:
        with self._lock:
            callbacks, self._asked = self._asked, {}
            self._is_led = bool(callbacks)
        return callbacks


class Ending(msgspec.Struct, frozen=True, gc=False):
    """How a task ended, according to the entry that ended it."""

    state: TaskState
    at: int
    worker: str
    attempt: int
    offset: int  # of the message whose run it was; −1 when there was none
    data: bytes
    queue: str  # that the entry is about

    def of(self, view: TaskView) -> TaskView:
        """The task, as it is now, from how it was. How its last run began is for those who ask again."""
        is_done = self.state is TaskState.COMPLETED
        return msgspec.structs.replace(
            view,
            state=self.state,
            attempt=self.attempt or view.attempt,
            worker=self.worker or view.worker,
            result=self.data if is_done else None,
            error="" if is_done else self.data.decode(errors="replace"),
            finished_at=to_datetime(self.at),
            due_at=None,
        )


@dataclass(slots=True, eq=False)
class TaskWaiter:
    """One call that waits for one task. `wake` must not block and may be called from any thread."""

    key: bytes
    wake: Callable[[], object]
    ending: Ending | TaskView | None = None  # final; None when the task index must be asked
    ticket: int = 0  # what must be durable before the reply is sent

    def final(self, view: TaskView) -> TaskView | None:
        """The final task, if whoever woke the waiter passed its end; `view` is the task as seen before."""
        ending = self.ending
        if isinstance(ending, Ending):
            # Who finishes a run names the task, and may be wrong; a task of another queue may have its id.
            is_its_own = not view.message_id or MessageId.parse(view.message_id).offset == ending.offset
            return ending.of(view) if is_its_own and view.queue == ending.queue else None
        return ending


class TaskWaiters:
    """All waiters of a shard, by task. Safe to share between threads."""

    def __init__(self, queue_name: Callable[[int], str]) -> None:
        self._queue_name = queue_name
        self._lock = threading.Lock()
        self._by_task: dict[bytes, list[TaskWaiter]] = {}

    def __len__(self) -> int:
        return len(self._by_task)

    def keys(self) -> list[bytes]:
        """The tasks that are waited for."""
        with self._lock:
            return list(self._by_task)

    def add(self, task_id: str, wake: Callable[[], object]) -> TaskWaiter:
        waiter = TaskWaiter(task_key(task_id), wake)
        with self._lock:
            self._by_task.setdefault(waiter.key, []).append(waiter)
        return waiter

    def leave(self, waiter: TaskWaiter) -> None:
        with self._lock:
            waiting = self._by_task.get(waiter.key, [])
            if waiter in waiting:
                waiting.remove(waiter)
                if not waiting:
                    del self._by_task[waiter.key]

    def noted(self, entry: TasksNoted, ticket: int) -> None:
        """Notes on tasks are being applied."""
        if not self._by_task:
            return
        for note in entry.notes:
            if note.task_id not in self._by_task:
                continue  # whoever comes now looks after this is applied
            if note.what == Note.RESULT:
                self._notify(note.task_id, self._ending(TaskState.COMPLETED, entry, note), ticket)
            elif note.what == Note.CANCELLED:
                self._notify(note.task_id, self._ending(TaskState.CANCELLED, entry, note), ticket)
            elif note.what == Note.ERROR:
                self._notify(note.task_id, None, ticket)  # whether it was the last attempt is for the task index to say

    def _ending(self, state: TaskState, entry: TasksNoted, note: Note) -> Ending:
        queue = self._queue_name(entry.queue)
        return Ending(state, entry.at, entry.worker, note.attempt, note.offset, note.data, queue)

    def freed(self, entry: TaskFreed, ticket: int) -> None:
        """A task that waited for its parents does so no more."""
        if self._by_task and entry.how == TaskFreed.CANCELLED:
            queue = self._queue_name(entry.queue)
            ending = Ending(TaskState.CANCELLED, entry.at, "", 0, -1, entry.error.encode(), queue)
            self._notify(entry.task_id, ending, ticket)

    def changed(self, views: Iterable[TaskView], ticket: int) -> None:
        """The task index has learned of changes."""
        if not self._by_task:
            return
        for view in views:
            if view.is_final:
                self._notify(task_key(view.task_id), view, ticket)

    def _notify(self, key: bytes, ending: Ending | TaskView | None, ticket: int) -> None:
        with self._lock:
            woken = list(self._by_task.get(key, ()))
            for waiter in woken:
                waiter.ending = ending or waiter.ending
                waiter.ticket = max(waiter.ticket, ticket)
        for waiter in woken:
            with suppress(RuntimeError):  # its loop is closed; and what is applied must not fail
                waiter.wake()

    def wake_all(self) -> None:
        """Time has jumped, or all is over."""
        with self._lock:
            woken = [waiter for waiting in self._by_task.values() for waiter in waiting]
        for waiter in woken:
            waiter.wake()


def task_key(task_id: str) -> bytes:
    """A task id as entries have it."""
    return bytes.fromhex(task_id.replace("-", ""))
