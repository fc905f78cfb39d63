"""Group commit: many wait, one syncs for all.

Threads: the first to wait leads. It syncs for everyone who has appended by then; those who come meanwhile queue up,
each behind a lock of its own. When the sync is done, those whose frames are durable are woken, and one of the rest is
promoted. While someone waits, there is always a leader.

A leader may vanish: an exception, Ctrl-C say, may hit it anywhere. So a thread that has waited for a second checks
itself, and takes over if nobody has begun to lead meanwhile. If the leader was only slow, the second sync does no harm.

They wake in a chain, one after another: only one thread can run Python at a time, and threads woken together would
only fall asleep again before the interpreter's lock. The new leader is in the middle of the chain, so that its sync
takes along what the first half appends while the second half is still waking up.

Event loops: one committer thread is an ordinary waiter for all of them. A `Confirmer` on each loop gathers who waits,
hands the highest sequence over once per turn of the loop, and is called back once per sync. Where the journal can, the
loop sends the commit itself (`loop_commit`), and the thread sees only what goes wrong.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final

from penstock.errors import Closed, PenstockError
from penstock.journal import Journal, outcome_unknown
from penstock.journal.loop_commit import LoopCommit, nothing

logger: Final = logging.getLogger("penstock.journal")

RETRY_SECONDS: Final = 0.1
PATIENCE_SECONDS: Final = 1.0  # how long a leader may take before one of those who wait leads too

OnReply = Callable[[Any], object]  # called once, with a reply or with a PenstockError


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
        self.journal = journal
        self.around: Callable[[Callable[[], None]], None] = _call  # runs the leader's sync: to time it, say
        # Called before an event loop sends a commit itself; what it returns is called when that has ended.
        self.begun: Callable[[], Callable[[], object]] = lambda: nothing
        self._lock = threading.Lock()
        self._is_led = False  # a thread leads, or has been promoted and is about to
        self._leads = 0  # how often somebody has begun to lead
        self._waiters: list[_Waiter] = []
        self._notices: dict[Callable[[], object], tuple[int, asyncio.AbstractEventLoop]] = {}  # who is to be called
        self._work = threading.Lock()  # released when there is something for the committer
        self._work.acquire()
        self._committer: threading.Thread | None = None
        self.is_closed = False

    def wait(self, sequence: int) -> None:
        """Return when `sequence` is durable; `OutcomeUnknown` when the journal failed before it was."""
        if self.journal.durable_sequence >= sequence:
            return
        waiter = self._queue_up(sequence)
        if waiter is None or self._is_promoted(waiter):
            self._lead(sequence)
        if self.journal.durable_sequence < sequence:
            raise self.failure()

    def notify(self, sequence: int, loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
        """Have `callback` called on the loop when `sequence` is durable, or when the journal failed before it was."""
        with self._lock:
            self._notices[callback] = (sequence, loop)
            if not self.is_closed:
                if self._committer is None:
                    self._committer = threading.Thread(target=self._commit, name="penstock-commit", daemon=True)
                    self._committer.start()
                self._wake_committer()
                return
        self._serve_notices()  # the thread has ended, and what was appended is durable or never will be

    def close(self) -> None:
        """Call back whoever waits and end the committer. The journal stays open."""
        with self._lock:
            self.is_closed = True
            committer, self._committer = self._committer, None
            self._wake_committer()
        if committer is not None:
            committer.join()
        self._serve_notices()

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
            if waiter.leads or self.journal.durable_sequence >= waiter.sequence or self.journal.failed is not None:
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
            if self.journal.durable_sequence < sequence:
                self.around(self.journal.sync)
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        """End this thread's lead: wake everyone whose frames are durable, and one more to lead."""
        durable, failed = self.journal.durable_sequence, self.journal.failed
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

    def failure(self) -> PenstockError:
        """Why a sequence will never be durable, or is not known to be."""
        failed = self.journal.failed
        return Closed("the journal is closed") if failed is None else outcome_unknown(failed)

    # Event loops.

    def _wake_committer(self) -> None:
        if self._work.locked():
            self._work.release()

    def _commit(self) -> None:
        while not self.is_closed:
            self._work.acquire()
            self._serve_notices()

    def _serve_notices(self) -> None:
        with self._lock:
            notices, self._notices = self._notices, {}
        if not notices:
            return
        # A failure shows in the journal's state, where each loop finds it.
        try:
            self.wait(max(sequence for sequence, _ in notices.values()))
        except PenstockError:
            pass
        except Exception:
            logger.exception("waiting for a sync failed; retrying")
            time.sleep(RETRY_SECONDS)
        # Also when there was nothing to wait for: another thread may have synced, or failed, in between.
        for callback, (_, loop) in notices.items():
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(callback)


class Confirmer:
    """Replies on one event loop, once what they say is durable. Everything here runs on the loop's own thread.

    Tickets come in rising order, so whoever came first is answered first.
    """

    def __init__(self, commit: GroupCommit, loop: asyncio.AbstractEventLoop) -> None:
        self._commit = commit
        self._journal = commit.journal
        self._loop = loop
        self.on_sync: Callable[[], object] = lambda: None  # called when a sync has ended
        self._waiting: deque[tuple[int, OnReply | None, Any]] = deque()  # without a callback: a future
        self._wanted = 0  # the highest ticket that was handed over
        self._is_gathering = False  # it is handed over at the end of this turn of the loop
        self._sending = LoopCommit(commit.journal, loop, self._begun, self._answered, self._ask_committer)

    def is_syncing(self) -> bool:
        """Whether a sync is under way, or about to be."""
        return self._is_gathering or self._wanted > self._journal.durable_sequence

    def after(self, ticket: int, on_reply: OnReply, reply: Any) -> None:
        """Call `on_reply(reply)` when the ticket is durable: at once if it is already."""
        if ticket <= self._journal.durable_sequence:
            on_reply(reply)
        else:
            self._gather((ticket, on_reply, reply))

    def future(self, ticket: int) -> asyncio.Future[None]:
        """A future that is done when the ticket is durable, and fails when the journal does."""
        future: asyncio.Future[None] = self._loop.create_future()
        if ticket <= self._journal.durable_sequence:
            future.set_result(None)
        else:
            self._gather((ticket, None, future))
        return future

    async def confirmed(self, ticket: int) -> None:
        """Return when the ticket is durable; raises when the journal fails."""
        if ticket > self._journal.durable_sequence:
            await self.future(ticket)

    def finish(self) -> None:
        """Wait for the sync that is under way. Call it from another thread, before `close`."""
        with suppress(PenstockError):
            self._commit.wait(min(self._wanted, self._journal.sequence))

    def close(self) -> None:
        """Answer whoever still waits, as far as anything is known."""
        self._sending.close()
        self._reply()

    def _gather(self, waiting: tuple[int, OnReply | None, Any]) -> None:
        self._waiting.append(waiting)
        if not self._is_gathering:
            self._is_gathering = True
            # At the end of this turn of the loop: until then others may append, and one sync serves all.
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._is_gathering = False
        if self._waiting:
            self._wanted = self._waiting[-1][0]
            self._request()
        else:
            self.on_sync()  # a sync that was under way has done it

    def _request(self) -> None:
        """Have what is wanted made durable; `_reply` follows."""
        if not self._sending.send():
            self._ask_committer()

    def _ask_committer(self) -> None:
        self._commit.notify(self._wanted, self._loop, self._reply)

    def _begun(self) -> Callable[[], object]:
        return self._commit.begun()

    def _answered(self) -> None:
        """A commit of this loop has ended. The next is sent before replies are: it takes longer."""
        self.on_sync()
        journal = self._journal
        if self._waiting and self._waiting[-1][0] > journal.durable_sequence and journal.failed is None:
            self._wanted = self._waiting[-1][0]
            self._request()
        self._reply()

    def _reply(self) -> None:
        waiting, durable = self._waiting, self._journal.durable_sequence
        while waiting and waiting[0][0] <= durable:
            _, on_reply, reply = waiting.popleft()
            if on_reply is not None:
                on_reply(reply)
            elif not reply.done():
                reply.set_result(None)
        self.on_sync()
        if waiting and (self._journal.failed is not None or self._commit.is_closed):
            while waiting:
                _, on_reply, reply = waiting.popleft()
                if on_reply is not None:
                    on_reply(self._commit.failure())
                elif not reply.done():
                    reply.set_exception(self._commit.failure())
        elif waiting and waiting[0][0] <= self._wanted:
            self._request()  # a fault interrupted the wait for it
