"""Requests that wait until something has happened: woken, and holding no thread meanwhile.

    looking ──it has happened, or time is over──▶ told, when it is durable
      │  ▲
  not yet│ woken
      ▼  │
    waiting                           cancel(): the client has gone     end(): the broker stops, and says so

A wait watches before it looks, so that nothing that happens in between is missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from penstock.broker.answers import Told, answer_of
from penstock.errors import PenstockError, Unavailable
from penstock.model_tasks import TaskView, WorkerNews

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.embedded import Session
    from penstock.shard.tasks.waits import TaskWaiter
    from penstock.shard.worker_registry import Registry

Wake = Callable[[], object]  # called from any thread
Found = TaskView | PenstockError


class Expected(Protocol):
    """What is waited for."""

    def watch(self, wake: Wake) -> None: ...

    def unwatch(self) -> None: ...

    def is_at_hand(self) -> bool:
        """Whether a look reads no file; otherwise it is asked for."""

    def look(self) -> tuple[Any, int]:
        """What there is, and the ticket of it."""

    def ask(self, broker: Broker, told: Told) -> None:
        """The same, told later on the loop; or a `PenstockError`."""

    def is_it(self, found: Any) -> bool:
        """Whether this was waited for."""


class Wait:
    """See the module's rules."""

    __slots__ = ("_broker", "_expected", "_is_late", "_is_looking", "_is_woken", "_timer", "_told", "is_over")

    def __init__(self, broker: Broker, expected: Expected, told: Told) -> None:
        self._broker = broker
        self._expected = expected
        self._told = told
        self._timer: asyncio.TimerHandle | None = None
        self._is_looking = False
        self._is_woken = False  # while it looked
        self._is_late = False
        self.is_over = False

    def start(self, seconds: float) -> None:
        """Look for the first time."""
        self._broker.waits.add(self)
        self._is_late = not seconds
        if seconds:
            self._timer = self._broker.loop.call_later(seconds, self._expire)
            self._expected.watch(self._wake)
        self._look()

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""
        if not self.is_over:
            self.is_over = True
            self._broker.waits.discard(self)
            if self._timer is not None:
                self._timer.cancel()
                self._expected.unwatch()

    def end(self) -> None:
        """The broker stops; the client may go on waiting elsewhere."""
        self._tell(stopping(), 0)

    def _expire(self) -> None:
        self._is_late = True
        self._look()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._broker.loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        if self.is_over:
            return
        if self._is_looking:
            self._is_woken = True
            return
        self._is_looking, self._is_woken = True, False
        if self._expected.is_at_hand():
            self._looked(answer_of(self._expected.look))
        else:
            self._expected.ask(self._broker, self._looked)

    def _looked(self, answer: Any) -> None:
        self._is_looking = False
        if self.is_over:
            return
        if isinstance(answer, PenstockError):
            self._tell(answer, 0)
        elif self._expected.is_it(answer[0]) or (self._is_late and not self._is_woken):
            self._tell(*answer)
        elif self._is_woken:
            self._look()

    def _tell(self, answer: Any, ticket: int) -> None:
        if not self.is_over:
            self.cancel()
            self._broker.confirmer.after(ticket, self._told, answer)


class ExpectedTask:
    """A task that shall be final. Many who ask for one share a look at the task index."""

    def __init__(self, session: Session, task_id: str, allowed: Callable[[Found], TaskView]) -> None:
        self._session = session
        self._task_id = task_id
        self._allowed = allowed
        self._seen: TaskView | None = None
        self._waiter: TaskWaiter | None = None

    def watch(self, wake: Wake) -> None:
        self._waiter = self._session.tasks.watch(self._task_id, wake)

    def unwatch(self) -> None:
        if self._waiter is not None:
            self._session.tasks.waiters.leave(self._waiter)

    def is_at_hand(self) -> bool:
        return self._told_final() is not None

    def look(self) -> tuple[TaskView, int]:
        final = self._told_final()
        assert final is not None
        assert self._waiter is not None
        return final, self._waiter.ticket

    def _told_final(self) -> TaskView | None:
        return self._waiter.final(self._seen) if self._waiter is not None and self._seen is not None else None

    def ask(self, broker: Broker, told: Told) -> None:
        def seen(found: Found) -> tuple[TaskView, int]:
            self._seen = self._allowed(found)
            return self._seen, 0

        def looked(found: Found) -> None:
            broker.loop.call_soon_threadsafe(lambda: told(answer_of(lambda: seen(found))))

        looks = self._session.tasks.looks
        if looks.ask(self._task_id, looked):
            broker.in_thread(looks.lead, lambda _: None)

    def is_it(self, found: TaskView) -> bool:
        return found.is_final


class ExpectedNews:
    """News for a worker."""

    def __init__(self, registry: Registry, worker_id: str) -> None:
        self._registry = registry
        self._worker_id = worker_id
        self._wake: Wake | None = None

    def watch(self, wake: Wake) -> None:
        self._wake = wake
        self._registry.listen(self._worker_id, wake)

    def unwatch(self) -> None:
        if self._wake is not None:
            self._registry.unlisten(self._worker_id, self._wake)

    def is_at_hand(self) -> bool:
        return True

    def look(self) -> tuple[WorkerNews, int]:
        return self._registry.news(self._worker_id), 0

    def ask(self, broker: Broker, told: Told) -> None:
        told(self.look())

    def is_it(self, found: WorkerNews) -> bool:
        return bool(found.cancelled)


def stopping() -> Unavailable:
    """What new work is answered with while the broker drains."""
    return Unavailable("the broker is stopping", hint="connect again in a moment, or to another address")
