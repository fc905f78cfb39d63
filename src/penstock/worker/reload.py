"""For development: the worker is started again whenever a Python file has changed.

The worker is a process of its own; this one only looks at files, twice a second, and starts it. A worker that died, of
a syntax error perhaps, is started again by the next change. Looking is cheap: names and times, no contents.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import structlog

log: Any = structlog.stdlib.get_logger("penstock.worker")

LOOK_SECONDS: Final = 0.5
STOP_SECONDS: Final = 5.0  # for what runs to come to its end; then it is given back
PR_SET_PDEATHSIG: Final = 1
SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})

Seen = dict[str, tuple[int, int]]


def run_reloading(words: Sequence[str], root: Path) -> int:
    """Run `words` as a process until we are stopped; the exit code."""
    stop = threading.Event()
    stops = 0

    def on_signal(number: int, _: Any) -> None:
        nonlocal stops
        stops += 1
        stop.set()
        if stops > 1:
            current[0].send_signal(number)

    current: list[subprocess.Popen[bytes]] = [_started(words)]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    seen = look(root)
    while not stop.wait(LOOK_SECONDS):
        now = look(root)
        if now != seen:
            log.info("started again", changed=sorted(changed(seen, now))[:3])
            seen = now
            _ended(current[0], STOP_SECONDS)
            current[0] = _started(words)
    current[0].terminate()
    return current[0].wait()


def look(root: Path) -> Seen:
    """Every Python file under a directory, with its time and size."""
    return dict(_look(str(root)))


def changed(before: Seen, after: Seen) -> set[str]:
    """Files that came, went or are different."""
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def _look(folder: str) -> Iterator[tuple[str, tuple[int, int]]]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(".") and entry.name not in SKIPPED:
                    yield from _look(entry.path)
            elif entry.name.endswith(".py"):
                with suppress(OSError):  # gone since
                    stat = entry.stat()
                    yield entry.path, (stat.st_mtime_ns, stat.st_size)


def _started(words: Sequence[str]) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C in the terminal is for us, and we pass it on once.
    return subprocess.Popen(  # noqa: S603 - our own words
        [sys.executable, *words],
        start_new_session=True,
        preexec_fn=_end_with_parent,  # noqa: PLW1509 - there are no threads here
    )


def _end_with_parent() -> None:
    """In the new process: be stopped when whoever started it is gone, where the system can do that."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _ended(process: subprocess.Popen[bytes], seconds: float) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # the second: what runs is given back
            process.wait()
