"""The tasks of the bench: they note when they ran, and nothing else.

A mark is sixteen bytes at the end of a file: when the handler started, and when the task was submitted.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from time import time
from typing import Any, NamedTuple

import penstock

MARK = struct.Struct("<dd")
QUEUE = "bench"
_file = os.open(os.environ.get("BENCH_MARKS", os.devnull), os.O_CREAT | os.O_WRONLY | os.O_APPEND)


async def noop(submitted: float, text: str) -> int:
    """For the event loop."""
    os.write(_file, MARK.pack(time(), submitted))
    return 1


def noop_sync(submitted: float, text: str) -> int:
    """For a thread."""
    os.write(_file, MARK.pack(time(), submitted))
    return 1


class Tasks(NamedTuple):
    """Both, on an app."""

    app: penstock.App
    noop: penstock.Task[[float, str], Any, int]
    noop_sync: penstock.Task[[float, str], Any, int]


def tasks_at(url: str) -> Tasks:
    """An app that knows them."""
    app = penstock.App(url)
    return Tasks(app, app.task(name="noop", queue=QUEUE)(noop), app.task(name="noop_sync", queue=QUEUE)(noop_sync))


class Marks:
    """What was noted so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def __len__(self) -> int:
        return self.path.stat().st_size // MARK.size

    def read(self) -> list[tuple[float, float]]:
        """(started, submitted) of each run."""
        return [(started, submitted) for started, submitted in MARK.iter_unpack(self.path.read_bytes())]


app = tasks_at(os.environ.get("BENCH_URL", "penstock://127.0.0.1:7710")).app
