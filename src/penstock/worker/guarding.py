"""The worker's side of its guardian: which process groups are to be ended when the worker is gone.

A group is added before its process is given anything to do, and removed before its id can belong to anybody else. A
guardian that ended is replaced, and the new one is given all groups.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import structlog

from penstock.forks import close_in_forks
from penstock.worker.process_watch import end_group, exit_words, watch

log: Any = structlog.stdlib.get_logger("penstock.worker")

PROGRAM: Final = str(Path(__file__).with_name("guardian.py"))


class Guardian:
    """A guardian for one worker. Belongs to the loop on which it is started."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it; raises `OSError` when no process can be started."""
        process = self._process = subprocess.Popen(  # noqa: S603 - our own words
            [sys.executable, "-I", "-S", PROGRAM, str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0, cwd="/", start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        close_in_forks(process.stdin)
        os.set_blocking(process.stdin.fileno(), False)
        self._send("+", self._groups)
        watch(process, lambda: self._ended(process))

    def add(self, group: int) -> None:
        """End this group when the worker is gone."""
        self._groups.add(group)
        self._send("+", [group])

    def remove(self, group: int) -> None:
        """The group is over; call it before its leader is reaped."""
        self._groups.discard(group)
        self._send("-", [group])

    def close(self) -> None:
        """The guardian ends, and whatever is left of the groups with it."""
        self._is_closed = True
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()

    def _send(self, sign: str, groups: Iterable[int]) -> None:
        process = self._process
        if process is None or process.stdin is None or process.stdin.closed:
            return
        lines = "".join(f"{sign}{group}\n" for group in groups).encode()
        with suppress(OSError):  # it has ended: its successor is given all groups
            if process.stdin.write(lines) != len(lines):
                end_group(process.pid)  # it does not read: a successor will

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        how = exit_words(process)
        if self._is_closed or process is not self._process:
            return
        with suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        try:
            self.start()
        except OSError:
            log.exception("the guardian of processes ended, and no other could be started", how=how)
        else:
            log.warning("the guardian of processes ended: another was started", how=how)
