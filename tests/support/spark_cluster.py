"""Spark standalone on loopback, from pip's pyspark: a master and workers, each a process of its own.

A thread reads all that a process says, so that no pipe fills; when something goes wrong, the end of it is shown.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pyspark

from tests.support.spark_kills import kill_session

START_SECONDS = 90.0  # a JVM on a machine that has other things to do
LINES_SHOWN = 40
# Nothing here runs long enough to be worth Java's better compiler.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}

_SPARK_CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_WORKER = re.compile(r"(Successfully registered) with master")
_DAEMON = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": f"{JAVA} -Dspark.master.rest.enabled=false"}


class Process:
    """A process and all that it starts, and what they say."""

    def __init__(self, command: list[str], folder: Path, **environment: str) -> None:
        self.lines: list[str] = []
        self._name = " ".join(command[1:3])
        self._news = threading.Condition()
        self._is_over = False
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **LOOPBACK, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def said(self, pattern: re.Pattern[str]) -> str:
        """What it says in place of the pattern's first group, once it says it."""
        with self._news:
            self._news.wait_for(lambda: self._is_over or self._find(pattern), START_SECONDS)
            found = self._find(pattern)
        assert found is not None, f"{self._name} did not say {pattern.pattern!r}:\n{self.end()}"
        return found

    def finish(self, seconds: float) -> None:
        """Wait for it to end well."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        assert code == 0, f"{self._name} ended with {code} (None: not within {seconds} s):\n{self.end()}"

    def end(self) -> str:
        """The last that it said."""
        return "".join(self.lines[-LINES_SHOWN:])

    def _find(self, pattern: re.Pattern[str]) -> str | None:
        return next((found[1] for line in self.lines if (found := pattern.search(line))), None)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()
        with self._news:
            self._is_over = True
            self._news.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        kill_session(self._process.pid)
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Cluster:
    """A master that has two workers of one core each; `master` is its address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self.workers: list[Process] = []
        self.master = ""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.master = stack.enter_context(self._daemon("master.Master", "--port", "0")).said(_MASTER)
            size = ("--cores", "1", "--memory", "600m")
            for n in range(2):
                worker = self._daemon("worker.Worker", *size, "--work-dir", str(self._folder / f"work{n}"), self.master)
                self.workers.append(stack.enter_context(worker))
            for worker in self.workers:
                worker.said(_WORKER)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def said_by_executors(self) -> str:
        """The last that each executor said."""
        logs = sorted(self._folder.glob("work*/*/*/stderr"))
        return "\n".join(f"{path}:\n{path.read_text()[-2000:]}" for path in logs)

    def _daemon(self, kind: str, *arguments: str) -> Process:
        where = ("--host", "127.0.0.1", "--webui-port", "0")
        command = [_SPARK_CLASS, f"org.apache.spark.deploy.{kind}", *where, *arguments]
        return Process(command, self._folder, **_DAEMON)
