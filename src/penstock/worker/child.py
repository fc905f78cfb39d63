"""A process that runs tasks for a worker, one after the other, until the worker hangs up.

    python -m penstock.worker.child FD

It has the app, by its import path, and a socket to the worker; it opens no session of its own unless a task uses the
app. Ctrl-C is for the worker to deal with.
"""

from __future__ import annotations

import contextvars
import signal
import socket
import sys
from typing import Any

import msgspec
from structlog.contextvars import bind_contextvars

from penstock.envelopes import parse_envelope
from penstock.errors import PenstockError
from penstock.model_tasks import TaskView
from penstock.tasks.context import TaskContext
from penstock.tasks.endings import Ending
from penstock.tasks.running import run_one
from penstock.worker.loading import load_app
from penstock.worker.pipes import LENGTH, Done, Failed, Hello, Job, Progressed, Ready, Word, packed, unpacked

_view = msgspec.json.Decoder(TaskView)


def main(fd: int) -> None:
    """Run until the worker hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=fd) as worker:
        hello = _receive(worker)
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
            worker.sendall(packed(Failed(str(error))))
            return
        worker.sendall(packed(Ready()))
        while isinstance(job := _receive(worker), Job):
            worker.sendall(packed(_run(app, job, worker)))


def _run(app: Any, job: Job, worker: socket.socket) -> Done:
    envelope = parse_envelope(job.envelope)
    context = TaskContext(
        envelope,
        attempt=job.attempt,
        queue=job.queue,
        worker=job.worker,
        key=job.key,
        trace=job.trace,
        parents=[_view.decode(each) for each in job.parents],
        note=lambda data: worker.sendall(packed(Progressed(data))),
    )
    ending = contextvars.Context().run(_ending_of, app.tasks[envelope.task_type], context)
    return Done(ending.outcome, ending.result, ending.error, ending.delay_seconds)


def _ending_of(task: Any, context: TaskContext) -> Ending:
    bind_contextvars(task_id=context.id, task_type=context.task_type, attempt=context.attempt)
    return run_one(task, context.envelope, context)


def _receive(worker: socket.socket) -> Word | None:
    head = _exactly(worker, LENGTH.size)
    body = None if head is None else _exactly(worker, LENGTH.unpack(head)[0])
    return None if body is None else unpacked(body)


def _exactly(worker: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        try:
            part = worker.recv(count - len(data))
        except ConnectionError:
            return None
        if not part:
            return None
        data += part
    return bytes(data)


if __name__ == "__main__":
    main(int(sys.argv[1]))
