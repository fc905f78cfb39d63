"""Group commit: many wait, one syncs for all.

Threads: the first to wait leads. It syncs for everyone who has appended by then; those who come meanwhile queue up,
each behind a lock of its own. When the sync is done, those whose frames are durable are woken, and one of the rest is
promoted. While someone waits, there is always a leader.

A leader may vanish: an exception, Ctrl-C say, may hit it anywhere. So a thread that has waited for a second checks
itself, and takes over if nobody has begun to lead meanwhile. If the leader was only slow, the second sync does no harm.

They wake in a chain, one after another: only one thread can run Python at a time, and threads woken together would
only fall asleep again before the interpreter's lock. The new leader is in the middle of the chain, so that its sync
takes along what the first half appends while the second half is still waking up.

asyncio: futures are gathered per event loop and handed over once per iteration of the loop to a committer thread, which
is one ordinary waiter for all of them. It resolves them with one `call_soon_threadsafe` per loop and commit.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Final

from penstock.errors import Closed, PenstockError
from penstock.journal import Journal, outcome_unknown

PATIENCE_SECONDS: Final = 1.0  # how long a leader may take before one of those who wait leads too

_Futures = list[tuple[int, "asyncio.Future[None]"]]


class _Waiter:
    """A thread in the queue. Its lock is released when its frame is durable, the journal failed, or it is to lead."""

    __slots__ = ("leads", "next", "sequence", "turn")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.leads = False
        self.next: _Waiter | None = None  # to be woken by this one
        self.turn = threading.Lock()
        self.turn.acquire()

    def wake(self) -> None:
        """Release the lock. A second call does no harm: nobody takes the lock after its owner has."""
        if self.turn.locked():
            self.turn.release()


def _call(sync: Callable[[], None]) -> None:
    sync()


class GroupCommit:
    """Waits for sequences of one journal to become durable."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.around: Callable[[Callable[[], None]], None] = _call  # runs the leader's sync: to time it, say
        self._lock = threading.Lock()
        self._is_led = False  # a thread leads, or has been promoted and is about to
        self._leads = 0  # how often somebody has begun to lead
        self._waiters: list[_Waiter] = []
        self._futures: dict[asyncio.AbstractEventLoop, _Futures] = {}
        self._work = threading.Lock()  # released when there is something for the committer
        self._work.acquire()
        self._committer: threading.Thread | None = None
        self._closed = False

    def wait(self, sequence: int) -> None:
        """Return when `sequence` is durable; `OutcomeUnknown` when the journal failed before it was."""
        if self._journal.durable_sequence >= sequence:
            return
        waiter = self._queue_up(sequence)
        if waiter is None or self._is_promoted(waiter):
            self._lead(sequence)
        if self._journal.durable_sequence < sequence:
            raise self._failure()

    def future(self, sequence: int, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Asyncio version of `wait()`: a future of `loop`, on whose thread this must be called."""
        future = loop.create_future()
        if self._journal.durable_sequence >= sequence:
            future.set_result(None)
            return future
        with self._lock:
            if self._closed:
                raise Closed("the journal is closed")
            gathered = self._futures.get(loop)
            if gathered is None:
                gathered = self._futures[loop] = []
                # At the end of this iteration of the loop: until then other tasks may append, and one sync serves all.
                loop.call_soon(self._hand_over)
            gathered.append((sequence, future))
        return future

    def close(self) -> None:
        """Resolve what is outstanding and end the committer. The journal stays open."""
        with self._lock:
            self._closed = True
            committer, self._committer = self._committer, None
            self._wake_committer()
        if committer is not None:
            committer.join()
        self._resolve_gathered()

    # Threads.

    def _queue_up(self, sequence: int) -> _Waiter | None:
        """A waiter in the queue; None when this thread leads."""
        with self._lock:
            if not self._is_led:
                self._is_led = True
                self._leads += 1
                return None
            waiter = _Waiter(sequence)
            self._waiters.append(waiter)
            return waiter

    def _is_promoted(self, waiter: _Waiter) -> bool:
        """Block until woken, or until this thread takes over; whether it is to lead."""
        try:
            seen = self._leads
            while not waiter.turn.acquire(timeout=PATIENCE_SECONDS):
                if self._takes_over(waiter, seen):
                    break
                seen = self._leads
            if waiter.next is not None:
                waiter.next.wake()
        except BaseException:
            self._leave(waiter)
            raise
        return waiter.leads

    def _takes_over(self, waiter: _Waiter, seen: int) -> bool:
        """Nobody has woken this thread for a while: whether it stops waiting, be it to lead itself."""
        with self._lock:
            if waiter.leads or self._journal.durable_sequence >= waiter.sequence or self._journal.failed is not None:
                # The thread that was to wake it vanished from the chain, or is about to wake it.
                self._forget(waiter)
                return True
            if self._leads != seen:
                return False  # somebody has begun meanwhile
            self._forget(waiter)
            self._leads += 1
            self._is_led = waiter.leads = True
            return True

    def _forget(self, waiter: _Waiter) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)

    def _leave(self, waiter: _Waiter) -> None:
        """A thread is interrupted: it must neither break the chain nor keep the lead."""
        with self._lock:
            self._forget(waiter)
        if waiter.next is not None:
            waiter.next.wake()
        if waiter.leads:
            self._pass_on()

    def _lead(self, sequence: int) -> None:
        try:
            # Somebody else may have synced the journal since this thread was promoted.
            if self._journal.durable_sequence < sequence:
                self.around(self._journal.sync)
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        """End this thread's lead: wake everyone whose frames are durable, and one more to lead."""
        durable, failed = self._journal.durable_sequence, self._journal.failed
        with self._lock:
            chain, self._waiters = self._waiters, []
            if failed is None:
                self._waiters = [waiter for waiter in chain if waiter.sequence > durable]
                chain = [waiter for waiter in chain if waiter.sequence <= durable]
            self._is_led = bool(self._waiters)
            if self._waiters:
                successor = self._waiters.pop(0)
                successor.leads = True
                self._leads += 1
                chain.insert(len(chain) // 2, successor)
            for waiter, after in pairwise(chain):
                waiter.next = after
        if chain:
            chain[0].wake()

    def _failure(self) -> PenstockError:
        failed = self._journal.failed
        return Closed("the journal is closed") if failed is None else outcome_unknown(failed)

    # asyncio.

    def _hand_over(self) -> None:
        with self._lock:
            if self._committer is None and not self._closed:
                self._committer = threading.Thread(target=self._commit, name="penstock-commit", daemon=True)
                self._committer.start()
            self._wake_committer()

    def _wake_committer(self) -> None:
        if self._work.locked():
            self._work.release()

    def _commit(self) -> None:
        while not self._closed:
            self._work.acquire()
            self._resolve_gathered()

    def _resolve_gathered(self) -> None:
        with self._lock:
            gathered, self._futures = self._futures, {}
        if not gathered:
            return
        # A failure shows in the journal's state, where each loop finds it.
        with suppress(PenstockError):
            self.wait(max(sequence for futures in gathered.values() for sequence, _ in futures))
        for loop, futures in gathered.items():
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._resolve, futures)

    def _resolve(self, futures: _Futures) -> None:
        durable = self._journal.durable_sequence
        for sequence, future in futures:
            if future.done():
                continue
            if sequence <= durable:
                future.set_result(None)
            else:
                future.set_exception(self._failure())
