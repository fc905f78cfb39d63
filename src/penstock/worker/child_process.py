"""A process that runs tasks for this worker, seen from the worker: its socket, its process group, its end.

It leads a session and a process group of its own, and is over when the process is, whoever still holds its socket. Then
the rest of its group is ended too. Frames that name another run than the one under way are dropped and logged. All of
this happens on one loop.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import structlog

from penstock.forks import close_in_forks
from penstock.tasks.endings import Ending
from penstock.worker.guarding import Guardian
from penstock.worker.lane import NOT_BEGUN
from penstock.worker.pipes import Done, Failed, Frames, Hello, Job, NotBegun, Progressed, Ready, Word, packed
from penstock.worker.process_watch import end_group, exit_words, watch

log: Any = structlog.stdlib.get_logger("penstock.worker")

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
