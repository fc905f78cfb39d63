"""Workflows, schedules and crashes: whatever the moment, no child is stranded and none runs before its parents."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from penstock.clock import ManualClock
from penstock.delivery.admin import decide_delete_queue
from penstock.delivery.snapshot import TasksPart, encode_tasks, take_tasks
from penstock.model_tasks import ScheduleSpec, TaskState
from penstock.repair.directory import diagnose, repair
from penstock.shard.checkpoints import TASKS_PART, Checkpointer
from penstock.shard.opening import close_on_disk, open_on_disk
from penstock.shard.shard import Shard
from penstock.shard.tasks import schedules as task_schedules
from tests.support.accounts import assert_accounts
from tests.support.dose import dose
from tests.support.forgetful import ForgetfulDisk, PowerCut
from tests.support.task_rig import Rig, Run, found, id_of, names, task

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
        rng = random.Random(seed)
        self.shard, self.keeper = open_on_disk(self.disk, self.clock, rng, journal_file_bytes=1 << 16)
        self.rig = Rig(self.shard, self.clock)

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
            lambda: self.shard.confirm(task_schedules.set_schedule(self.shard, spec)[1]),
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
                self.keeper.checkpoint()
            if number % 5 == 4:
                self.keeper.seal()
            self.done = number
            yield number


def state_of(shard: Shard) -> TasksPart:
    encoded = encode_tasks(take_tasks(shard.core.tasks, 0))
    shard.core.tasks.take_back()
    return msgspec.msgpack.decode(encoded, type=TasksPart)


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
        found = state_of(day.shard)
        day.disk.kill()
        day.open(3)
        assert state_of(day.shard) == found, f"operation {operation}: another state when opened again"

        day.clock.advance(600)
        day.work_off()

        tasks = day.shard.core.tasks
        left = [*tasks.held, *tasks.awaited, *tasks.positions, *tasks.ripe]
        assert left == [], f"operation {operation}"
        for number, workflow in ((0, "abcd"), (4, "xyz")):
            assert day.done < number or set(workflow) <= day.finished, f"operation {operation}: {day.finished}"
        assert day.done < 3 or {"dies", "mends"} <= day.finished
        assert len(day.ticks) >= len(set(day.ticks)) >= (day.done >= 1) * 10
        assert_accounts(day.shard)


@pytest.mark.parametrize("checkpointed", [True, False])
@pytest.mark.parametrize("stop", range(12))
def test_what_is_opened_again_is_what_was_there(stop, checkpointed):
    day = Day(0)
    for number in day.live():
        if number == stop:
            break
    if checkpointed:
        day.keeper.checkpoint()
    before = state_of(day.shard)
    day.shard.confirm(day.shard.journal.sequence)
    day.disk.kill()

    day.open(2)

    assert state_of(day.shard) == before


@pytest.mark.parametrize("step", range(12))
@pytest.mark.parametrize("when", ["_take", "_take_sinks", "_take_tasks"])
def test_what_happens_while_a_checkpoint_is_taken_is_not_done_twice(step, when, monkeypatch):
    day = Day(0)
    steps = day.steps()
    for each in steps[:step]:
        each()
    taken: list[int] = []

    def take(self: Checkpointer, *args: Any) -> None:
        if not taken:
            taken.append(1)
            steps[step]()  # between the sequence of the checkpoint and that of one of its parts
        original(self, *args)

    original = getattr(Checkpointer, when)
    monkeypatch.setattr(Checkpointer, when, take)
    day.keeper.checkpoint()
    before = state_of(day.shard)
    day.disk.kill()

    day.open(2)

    assert state_of(day.shard) == before
    day.clock.advance(600)
    day.work_off()
    assert not day.shard.core.tasks.held
    assert_accounts(day.shard)


@pytest.mark.parametrize("step", [*range(12), "q is deleted", "r is deleted"])
def test_what_is_taken_for_a_checkpoint_stays_as_it_was_while_work_goes_on(step):
    day = Day(0)
    steps = day.steps()
    stop = step if isinstance(step, int) else 5
    for each in steps[:stop]:
        each()
    before = state_of(day.shard)
    core = day.shard.core

    taken = take_tasks(core.tasks, 0)
    if isinstance(step, int):
        steps[step]()
        day.work_off()
    else:
        day.shard.change(lambda now: decide_delete_queue(core, core.by_name[step[0]]))

    assert msgspec.msgpack.decode(encode_tasks(taken), type=TasksPart) == before


def lived(stop: int) -> Day:
    """A day up to one of its steps, closed in good order."""
    day = Day(0)
    for number in day.live():
        if number == stop:
            break
    close_on_disk(day.shard, day.keeper, day.disk)
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
    assert not day.shard.core.tasks.held


def test_children_of_a_parent_that_a_repair_had_to_give_up_are_not_stranded():
    day = Day(0)
    day.submit(task("x", queue="lost"))
    (x,) = day.rig.lease("lost")
    day.rig.finish(x.finish("released"))
    parents = {id_of("x"): found(TaskState.PENDING, x)}
    day.rig.submit(
        task("child", "x", queue="r"), task("runs", "x", on_parent_failure="run", queue="r"), parents=parents
    )
    day.keeper.checkpoint()
    day.disk.kill()
    (journal,) = (f"journal/{name}" for name in day.disk.list("journal") if name.endswith(".log"))
    day.disk.flip(journal, 8 * day.disk.read(journal).index(id_of("x").encode()))

    repair(day.disk, diagnose(day.disk, day.clock.now()), day.clock, random.Random(1), journal_file_bytes=1 << 16)
    day.open(2)
    day.rig.tick()

    assert day.rig.held() == set()
    assert day.rig.lease("lost") == []
    assert names(day.rig.lease("r")) == ["runs"]
