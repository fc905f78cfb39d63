"""Tasks that mistreat their processes, and faults at random moments, by seed: forks that return, grandchildren that
live on, busy progress threads, SIGKILL of each process, SIGSTOP of a worker for longer than its leases last.

What always holds: every task completes with its own result and its own progress; attempts at a task begin in order, and
one begins only when the last is over (unless that was running in a worker which stood still); a worker that is stopped
ends well, and nothing is left of anybody.
"""

from __future__ import annotations

import os
import random
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import QUIET, Served
from tests.support.children import Children, Job, children_of, is_gone
from tests.support.dose import dose
from tests.support.worker_process import PATIENCE_SECONDS, WorkerProcess

BIG = 300_000
TASKS = (
    "echo", "fork_and_return", "fork_and_raise", "fork_and_exit", "leave_a_thread", "tell_in_threads",
    "leave_processes_behind", "die_and_leave_processes", "take_too_long_with_processes", "close_all_descriptors",
    "become_another_program", "take_a_while", "take_a_while", "take_a_while",
)  # fmt: skip


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Served(tmp_path_factory.mktemp("broker"), *QUIET) as broker:
        yield broker.url("tcp")


class Scene:
    """One seed: its tasks, its workers, and what is done to them."""

    def __init__(self, children: Children, rng: random.Random) -> None:
        self.children = children
        self._rng = rng
        self._alive: list[WorkerProcess] = []
        self.excused: set[str] = set()  # tasks that ran in a worker when it was made to stand still
        self.start()
        self.jobs: list[Job] = []
        self.enqueue(rng.randint(4, 8))

    def start(self) -> None:
        self.children.start(processes=self._rng.randint(1, 3))
        self._alive.append(self.children.worker)

    def enqueue(self, count: int) -> None:
        first = len(self.jobs) + 1
        self.jobs += [self.children.enqueue(self._rng.choice(TASKS), n) for n in range(first, first + count)]

    def until_some_began(self) -> None:
        self.children.until_noted("start", times=self._rng.randint(1, len(self.jobs)))

    # faults

    def kill_a_child(self) -> None:
        found = [pid for pid in children_of(self.children.worker.process.pid) if pid not in guardians(self.worker)]
        if found:
            self._kill(self._rng.choice(found))

    def kill_something_left(self) -> None:
        left = self.children.left_behind()
        if left:
            self._kill(self._rng.choice(left))

    def kill_the_guardian(self) -> None:
        """Worker and guardian killed in one moment is more than anybody can mend: wait until there is another."""
        (old,) = until(lambda: guardians(self.worker))
        self._kill(old)
        until(lambda: [pid for pid in guardians(self.worker) if pid != old])

    def kill_the_worker(self) -> None:
        self._alive.remove(self.worker)
        self._kill(self.worker.process.pid)
        self.start()

    def let_the_worker_stand_still(self) -> None:
        """Alone or with its processes, until another has done everything. What it had not begun, it never begins."""
        stopped = self.worker
        its_own = set(children_of(stopped.process.pid)) - set(guardians(stopped))
        pids = [stopped.process.pid, *(its_own if self._rng.random() < 0.5 else ())]
        for pid in pids:
            self._kill(pid, signal.SIGSTOP)
        self.start()
        for job in self.jobs:
            self.children.result(job)
        self.excused |= {n for n, _, pid in self.children.noted("start") if int(pid) in its_own}
        for pid in pids:
            self._kill(pid, signal.SIGCONT)

    @property
    def worker(self) -> WorkerProcess:
        return self.children.worker

    def _kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    # what must hold

    def check(self) -> None:
        children = self.children
        for job in self.jobs:
            expected: Any = str(job.n) * BIG if job.name == "tell_in_threads" else job.n
            assert children.result(job) == expected, job
            reported = children.progress(job)
            assert reported is None or reported["task"] == job.n, (job, reported)
        for worker in self._alive:
            worker.signal()
        assert [worker.ended() for worker in self._alive] == [0] * len(self._alive)
        assert all(is_gone(int(pid)) for *_, pid in children.noted("start"))
        assert all(is_gone(pid) for pid in children.left_behind())
        begun: dict[str, list[int]] = {}
        for n, attempt, _ in children.noted("start"):
            begun.setdefault(n, []).append(int(attempt))
        assert {n: attempts for n, attempts in begun.items() if attempts != sorted(attempts)} == {}
        assert [n for n, _ in children.noted("overlap") if n not in self.excused] == []


def guardians(worker: WorkerProcess) -> list[int]:
    found = []
    for pid in children_of(worker.process.pid):
        with suppress(OSError):
            if b"guardian.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def until(find: Callable[[], list[int]]) -> list[int]:
    """What is found at last."""
    limit = time.monotonic() + PATIENCE_SECONDS
    while not (found := find()):
        assert time.monotonic() < limit
        select.select([], [], [], 0.01)
    return found


FAULTS = (
    Scene.kill_the_worker, Scene.let_the_worker_stand_still, Scene.kill_a_child, Scene.kill_the_guardian,
    Scene.kill_something_left,
)  # fmt: skip


@pytest.mark.parametrize("seed", range(dose(10, 200)))
def test_whatever_happens_to_processes_tasks_run_one_attempt_after_the_other(tmp_path, url, seed):
    rng = random.Random(seed)
    with Children(tmp_path, url) as children:
        scene = Scene(children, rng)
        for fault in (FAULTS[seed % len(FAULTS)], *rng.choices(FAULTS, k=rng.randint(0, 2))):
            scene.until_some_began()
            fault(scene)
            scene.enqueue(rng.randint(1, 3))
        scene.check()
