"""Pushes of many threads, gathered into batches.

Who comes first leads: it sends what has gathered and brings everybody their ids. Those who come while enough leaders
are under way wait for one of them to be back, which then promotes the first in line, or until they have lingered long
enough, and lead themselves. So nobody waits for company that does not come, and a batch is as large as the load is.

A batch that is refused is pushed again one message at a time: nobody fails for another's message.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from penstock import limits
from penstock.errors import Closed, PenstockError, ServerError
from penstock.model import MessageId
from penstock.remote.settings import Settings

LEADERS_MAX: Final = 2  # of one queue: one under way while the other fills
BYTES_MAX: Final = limits.batch_bytes_max // 2
PushPayloads = Callable[[str, list[bytes]], Sequence[MessageId]]


class Entry:
    """One message on its way. Its lock is released when it is answered, or shall lead."""

    __slots__ = ("answer", "payload", "turn")

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.answer: MessageId | PenstockError | None = None
        self.turn = threading.Lock()
        self.turn.acquire()


class Basket:
    """What has gathered for one queue."""

    __slots__ = ("entries", "leaders")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.leaders = 0


class Gatherer:
    """See the module's rules."""

    def __init__(self, settings: Settings, push: PushPayloads) -> None:
        self._linger = settings.linger_seconds or 0.0
        self._batch_max = settings.batch_max
        self._push = push
        self._changed = threading.Condition()
        self._baskets: dict[str, Basket] = {}
        self._under_way = 0
        self._is_closed = False

    def push(self, queue: str, payload: bytes) -> MessageId:
        """Push with others; the id once it is durable."""
        entry = Entry(payload)
        with self._changed:
            if self._is_closed:
                raise Closed("this Penstock is closed")
            basket = self._baskets.setdefault(queue, Basket())
            leads = basket.leaders < LEADERS_MAX
            if leads:
                basket.leaders += 1
            else:
                basket.entries.append(entry)
            self._under_way += 1
        try:
            if not leads:
                self._wait(basket, entry)
            if entry.answer is None:
                self._lead(queue, basket, entry)
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()
        if isinstance(entry.answer, PenstockError):
            raise entry.answer
        assert entry.answer is not None
        return entry.answer

    def close(self) -> None:
        """Take no more, and wait for what is under way."""
        with self._changed:
            self._is_closed = True
            while self._under_way:
                self._changed.wait()

    def _wait(self, basket: Basket, entry: Entry) -> None:
        """Until it is answered, promoted, or has lingered long enough."""
        if entry.turn.acquire(timeout=self._linger):
            return
        with self._changed:
            if entry in basket.entries:
                basket.entries.remove(entry)
                basket.leaders += 1
                return
        entry.turn.acquire()  # somebody has just taken it along

    def _lead(self, queue: str, basket: Basket, own: Entry) -> None:
        """A leader is in no basket any more: nobody else can take it along."""
        with self._changed:
            taken = self._take(basket, own)
        try:
            self._send(queue, taken)
        finally:
            with self._changed:
                basket.leaders -= 1
                if basket.entries and basket.leaders < LEADERS_MAX:
                    basket.leaders += 1
                    basket.entries.pop(0).turn.release()
            for entry in taken[1:]:
                entry.turn.release()

    def _take(self, basket: Basket, own: Entry) -> list[Entry]:
        """Its own message, and as many of the others as fit, in the order they came."""
        taken, size = [own], len(own.payload)
        while basket.entries and len(taken) < self._batch_max and size < BYTES_MAX:
            entry = basket.entries.pop(0)
            size += len(entry.payload)
            taken.append(entry)
        return taken

    def _send(self, queue: str, taken: list[Entry]) -> None:
        try:
            ids = self._push(queue, [entry.payload for entry in taken])
            for entry, id in zip(taken, ids, strict=True):
                entry.answer = id
        except PenstockError as error:
            if len(taken) == 1 or isinstance(error, ServerError | Closed):
                for entry in taken:
                    entry.answer = error
            else:
                for entry in taken:
                    self._send(queue, [entry])
        except BaseException:
            # Ctrl-C in the leader: the others must not wait for ever.
            for entry in taken:
                entry.answer = entry.answer or Closed("the thread that pushed for this one was interrupted")
            raise
