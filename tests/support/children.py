"""A worker with processes, tasks that mistreat them, and what can be seen of both from outside."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

import penstock
from penstock.model_tasks import TaskView
from tests.support.child_tasks import APP
from tests.support.worker_process import PATIENCE_SECONDS, Visits, WorkerProcess

SHORT = ("--lease-seconds", "2s")


class Job(NamedTuple):
    """A task that was enqueued."""

    id: str
    name: str
    n: int


def is_gone(pid: int) -> bool:
    """Whether a process has ended, or does so while we wait."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(PATIENCE_SECONDS * 1000))
    finally:
        os.close(descriptor)


def children_of(pid: int) -> list[int]:
    """Processes that a process started, and that live."""
    with suppress(OSError):
        threads = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    return []


class Children:
    """One worker at a time, in a folder of its own, on a queue of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._url = url
        self._queue = f"children-{folder.name}"
        self._visits = Visits()
        self._workers: list[WorkerProcess] = []
        self.app = penstock.App(url, queue=self._queue)
        (folder / "children_of_test.py").write_text(APP, encoding="utf-8")

    @property
    def worker(self) -> WorkerProcess:
        return self._workers[-1]

    def start(self, *flags: str, processes: int = 2) -> None:
        words = (*SHORT, "--processes", str(processes), *flags)
        environment = {"RUNS_FOLDER": str(self._folder), "RUNS_QUEUE": self._queue}
        worker = WorkerProcess(
            self._folder, self._url, self._visits, *words, app="children_of_test:app", environment=environment
        )
        self._workers.append(worker)
        worker.until("working")

    def stop(self) -> int:
        self.worker.signal()
        return self.worker.ended()

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        os.kill(pid, number)

    # tasks

    def enqueue(self, name: str, n: int, max_attempts: int = 20) -> Job:
        def stub(n: int) -> None: ...

        task = self.app.tasks.get(name) or self.app.task(name=name)(stub)
        return Job(task.options(max_attempts=max_attempts).enqueue(n).id, name, n)

    def view(self, job: Job) -> TaskView:
        return self.app.wait_task(job.id, 0)

    def result(self, job: Job) -> Any:
        """Its result, once it is final."""
        limit = time.monotonic() + PATIENCE_SECONDS
        while not (view := self.app.wait_task(job.id, 10)).is_final:
            assert time.monotonic() < limit, (job, view, self.lines(), self.worker.lines)
        return view.error if view.result is None else msgspec.json.decode(view.result)

    def progress(self, job: Job) -> Any:
        progress = self.view(job).progress
        return None if progress is None else msgspec.json.decode(progress)

    # what runs noted

    def lines(self) -> list[list[str]]:
        with suppress(FileNotFoundError):
            return [line.split() for line in (self._folder / "lines").read_text().splitlines()]
        return []

    def noted(self, word: str) -> list[list[str]]:
        return [words[1:] for words in self.lines() if words[0] == word]

    def until_noted(self, word: str, *more: object, times: int = 1) -> None:
        wanted = [word, *map(str, more)]
        limit = time.monotonic() + PATIENCE_SECONDS
        while sum(words[: len(wanted)] == wanted for words in self.lines()) < times:
            assert time.monotonic() < limit, (wanted, self.lines())
            select.select([], [], [], 0.01)

    def left_behind(self) -> list[int]:
        return [int(pid) for (pid,) in self.noted("left")]

    def processes_used(self) -> int:
        return len({pid for *_, pid in self.noted("start")})

    def events(self) -> set[str]:
        return {line["event"] for worker in self._workers for line in worker.lines}

    # processes

    def worker_processes(self) -> list[int]:
        return children_of(self.worker.process.pid)

    def guardian(self) -> int:
        found = [pid for pid in self.worker_processes() if b"guardian.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        (pid,) = found
        return pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.app.close()
        for worker in self._workers:
            worker.__exit__()
        self._visits.__exit__()
        for pid in self.left_behind():  # what a failed test left must not live on
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
