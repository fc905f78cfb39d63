"""A worker as a process: its loop, its signals, and its end.

SIGTERM and SIGINT stop it; the second one breaks off what still runs and gives it back; a third leaves at once, and the
broker finds out by the silence. SIGINT is passed on to the processes of tasks, which the terminal does not reach. A
worker that is stuck starts its command again, if it may.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import structlog

from penstock.worker.worker import Worker

log: Any = structlog.stdlib.get_logger("penstock.worker")

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
LEAVE: Final = 3  # at this one


def run_worker(make: Callable[[], Worker]) -> None:
    """Run a worker on a loop of its own until it is over, and close its app."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_run(make))


async def _run(make: Callable[[], Worker]) -> None:
    worker = make()
    _on_signals(worker)
    gc.collect()
    gc.freeze()  # what is there now stays: looking through it again and again finds nothing
    try:
        await worker.run()
    finally:
        await worker.app.aclose()
    if worker.wants_restart:
        log.warning("started again, since too many runs could not be broken off")
        logging.shutdown()
        sys.stdout.flush()
        # The same command in this process's place: nothing else ends a thread.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
    if worker.has_broken_off:
        # Threads that still work are waited for by Python, and nobody wants what they do.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)


def _on_signals(worker: Worker) -> None:
    loop = asyncio.get_running_loop()
    heard = 0

    def stop(number: int) -> None:
        nonlocal heard
        heard += 1
        if heard >= LEAVE:
            os._exit(128 + number)
        if heard > 1:
            log.warning("a second signal: what runs is given back")
        worker.stop()
        if number == signal.SIGINT:
            worker.interrupt()

    for number in SIGNALS:
        loop.add_signal_handler(number, stop, number)
