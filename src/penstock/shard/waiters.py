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
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.shard.queue_sets import QueueSets, SetKey, SetWaiter

if TYPE_CHECKING:
    from penstock.delivery.core import DeliveryState


@dataclass(slots=True, eq=False)
class Waiter:
    """One call that waits for messages of one group. `wake` must not block and may be called from any thread."""

    queue: int
    group: int
    wake: Callable[[], object]
    since: int  # the last wake-up before it came
    woken: int = 0  # the wake-up that it got


class Waiters:
    """All waiters of a shard, in one line for each group; the shard's lock guards it."""

    def __init__(self, core: DeliveryState) -> None:
        self.sets = QueueSets(core)  # of those who wait for several queues
        self._by_queue: dict[int, dict[int, deque[Waiter]]] = {}  # queue, group
        self._wakes = 0  # wake-ups are numbered

    def __bool__(self) -> bool:
        return bool(self._by_queue or self.sets.by_key)

    def __len__(self) -> int:
        single = sum(len(line) for lines in list(self._by_queue.values()) for line in list(lines.values()))
        return single + self.sets.waiting()

    def add(self, queue: int, group: int, wake: Callable[[], object]) -> Waiter:
        waiter = Waiter(queue, group, wake, self._wakes)
        self._by_queue.setdefault(queue, {}).setdefault(group, deque()).append(waiter)
        return waiter

    def add_to_set(self, key: SetKey, wake: Callable[[], object], monotonic: int) -> SetWaiter:
        """Wait for messages of several queues."""
        queue_set = self.sets.of(key, monotonic)
        waiter = SetWaiter(queue_set, wake, self._wakes)
        queue_set.line.append(waiter)
        queue_set.users += 1
        return waiter

    def leave(self, waiter: Waiter, *, served: bool) -> None:
        """The call is over. A wake-up that it did not use goes to the next in line."""
        line = self._by_queue.get(waiter.queue, {}).get(waiter.group)
        if not waiter.woken and line is not None:
            line.remove(waiter)
            if not line:
                self._drop_line(waiter.queue, waiter.group)
        elif waiter.woken and not served:
            self._wake(waiter.queue, waiter.group, 1, waiter.woken)

    def wake(self, queue: int, count: int, group: int | None = None) -> None:
        """Wake the first `count` waiters of a group, or of each group of a queue."""
        self._wakes += 1
        lines = self._by_queue.get(queue)
        if lines:
            for group_id in list(lines) if group is None else [group]:
                self._wake(queue, group_id, count, self._wakes)
        if self.sets.by_key:
            self.sets.mark(queue, count, group, self._wakes)

    def wake_all(self) -> None:
        for queue, lines in list(self._by_queue.items()):
            self.wake(queue, max(map(len, lines.values())))
        self._wakes += 1
        self.sets.wake_all(self._wakes)

    def _wake(self, queue: int, group: int, count: int, number: int) -> None:
        line = self._by_queue.get(queue, {}).get(group)
        while line and count > 0 and line[0].since < number:
            waiter = line.popleft()
            waiter.woken = number
            with suppress(RuntimeError):  # its loop is closed: it goes to the next, and what was done must not fail
                waiter.wake()
                count -= 1
        if line is not None and not line:
            self._drop_line(queue, group)

    def _drop_line(self, queue: int, group: int) -> None:
        lines = self._by_queue[queue]
        del lines[group]
        if not lines:
            del self._by_queue[queue]
