"""Works on operations, a step at a time and one operation after the other, so that none waits for another's end.

A step holds the lock for one frame of at most `CHUNK` items. With a rate, steps are smaller and come at their time.
What is not possible just now, since a queue is full, say, is tried again; what can never succeed fails the operation.
An operation that was running when the process stopped goes on where its last step was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.delivery.entries import OperationSet
from penstock.errors import (
    InputError,
    MessageNotFound,
    NotAuthorised,
    PenstockError,
    QueueFull,
    QueueNotFound,
)
from penstock.shard.bulk import book
from penstock.shard.bulk.book import Work
from penstock.shard.upkeep import Sleeper

if TYPE_CHECKING:
    from penstock.shard.shard import Shard

CHUNK: Final = 1_000  # items in one frame at most, and while the shard is held
SLICE_SECONDS: Final = 0.1  # with a rate: a step is what may be done in this time
RETRY_SECONDS: Final = 1.0  # until what is not possible now is tried again
HOPELESS: Final = (InputError, QueueNotFound, MessageNotFound, NotAuthorised)


class Pace:
    """What is remembered of an operation while it runs."""

    def __init__(self) -> None:
        self.due = 0  # monotonic µs: no step before
        self.is_counted = False
        self.waits_for = ""  # why the last step was not possible
        self.room = CHUNK  # items of a step: fewer, while more find no room


class OperationRunner:
    """One for each shard. Without `background` whoever begins an operation works on it."""

    def __init__(self, shard: Shard, works: Mapping[str, Work], *, background: bool) -> None:
        self._shard = shard
        self._works = works
        self._paces: dict[str, Pace] = {}
        self._is_stopping = False
        self._moved = threading.Condition()  # an operation does not run any more
        self.on_end: Callable[[OperationSet, Callable[[], object]], object] = lambda operation, end: end()
        self.sleeper = Sleeper("operations", self.run, shard.is_over) if background else None

    def start(self) -> None:
        """Go on with what was running when the process stopped."""
        if self.sleeper is not None and (book.running(self._shard) or book.waiting(self._shard)):
            self.work()

    def work(self) -> None:
        """There is something to do."""
        if self.sleeper is None:
            self.run()
        elif self.sleeper.was_started:
            self.sleeper.wake()
        else:
            self.sleeper.start()

    def nudge(self) -> None:
        """Without a thread of its own, work is done when somebody looks."""
        if self.sleeper is None:
            self.run()

    def stop(self) -> None:
        """After the step that is under way; whoever opens the directory next goes on."""
        self._is_stopping = True
        self.notice()
        if self.sleeper is not None:
            self.sleeper.stop()

    def waits_for(self, operation_id: str) -> str:
        """What an operation waits for just now; "" for nothing."""
        pace = self._paces.get(operation_id)
        return "" if pace is None else pace.waits_for

    def notice(self) -> None:
        """Wake whoever waits for an operation."""
        with self._moved:
            self._moved.notify_all()

    def wait(self, operation_id: str, seconds: float) -> None:
        """Until an operation does not run any more, or for this long."""
        if self.sleeper is None:
            return
        clock = self._shard.clock
        deadline = clock.monotonic() + round(seconds * 1_000_000)
        with self._moved:
            while not self._is_stopping and book.running_named(self._shard, operation_id) is not None:
                left = deadline - clock.monotonic()
                if left <= 0 or not self._moved.wait(left / 1e6):
                    return

    def run(self) -> float | None:
        """Work until nothing can be done now; returns the seconds until something can, None for never."""
        while not self._is_stopping:
            running = book.running(self._shard)
            paces = self._paces = {one.operation_id: self._paces.get(one.operation_id) or Pace() for one in running}
            waits = [*(self._advance(one, paces[one.operation_id]) for one in running), self._expire()]
            known = [seconds for seconds in waits if seconds is not None]
            if not known:
                return None
            if min(known) > 0:
                return min(known)
        return None

    def _expire(self) -> float | None:
        """Stop what nobody has continued in time; returns the seconds until the next is due, None for never."""
        now, left = self._shard.clock.now(), []
        for operation in book.waiting(self._shard):
            if (micros := book.expires_at(operation) - now) > 0:
                left.append(micros / 1e6)
            else:
                self.on_end(operation, partial(book.expire, self._shard, operation.operation_id))
        return min(left, default=None)

    def _advance(self, operation: OperationSet, pace: Pace) -> float | None:
        """One step, if it is time for one; returns the seconds until the next, None when there is none."""
        monotonic = self._shard.clock.monotonic()
        if pace.due > monotonic:
            return (pace.due - monotonic) / 1e6
        try:
            return self._step(operation, pace, self._works[operation.action])
        except HOPELESS as error:
            self._end(operation, OperationSet.FAILED, str(error))
            return None
        except PenstockError as error:
            if self._shard.is_over():
                raise
            pace.waits_for = str(error)
            if isinstance(error, QueueFull) and pace.room > 1:
                pace.room = 1 if operation.rate else max(1, pace.room // 8)
                return 0.0
            pace.due = monotonic + round(RETRY_SECONDS * 1_000_000)
            return RETRY_SECONDS

    def _step(self, operation: OperationSet, pace: Pace, work: Work) -> float | None:
        if not pace.is_counted:
            pace.is_counted = True
            if not operation.matched:
                book.advance(self._shard, operation.operation_id, matched=work.count(operation).matched)
                return 0.0
        room = min(pace.room, self._room(operation))
        if room <= 0:
            is_all = book.done_of(operation) + operation.failed >= operation.matched > 0
            self._end(operation, OperationSet.DONE if is_all else OperationSet.WAITING)
            return None
        self._shard.throttle.wait(RETRY_SECONDS)  # while the sealer is behind
        stepped = work.step(operation, room)
        pace.waits_for, pace.room = "", min(CHUNK, 2 * pace.room)
        if stepped.is_over:
            self._end(operation, OperationSet.DONE)
            return None
        if operation.rate and stepped.items:
            monotonic = self._shard.clock.monotonic()
            pace.due = max(pace.due, monotonic - 1_000_000) + round(stepped.items / operation.rate * 1_000_000)
        return 0.0

    def _room(self, operation: OperationSet) -> int:
        """How many items the next step may deal with; 0 when it is time for the canary to be looked at."""
        room = CHUNK
        if operation.rate:
            room = max(1, min(room, int(operation.rate * SLICE_SECONDS)))
        if operation.canary and not operation.has_continued:
            room = min(room, operation.canary - book.done_of(operation) - operation.failed)
        return room

    def _end(self, operation: OperationSet, state: int, error: str = "") -> None:
        def end() -> None:
            book.advance(self._shard, operation.operation_id, state=state, error=error)

        if state == OperationSet.WAITING:
            end()
        else:
            self.on_end(operation, end)
        self.notice()
