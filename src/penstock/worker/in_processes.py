"""Plain functions run in processes, one at a time in each; a process that dies takes only its own run with it.

Processes are started when they are needed and kept. A run that is broken off ends with its process, which is killed;
the next run gets a new one. A process whose worker is gone ends by itself.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import structlog

from penstock.tasks.endings import Ending
from penstock.worker.lane import Ended
from penstock.worker.pipes import LENGTH, Done, Failed, Hello, Job, Progressed, Ready, Word, packed, unpacked
from penstock.worker.progress import Progress
from penstock.worker.runs import Run
from penstock.worker.ticking import Spawner

log: Any = structlog.stdlib.get_logger("penstock.worker")


class Child:
    """One process, and the way to speak to it. Until it is `ready` it imports the app."""

    def __init__(self, hello: Hello) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            words = [sys.executable, "-m", "penstock.worker.child", str(theirs.fileno())]
            self.process = subprocess.Popen(  # noqa: S603 - our own words
                words, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        self._socket = ours
        self._hello = hello
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.problem = ""  # why it cannot work

    async def ready(self) -> bool:
        """Whether it can work; waits until that is known."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(sock=self._socket)
            await self.send(self._hello)
            word = await self.receive()
            self.problem = word.error if isinstance(word, Failed) else ""
            return isinstance(word, Ready)
        return True

    async def send(self, word: Word) -> None:
        assert self._writer is not None
        with suppress(ConnectionError):  # told when the answer is read
            self._writer.write(packed(word))
            await self._writer.drain()

    async def receive(self) -> Word | None:
        """What it says next; None when it is gone."""
        assert self._reader is not None
        try:
            (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            return unpacked(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError, msgspec.MsgspecError):
            return None

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()

    def close(self) -> str:
        """End it; how it ended, in words."""
        self.kill()
        if self._writer is not None:
            self._writer.close()
        else:
            self._socket.close()
        code = self.process.wait()
        return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


class ProcessLane:
    """See the module's rules. `began` is called when a run's own time begins."""

    def __init__(
        self,
        size: int,
        hello: Hello,
        ended: Ended,
        began: Callable[[Run], None],
        progress: Progress,
        spawner: Spawner,
    ) -> None:
        self.size = size
        self.running = 0
        self.buffered = 0
        self.waiting: deque[Run] = deque()
        self._hello = hello
        self._ended = ended
        self._began = began
        self._progress = progress
        self._spawner = spawner
        self._idle: list[Child] = []
        self._children: set[Child] = set()

    def pids(self) -> list[int]:
        return [child.process.pid for child in self._children]

    def open(self) -> None:
        """Start all processes: whoever comes first shall not wait for them."""
        self._idle += [self._new() for _ in range(self.size)]

    def start(self, run: Run) -> None:
        self._spawner.spawn(self._run(run))

    def break_off(self, run: Run) -> bool:
        if run.handle is not None:
            run.handle.kill()
        return True

    def close(self) -> None:
        """Kill what is left."""
        for child in list(self._children):
            self._children.discard(child)
            child.close()

    async def _run(self, run: Run) -> None:
        run.deadline = 0  # the start of a process does not count
        child = run.handle = self._living()
        ending = await self._answered(run, child) if run.why is None and await child.ready() else None
        if ending is not None:
            self._idle.append(child)
        else:
            self._children.discard(child)
            how = child.problem or await asyncio.to_thread(child.close)
            log.warning("a process is gone", how=how, pid=child.process.pid, **run.fields())
            ending = None if run.why is not None else Ending("failed", error=f"the process that ran it ended: {how}")
        self._ended(run, ending)

    def _living(self) -> Child:
        """A process for a run. One that died while it had nothing to do costs nobody an attempt."""
        while self._idle:
            child = self._idle.pop()
            if child.process.poll() is None:
                return child
            self._children.discard(child)
            log.warning("an idle process is gone", how=child.close(), pid=child.process.pid)
        return self._new()

    def _new(self) -> Child:
        child = Child(self._hello)
        self._children.add(child)
        return child

    async def _answered(self, run: Run, child: Child) -> Ending | None:
        """How the run ended; None when the process did."""
        self._began(run)
        await child.send(_job(run))
        while (word := await child.receive()) is not None:
            if isinstance(word, Progressed):
                self._progress.note_anywhere(run, word.data)
            elif isinstance(word, Done):
                return Ending(*msgspec.structs.astuple(word))
        return None


def _job(run: Run) -> Job:
    context = run.context
    assert context is not None
    return Job(
        msgspec.json.encode(run.envelope),
        run.attempt,
        context.queue,
        context.worker,
        context.key,
        context.trace,
        [msgspec.json.encode(parent) for parent in context.parents],
    )
