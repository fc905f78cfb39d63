"""The task index against the delivery core, itself rebuilt, and the sealed table, through random lives of tasks."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock import limits
from penstock import operations as ops
from penstock.clock import ManualClock
from penstock.delivery.phases import LEASED, SETTLED
from penstock.errors import LeaseLost, MessageNotFound, PenstockError, TaskConflict
from penstock.model import MessageId
from penstock.model_tasks import FINAL, TaskFilter, TaskState, TaskView
from penstock.task_index import index
from penstock.task_index.database import NAME
from tests.behaviour.task_steps import Office, Run
from tests.storage.test_tasks_table import Archive
from tests.support.dose import NIGHTLY
from tests.support.operations import purge_tasks, run_operation

SEEDS = range(200) if NIGHTLY else range(8)
STEPS = 60


class Life:
    """An office in which anything may happen next."""

    def __init__(self, office: Archive, seed: int) -> None:
        self.office = office
        self.rng = random.Random(seed)
        self.ids: list[str] = []
        self.ends: dict[str, TaskView] = {}  # those that were purged or have expired, as they were seen last
        self.expired: set[str] = set()
        self.runs: list[Run] = []
        office.ps.create_queue("mail")

    def step(self) -> None:
        name = self.rng.choice(
            ["enqueue"] * 3
            + ["child", "lease", "lease", "finish", "finish", "finish", "advance", "cancel", "retry", "plain"]
            + ["redrive", "seal", "seal", "purge", "lose", "restart", "progress", "forget", "forget", "expire"]
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
            errors = ["", f"error {self.rng.random()}"]
            reported = {"error": self.rng.choice(errors)} if outcome != "completed" else {}
            delay = {"delay_seconds": 5.0} if outcome == "snoozed" else {}
            run.finish(outcome, self.rng.random(), **reported, **delay)

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

    def forget(self) -> None:
        """A purge of tasks: final ones go; those that wait are cancelled, and go unless a child needs them."""
        states = tuple(self.rng.sample(list(TaskState), self.rng.randint(1, 4)))
        before = views(self.office)
        wanted = TaskFilter(states=states, task_type=self.rng.choice([None, "send", "child"]))
        count = self.office.confirmed(purge_tasks(self.office.session, wanted))
        after = views(self.office)
        gone = {task_id: view for task_id, view in before.items() if task_id not in after}
        assert count == len(gone)
        for view in gone.values():
            # A child that was blocked is cancelled with its parent, and goes if cancelled ones do.
            assert view.state in states or (view.state is TaskState.BLOCKED and TaskState.CANCELLED in states)
            assert view.state is not TaskState.RUNNING
        for view in after.values():
            if view.state in states and view.task_type == (wanted.task_type or view.task_type) and view.is_final:
                assert any(view.task_id in other.depends_on for other in after.values() if not other.is_final)
        self._gone(gone)

    def expire(self) -> None:
        """Tasks that have been final for a week go."""
        if self.rng.random() < 0.3:
            self.office.clock.advance(limits.task_retention_seconds + 1)
            self._expired()

    def _expired(self) -> dict[str, TaskView]:
        before = views(self.office)
        self.office.session.session.tasks.task_index.expire()
        after = views(self.office)
        gone = {task_id: view for task_id, view in before.items() if task_id not in after}
        self.expired |= set(gone)
        self._gone(gone)
        return after

    def _gone(self, gone: dict[str, TaskView]) -> None:
        self.ends |= gone
        self.ids = [task_id for task_id in self.ids if task_id not in gone]

    def seal(self) -> None:
        run_operation(self.office.session, ops.Seal())

    def lose(self) -> None:
        """The database goes; what is shown afterwards is the same."""
        before = self._expired()
        index = self.office.session.session.tasks.task_index
        index.close()
        (self.office.path / NAME).unlink(missing_ok=True)
        self.office.session.session.tasks._task_index = None
        assert views(self.office) == before

    def restart(self) -> None:
        before = views(self.office)
        self.office.reopen()
        self.runs.clear()
        after = views(self.office)
        for task_id, view in before.items():
            if view.state is TaskState.RUNNING:
                run = after[task_id].runs[-1]
                assert (run.attempt, run.worker, run.started_at) == (view.attempt, view.worker, view.started_at)
                assert run.error == "the process stopped"

    def check(self) -> None:
        """Also of some tasks that were asked for by themselves, while the task index was behind."""
        behind = {task_id: self.office.task(task_id) for task_id in self.rng.sample(self.ids, min(3, len(self.ids)))}
        core = self.office.session.session.shard.core
        shown = views(self.office)
        assert set(shown) == set(self.ids)
        assert behind == {task_id: shown[task_id] for task_id in behind}
        for view in shown.values():
            if not view.message_id:
                assert (view.state is TaskState.BLOCKED) == (bytes.fromhex(view.task_id.replace("-", "")) in held(core))
                continue
            place = MessageId.parse(view.message_id)
            progress = core.by_name[place.queue].groups[0].progress[int(place.partition)]
            phase = progress.state_of(place.offset)
            assert view.is_final == (phase == SETTLED), view
            assert (view.state is TaskState.RUNNING) == (phase == LEASED), view

    def check_sealed(self) -> None:
        """The table tells of everybody, also of those that the task index has forgotten."""
        run_operation(self.office.session, ops.Seal())
        lives: dict[str, list[dict[str, Any]]] = {}
        for row in self.office.rows():
            lives.setdefault(row["task_id"], []).append(row)
        for task_id, view in {**views(self.office), **self.ends}.items():
            end = _end_of(lives[task_id])
            if task_id in self.expired:
                # Its dead letter may have been redriven since: a life that the task index does not tell.
                assert view.state in {row["state"] for row in lives[task_id]}
            elif view.is_final:
                assert end["state"] == view.state, (view, lives[task_id])
                assert end["attempt"] in (None, view.attempt), (view, lives[task_id])
            elif task_id in self.ends:
                assert end["state"] == "cancelled"  # it waited when it was purged


def _end_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The row that counts: of those with a final state the first, until one brings the task back."""
    end = rows[0]
    for row in rows:
        if row["state"] == "purged":
            break
        if end["state"] not in FINAL or row["attempt"] == 0 or row["args"] is not None:
            end = row
    return end


def held(core) -> set[bytes]:
    return set(core.tasks.held)


def views(office: Office) -> dict[str, TaskView]:
    page = office.confirmed(run_operation(office.session, ops.ListTasks(TaskFilter(limit=1000))))
    return {view.task_id: office.task(view.task_id) for view in page.tasks}


@pytest.mark.parametrize("seed", SEEDS)
def test_it_shows_what_the_core_knows_and_the_same_when_it_is_rebuilt(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "NEAR", 0)
    office = Archive(tmp_path / "data", ManualClock())
    try:
        life = Life(office, seed)
        for _ in range(STEPS):
            life.step()
        life.lose()
        life.check_sealed()
        life.lose()
    finally:
        office.ps.close()
