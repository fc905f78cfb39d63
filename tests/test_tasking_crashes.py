"""Workflows, schedules and crashes: whatever the moment, no child is stranded and none runs before its parents."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from penstock import tasking
from penstock.checkpointing import TASKS_PART
from penstock.clock import ManualClock
from penstock.delivery.lost import give_up
from penstock.delivery.tasks import TasksPart, encode_tasks
from penstock.embedded import Session
from penstock.model_tasks import ScheduleSpec
from penstock.repair import diagnose, repair
from tests.support.accounts import assert_accounts
from tests.support.dose import dose
from tests.support.forgetful import ForgetfulDisk, PowerCut
from tests.support.tasking import Rig, Run, task

PARENTS = {
    "b": {"a"}, "c": {"a"}, "d": {"b", "c"}, "e": {"d"},
    "doomed": {"dies"}, "doomed too": {"doomed"}, "mends": {"dies"},
    "y": {"x"}, "z": {"x", "y"}, "late": {"z"},
}  # fmt: skip


class Day:
    """A day with tasks on a disk that may fail at any operation."""

    def __init__(self, seed: int) -> None:
        self.clock = ManualClock()
        self.disk = ForgetfulDisk(seed)
        self.finished: set[str] = set()  # whoever asked a worker to finish them
        self.ticks: list[str] = []
        self.done = -1  # the last step that was finished
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
        self.rig = Rig(self.session.shard, self.clock)

    def submit(self, *tasks: Any) -> None:
        self.rig.submit(*tasks)

    def run(self, run: Run) -> None:
        """What a worker does; it sees that the parents of its task are done."""
        if run.task_type == "tick":
            self.ticks.append(run.task_id)
        if run.task_type != "mends":
            assert PARENTS.get(run.task_type, set()) <= self.finished, f"{run.task_type} runs before its parents"
        assert not run.task_type.startswith("doomed")
        outcome = "dead" if run.task_type == "dies" else "completed"
        self.finished.add(run.task_type)
        assert self.rig.finish(run.finish(outcome, error="no" if outcome == "dead" else "")) == [None]

    def run_all(self, queue: str = "q") -> None:
        for run in self.rig.lease(queue, count=2):
            self.run(run)

    def work_off(self) -> None:
        while runs := [*self.rig.lease("q", 1), *self.rig.lease("r", 1)]:
            for run in runs:
                self.run(run)

    def steps(self) -> list[Callable[[], object]]:
        spec = ScheduleSpec(name="s", cron="* * * * *", missed="catch_up", task_type="tick", queue="q")
        return [
            lambda: self.submit(task("d", "b", "c"), task("b", "a", queue="r"), task("a"), task("c", "a")),
            lambda: tasking.set_schedule(self.rig.shard, spec),
            self.run_all,
            lambda: self.submit(
                task("dies"), task("doomed", "dies"), task("mends", "dies", on_parent_failure="run", queue="r")
            ),
            lambda: self.submit(task("x", unique_key="k"), task("y", "x", unique_key="l"), task("z", "x", "y")),
            lambda: self.run_all("r"),
            lambda: self.clock.advance(61),
            self.run_all,
            lambda: self.submit(task("e", "d"), task("d", "b", "c")) if "d" not in self.finished else None,
            lambda: self.clock.advance(61),
            self.run_all,
            self.run_all,
        ]

    def live(self) -> Iterator[int]:
        for number, step in enumerate(self.steps()):
            step()
            if number % 2 == 0:
                self.session.checkpoint()
            if number % 5 == 4:
                self.session.seal()
            self.done = number
            yield number


def state_of(session: Session) -> TasksPart:
    return msgspec.msgpack.decode(encode_tasks(session.shard.core.tasks, 0), type=TasksPart)


@pytest.fixture(scope="module")
def operations() -> int:
    day = Day(0)
    before = day.disk.operations
    list(day.live())
    return day.disk.operations - before


@pytest.mark.parametrize("share", range(dose(1, 4)))
def test_a_power_cut_at_any_operation_strands_nobody_and_lets_nobody_run_too_early(share, operations):
    for operation in range(1 + share, operations + 1, dose(9, 1)):
        day = Day(operation + share * 10_000)
        day.disk.crash_at(operation)
        with pytest.raises(PowerCut):
            list(day.live())
        day.disk = day.disk.crash()
        day.open(2)
        found = state_of(day.session)
        day.disk.kill()
        day.open(3)
        assert state_of(day.session) == found, f"operation {operation}: another state when opened again"

        day.clock.advance(600)
        day.work_off()

        tasks = day.session.shard.core.tasks
        left = [*tasks.held, *tasks.awaited, *tasks.places, *tasks.ripe]
        assert left == [], f"operation {operation}"
        for number, names in ((0, "abcd"), (4, "xyz")):
            assert day.done < number or set(names) <= day.finished, f"operation {operation}: {names} {day.finished}"
        assert day.done < 3 or {"dies", "mends"} <= day.finished
        assert len(day.ticks) >= len(set(day.ticks)) >= (day.done >= 1) * 10
        assert_accounts(day.session.shard)


@pytest.mark.parametrize("checkpointed", [True, False])
@pytest.mark.parametrize("stop", range(12))
def test_what_is_opened_again_is_what_was_there(stop, checkpointed):
    day = Day(0)
    for number in day.live():
        if number == stop:
            break
    if checkpointed:
        day.session.checkpoint()
    before = state_of(day.session)
    day.session.confirm(day.session.shard.journal.sequence)
    day.disk.kill()

    day.open(2)

    assert state_of(day.session) == before


def lived(stop: int) -> Day:
    """A day up to one of its steps, closed in good order."""
    day = Day(0)
    for number in day.live():
        if number == stop:
            break
    day.session.close()
    day.disk = day.disk.kill()
    return day


def test_doctor_and_verify_find_nothing_wrong_with_tasks():
    day = lived(8)

    assert diagnose(day.disk, day.clock.now()).is_sound


def test_a_repair_goes_on_without_a_damaged_part_and_says_so():
    day = lived(4)
    (part,) = (name for name in day.disk.list("checkpoints") if name.startswith(TASKS_PART))
    day.disk.flip(f"checkpoints/{part}", 12)
    diagnosis = diagnose(day.disk, day.clock.now())
    assert any("tasks that waited for others are forgotten" in note for note in diagnosis.report().notes)

    repair(day.disk, diagnosis, day.clock, random.Random(1), journal_file_bytes=1 << 16)

    day.open(2)
    assert not day.session.shard.core.tasks.held


def test_a_repair_keeps_what_is_sound_and_children_of_lost_parents_are_not_stranded():
    day = Day(0)
    day.submit(task("x"), task("child", "x"), task("runs", "x", on_parent_failure="run", queue="r"))
    day.session.checkpoint()
    day.session.confirm(day.session.shard.journal.sequence)
    partition = day.session.shard.core.by_name["q"].partitions[0]
    give_up(partition, [(0, 1)])  # what a repair does when no file holds the message any more
    day.session.checkpoint()
    day.disk = day.disk.kill()
    repair(day.disk, diagnose(day.disk, day.clock.now()), day.clock, random.Random(1), journal_file_bytes=1 << 16)

    day.open(2)
    day.rig.tick()

    assert day.rig.held() == set()
    assert day.rig.lease() == []
    assert [run.task_type for run in day.rig.lease("r")] == ["runs"]
