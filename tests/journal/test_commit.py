"""Group commit: one leader, everyone answered, errors to all."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import OutcomeUnknown, StorageError
from penstock.journal.commit import Confirmer, GroupCommit, _Waiter
from penstock.journal.memory import MemoryJournal
from tests.support.interrupts import Interruption

ENTRY = bytes(8)
PATIENCE_SECONDS = 100.0


class GatedJournal(MemoryJournal):
    """A journal whose syncs stop at a gate until the test lets them through."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)
        self.syncs = 0
        self.syncing = 0
        self.syncing_max = 0
        self.one_at_a_time = threading.Lock()

    def sync(self) -> None:
        asked = self.sequence
        with self.one_at_a_time:  # as journals have it: on a slow machine somebody may take over from a slow leader
            if self.durable_sequence < asked or self.failed is not None:
                self._sync()

    def _sync(self) -> None:
        self.syncing += 1
        self.syncing_max = max(self.syncing_max, self.syncing)
        target = self.sequence
        self.entered.release()
        assert self.gate.acquire(timeout=PATIENCE_SECONDS)
        self.syncing -= 1
        self.syncs += 1
        if self.failed is not None:
            raise OutcomeUnknown("the journal stopped")
        self.written_sequence = self.durable_sequence = max(self.durable_sequence, target)


class Waiting:
    """A thread that waits for a sequence, and what came of it."""

    def __init__(self, commit: GroupCommit, sequence: int) -> None:
        self.error: BaseException | None = None
        self._wait: Callable[[], Any] = lambda: commit.wait(sequence)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._wait()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def join(self) -> BaseException | None:
        self.thread.join(PATIENCE_SECONDS)
        assert not self.thread.is_alive()
        return self.error


def test_those_who_wait_lead_when_their_leader_has_vanished_at_any_line(monkeypatch):
    """An exception at every line of a leader, two others behind it: they get their answer."""
    monkeypatch.setattr("penstock.journal.commit.PATIENCE_SECONDS", 0.02)
    lines = _led(-1)
    for place in range(lines):
        assert _led(place) > 0


def _led(at: int) -> int:
    journal = MemoryJournal()
    commit = GroupCommit(journal)
    sequences = [journal.append(ENTRY) for _ in range(3)]
    others: list[Waiting] = []

    def sync_when_others_wait(sync: Callable[[], None]) -> None:
        commit.around = lambda sync: sync()
        others.extend(Waiting(commit, sequence) for sequence in sequences[1:])
        until_queued(commit, 2)
        sync()

    commit.around = sync_when_others_wait
    interruption = Interruption(at)
    with interruption.watching():
        commit.wait(sequences[0])
    commit.around = lambda sync: sync()
    if not others:  # it did not come that far
        others = [Waiting(commit, sequence) for sequence in sequences[1:]]
    assert [other.join() for other in others] == [None, None]
    return len(interruption.lines)


def until_queued(commit: GroupCommit, count: int) -> None:
    """Give way to the other threads until so many are in the queue."""
    turn = threading.Event()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(commit._waiters) < count:
        assert time.monotonic() < deadline
        turn.wait(0.0005)


def test_what_is_durable_is_not_waited_for():
    journal = GatedJournal()
    GroupCommit(journal).wait(0)
    assert journal.syncs == 0


def test_one_sync_serves_everyone_who_appended_before_it():
    journal = GatedJournal()
    commit = GroupCommit(journal)
    leader = Waiting(commit, journal.append(ENTRY))
    assert journal.entered.acquire(timeout=PATIENCE_SECONDS)
    followers = [Waiting(commit, journal.append(ENTRY)) for _ in range(20)]
    until_queued(commit, 20)

    journal.gate.release(2)

    assert [waiting.join() for waiting in (leader, *followers)] == [None] * 21
    assert journal.syncs == 2
    assert journal.syncing_max == 1


def test_a_failed_sync_reaches_the_leader_and_every_follower():
    journal = GatedJournal()
    commit = GroupCommit(journal)
    leader = Waiting(commit, journal.append(ENTRY))
    assert journal.entered.acquire(timeout=PATIENCE_SECONDS)
    followers = [Waiting(commit, journal.append(ENTRY)) for _ in range(20)]
    until_queued(commit, 20)

    journal.failed = StorageError("input/output error")
    journal.gate.release()

    assert all(isinstance(waiting.join(), OutcomeUnknown) for waiting in (leader, *followers))
    assert journal.syncs == 1


def test_who_was_durable_before_the_failure_is_not_notified_of_it():
    journal = MemoryJournal()
    commit = GroupCommit(journal)
    sequence = journal.append(ENTRY)
    journal.sync()
    journal.failed = StorageError("input/output error")
    commit.wait(sequence)


def test_an_interrupted_leader_passes_the_lead_on():
    journal = MemoryJournal()
    commit = GroupCommit(journal)
    sync, journal.sync = journal.sync, _interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        commit.wait(journal.append(ENTRY))

    journal.sync = sync  # type: ignore[method-assign]
    commit.wait(journal.append(ENTRY))
    assert journal.durable_sequence == 2


def _interrupted() -> None:
    raise KeyboardInterrupt


def test_an_interrupted_leader_leaves_its_followers_a_new_one():
    journal = GatedJournal()
    commit = GroupCommit(journal)
    leader = Waiting(commit, journal.append(ENTRY))
    assert journal.entered.acquire(timeout=PATIENCE_SECONDS)
    followers = [Waiting(commit, journal.append(ENTRY)) for _ in range(5)]
    until_queued(commit, 5)
    commit.journal = _InterruptOnce(journal)

    journal.gate.release(3)

    assert leader.join() is None
    errors = [waiting.join() for waiting in followers]
    assert [type(error) for error in errors if error] == [KeyboardInterrupt]


class _InterruptOnce:
    """Passes everything to a journal, but its first sync is interrupted."""

    def __init__(self, journal: GatedJournal) -> None:
        self._journal = journal
        self._interrupted = False

    def sync(self) -> None:
        if not self._interrupted:
            self._interrupted = True
            raise KeyboardInterrupt
        self._journal.sync()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)


def test_a_promoted_thread_whose_frame_was_synced_by_others_still_passes_the_lead_on():
    journal = GatedJournal()
    commit = GroupCommit(journal)
    leader = Waiting(commit, journal.append(ENTRY))
    assert journal.entered.acquire(timeout=PATIENCE_SECONDS)
    followers = [Waiting(commit, journal.append(ENTRY)) for _ in range(5)]
    until_queued(commit, 5)
    commit._lock.acquire()  # the leader finishes its sync and stops here, about to promote
    journal.gate.release()
    assert leader.thread.is_alive()
    journal.durable_sequence = 3  # upkeep synced meanwhile
    commit._lock.release()
    journal.gate.release(2)

    assert leader.join() is None
    assert [waiting.join() for waiting in followers] == [None] * 5
    journal.gate.release()
    commit.wait(journal.append(ENTRY))
    assert not commit._is_led


def test_whoever_is_interrupted_breaks_no_chain_and_keeps_no_lead():
    journal = MemoryJournal()
    commit = GroupCommit(journal)
    first, second, third = (_Waiter(journal.append(ENTRY)) for _ in range(3))
    commit._is_led = True
    first.next = second
    commit._leave(first)
    assert not second.turn.locked()

    commit._waiters = [second, third]
    commit._leave(second)
    assert commit._waiters == [third]
    first.leads = True
    commit._leave(first)
    assert third.leads
    assert not third.turn.locked()
    third.wake()


def test_many_threads_lose_nothing():
    journal = MemoryJournal()
    commit = GroupCommit(journal)
    lock = threading.Lock()
    early: list[int] = []

    def push() -> None:
        for _ in range(200):
            with lock:
                sequence = journal.append(ENTRY)
            commit.wait(sequence)
            if journal.durable_sequence < sequence:
                early.append(sequence)

    threads = [threading.Thread(target=push, daemon=True) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert not any(thread.is_alive() for thread in threads)
    assert journal.durable_sequence == 3200
    assert early == []
    assert not commit._is_led


def test_tasks_that_append_in_one_turn_of_the_loop_share_one_sync():
    journal = GatedJournal()
    commit = GroupCommit(journal)
    journal.gate.release(1)
    confirmer: Confirmer

    async def push() -> None:
        await confirmer.future(journal.append(ENTRY))

    async def main() -> None:
        nonlocal confirmer
        confirmer = Confirmer(commit, asyncio.get_running_loop())
        await asyncio.gather(*(push() for _ in range(64)))

    asyncio.run(main())
    commit.close()
    assert journal.durable_sequence == 64
    assert journal.syncs == 1


def test_a_failure_reaches_every_future_with_an_error_of_its_own():
    journal = GatedJournal()
    commit = GroupCommit(journal)
    sequences = [journal.append(ENTRY) for _ in range(8)]
    journal.failed = StorageError("input/output error")
    journal.gate.release()

    async def main() -> list[BaseException | None]:
        confirmer = Confirmer(commit, asyncio.get_running_loop())
        futures = [confirmer.future(sequence) for sequence in sequences]
        return await asyncio.gather(*futures, return_exceptions=True)

    errors = asyncio.run(main())
    commit.close()
    assert all(isinstance(error, OutcomeUnknown) for error in errors)
    assert len({id(error) for error in errors}) == 8


def test_a_cancelled_future_disturbs_nobody():
    journal = MemoryJournal()
    commit = GroupCommit(journal)

    async def main() -> None:
        confirmer = Confirmer(commit, asyncio.get_running_loop())
        first, second = (confirmer.future(journal.append(ENTRY)) for _ in range(2))
        first.cancel()
        await second

    asyncio.run(main())
    commit.close()


def test_a_loop_that_was_closed_meanwhile_disturbs_nobody():
    journal = GatedJournal()
    commit = GroupCommit(journal)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(_begin(commit, journal, loop))
    assert journal.entered.acquire(timeout=PATIENCE_SECONDS)
    loop.close()
    journal.gate.release()
    commit.close()
    assert journal.durable_sequence == 1


async def _begin(commit: GroupCommit, journal: GatedJournal, loop: asyncio.AbstractEventLoop) -> None:
    Confirmer(commit, loop).future(journal.append(ENTRY))
    turn = loop.create_future()
    loop.call_soon(turn.set_result, None)
    await turn


def test_closing_resolves_what_is_outstanding_and_what_comes_in_the_same_turn():
    journal = MemoryJournal()
    commit = GroupCommit(journal)

    async def main() -> None:
        confirmer = Confirmer(commit, asyncio.get_running_loop())
        outstanding = confirmer.future(journal.append(ENTRY))
        commit.close()
        await outstanding
        await confirmer.future(journal.append(ENTRY))

    asyncio.run(main())
    commit.close()
