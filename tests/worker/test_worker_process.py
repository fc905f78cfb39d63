"""Workers as processes, over a real broker: killed, stopped twice, left without a broker, reloaded."""

from __future__ import annotations

import os
import random
import select
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock import operations as ops
from penstock.model_tasks import TaskState, TaskView
from tests.support.broker_process import QUIET, Served
from tests.support.broker_restarts import Restarting
from tests.support.worker_process import Visits, WorkerProcess

SHORT = ("--lease-seconds", "3s")  # whoever is silent for so long has lost its tasks


@pytest.fixture
def visits() -> Iterator[Visits]:
    with Visits() as visits:
        yield visits


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One broker for all: every test leaves its queue empty."""
    with Served(tmp_path_factory.mktemp("broker"), *QUIET) as broker:
        yield broker.url("tcp")


class Caller:
    """Who enqueues: it knows the names of the tasks and has none of their code."""

    def __init__(self, url: str) -> None:
        self.app = penstock.App(url)

    def enqueue(self, name: str, *args: Any, max_attempts: int = 3) -> str:
        def stub(*args: Any) -> None: ...

        task = self.app.tasks.get(name) or self.app.task(name=name)(stub)
        return task.options(max_attempts=max_attempts).enqueue(*args).id

    def final(self, task_id: str) -> TaskView:
        view = self.app.wait_task(task_id, 60)
        while not view.is_final:
            view = self.app.wait_task(task_id, 60)
        return view

    def view(self, task_id: str) -> TaskView:
        return self.app.wait_task(task_id, 0)


@pytest.fixture
def caller(url: str) -> Iterator[Caller]:
    caller = Caller(url)
    yield caller
    caller.app.close()


def test_what_a_killed_worker_ran_is_run_by_another(tmp_path, url, visits, caller):
    job = caller.enqueue("wait", "a")
    with WorkerProcess(tmp_path, url, visits, *SHORT) as first:
        visit = visits.next()
        first.signal(signal.SIGKILL)
        assert first.ended() == -signal.SIGKILL

    with WorkerProcess(tmp_path, url, visits, *SHORT):
        again = visits.next()
        again.let_go("second")
        view = caller.final(job)

    assert (visit.attempt, again.attempt) == (1, 2)
    assert (view.state, view.result, view.attempt) == (TaskState.COMPLETED, b'"second"', 2)


def test_a_worker_that_is_asked_to_stop_finishes_what_runs_and_leaves(tmp_path, url, visits, caller):
    job = caller.enqueue("block", "a")
    with WorkerProcess(tmp_path, url, visits) as worker:
        visit = visits.next()
        worker.signal()
        worker.until("stopping")
        visit.let_go("in time")
        assert worker.ended() == 0

    assert caller.view(job).result == b'"in time"'
    assert worker.lines[-1]["event"] == "stopped"


def test_a_second_signal_gives_back_what_runs_and_costs_no_attempt(tmp_path, url, visits, caller):
    jobs = [caller.enqueue("block", "a"), caller.enqueue("wait", "b")]
    with WorkerProcess(tmp_path, url, visits) as worker:
        first = [visits.next(), visits.next()]
        worker.signal()
        worker.until("stopping")
        worker.signal()
        assert worker.ended() == 0
    assert all(visit.is_gone() for visit in first)
    assert [caller.view(job).state for job in jobs] == [TaskState.PENDING] * 2

    with WorkerProcess(tmp_path, url, visits):
        for visit in (visits.next(), visits.next()):
            assert visit.attempt == 1
            visit.let_go()
        assert [caller.final(job).state for job in jobs] == [TaskState.COMPLETED] * 2


def test_a_handler_that_kills_its_process_fails_alone(tmp_path, url, visits, caller):
    with WorkerProcess(tmp_path, url, visits, "--processes", "2") as worker:
        other = caller.enqueue("block", "other")
        visit = visits.next()
        view = caller.final(caller.enqueue("leave", 7, max_attempts=1))
        visit.let_go("unharmed")
        spared = caller.final(other)

        too_long = caller.enqueue("take_too_long", max_attempts=1)
        killed = visits.next()
        assert killed.is_gone()
        timed_out = caller.final(too_long)

        telling = caller.enqueue("tell_progress")
        visit = visits.next()
        while caller.view(telling).progress is None:
            pass
        visit.let_go()
        reported = caller.final(telling)
        worker.signal()
        assert worker.ended() == 0

    assert (view.state, view.error) == (TaskState.DEAD, "the process that ran it ended: exit code 7")
    assert (spared.state, spared.result, spared.attempt) == (TaskState.COMPLETED, b'"unharmed"', 1)
    assert "timeout: it took longer than 2 s" in timed_out.error
    assert (reported.progress, reported.result) == (b'{"half":true}', str(visit.pid).encode())


def test_a_process_that_dies_while_it_is_idle_costs_no_attempt(tmp_path, url, visits, caller):
    with WorkerProcess(tmp_path, url, visits, "--processes", "1") as worker:
        first = caller.enqueue("block", "first")
        visit = visits.next()
        visit.let_go()
        caller.final(first)
        process = os.pidfd_open(visit.pid)
        os.kill(visit.pid, signal.SIGKILL)
        select.select([process], [], [])
        os.close(process)

        second = caller.enqueue("block", "second", max_attempts=1)
        again = visits.next()
        again.let_go("alive")
        view = caller.final(second)
        worker.signal()
        assert worker.ended() == 0

    assert (view.state, view.result) == (TaskState.COMPLETED, b'"alive"')
    assert again.pid != visit.pid


def test_a_handler_that_kills_the_worker_takes_no_attempt_from_its_neighbours(tmp_path, url, visits, caller):
    bystander = caller.enqueue("wait", "a", max_attempts=1)
    with WorkerProcess(tmp_path, url, visits, *SHORT) as worker:
        visits.next()
        poison = caller.enqueue("leave_from_the_loop", 9, max_attempts=1)
        assert worker.ended() == 9
    caller.app.job(poison).cancel()

    with WorkerProcess(tmp_path, url, visits, *SHORT):
        again = visits.next()
        again.let_go("spared")
        view = caller.final(bystander)

    assert (view.state, view.result, view.attempt) == (TaskState.COMPLETED, b'"spared"', 2)


def test_a_worker_comes_back_to_a_broker_that_was_killed_and_nothing_is_completed_twice(tmp_path, visits):
    with Restarting(tmp_path, random.Random(5)) as broker:
        caller = Caller(broker.url)
        job = caller.enqueue("wait", "a")
        with WorkerProcess(tmp_path, broker.url, visits) as worker:
            first = visits.next()
            broker.kill()
            broker.start()
            again = visits.next()
            first.let_go("first")
            # It hears so when it reports the run, or, if all this took long, when it extends the lease.
            refused = worker.until("refused: the lease has expired", "the lease was lost")
            again.let_go("second")
            view = caller.final(job)
            caller.app.close()

    assert (first.attempt, again.attempt, refused["attempt"], refused["task_id"]) == (1, 2, 1, job)
    assert (view.result, view.attempt) == (b'"second"', 2)


def test_a_worker_is_started_again_when_its_code_changes(tmp_path, url, visits, caller):
    with WorkerProcess(tmp_path, url, visits, "--reload") as worker:
        module = tmp_path / "tasks_of_test.py"
        module.write_text(module.read_text().replace("return visit(word)", "return visit(word, 'anew')"))
        worker.until("started again")
        worker.until("working")
        caller.enqueue("block", "a")
        visit = visits.next()
        visit.let_go()
        worker.signal()
        assert worker.ended() == 0

    assert visit.words == ["a", "anew"]


def test_a_quiet_worker_finishes_what_runs_takes_nothing_more_and_goes_on_when_resumed(tmp_path, url, visits, caller):
    with penstock.connect(url) as ps, WorkerProcess(tmp_path, url, visits, "--id", "w-quiet") as worker:
        running = caller.enqueue("wait", "a")
        visit = visits.next()

        assert ps.session.execute(ops.QuietWorker("w-quiet")).requested == "quiet"
        worker.until("quiet, as requested by an operator")
        later = caller.enqueue("wait", "b")
        visit.let_go("in time")
        assert caller.final(running).state is TaskState.COMPLETED
        (view,) = [view for view in ps.session.execute(ops.Workers()) if view.info.worker_id == "w-quiet"]
        assert view.state == "quiet"
        assert caller.view(later).state is TaskState.PENDING

        ps.session.execute(ops.ResumeWorker("w-quiet"))
        worker.until("working again, as requested by an operator")
        visits.next().let_go()
        assert caller.final(later).attempt == 1


def test_a_worker_that_an_operator_stops_gives_back_what_takes_too_long(tmp_path, url, visits, caller):
    with penstock.connect(url) as ps, WorkerProcess(tmp_path, url, visits, "--id", "w-stop") as worker:
        job = caller.enqueue("wait", "a")
        visit = visits.next()

        ps.session.execute(ops.StopWorker("w-stop", grace_seconds=0.05))

        assert worker.ended() == 0
        assert visit.is_gone()
        assert "w-stop" not in {view.info.worker_id for view in ps.session.execute(ops.Workers())}
    assert caller.view(job).state is TaskState.PENDING
    with WorkerProcess(tmp_path, url, visits):
        again = visits.next()
        assert again.attempt == 1
        again.let_go()
        caller.final(job)
