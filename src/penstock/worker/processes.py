"""The processes that run a worker's tasks, as the worker sees them, and the guardian that ends them after the worker.

The end of a process is noticed through a pidfd, or in a thread where there are none: the end of a pipe is no sign of
it, since whatever the process started may hold the pipe open. The process is not reaped before its process group is
killed: until then its id, which is also that of the group, belongs to nobody else. Everything happens on one loop.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.forks import close_in_forks
from penstock.tasks.endings import Ending
from penstock.worker.child_protocol import (
    Done,
    Failed,
    Frame,
    FrameReader,
    Hello,
    Job,
    NotStarted,
    Progressed,
    Ready,
    encode_frame,
)
from penstock.worker.runs import NOT_STARTED

logger: Final = logging.getLogger("penstock.worker")

GUARDIAN_PROGRAM: Final = str(Path(__file__).with_name("guardian.py"))
READ_BYTES: Final = 256 << 10


def watch(process: subprocess.Popen[bytes], on_end: Callable[[], None]) -> None:
    """Call `on_end` once on the running loop when the process has ended."""
    loop = asyncio.get_running_loop()
    try:
        _watch_pidfd(loop, process.pid, on_end)
    except (AttributeError, OSError):  # another system, or no descriptor left
        name = f"penstock-wait-{process.pid}"
        threading.Thread(target=_wait, args=(loop, process, on_end), name=name, daemon=True).start()


def kill_group(pid: int) -> None:
    """Kill the process group that a process leads: the process, and what it started that did not leave it."""
    with suppress(ProcessLookupError, PermissionError):  # macOS refuses when only a zombie is left in it
        os.killpg(pid, signal.SIGKILL)


def exit_text(process: subprocess.Popen[bytes]) -> str:
    """Reap a process that has ended, and say how it ended."""
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


class Guardian:
    """A process that ends process groups when the worker is gone. Belongs to the loop on which it is started.

    A group is added before its process is given anything to do, and removed before its id can belong to anybody else.
    A guardian that ended is replaced, and the new one is given all groups.
    """

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it; raises `OSError` when no process can be started."""
        process = self._process = subprocess.Popen(  # noqa: S603 - our own arguments
            [sys.executable, "-I", "-S", GUARDIAN_PROGRAM, str(os.getpid())],
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
        """Forget a group; call it before its leader is reaped."""
        self._groups.discard(group)
        self._send("-", [group])

    def close(self) -> None:
        """End the guardian, and whatever is left of the groups with it."""
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
                kill_group(process.pid)  # it does not read: a successor will

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        how = exit_text(process)
        if self._is_closed or process is not self._process:
            return
        with suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        try:
            self.start()
        except OSError:
            logger.exception("the process supervisor ended and could not be restarted", extra={"how": how})
        else:
            logger.warning("the process supervisor ended and was restarted", extra={"how": how})


class ChildProcess:
    """A process that runs tasks. It leads a session and a process group of its own.

    `on_end` is called when the process has ended, whoever still holds its socket, with how it did. Then the rest of
    its group is killed too. Frames that name another run than the one under way are dropped and logged.
    """

    def __init__(self, hello: Hello, guardian: Guardian, on_end: Callable[[ChildProcess, str], None]) -> None:
        """Raises `OSError` when no process can be started."""
        self._loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self.process = subprocess.Popen(  # noqa: S603 - our own arguments
                    [sys.executable, "-m", "penstock.worker.child", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
                )  # fmt: skip
            except OSError:
                ours.close()
                raise
        self.pid = self.process.pid
        self.problem = ""  # why it cannot work
        self._ended: asyncio.Future[str] = self._loop.create_future()  # how it ended, as text
        self._ready: asyncio.Future[bool] = self._loop.create_future()
        self._reply: asyncio.Future[Ending | None] | None = None  # of the run under way
        self._run = 0  # the number of that run
        self._dropped: set[int] = set()  # runs that frames named after their end
        self._on_progress: Callable[[bytes], None] = lambda data: None
        self._unsent = bytearray()  # what did not fit into the socket at once
        self._frames = FrameReader()
        self._socket = ours
        self._on_end = on_end
        self._guardian = guardian
        ours.setblocking(False)
        close_in_forks(ours)
        guardian.add(self.pid)  # before it can do anything: it waits for `hello`
        self._loop.add_reader(ours.fileno(), self._read)
        watch(self.process, self._process_ended)
        self._send(hello)

    async def ready(self) -> bool:
        """Wait until the app is loaded; whether it could be."""
        return await asyncio.shield(self._ready)

    async def run(self, job: Job, on_progress: Callable[[bytes], None]) -> Ending | None:
        """Run a job; None when the process ended before the job did."""
        if self._ended.done():
            return None
        self._reply = self._loop.create_future()
        self._run = job.run
        self._on_progress = on_progress
        self._send(job)
        try:
            return await self._reply
        finally:
            self._run = 0
            self._reply = None

    async def ended(self) -> str:
        """Wait until it has ended; how it did, as text."""
        return await asyncio.shield(self._ended)

    def has_ended(self) -> bool:
        """Whether it has ended, even if the loop was not notified yet."""
        if self._ended.done():
            return True
        if hasattr(os, "waitid"):
            with suppress(ChildProcessError):
                return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return False

    def kill(self) -> None:
        """End it and its group; `ended` waits for that."""
        if not self._ended.done():
            kill_group(self.pid)

    def send_sigint(self) -> None:
        """Pass Ctrl-C on. The process itself ignores it; what it started may not."""
        if not self._ended.done():
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGINT)

    # the socket

    def _send(self, frame: Frame) -> None:
        self._unsent += encode_frame(frame)
        self._flush()

    def _flush(self) -> None:
        descriptor = self._socket.fileno()
        with suppress(BlockingIOError):
            try:
                del self._unsent[: self._socket.send(self._unsent)]
            except ConnectionError:
                self._unsent.clear()  # its end is about to be noticed
        if self._unsent:
            self._loop.add_writer(descriptor, self._flush)
        else:
            self._loop.remove_writer(descriptor)

    def _read(self) -> bool:
        """Receive what is there; whether there may be more."""
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            # It closed its socket, or replaced its program: nothing can be run in it any more.
            self._loop.remove_reader(self._socket.fileno())
            self.kill()
            return False
        try:
            for frame in self._frames.feed(data):
                self._receive(frame)
        except ValueError:
            logger.exception("killed a process that sent an invalid frame", extra={"pid": self.pid})
            self._loop.remove_reader(self._socket.fileno())
            self.kill()
            return False
        return True

    def _receive(self, frame: Frame) -> None:
        if isinstance(frame, Progressed | Done | NotStarted):
            if frame.run != self._run:
                self._drop(frame)
            elif isinstance(frame, Progressed):
                self._on_progress(frame.data)
            elif self._reply is not None and not self._reply.done():
                self._reply.set_result(_ending_of(frame))
                self._run = 0  # what comes after its end is not part of it
        elif isinstance(frame, Ready | Failed) and not self._ready.done():
            self.problem = frame.error if isinstance(frame, Failed) else ""
            self._ready.set_result(isinstance(frame, Ready))

    def _drop(self, frame: Progressed | Done | NotStarted) -> None:
        if frame.run not in self._dropped:  # logged once: a thread that was left behind may send many
            self._dropped.add(frame.run)
            extra = {"frame": type(frame).__name__, "run": frame.run, "pid": self.pid}
            logger.warning("dropped a frame of another run", extra=extra)

    # the end

    def _process_ended(self) -> None:
        """The process has ended: the rest of its group follows. Its id is free only when it is reaped."""
        self._loop.remove_reader(self._socket.fileno())
        while self._read():
            pass  # what it sent before it ended counts
        self._loop.remove_writer(self._socket.fileno())
        kill_group(self.pid)
        self._guardian.remove(self.pid)
        self._socket.close()
        how = exit_text(self.process)
        self._ended.set_result(how)
        if not self._ready.done():
            self._ready.set_result(False)
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(None)
        self._on_end(self, how)


def _ending_of(frame: Done | NotStarted) -> Ending:
    if isinstance(frame, NotStarted):
        return NOT_STARTED
    return Ending(frame.outcome, frame.result, frame.error, frame.delay_seconds)
