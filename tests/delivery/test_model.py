"""The real delivery core against a small obvious model: promises 4, 5, 6, 8, 9, 10, 11 and 12 of RELIABILITY.md.

CI runs 60 examples of 40 steps of each machine, always the same ones; `PENSTOCK_DOSE=nightly` runs 500 of 50, each
night others.
"""

from __future__ import annotations

import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from penstock import operations as ops
from penstock.client.handles import Penstock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from tests.support.dose import NIGHTLY, dose
from tests.support.forgetful import ForgetfulDisk
from tests.support.machine import QueueMachine
from tests.support.model import TICK
from tests.support.operations import run_operation
from tests.support.step_counts import limit_steps

DOSE = settings(
    max_examples=dose(60, 500),
    stateful_step_count=dose(40, 50),
    deadline=None,
    derandomize=not NIGHTLY,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


class KeyOrderedMachine(QueueMachine):
    """One message of a key at a time."""

    ordering = "key"


class PartitionOrderedMachine(QueueMachine):
    """One lease per partition at a time."""

    ordering = "partition"


class DurableMachine(QueueMachine):
    """The machine on a disk: sealed, checkpointed, compacted, and reopened after clean and unclean stops."""

    disk: ForgetfulDisk | None = None
    opened = 0

    def open_session(self) -> Session:
        self.disk = ForgetfulDisk(1) if self.disk is None else self.disk
        self.opened += 1
        return Session(
            None,
            clock=self.clock,
            rng=random.Random(self.opened),  # nonces of another process are others
            disk=self.disk,
            background=False,
            journal_file_bytes=1 << 16,
        )

    @precondition(lambda self: self.disk)
    @rule()
    def seal(self) -> None:
        run_operation(self.session, ops.Seal())

    @precondition(lambda self: self.disk)
    @rule()
    def checkpoint(self) -> None:
        self.session.checkpoint()

    @precondition(lambda self: self.disk)
    @rule()
    def compact(self) -> None:
        run_operation(self.session, ops.Compact())

    @precondition(lambda self: self.disk)
    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        assert self.disk is not None
        if clean:
            self.session.close()
        self.disk.kill()
        self.session = self.open_session()
        limit_steps(self.session)
        self.penstock = Penstock(BlockingSession(self.session))
        self.model.stopped()
        # Timers that were due at the stop fire with the first tick of the new process.
        self.clock.advance(2 * TICK / 1e6)
        self.penstock.queues()
        self.model.tick(self.clock.now())
        self.forget_ended()


class DurableKeyOrderedMachine(DurableMachine):
    """Key order through restarts."""

    ordering = "key"


class DurablePartitionOrderedMachine(DurableMachine):
    """Partition order through restarts."""

    ordering = "partition"


def case_of(machine: type[QueueMachine]):
    case = machine.TestCase
    case.settings = DOSE
    return case


TestUnordered = case_of(QueueMachine)
TestOrderedByKey = case_of(KeyOrderedMachine)
TestOrderedByPartition = case_of(PartitionOrderedMachine)
TestDurable = case_of(DurableMachine)
TestDurableOrderedByKey = case_of(DurableKeyOrderedMachine)
TestDurableOrderedByPartition = case_of(DurablePartitionOrderedMachine)
