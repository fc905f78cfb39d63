"""A power cut at any operation of the disk, in the middle of a whole day with all its housework.

What was confirmed by the steps before the cut is there; of the step that was cut, each operation is there whole or not
at all; whatever the image of the disk, the shard opens, adds up, and opens the same a second time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import operations as ops
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from tests.support.accounts import assert_accounts
from tests.support.dose import dose
from tests.support.forgetful import ForgetfulDisk, PowerCut
from tests.support.life import LIFE, TICK
from tests.support.operations import run_operation
from tests.support.state_snapshot import portrait

Log = dict[tuple[str, int, str], list[Any]]


class Day:
    """The steps of a life, with housework after each; `done` counts the steps that were finished."""

    def __init__(self, seed: int) -> None:
        self.clock = ManualClock()
        self.disk = ForgetfulDisk(seed)
        self.done = 0
        self.open(1)

    def open(self, seed: int) -> None:
        self.session = Session(
            None,
            clock=self.clock,
            rng=random.Random(seed),
            disk=self.disk,
            background=False,
            journal_file_bytes=1 << 16,
        )

    def live(self) -> Iterator[int]:
        ps = Penstock(BlockingSession(self.session))
        for number, step in enumerate(LIFE):
            step(ps, self.clock)
            self.done = number + 1
            if number % 3 == 0:
                self.session.checkpoint()
            if number % 4 == 1:
                run_operation(self.session, ops.Seal())
            if number % 5 == 2:
                run_operation(self.session, ops.Compact())
            yield number

    def log(self) -> Log:
        """Every message, by queue, incarnation and partition."""
        return {
            (name, queue["id"], partition): rows
            for name, queue in portrait(self.session).items()
            for partition, rows in queue["log"].items()
        }


@pytest.fixture(scope="module")
def reference() -> list[Log]:
    """The log after each step of a day without a fault."""
    day = Day(0)
    logs = [day.log()]
    logs += [day.log() for _ in day.live()]
    return logs


@pytest.fixture(scope="module")
def operations() -> int:
    """How many operations of the disk a day takes after opening."""
    day = Day(0)
    before = day.disk.operations
    list(day.live())
    return day.disk.operations - before


@pytest.mark.parametrize("share", range(dose(1, 4)))
def test_a_power_cut_at_any_operation_of_the_disk_undoes_nothing_that_was_confirmed(share, reference, operations):
    for operation in range(1 + share, operations + 1, dose(16, 1)):
        day = Day(operation + share * 10_000)
        day.disk.crash_at(operation)
        with pytest.raises(PowerCut):
            list(day.live())
        day.disk = day.disk.crash()
        day.open(2)
        assert_accounts(day.session.shard)
        found = day.log()
        check_between(reference[: day.done + 2], day.done, found, f"operation {operation}")

        day.disk.kill()
        day.open(3)
        day.clock.advance(TICK)
        assert day.log() == found, f"operation {operation}: another log when opened again"
        assert_accounts(day.session.shard)


def check_between(logs: list[Log], done: int, found: Log, when: str) -> None:
    """Everything from before the step is there, and nothing that neither it nor a step before it has written."""
    before, after = logs[done], logs[-1]
    for place, rows in before.items():
        if place in found or place in after:  # else the step deleted it, or retention took it
            kept = found.get(place, [])
            missing = [row for row in rows if row not in kept and row in after.get(place, rows)]
            assert not missing, f"{when}: {place} has lost {missing}"
    for place, rows in found.items():
        known = {row[0]: row for log in logs for row in log.get(place, [])}  # retention may not have come to it yet
        for row in rows:
            assert known.get(row[0]) == row, f"{when}: {place} holds {row}, which nobody pushed"
