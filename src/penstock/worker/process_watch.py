"""Notices the end of a process by watching the process itself: through a pidfd, or in a thread where there are none.

The end of a pipe is no sign of it: whatever the process started may hold the pipe open. The process is not reaped here
where that can be avoided: until it is, its id, which is also that of its process group, belongs to nobody else.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress

from penstock.forks import close_in_forks


def watch(process: subprocess.Popen[bytes], on_end: Callable[[], None]) -> None:
    """Call `on_end` once on the running loop when the process has ended."""
    loop = asyncio.get_running_loop()
    try:
        _watch_pidfd(loop, process.pid, on_end)
    except (AttributeError, OSError):  # another system, or no descriptor left
        name = f"penstock-wait-{process.pid}"
        threading.Thread(target=_wait, args=(loop, process, on_end), name=name, daemon=True).start()


def end_group(pid: int) -> None:
    """Kill the process group that a process leads: the process, and what it started that did not leave it."""
    with suppress(ProcessLookupError, PermissionError):  # macOS refuses when only a zombie is left in it
        os.killpg(pid, signal.SIGKILL)


def exit_words(process: subprocess.Popen[bytes]) -> str:
    """Reap a process that has ended; how it ended."""
    code = process.wait()
    return f"exit code {code}" if code >= 0 else f"signal {_signal_name(-code)}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return str(number)


def _watch_pidfd(loop: asyncio.AbstractEventLoop, pid: int, on_end: Callable[[], None]) -> None:
    descriptor = io.FileIO(os.pidfd_open(pid))
    close_in_forks(descriptor)

    def ended() -> None:
        loop.remove_reader(descriptor.fileno())
        descriptor.close()
        on_end()

    loop.add_reader(descriptor.fileno(), ended)


def _wait(loop: asyncio.AbstractEventLoop, process: subprocess.Popen[bytes], on_end: Callable[[], None]) -> None:
    if hasattr(os, "waitid"):
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:
        process.wait()
    with suppress(RuntimeError):  # the loop is closed: nobody waits for it any more
        loop.call_soon_threadsafe(on_end)
