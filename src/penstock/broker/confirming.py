"""Telling callers on the event loop, once what they are told is durable.

One thread waits for the journal on behalf of all of them: it is told of new tickets once per turn of the loop, and
tells the loop once per sync. Tickets come in rising order, so whoever came first is told first.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from penstock.broker.answers import Told, resolve
from penstock.errors import PenstockError
from penstock.journal import outcome_unknown
from penstock.shard.shard import Shard

logger: Final = logging.getLogger("penstock")

RETRY_SECONDS: Final = 0.1


class Confirmer:
    """See the module's rules. Every method but `_run` and `end` is for the loop's own thread."""

    def __init__(self, shard: Shard, loop: asyncio.AbstractEventLoop) -> None:
        self._shard = shard
        self._journal = shard.journal
        self._loop = loop
        self.on_sync: Callable[[], object] = lambda: None  # a sync has ended
        self._waiting: deque[tuple[int, Told, Any]] = deque()
        self._wanted = 0  # the highest ticket that somebody waits for; the thread reads it
        self._announced = False  # the thread will be told at the end of this turn
        self._work = threading.Lock()  # released when there is something for the thread; a semaphore costs more
        self._work.acquire()
        self._stopping = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-confirm", daemon=True)
        self._thread.start()

    def is_syncing(self) -> bool:
        """Whether a sync is under way, or about to be."""
        return self._announced or self._wanted > self._journal.durable_sequence

    def after(self, ticket: int, told: Told, answer: Any) -> None:
        """Call `told(answer)` when the ticket is durable: at once if it is already."""
        if ticket <= self._journal.durable_sequence:
            told(answer)
            return
        self._waiting.append((ticket, told, answer))
        if not self._announced:
            self._announced = True
            self._loop.call_soon(self._announce)

    async def confirmed(self, ticket: int) -> None:
        """The same, awaited."""
        if ticket > self._journal.durable_sequence:
            future: asyncio.Future[Any] = self._loop.create_future()
            self.after(ticket, partial(resolve, future), None)
            answer = await future
            if isinstance(answer, PenstockError):
                raise answer

    def end(self) -> None:
        """End the thread, from any thread; it may be in the middle of a sync."""
        self._stopping = True
        self._ended.set()
        self._hand_over()
        self._thread.join()

    def close(self) -> None:
        """The same; whoever still waits is told what is true."""
        self.end()
        self._tell()

    def _announce(self) -> None:
        self._announced = False
        if self._waiting:
            self._wanted = self._waiting[-1][0]
            self._hand_over()
        else:
            self.on_sync()  # a sync that was under way has done it

    def _hand_over(self) -> None:
        with suppress(RuntimeError):  # it is released already: one sync does for all that was announced
            self._work.release()

    def _run(self) -> None:
        while not self._stopping:
            self._work.acquire()
            # A failure shows in the journal's state, where the loop finds it.
            try:
                self._shard.commit.wait(self._wanted)
            except PenstockError:
                pass
            except Exception:
                logger.exception("waiting for a sync failed, and is tried again")
                self._ended.wait(RETRY_SECONDS)
                self._hand_over()
            # Also when there was nothing to wait for: another thread may have synced, or failed, in between.
            with suppress(RuntimeError):  # the loop is closed: nobody is left to tell
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        waiting, durable, failed = self._waiting, self._journal.durable_sequence, self._journal.failed
        while waiting and waiting[0][0] <= durable:
            _, told, answer = waiting.popleft()
            told(answer)
        self.on_sync()
        if failed is not None:
            while waiting:
                waiting.popleft()[1](outcome_unknown(failed))
