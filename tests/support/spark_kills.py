"""A program with a Spark of its own, and kill -9 for all of it or for one of its Python workers."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

PATIENCE_SECONDS = 300
ROOT = Path(__file__).parent.parent.parent


class SparkProgram:
    """`python -m module arguments`, in a session of the system's that nobody else is in."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def heard(self, lines: int) -> bool:
        """Whether it said so many lines before it ended."""
        assert self.process.stdout is not None
        return all(self.process.stdout.readline() for _ in range(lines))

    def lives(self, seconds: float) -> bool:
        """Whether it is still there after that long."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def kill(self) -> None:
        """All of it: the driver, the JVM, and every Python process of Spark's."""
        kill_session(self.process.pid)
        self.process.wait(PATIENCE_SECONDS)

    def kill_worker(self, rng: random.Random) -> None:
        """One Python process of Spark's."""
        workers = [
            pid for pid, command in self._members() if "pyspark.daemon" in command or "pyspark.worker" in command
        ]
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(rng.choice(sorted(workers)), signal.SIGKILL)

    def ended(self) -> int:
        """Its exit code, once it has said all that it has to say."""
        assert self.process.stdout is not None
        self.process.stdout.read()
        return self.process.wait(PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _members(self) -> list[tuple[int, str]]:
        return members_of(self.process.pid)


def members_of(session: int) -> list[tuple[int, str]]:
    """(pid, command) of whatever runs in a session of the system's."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            pid = int(entry.name)
            after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            # A process whose first thread has ended holds its files until the others have.
            is_over = after_name[0] in "ZX" and int(after_name[17]) <= 1
            if int(after_name[3]) == session and not is_over:
                found.append((pid, (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")))
    return found


def kill_session(session: int) -> None:
    """End whatever runs in a session, also what is only being started."""
    while found := members_of(session):
        for pid, _ in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
