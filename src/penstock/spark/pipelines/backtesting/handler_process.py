"""A handler in a process of its own: it may hang, or take its process with it, and the job goes on.

One process serves one worker of Spark's and is started anew after a message that it did not survive. A handler that
fails like that again and again is not called any more.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from penstock.clock import SystemClock
from penstock.errors import InvalidField
from penstock.spark.pipelines.backtesting.handler_child import IDLE_SECONDS, Call, Result, Setup, framed, read_frame

IMPORT_SECONDS: Final = 120.0
DEATH_SECONDS: Final = 5.0
LOST_IN_A_ROW_MAX: Final = 20  # hung or dead: after so many there is no hope

_MODULE: Final = "penstock.spark.pipelines.backtesting.handler_child"


class _TimedOut(Exception):
    """No answer in time."""


class HandlerProcess:
    """The parent's end. Not safe for threads: one worker of Spark's has one."""

    def __init__(self, setup: Setup, timeout_seconds: float) -> None:
        self._setup = setup
        self._timeout_seconds = timeout_seconds
        self._clock = SystemClock()
        self._process: subprocess.Popen[bytes] | None = None
        self._used_at = 0
        self._lost_in_a_row = 0

    def call(self, call: Call) -> Result:
        """Have the handler take one message."""
        if self._lost_in_a_row >= LOST_IN_A_ROW_MAX:
            return Result("skipped", f"not called: it hung or died {LOST_IN_A_ROW_MAX} times in a row")
        self.start()
        begun = self._clock.monotonic()
        try:
            data = self._exchange(framed(call), self._timeout_seconds)
        except _TimedOut:
            self.stop()
            result = Result("timed_out", f"no answer within {self._timeout_seconds:g} s")
        else:
            self._used_at = self._clock.monotonic()
            if data is not None:
                self._lost_in_a_row = 0
                return msgspec.msgpack.decode(data, type=Result)
            result = Result("interrupted", f"the handler's process died: {self._death()}")
        self._lost_in_a_row += 1
        return Result(result.outcome, result.error, (self._clock.monotonic() - begun) / 1000)

    def start(self) -> None:
        """Have a process with the handler loaded; `InvalidField` when it cannot be."""
        if self._process is not None and self._clock.monotonic() - self._used_at < IDLE_SECONDS / 2 * 1e6:
            return
        self.stop()
        self._process = subprocess.Popen(  # noqa: S603 - running the user's code is the point
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            # Spark adds what --py-files brought to the path of its workers, not to the environment.
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._used_at = self._clock.monotonic()
        hint = "the handler's module must be where it runs: install it, or send it along: --conf spark.submit.pyFiles=…"
        try:
            answer = self._exchange(framed(self._setup), IMPORT_SECONDS)
        except _TimedOut:
            self.stop()
            raise InvalidField(f"handler: importing it takes longer than {IMPORT_SECONDS:g} s", hint=hint) from None
        problem = f"importing it ends the process: {self._death()}" if answer is None else _text(answer)
        if problem is not None:
            self.stop()
            raise InvalidField(f"handler: {problem}", hint=hint)

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _exchange(self, data: bytes, seconds: float) -> bytes | None:
        """Send, and read the answer; None when there is nobody."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _write_all(process.stdin.fileno(), data)
        except BrokenPipeError:
            return None
        deadline = self._clock.monotonic() + round(seconds * 1e6)
        return read_frame(self._reader(process.stdout.fileno(), deadline))

    def _reader(self, descriptor: int, deadline: int) -> Callable[[int], bytes]:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)

        def read(count: int) -> bytes:
            found = b""
            while len(found) < count:
                left_ms = (deadline - self._clock.monotonic()) / 1000
                if left_ms <= 0 or not poll.poll(left_ms):
                    raise _TimedOut
                piece = os.read(descriptor, count - len(found))
                if not piece:
                    break
                found += piece
            return found

        return read

    def _death(self) -> str:
        """How the process ended."""
        process, self._process = self._process, None
        assert process is not None
        # Before its input is closed, which would end it too, and hide why it ended.
        with suppress(subprocess.TimeoutExpired):
            process.wait(DEATH_SECONDS)
        process.kill()
        process.communicate()
        code = process.returncode
        return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _text(answer: bytes) -> str | None:
    return msgspec.msgpack.decode(answer, type=str | None)
