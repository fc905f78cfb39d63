"""The catalogue against the delivery core, and against itself made anew, through random lives of many tasks."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.catalogue.store import NAME
from penstock.clock import ManualClock
from penstock.delivery.phases import LEASED, SETTLED
from penstock.errors import LeaseLost, MessageNotFound, PenstockError, TaskConflict
from penstock.model import MessageId
from penstock.model_tasks import TaskFilter, TaskState, TaskView
from tests.behaviour.task_steps import Office, Run
from tests.support.dose import NIGHTLY
from tests.test_tasks_table import Archive

SEEDS = range(200) if NIGHTLY else range(6)
STEPS = 60


class Life:
    """An office in which anything may happen next."""

    def __init__(self, office: Archive, seed: int) -> None:
        self.office = office
        self.rng = random.Random(seed)
        self.ids: list[str] = []
        self.runs: list[Run] = []
        office.ps.create_queue("mail")

    def step(self) -> None:
        name = self.rng.choice(
            ["enqueue"] * 3
            + ["child", "lease", "lease", "finish", "finish", "finish", "advance", "cancel", "retry", "plain"]
            + ["redrive", "seal", "seal", "purge", "lose", "restart", "progress"]
        )
        with suppress(TaskConflict, LeaseLost, MessageNotFound):
            getattr(self, name)()
        self.check()

    def enqueue(self) -> None:
        options: dict[str, Any] = self.rng.choice(
            [{}, {}, {"delay_seconds": 20}, {"ttl_seconds": 15}, {"priority": 3}, {"max_attempts": 1}, {"key": "k"}]
        )
        self.ids += self.office.push(*(self.office.new(**options) for _ in range(self.rng.randint(1, 4))))

    def child(self) -> None:
        known = [each for each in self.rng.choices(self.ids, k=2) if self.ids] if self.ids else []
        parents = tuple(dict.fromkeys(known))
        policy = self.rng.choice(["cancel", "run"])
        self.ids += self.office.submit(self.office.new("child", depends_on=parents, on_parent_failure=policy))

    def plain(self) -> None:
        self.office.ps.queue("mail").push(b"no task")

    def lease(self) -> None:
        deliveries = self.office.ps.queue("mail").lease(self.rng.randint(1, 4), consumer=self.rng.choice("abc"))
        for each in deliveries:
            if each.payload == b"no task":
                each.ack()
            else:
                self.runs.append(Run(self.office, each))

    def finish(self) -> None:
        if self.runs:
            run = self.runs.pop(self.rng.randrange(len(self.runs)))
            outcome = self.rng.choice(["completed", "completed", "failed", "dead", "snoozed", "cancelled", "released"])
            told = {"error": f"error {self.rng.random()}"} if outcome != "completed" else {}
            delay = {"delay_seconds": 5.0} if outcome == "snoozed" else {}
            run.finish(outcome, self.rng.random(), **told, **delay)

    def progress(self) -> None:
        if self.runs:
            self.rng.choice(self.runs).progress(self.rng.random())

    def advance(self) -> None:
        self.office.clock.advance(self.rng.choice([0.5, 10, 40]))

    def cancel(self) -> None:
        if self.ids:
            self.office.cancel(self.rng.choice(self.ids))

    def retry(self) -> None:
        if self.ids:
            self.office.retry(self.rng.choice(self.ids))

    def redrive(self) -> None:
        with suppress(PenstockError):
            self.office.ps.queue("mail").dlq.redrive()

    def purge(self) -> None:
        if self.rng.random() < 0.2:
            self.office.ps.queue("mail").purge()

    def seal(self) -> None:
        self.office.session.seal()

    def lose(self) -> None:
        """The database goes; what is shown afterwards is the same."""
        before = views(self.office)
        catalogue = self.office.session.desk.catalogue
        catalogue.close()
        (self.office.path / NAME).unlink(missing_ok=True)
        self.office.session.desk._catalogue = None
        assert views(self.office) == before

    def restart(self) -> None:
        self.office.reopen()
        self.runs.clear()

    def check(self) -> None:
        core = self.office.session.shard.core
        shown = views(self.office)
        assert set(shown) == set(self.ids)
        for view in shown.values():
            if not view.message_id:
                assert (view.state is TaskState.BLOCKED) == (bytes.fromhex(view.task_id.replace("-", "")) in held(core))
                continue
            place = MessageId.parse(view.message_id)
            progress = core.by_name[place.queue].groups[0].progress[int(place.partition)]
            phase = progress.state_of(place.offset)
            assert view.is_final == (phase == SETTLED), view
            assert (view.state is TaskState.RUNNING) == (phase == LEASED), view


def held(core) -> set[bytes]:
    return set(core.tasks.held)


def views(office: Office) -> dict[str, TaskView]:
    page = office.told(office.session.tasks(TaskFilter(limit=1000)))
    return {view.task_id: office.task(view.task_id) for view in page.tasks}


@pytest.mark.parametrize("seed", SEEDS)
def test_it_shows_what_the_core_knows_and_the_same_when_it_is_made_anew(tmp_path: Path, seed: int) -> None:
    office = Archive(tmp_path / "data", ManualClock())
    try:
        life = Life(office, seed)
        for _ in range(STEPS):
            life.step()
        life.lose()
    finally:
        office.ps.close()
