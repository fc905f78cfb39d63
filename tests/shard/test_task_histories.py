"""Any graph of tasks, any history of runs, crashes and people who interfere: in the end everybody got what was due."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from penstock import limits
from penstock.clock import ManualClock
from penstock.delivery.dedup import digest
from penstock.delivery.progress import Progress
from penstock.errors import TaskConflict
from penstock.model import MessageId
from penstock.model_tasks import TaskState
from penstock.requests import ParentFound
from penstock.shard.opening import open_on_disk
from penstock.shard.tasks import changes
from penstock.shard.tasks import finish as task_finish
from tests.support.accounts import assert_accounts
from tests.support.dose import dose
from tests.support.forgetful import ForgetfulDisk
from tests.support.task_rig import Rig, Run, id_of, task

QUEUES = ("q", "r", "s")
OUTCOMES = ("completed", "completed", "completed", "failed", "dead", "cancelled", "snoozed", "released")


class History:
    """Graphs and what happens to them. `ended` says how a task ended by itself: ok, failed, or stopped by somebody."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.disk = ForgetfulDisk(seed)
        self.open()
        self.parents: dict[str, list[str]] = {}
        self.policy: dict[str, str] = {}
        self.queue: dict[str, str] = {}
        self.ended: dict[str, str] = {}
        self.places: dict[str, MessageId] = {}
        self.running: list[Run] = []
        self.again: set[str] = set()  # those that somebody retried
        self.lost: Counter[str] = Counter()  # attempts that were lost with a worker

    def open(self) -> None:
        shard, self.keeper = open_on_disk(self.disk, self.clock, random.Random(1), journal_file_bytes=1 << 16)
        self.rig = Rig(shard, self.clock)

    def submit(self) -> None:
        """A graph of its own; its tasks are told in any order."""
        first = len(self.parents)
        names = [f"t{first + n}" for n in range(self.rng.randint(1, 8))]
        tasks: list[Any] = []
        for place, name in enumerate(names):
            self.parents[name] = self.rng.sample(names[:place], min(place, self.rng.choice([0, 1, 1, 2, 3])))
            self.policy[name] = self.rng.choice(["cancel", "cancel", "run"])
            self.queue[name] = self.rng.choice(QUEUES)
            more: dict[str, Any] = {"on_parent_failure": self.policy[name], "max_attempts": 2}
            tasks.append(task(name, *self.parents[name], queue=self.queue[name], **more))
        self.rng.shuffle(tasks)
        self.rig.submit(*tasks)

    def lease(self) -> None:
        for run in self.rig.lease(self.rng.choice(QUEUES), self.rng.randint(1, 3)):
            self.begin(run)

    def begin(self, run: Run) -> None:
        name = run.task_type
        for parent in self.parents[name]:
            end = self.end_of(parent)
            if self.policy[name] == "run" and self.may_have_failed(parent):
                continue  # its parent failed once, and that was enough
            assert end, f"{name} runs before {parent}"
            assert end == "ok" or self.policy[name] == "run", f"{name} runs although {parent} is {end}"
        assert name not in self.ended, f"{name} runs once more"
        self.places[name] = MessageId(run.receipt.queue, run.receipt.partition, run.receipt.offset)
        self.running.append(run)

    def may_have_failed(self, name: str) -> bool:
        """Whether it was brought back, or one because of which it was cancelled."""
        return name in self.again or any(map(self.may_have_failed, self.parents[name]))

    def end_of(self, name: str) -> str:
        """How a task ended, also when that was its parents' fault; nothing while it has not."""
        has_lost = any(self.end_of(parent) not in ("", "ok") for parent in self.parents[name])
        return self.ended.get(name, "doomed" if has_lost and self.policy[name] == "cancel" else "")

    def finish(self) -> None:
        some = [self.running.pop() for _ in range(min(len(self.running), self.rng.randint(1, 3)))]
        outcomes = [self.rng.choice(OUTCOMES) for _ in some]
        finishes = [
            run.finish(outcome, error="why" if outcome != "completed" else "", delay_seconds=0.1)
            for run, outcome in zip(some, outcomes, strict=True)
        ]
        for run, outcome, answer in zip(some, outcomes, self.rig.finish(*finishes), strict=True):
            is_last = run.receipt.attempt - self.lost[run.task_type] == 2 and outcome == "failed"
            if answer is None and (outcome in ("completed", "dead", "cancelled") or is_last):
                self.ended[run.task_type] = "ok" if outcome == "completed" else "failed"

    def interfere(self) -> None:
        """Somebody cancels a task, wherever it stands."""
        unfinished = [name for name in self.parents if name not in self.ended]
        if not unfinished:
            return
        name = self.rng.choice(unfinished)
        self.rig.tick()  # whoever waited for a run that a restart ended is free now
        is_held = id_of(name) in self.rig.held()
        if is_held or name in self.places:
            ticket, _ = changes.cancel(self.rig.shard, None if is_held else self.places[name], id_of(name))
            self.rig.shard.confirm(ticket)
            self.ended[name] = "stopped"
            self.running = [run for run in self.running if run.task_type != name]

    def bring_back(self) -> None:
        """Somebody retries a task that did not complete; whoever was cancelled because of it waits again."""
        lost = [name for name in self.parents if self.end_of(name) not in ("", "ok")]
        if not lost:
            return
        name = self.rng.choice(lost)
        self.rig.tick()
        asked = changes.kin(self.rig.shard, id_of(name))
        known = changes.Kin(asked, {id_of(each): self.find(each) for each in self.parents if id_of(each) in asked})
        seen = self.find(name)
        try:
            ticket = changes.retry(self.rig.shard, seen.position, id_of(name), seen.state, None, known)
        except TaskConflict:
            assert seen.position is None
            assert any(self.end_of(parent) not in ("", "ok") for parent in self.parents[name])
            return
        self.rig.shard.confirm(ticket)
        self.ended.pop(name)
        self.again.add(name)
        self.lost[name] = 0

    def find(self, name: str) -> ParentFound:
        """What a task index would tell of a task."""
        place = self.place_of(name)
        end = self.end_of(name)
        if end:
            is_dead = place is not None and place.offset in (self.progress_of(place).dead_offsets or ())
            lost = TaskState.DEAD if is_dead else TaskState.CANCELLED
            return ParentFound(place, TaskState.COMPLETED if end == "ok" else lost)
        return ParentFound(place, TaskState.BLOCKED if place is None else TaskState.PENDING)

    def place_of(self, name: str) -> MessageId | None:
        """Where its message is, as its queue remembers it."""
        queue = self.rig.shard.core.by_name[self.queue[name]]
        known = queue.dedup.find(digest(id_of(name)), self.clock.now()) if queue.dedup is not None else None
        return None if known is None else MessageId(queue.name, queue.partitions[known.partition].name, known.offset)

    def progress_of(self, place: MessageId) -> Progress:
        queue = self.rig.shard.core.by_name[place.queue]
        return queue.groups[0].progress[queue.by_name[place.partition].id]

    def pass_time(self) -> None:
        """Leases may run out; whoever held them holds nothing."""
        self.rig.tick(self.rng.choice([0.2, 1.0, 40.0]))
        self.learn_of_deaths()

    def lose_a_worker(self) -> None:
        self.rig.shard.confirm(task_finish.expire_consumer(self.rig.shard, "w"))
        self.learn_of_deaths()

    def restart(self) -> None:
        self.rig.shard.confirm(self.rig.shard.journal.sequence)
        self.disk.kill()
        self.open()
        self.learn_of_deaths()

    def learn_of_deaths(self) -> None:
        """Runs that are lost; they do not count towards the two attempts that a task has."""
        leases = self.rig.shard.core.leases
        for run in [run for run in self.running if run.receipt.nonce not in leases]:
            self.running.remove(run)
            self.lost[run.task_type] += 1
            if self.lost[run.task_type] == limits.task_attempts_lost_max:
                self.ended[run.task_type] = "failed"

    def live(self) -> None:
        acts = [self.submit, self.lease, self.lease, self.lease, self.finish, self.finish, self.finish]
        rare = [
            self.interfere,
            self.bring_back,
            self.bring_back,
            self.pass_time,
            self.lose_a_worker,
            self.restart,
            self.keeper_checkpoint,
            self.seal,
        ]
        for _ in range(60):
            self.rng.choice(rare if self.rng.random() < 0.25 else acts)()

    def keeper_checkpoint(self) -> None:
        self.keeper.checkpoint()

    def seal(self) -> None:
        self.keeper.seal()

    def work_off(self) -> None:
        self.rig.tick(100)
        self.learn_of_deaths()
        idle = 0
        while idle < 3:
            runs = [run for queue in QUEUES for run in self.rig.lease(queue)]
            for run in runs:
                self.begin(run)
                self.rig.complete(run)
                self.ended[run.task_type] = "ok"
                self.running.remove(run)
            idle = 0 if runs else idle + 1
            self.rig.tick(100)


@pytest.mark.parametrize("seed", range(dose(25, 1_000)))
def test_any_history_of_any_graph_ends_with_everybody_served(seed):
    history = History(seed)
    history.live()

    history.work_off()

    tasks = history.rig.shard.core.tasks
    assert [*tasks.held, *tasks.awaited, *tasks.positions, *tasks.where, *tasks.ripe] == []
    assert tasks.held_bytes == 0
    assert [name for name in history.parents if not history.end_of(name)] == []
    assert_accounts(history.rig.shard)
