"""Who waits for messages, and waking them: no polling, first come first woken.

A waiter is woken by a push, a due time, a settle that frees a key or partition, a resume, or the end of its patience.
Being woken promises nothing; a waiter that leaves empty-handed passes its wake-up on, so that none is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Waiter:
    """One call that waits on one queue. `wake` must not block and may be called from any thread."""

    __slots__ = ("queue", "wake", "woken")

    def __init__(self, queue: int, wake: Callable[[], object]) -> None:
        self.queue = queue
        self.wake = wake
        self.woken = False


class Waiters:
    """All waiters of a shard; the shard's lock guards it."""

    def __init__(self) -> None:
        self._by_queue: dict[int, deque[Waiter]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_queue)

    def add(self, queue: int, wake: Callable[[], object]) -> Waiter:
        waiter = Waiter(queue, wake)
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
            self.wake(waiter.queue, 1)

    def wake(self, queue: int, count: int) -> None:
        """Wake the first `count` waiters of a queue."""
        waiting = self._by_queue.get(queue)
        while waiting and count > 0:
            waiter = waiting.popleft()
            waiter.woken = True
            waiter.wake()
            count -= 1
        if waiting is not None and not waiting:
            self._by_queue.pop(queue, None)

    def wake_all(self) -> None:
        for queue in list(self._by_queue):
            self.wake(queue, len(self._by_queue[queue]))
