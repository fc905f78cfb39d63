"""The world of a simulation: a clock, a disk that lies, a shard on it that dies and is opened again.

Everything runs in one thread and every choice comes from one seed. Confirmation is a step of its own: an operation may
have happened in memory while its client waits, and then the power goes. While the storekeeper is at work other clients
get their turn whenever it lets go of the shard's lock, as other threads would. No hold of that lock takes more than a
bounded number of steps.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import Any

from penstock import operations as ops
from penstock.batch import Batch
from penstock.clock import ManualClock
from penstock.embedded.session import Session
from penstock.errors import InputError, OutcomeUnknown, StateError, StorageError
from tests.simulation.history import FAILED, OK, UNKNOWN, History, Row
from tests.support.accounts import assert_accounts
from tests.support.forgetful import SHORT, ForgetfulDisk, PowerCut
from tests.support.lock_turns import TurnTaking, take_turns
from tests.support.operations import run_operation
from tests.support.step_counts import limit_steps

Act = Callable[[Session], tuple[Any, int]]

OPENINGS_MAX = 5  # that a fault may spoil, one after the other


class ProcessGone(BaseException):
    """What the storekeeper of a process that died meanwhile meets."""


def _look_ahead(session: Session) -> None:
    keeper = session.keeper
    assert keeper is not None
    for _ in range(20):  # each round reaches one share of the delays further
        keeper._refill_delays()


class World:
    """See the module's rules."""

    def __init__(self, seed: int, queues: dict[str, dict[str, Any]]) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.disk = ForgetfulDisk(self.rng.getrandbits(32))
        self.history = History(queues)
        self.pending: list[tuple[Row, int]] = []
        self.journal_file_bytes = self.rng.choice([1 << 13, 1 << 15, 1 << 18])
        self.deaths = 0
        self.session = self.open()
        for name, options in queues.items():
            self.session.shard.confirm(run_operation(self.session, ops.CreateQueue(name, options, exist_ok=False)))
            self.session.shard.confirm(run_operation(self.session, ops.CreateGroup(name, "other", "earliest")))

    # operations of clients

    def do(self, client: str, op: str, act: Act, **args: Any) -> Row:
        """One operation; its client is told at once, or later by `confirm_one`, or never."""
        row = self.history.add(self.clock.now(), client, op, **args)
        try:
            row.result, ticket = act(self.session)
            self.pending.append((row, ticket))
            if self.rng.random() < 0.8:
                self._confirm(len(self.pending) - 1)
        except PowerCut:
            self.die(self.rng.choice(["power", "kill"]))
        except (InputError, StateError) as error:
            row.outcome, row.error = FAILED, f"{type(error).__name__}: {error}"
        except StorageError as error:
            row.error = f"{type(error).__name__}: {error}"
            if isinstance(error, OutcomeUnknown):
                self._expect_silence()
            self.die("failure")
        return row

    def _expect_silence(self) -> None:
        """After a failed write or sync the shard confirms nothing any more."""
        try:
            _, ticket = self.session.push("plain", Batch.build([b"never"]), None, None)
            self.session.shard.confirm(ticket)
        except (OutcomeUnknown, PowerCut):
            return
        raise AssertionError("the shard carried on after a failure of its journal")

    def confirm_one(self) -> None:
        """Somebody who waits is told, if the disk lets it be."""
        if self.pending:
            try:
                self._confirm(self.rng.randrange(len(self.pending)))
            except PowerCut:
                self.die(self.rng.choice(["power", "kill"]))
            except StorageError:
                self.die("failure")

    def _confirm(self, index: int) -> None:
        row, ticket = self.pending[index]
        self.session.shard.confirm(ticket)
        del self.pending[index]
        row.outcome, row.notified_at = OK, self.clock.now()

    # the storekeeper

    def keep(self, work: Callable[[Session], Any], turn: Callable[[], None]) -> None:
        """Sealing, checkpoints, compaction; `turn` lets a client in between."""
        counted: Any = self.session.shard.lock
        lock = counted.inner
        assert isinstance(lock, TurnTaking)
        session = self.session
        lock.on_release = lambda: self._take_turn(session, turn)
        try:
            work(session)
        except ProcessGone:
            return
        except PowerCut:
            self.die(self.rng.choice(["power", "kill"]))
        except StorageError:
            # A disk that refuses a checkpoint or a segment stops nothing; a journal that failed stops everything.
            if session.shard.journal.failed is not None or self.rng.random() < 0.5:
                self.die("failure")
        finally:
            lock.on_release = None

    def _take_turn(self, session: Session, turn: Callable[[], None]) -> None:
        if self.rng.random() < 0.3:
            turn()
            if self.session is not session:
                raise ProcessGone

    def wait(self, seconds: float) -> None:
        """Time passes; the storekeeper looks ahead, and whoever wants to notices."""
        self.clock.advance(seconds)
        self.keep(_look_ahead, lambda: None)
        if self.rng.random() < 0.5:
            self.do("clock", "tick", lambda session: (None, run_operation(session, ops.Queues())[1]))

    # faults

    def arm(self) -> None:
        """Let the power fail, or an operation of the disk, some operations from now."""
        soon = self.rng.choice([1, 2, 3, 5, 10, 30])
        if self.rng.random() < 0.5:
            self.disk.crash_at(self.rng.randint(1, soon))
        else:
            self.disk.fail_at(self.rng.randint(1, soon), self.rng.choice([errno.EIO, errno.ENOSPC, SHORT]))

    def die(self, how: str) -> None:
        """The process ends: by a power cut, by kill -9, after a failure of the disk, or cleanly."""
        self._end(how)
        for row, _ in self.pending:
            row.outcome = UNKNOWN
        self.pending.clear()
        self.deaths += 1
        for opening in range(OPENINGS_MAX):
            if opening < OPENINGS_MAX - 1 and self.rng.random() < 0.2:
                self.arm()
            if self._opens():
                break
        else:
            raise AssertionError("the shard does not open, though the disk does as it is told")

    def _opens(self) -> bool:
        had_fired = self.disk.fired
        try:
            self.session = self.open()
            assert_accounts(self.session.shard)
        except PowerCut:
            self._stop_disk(self.rng.choice(["power", "kill"]))
            return False
        except StorageError:
            if had_fired or not self.disk.fired:
                raise
            self._stop_disk("failure")
            return False
        return True

    def _end(self, how: str) -> None:
        if how == "clean":
            try:
                self.session.close()
            except PowerCut:
                how = "power"
            except StorageError:
                how = "failure"
        self._stop_disk(how)

    def _stop_disk(self, how: str) -> None:
        self.history.add(self.clock.now(), "world", "death", how=how).outcome = OK
        if how == "power":
            self.disk = self.disk.crash()
        else:
            self.disk.kill()

    def open(self) -> Session:
        session = Session(
            None,
            clock=self.clock,
            rng=random.Random(self.rng.getrandbits(64)),
            disk=self.disk,
            background=False,
            journal_file_bytes=self.journal_file_bytes,
        )
        take_turns(session)
        limit_steps(session)
        return session
