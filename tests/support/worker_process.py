"""`penstock worker` as a process of its own, and handlers that report to the test and wait for its word.

A handler of `APP` calls `visit(…)`: it says who it is and stands still until the test lets it go, or for ever when its
process is killed meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

PATIENCE_SECONDS = 100.0

APP = """
import os
import socket

import penstock

app = penstock.App()


def visit(*words):
    with socket.create_connection(("127.0.0.1", int(os.environ["VISITS_PORT"]))) as test:
        text = " ".join(map(str, (*words, penstock.current_task().attempt, os.getpid())))
        test.sendall(text.encode() + b"\\n")
        return test.makefile().readline().strip()


@app.task
async def wait(word: str) -> str:
    import asyncio

    return await asyncio.to_thread(visit, word)


@app.task
def block(word: str) -> str:
    return visit(word)


@app.task
def leave(code: int) -> None:
    os._exit(code)


@app.task
async def leave_from_the_loop(code: int) -> None:
    os._exit(code)


@app.task(timeout=2)
def take_too_long() -> None:
    visit("long")


@app.task
def tell_progress() -> int:
    penstock.current_task().progress({"half": True})
    visit("progress")
    return os.getpid()
"""


class Visit:
    """A handler that waits."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        *words, attempt, pid = connection.makefile().readline().split()
        self.words, self.attempt, self.pid = words, int(attempt), int(pid)

    def let_go(self, word: str = "done") -> None:
        self._connection.sendall(word.encode() + b"\n")
        self._connection.close()

    def is_gone(self) -> bool:
        """Waits until the process at the other end is."""
        try:
            return self._connection.recv(1) == b""
        except ConnectionError:
            return True
        finally:
            self._connection.close()


class Visits:
    """Where handlers report."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE_SECONDS)
        self._made: list[socket.socket] = []

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def next(self) -> Visit:
        connection, _ = self._listener.accept()
        connection.settimeout(PATIENCE_SECONDS)
        self._made.append(connection)
        return Visit(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in (*self._made, self._listener):
            connection.close()


class WorkerProcess:
    """A worker; `until` reads its log, line by line."""

    def __init__(
        self,
        folder: Path,
        url: str,
        visits: Visits,
        *flags: str,
        app: str = "tasks_of_test:app",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        module = folder / "tasks_of_test.py"
        if not module.exists():
            module.write_text(APP, encoding="utf-8")
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        words = [sys.executable, "-m", "penstock", "worker", app, "--url", url, "--log-format", "json", *flags]
        self.process = subprocess.Popen(
            words,
            cwd=folder,
            env=clean | {"VISITS_PORT": str(visits.port), **(environment or {})},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[dict[str, Any]] = []

    def until(self, *events: str) -> dict[str, Any]:
        """The next line of its log that says so, or one of these."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith("{"):
                self.lines.append(json.loads(line))
                if self.lines[-1]["event"] in events:
                    return self.lines[-1]
        raise AssertionError(f"it ended without {events}: {self.lines}")

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Its exit code, once it has one."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith("{"):
                self.lines.append(json.loads(line))
        return self.process.wait(PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        self.until("working")
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_SECONDS)
        assert self.process.stderr is not None
        self.process.stderr.close()
