"""The catalogue: what has become of each task, as the journal tells it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock.catalogue import Catalogue
from penstock.clock import ManualClock
from penstock.envelopes import new_task_id, tasks_batch
from penstock.model import Outcome
from penstock.model_tasks import TaskFilter, TaskState, TaskSubmission, TaskView
from penstock.opening import open_in_memory
from penstock.requests import LeaseRequest, Settling
from penstock.shard import Shard


class Scene:
    """A shard in memory, its catalogue, and a hand to do things with."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.shard: Shard = open_in_memory(self.clock, random.Random(1))
        self.catalogue = Catalogue(self.shard)

    def submit(self, count: int = 1, **fields: Any) -> list[str]:
        tasks = [submission(new_task_id(self.clock.now()), **fields) for _ in range(count)]
        self.shard.push(tasks[0].queue, tasks_batch(tasks), None, None)
        return [task.task_id for task in tasks]

    def lease(self, count: int = 1, queue: str = "mail", worker: str = "w1") -> Any:
        return self.shard.lease(queue, "default", LeaseRequest(count, consumer=worker))[0]

    def settle(self, reply: Any, outcome: Outcome, **how: Any) -> None:
        self.shard.settle_lease(reply.nonce, Settling(outcome, **how))

    def find(self, task_id: str) -> TaskView | None:
        self.catalogue.catch_up()
        return self.catalogue.find(task_id)

    def task(self, task_id: str) -> TaskView:
        found = self.find(task_id)
        assert found is not None
        return found

    def state(self, task_id: str) -> str:
        found = self.find(task_id)
        return "gone" if found is None else found.state.value

    def ids(self, **wanted: Any) -> list[str]:
        self.catalogue.catch_up()
        return [task.task_id for task in self.catalogue.page(TaskFilter(**wanted)).tasks]


def submission(task_id: str, **fields: Any) -> TaskSubmission:
    return TaskSubmission(**{"task_id": task_id, "task_type": "mail.send", "queue": "mail"} | fields)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_task_is_there_as_soon_as_it_is_submitted(scene):
    (task_id,) = scene.submit(args=b'["a@b.c",7]', kwargs=b'{"html":true}', priority=3, key="k", workflow="w")

    task = scene.task(task_id)

    assert (task.task_id, task.task_type, task.queue, task.state) == (task_id, "mail.send", "mail", "pending")
    assert (task.args, task.kwargs, task.priority, task.key) == (b'["a@b.c",7]', b'{"html":true}', 3, "k")
    assert (task.message_id, task.max_attempts, task.workflow) == ("mail/0/0", 5, "w")
    assert task.result is None
    assert not task.runs
    assert scene.find(new_task_id(1)) is None
    assert scene.find("no id at all") is None


def test_a_run_is_seen_and_its_end(scene):
    (task_id,) = scene.submit()
    reply = scene.lease(worker="w7")

    running = scene.task(task_id)
    assert (running.state, running.worker, running.attempt) == ("running", "w7", 1)
    assert [(run.attempt, run.worker, run.outcome, run.ended_at) for run in running.runs] == [(1, "w7", "", None)]

    scene.clock.advance(2)
    scene.settle(reply, Outcome.ACKED)
    done = scene.task(task_id)
    assert done.state is TaskState.COMPLETED
    assert (done.finished_at - done.started_at).total_seconds() == 2
    assert [(run.attempt, run.outcome, run.error) for run in done.runs] == [(1, "acked", "")]


def test_a_failure_waits_for_its_next_attempt_and_every_attempt_is_kept(scene):
    (task_id,) = scene.submit(max_attempts=2)
    scene.settle(scene.lease(), Outcome.RETRIED, delay_seconds=10, error="boom")
    failed = scene.task(task_id)
    assert (failed.state, failed.error) == ("failed", "boom")
    assert (failed.due_at - failed.submitted_at).total_seconds() == 10

    scene.clock.advance(11)
    assert scene.state(task_id) == "pending"

    scene.settle(scene.lease(worker="w2"), Outcome.RETRIED, error="bang")
    dead = scene.task(task_id)
    assert (dead.state, dead.error, dead.attempt) == ("dead", "bang", 2)
    assert [(run.attempt, run.worker, run.outcome, run.error) for run in dead.runs] == [
        (1, "w1", "retried", "boom"),
        (2, "w2", "dead", "bang"),
    ]
    assert scene.ids(queue="mail.dlq") == []  # a dead letter is no task of its own
