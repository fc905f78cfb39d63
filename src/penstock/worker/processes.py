"""The processes that run a worker's tasks, as the worker sees them, and the guardian that ends them after the worker.

The end of a process is noticed through a pidfd, or in a thread where there are none: the end of a pipe is no sign of
it, since whatever the process started may hold the pipe open. The process is not reaped before its process group is
killed: until then its id, which is also that of the group, belongs to nobody else. Everything happens on one loop.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import structlog

from penstock.forks import close_in_forks
from penstock.tasks.endings import Ending
from penstock.worker.child_protocol import Done, Failed, Frames, Hello, Job, NotBegun, Progressed, Ready, Word, packed
from penstock.worker.runs import NOT_BEGUN


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


READ_BYTES: Final = 256 << 10


class ChildProcess:
    """One process. `on_end` is called when it has ended, with how it did."""

    def __init__(self, hello: Hello, guardian: Guardian, on_end: Callable[[ChildProcess, str], None]) -> None:
        """Raises `OSError` when no process can be started."""
        self._loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self.process = subprocess.Popen(  # noqa: S603 - our own words
                    [sys.executable, "-m", "penstock.worker.child", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
                )  # fmt: skip
            except OSError:
                ours.close()
                raise
        self.pid = self.process.pid
        self.problem = ""  # why it cannot work
        self._ended: asyncio.Future[str] = self._loop.create_future()  # how it ended, in words
        self._ready: asyncio.Future[bool] = self._loop.create_future()
        self._reply: asyncio.Future[Ending | None] | None = None  # of the run under way
        self._run = 0  # the number of that run
        self._dropped: set[int] = set()  # runs that frames named after their end
        self._on_progress: Callable[[bytes], None] = lambda data: None
        self._unsent = bytearray()  # what did not fit into the socket at once
        self._frames = Frames()
        self._socket = ours
        self._on_end = on_end
        self._guardian = guardian
        ours.setblocking(False)
        close_in_forks(ours)
        guardian.add(self.pid)  # before it can do anything: it waits for `hello`
        self._loop.add_reader(ours.fileno(), self._read)
        watch(self.process, self._over)
        self._send(hello)

    async def ready(self) -> bool:
        """Whether it can work; waits until that is known."""
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
        """How it ended, in words; waits until it has."""
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
            end_group(self.pid)

    def interrupt(self) -> None:
        """Pass Ctrl-C on. The process itself ignores it; what it started may not."""
        if not self._ended.done():
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGINT)

    # the socket

    def _send(self, word: Word) -> None:
        self._unsent += packed(word)
        self._flush()

    def _flush(self) -> None:
        descriptor = self._socket.fileno()
        with suppress(BlockingIOError):
            try:
                del self._unsent[: self._socket.send(self._unsent)]
            except ConnectionError:
                self._unsent.clear()  # it is about to be found dead
        if self._unsent:
            self._loop.add_writer(descriptor, self._flush)
        else:
            self._loop.remove_writer(descriptor)

    def _read(self) -> bool:
        """Take in what is there; whether there may be more."""
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
            for word in self._frames.feed(data):
                self._take(word)
        except ValueError:
            log.exception("a process sent what is no frame: it is ended", pid=self.pid)
            self._loop.remove_reader(self._socket.fileno())
            self.kill()
            return False
        return True

    def _take(self, word: Word) -> None:
        if isinstance(word, Progressed | Done | NotBegun):
            if word.run != self._run:
                self._drop(word)
            elif isinstance(word, Progressed):
                self._on_progress(word.data)
            elif self._reply is not None and not self._reply.done():
                self._reply.set_result(_ending(word))
                self._run = 0  # what comes after its end is not part of it
        elif isinstance(word, Ready | Failed) and not self._ready.done():
            self.problem = word.error if isinstance(word, Failed) else ""
            self._ready.set_result(isinstance(word, Ready))

    def _drop(self, word: Progressed | Done | NotBegun) -> None:
        if word.run not in self._dropped:  # once for each: a thread that was left behind may be busy
            self._dropped.add(word.run)
            log.warning("dropped: it names another run", what=type(word).__name__, run=word.run, pid=self.pid)

    # the end

    def _over(self) -> None:
        """The process has ended: the rest of its group follows. Its id is free only when it is reaped."""
        self._loop.remove_reader(self._socket.fileno())
        while self._read():
            pass  # what it said before it ended counts
        self._loop.remove_writer(self._socket.fileno())
        end_group(self.pid)
        self._guardian.remove(self.pid)
        self._socket.close()
        how = exit_words(self.process)
        self._ended.set_result(how)
        if not self._ready.done():
            self._ready.set_result(False)
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(None)
        self._on_end(self, how)


def _ending(word: Done | NotBegun) -> Ending:
    if isinstance(word, NotBegun):
        return NOT_BEGUN
    return Ending(word.outcome, word.result, word.error, word.delay_seconds)
