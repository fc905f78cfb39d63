"""Who waits for messages, and waking them: no polling, first come first woken.

A waiter is woken by a push, a due time, a settle that frees a key or partition, a resume, or the end of its patience.
Being woken promises nothing; a waiter that leaves empty-handed passes its wake-up on, so that none is lost. It goes to
those who waited before the wake-up came, never to one who came since and has looked for itself: so it dies out when
there was nothing for anybody, such as a message that is not due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress


class Waiter:
    """One call that waits on one queue. `wake` must not block and may be called from any thread."""

    __slots__ = ("queue", "since", "wake", "woken")

    def __init__(self, queue: int, wake: Callable[[], object], since: int) -> None:
        self.queue = queue
        self.wake = wake
        self.since = since  # the last wake-up before it came
        self.woken = 0  # the wake-up that it got


class Waiters:
    """All waiters of a shard; the shard's lock guards it."""

    def __init__(self) -> None:
        self._by_queue: dict[int, deque[Waiter]] = {}
        self._wakes = 0  # wake-ups are numbered

    def __bool__(self) -> bool:
        return bool(self._by_queue)

    def __len__(self) -> int:
        return sum(map(len, list(self._by_queue.values())))

    def add(self, queue: int, wake: Callable[[], object]) -> Waiter:
        waiter = Waiter(queue, wake, self._wakes)
        self._by_queue.setdefault(queue, deque()).append(waiter)
        return waiter

    def leave(self, waiter: Waiter, *, served: bool) -> None:
        """The call is over. A wake-up that it did not use goes to the next in line."""
        waiting = self._by_queue.get(waiter.queue)
        if not waiter.woken and waiting is not None:
            waiting.remove(waiter)
            if not waiting:
                del self._by_queue[waiter.queue]
        elif waiter.woken and not served:
            self._wake(waiter.queue, 1, waiter.woken)

    def wake(self, queue: int, count: int) -> None:
        """Wake the first `count` waiters of a queue."""
        self._wakes += 1
        self._wake(queue, count, self._wakes)

    def wake_all(self) -> None:
        for queue in list(self._by_queue):
            self.wake(queue, len(self._by_queue[queue]))

    def _wake(self, queue: int, count: int, number: int) -> None:
        waiting = self._by_queue.get(queue)
        while waiting and count > 0 and waiting[0].since < number:
            waiter = waiting.popleft()
            waiter.woken = number
            with suppress(RuntimeError):  # its loop is closed: it goes to the next, and what was done must not fail
                waiter.wake()
                count -= 1
        if waiting is not None and not waiting:
            self._by_queue.pop(queue, None)
