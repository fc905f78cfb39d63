"""Processes that run tasks, and what those tasks do to them: forks, threads and programs left behind, deaths.

The tasks are in `tests/support/child_tasks.py`. What always holds: a task completes with its own result and its own
progress, a process that is over is noticed though others hold its descriptors, and nothing outlives the worker.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model_tasks import TaskState
from penstock.worker.processes import exit_text, kill_group, watch
from tests.support.broker_process import QUIET, Served
from tests.support.children import Children, is_gone
from tests.support.worker_process import PATIENCE_SECONDS

FORKS = ("fork_and_return", "fork_and_raise", "fork_and_exit", "echo")
ENDS_ITS_PROCESS = (
    "die_and_leave_processes", "take_too_long_with_processes", "close_all_descriptors", "become_another_program"
)  # fmt: skip


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Served(tmp_path_factory.mktemp("broker"), *QUIET) as broker:
        yield broker.url("tcp")


@pytest.fixture
def children(tmp_path: Path, url: str) -> Iterator[Children]:
    with Children(tmp_path, url) as children:
        yield children


def test_a_fork_that_returns_gives_no_other_task_its_result(children):
    children.start(processes=1)
    jobs = [children.enqueue(name, 10 * n + place) for n in range(1, 9) for place, name in enumerate(FORKS)]
    on_loop = children.enqueue("fork_on_the_loop", 5)

    assert [children.result(job) for job in jobs] == [job.n for job in jobs]
    assert children.result(on_loop) == 5
    assert children.processes_used() == 1
    assert children.stop() == 0


def test_progress_of_a_thread_that_was_left_behind_is_no_other_tasks(children):
    children.start(processes=1)
    jobs = [children.enqueue(name, n) for n in range(1, 7) for name in ("leave_a_thread", "echo")]
    assert [children.result(job) for job in jobs] == [job.n for job in jobs]
    assert [children.progress(job) for job in jobs if job.name == "echo"] == [None] * 6
    assert {children.progress(job)["task"] == job.n for job in jobs if job.name != "echo"} == {True}
    assert children.stop() == 0
    assert "dropped a frame of another run" in children.events()


def test_frames_are_whole_whatever_threads_and_signals_do(children):
    children.start(processes=1)
    jobs = [children.enqueue(name, n) for n in (3, 4) for name in ("tell_in_threads", "tell_between_alarms", "echo")]

    results = [children.result(job) for job in jobs]

    assert results == [str(job.n) * 300_000 if job.name == "tell_in_threads" else job.n for job in jobs]
    assert all(children.progress(job)["task"] == job.n for job in jobs if job.name != "echo")
    assert children.processes_used() == 1
    assert children.stop() == 0


def test_a_process_that_is_over_is_noticed_though_others_hold_its_descriptors(children):
    children.start(processes=1)
    for n, name in enumerate(ENDS_ITS_PROCESS, 1):
        job = children.enqueue(name, n)
        assert (children.result(job), children.view(job).attempt) == (n, 2)
        assert all(is_gone(pid) for pid in children.left_behind())

    assert children.result(children.enqueue("echo", 9)) == 9
    assert children.stop() == 0


def test_a_cancelled_task_ends_with_everything_it_started(children):
    children.start(processes=1)
    job = children.enqueue("hold", 1)
    children.until_noted("holds", 1)
    children.app.job(job.id).cancel()

    assert children.result(children.enqueue("echo", 2)) == 2
    assert all(is_gone(pid) for pid in children.left_behind())
    assert children.view(job).state == TaskState.CANCELLED
    assert children.stop() == 0


def test_kill_9_of_a_worker_ends_its_processes_and_what_they_started(children):
    children.start(processes=2)
    children.enqueue("hold", 1)
    children.enqueue("leave_processes_behind", 2)
    children.until_noted("holds", 1)
    children.until_noted("left", times=4)
    processes = children.worker_processes()
    assert len(processes) == 3  # two children, and the guardian

    children.kill(children.worker.process.pid)

    assert all(is_gone(pid) for pid in (*processes, *children.left_behind()))


def test_a_guardian_that_was_killed_is_replaced_by_one_that_knows_every_process(children):
    children.start(processes=1)
    children.enqueue("hold", 1)
    children.until_noted("holds", 1)
    children.kill(children.guardian())
    children.worker.until("the process supervisor ended and was restarted")
    processes = children.worker_processes()

    children.kill(children.worker.process.pid)

    assert all(is_gone(pid) for pid in (*processes, *children.left_behind()))


def test_a_worker_that_is_stopped_leaves_no_process(children):
    children.start(processes=2)
    assert children.result(children.enqueue("leave_processes_behind", 1)) == 1
    processes = children.worker_processes()

    assert children.stop() == 0

    assert all(is_gone(pid) for pid in (*processes, *children.left_behind()))


def test_ctrl_c_reaches_the_programs_of_tasks_and_their_runs_come_to_their_end(children):
    children.start(processes=1)
    job = children.enqueue("wait_for_a_program", 1)
    children.until_noted("listens", 1)

    children.worker.signal(signal.SIGINT)

    assert children.worker.ended() == 0
    assert (children.result(job), children.view(job).attempt) == (1, 1)


@pytest.mark.parametrize("has_waitid", [True, False])
def test_where_there_is_no_pidfd_a_thread_notices_the_end_though_others_hold_its_descriptors(monkeypatch, has_waitid):
    monkeypatch.delattr(os, "pidfd_open")
    if not has_waitid:
        monkeypatch.delattr(os, "waitid")

    program = "import os, signal; os.fork() or signal.pause()"
    words = [sys.executable, "-c", program]

    async def until_over(process: subprocess.Popen[bytes]) -> None:
        over = asyncio.Event()
        watch(process, over.set)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await over.wait()

    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            asyncio.run(until_over(process))
            assert exit_text(process) == "exit code 0"
        finally:
            kill_group(process.pid)
