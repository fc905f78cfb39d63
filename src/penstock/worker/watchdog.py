"""A thread that notices when the event loop stands still, and says where.

An async handler that blocks, with `time.sleep` or a long computation, stops everything: other runs, heartbeats, the
extension of leases. Nobody on the loop could tell; this thread can.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from contextlib import suppress
from typing import Any, Final

import structlog

log: Any = structlog.stdlib.get_logger("penstock.worker")

LOOK_SECONDS: Final = 1.0
LOOKS_MAX: Final = 3  # in a row, without a sign of life


class Watchdog:
    """See the module's rules. Made on the loop that it watches."""

    def __init__(self, look_seconds: float = LOOK_SECONDS) -> None:
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._look_seconds = look_seconds
        self._stopped = threading.Event()
        self._alive = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="penstock-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        silent = 0
        self._ask()
        while not self._stopped.wait(self._look_seconds):
            if self._alive.is_set():
                silent = 0
                self._ask()
                continue
            silent += 1
            if silent == LOOKS_MAX:
                self._tell()

    def _ask(self) -> None:
        self._alive.clear()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._alive.set)

    def _tell(self) -> None:
        frame = sys._current_frames().get(self._watched)
        where = "".join(traceback.format_stack(frame)[-4:]) if frame is not None else ""
        seconds = self._look_seconds * LOOKS_MAX
        log.error("a handler blocks the event loop: leases cannot be extended", seconds=seconds, where=where)
