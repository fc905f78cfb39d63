"""A broker and one worker process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep

from bench.fresh import ROOT
from bench.server.process import Running
from bench.tasks.app import Marks

TEXT = "x" * 100


@contextmanager
def worker(served: Running, marks: Marks, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """`penstock worker` on the bench's tasks, on the cores that the broker does not have."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    variables = {**clean, "BENCH_URL": served.url, "BENCH_MARKS": str(marks.path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "penstock", "worker", "bench.tasks.app:app", "--log-level", "warning", *options]
    started = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.DEVNULL)
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait(70)


def wait_for(marks: Marks, count: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until `count` runs were noted."""
    while len(marks) < count:
        if process.poll() is not None:
            raise RuntimeError(f"the worker ended with {process.returncode} after {len(marks)} of {count} tasks")
        sleep(0.01)
