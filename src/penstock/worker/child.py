"""A process that runs tasks for a worker, one after the other, until the worker hangs up.

    python -m penstock.worker.child FD

It imports the app, and has a socket to the worker; it opens no session of its own unless a task uses the app. Ctrl-C
is handled by the worker. Only this process sends to the worker: its forks have no socket, and a program that it
starts inherits none.
"""

from __future__ import annotations

import contextvars
import os
import signal
import socket
import sys
import threading
from functools import partial
from queue import SimpleQueue
from typing import Any

import msgspec
from structlog.contextvars import bind_contextvars

from penstock.clock import SystemClock
from penstock.envelopes import parse_envelope
from penstock.errors import PenstockError
from penstock.forks import close_in_forks
from penstock.model_tasks import TaskView
from penstock.tasks.context import TaskContext
from penstock.tasks.endings import Ending
from penstock.tasks.runs import run_one
from penstock.worker.child_protocol import (
    LENGTH,
    Done,
    Failed,
    Frame,
    Hello,
    Job,
    NotStarted,
    Progressed,
    Ready,
    decode_frame,
    encode_frame,
)
from penstock.worker.command import load_app

_view = msgspec.json.Decoder(TaskView)


class Pipe:
    """The socket to the worker. Frames are sent whole, by a thread that no signal handler can interrupt."""

    def __init__(self, worker: socket.socket) -> None:
        worker.set_inheritable(False)
        close_in_forks(worker)
        self._socket = worker
        self._pid = os.getpid()
        self._frames: SimpleQueue[tuple[bytes, threading.Event]] = SimpleQueue()
        threading.Thread(target=self._write, name="penstock-pipe", daemon=True).start()

    def send(self, frame: Frame) -> None:
        """Send a frame from any thread, and wait until it has left. In a fork nothing is sent."""
        if os.getpid() == self._pid:
            sent = threading.Event()
            self._frames.put((encode_frame(frame), sent))
            sent.wait()

    def receive(self) -> Frame | None:
        """The next frame of the worker; None when it is gone."""
        head = self._exactly(LENGTH.size)
        body = None if head is None else self._exactly(LENGTH.unpack(head)[0])
        return None if body is None else decode_frame(body)

    def _write(self) -> None:
        while True:
            frame, sent = self._frames.get()
            try:
                self._socket.sendall(frame)
            except OSError:
                # The worker is gone: `receive` returns None.
                continue
            finally:
                sent.set()

    def _exactly(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            try:
                part = self._socket.recv(count - len(data))
            except ConnectionError:
                return None
            if not part:
                return None
            data += part
        return bytes(data)


def main(fd: int) -> None:
    """Run until the worker hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=fd) as worker:
        pipe = Pipe(worker)
        hello = pipe.receive()
        if not isinstance(hello, Hello):
            return
        sys.path[:] = hello.sys_path
        if hello.logs is not None:
            from penstock.telemetry import logs  # takes a while to load

            logs.setup(*hello.logs)
        try:
            app = load_app(hello.app)
            if hello.url is not None:
                app.move(hello.url)
        except PenstockError as error:
            pipe.send(Failed(str(error)))
            return
        pipe.send(Ready())
        while isinstance(job := pipe.receive(), Job):
            pipe.send(_run(app, job, pipe))


def _run(app: Any, job: Job, pipe: Pipe) -> Done | NotStarted:
    if SystemClock().monotonic() >= job.sure_until:
        return NotStarted(job.run)  # this process stood still, or the machine did
    envelope = parse_envelope(job.envelope)
    context = TaskContext(
        envelope,
        attempt=job.attempt,
        queue=job.queue,
        worker=job.worker,
        key=job.key,
        trace=job.trace,
        parents=[_view.decode(parent) for parent in job.parents],
        note=partial(_note, pipe, job.run),
    )
    ending = contextvars.Context().run(_run_task, app.tasks[envelope.task_type], context)
    return Done(job.run, ending.outcome, ending.result, ending.error, ending.delay_seconds)


def _note(pipe: Pipe, run: int, data: bytes) -> None:
    pipe.send(Progressed(run, data))


def _run_task(task: Any, context: TaskContext) -> Ending:
    bind_contextvars(task_id=context.id, task_type=context.task_type, attempt=context.attempt)
    return run_one(task, context.envelope, context)


if __name__ == "__main__":
    main(int(sys.argv[1]))
