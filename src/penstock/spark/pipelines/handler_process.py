"""A handler under test in a process of its own: it may hang, or crash its process, and the job continues.

The child is `python -m penstock.spark.pipelines.handler_process`. Over its standard input it receives the handler's
name, then one message after another, and answers each over its standard output; both are length-prefixed msgpack. The
handler gets neither: what it prints goes to standard error, what it reads is empty. The child ends when its parent is
gone, even while the handler hangs, and when it has been idle.

One child serves one Spark worker. It is restarted after a message that it did not survive. A handler that fails like
that many times in a row is not called any more.
"""

from __future__ import annotations

import asyncio
import difflib
import importlib
import inspect
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from contextlib import suppress
from datetime import datetime
from typing import Any, BinaryIO, Final

import msgspec

from penstock.clock import SystemClock
from penstock.errors import InvalidField
from penstock.model import MessageId, to_datetime

IDLE_SECONDS: Final = 60.0
ERROR_CHARS_MAX: Final = 16_000
_LENGTH_BYTES: Final = 4


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Which handler, and where to look for it first."""

    handler: str  # module:function
    path: tuple[str, ...] = ()


class Call(msgspec.Struct, frozen=True, array_like=True):
    """One message for the handler; times are µs UTC."""

    queue: str
    partition: str
    offset: int
    key: str | None
    payload: bytes
    headers: dict[str, str] | None
    priority: int
    pushed_at: int
    dedup_key: str | None
    trace: str | None
    content_type: str | None
    max_attempts: int | None


class Result(msgspec.Struct, frozen=True, array_like=True):
    """How the handler would have settled it. `error` is a traceback where it raised."""

    outcome: str
    error: str | None = None
    ms: float | None = None


class _Done:
    """The result of a settling method; it may be awaited or not."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


_DONE: Final = _Done()


class Delivery:
    """The argument of the handler: it looks like a delivery, settles nothing, and records how it was settled."""

    attempt = 1

    def __init__(self, call: Call) -> None:
        self.queue, self.partition, self.offset = call.queue, call.partition, call.offset
        self.id = MessageId(call.queue, call.partition, call.offset)
        self.payload, self.key, self.headers = call.payload, call.key, call.headers or {}
        self.priority, self.dedup_key, self.trace = call.priority, call.dedup_key, call.trace
        self.content_type, self.max_attempts = call.content_type, call.max_attempts
        self.pushed_at: datetime = to_datetime(call.pushed_at)
        self.result: Result | None = None

    @property
    def settled(self) -> bool:
        return self.result is not None

    def json(self) -> Any:
        """The payload, decoded as JSON."""
        return msgspec.json.decode(self.payload)

    def ack(self) -> _Done:
        return self._settle("acked")

    def nack(self, delay: float | None = None, error: str = "") -> _Done:
        return self._settle("retried", error)

    def reject(self, reason: str = "") -> _Done:
        return self._settle("rejected", reason)

    def release(self) -> _Done:
        return self._settle("released")

    def snooze(self, seconds: float) -> _Done:
        return self._settle("snoozed")

    def extend(self, seconds: float) -> _Done:
        return _DONE

    def _settle(self, outcome: str, error: str = "") -> _Done:
        self.result = self.result or Result(outcome, error or None)
        return _DONE


def load(setup: Setup) -> Callable[[Delivery], Any]:
    """The handler, or an ImportError that says what is wrong."""
    sys.path[:0] = [entry for entry in setup.path if entry not in sys.path]
    name, _, attribute = setup.handler.partition(":")
    try:
        module = importlib.import_module(name)
    except BaseException as error:
        raise ImportError(f"module {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    handler: Any = module
    for part in attribute.split("."):
        handler = getattr(handler, part, None)
    if not callable(handler):
        known = [entry for entry in vars(module) if callable(getattr(module, entry))]
        close = difflib.get_close_matches(attribute, known, n=1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        raise ImportError(f"module {name!r} has no function {attribute!r}{meant}")  # noqa: TRY004 - as above
    return handler  # type: ignore[no-any-return]


def handle(handler: Callable[[Delivery], Any], call: Call, runner: asyncio.Runner, clock: SystemClock) -> Result:
    """Call the handler with one message."""
    delivery = Delivery(call)
    begun = clock.monotonic()
    error = None
    try:
        answer = handler(delivery)
        if inspect.isawaitable(answer):
            runner.run(_awaited(answer))
    except (Exception, asyncio.CancelledError) as raised:  # noqa: BLE001 - what it raises is the answer
        # Without our own frame, which is the first.
        frames = raised.__traceback__ and raised.__traceback__.tb_next
        error = "".join(traceback.format_exception(type(raised), raised, frames))
    ms = (clock.monotonic() - begun) / 1000
    if error is not None:
        return Result("retried", error[-ERROR_CHARS_MAX:], ms)
    result = delivery.result or Result("acked")
    return Result(result.outcome, result.error, ms)


async def _awaited(answer: Any) -> Any:
    return await answer


def framed(value: Any) -> bytes:
    """A value as msgpack, with its length before it."""
    data = msgspec.msgpack.encode(value)
    return len(data).to_bytes(_LENGTH_BYTES, "little") + data


def read_frame(read: Callable[[int], bytes]) -> bytes | None:
    """The next bytes; None at the end."""
    head = read(_LENGTH_BYTES)
    if len(head) < _LENGTH_BYTES:
        return None
    length = int.from_bytes(head, "little")
    data = read(length)
    return data if len(data) == length else None


def main() -> None:
    """Answer calls until the parent is gone, or the process was idle."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests, frames), daemon=True).start()
    try:
        handler = load(msgspec.msgpack.decode(frames.get(), type=Setup))
    except ImportError as error:
        replies.write(framed(str(error)))
        return
    replies.write(framed(None))
    clock, decoder = SystemClock(), msgspec.msgpack.Decoder(Call)
    with asyncio.Runner() as runner:
        while True:
            try:
                frame = frames.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                return
            replies.write(framed(handle(handler, decoder.decode(frame), runner, clock)))


def _listen(requests: BinaryIO, frames: queue.SimpleQueue[bytes]) -> None:
    """In a thread of its own, so that the end of the other side is noticed while the handler is at work."""
    while (frame := read_frame(requests.read)) is not None:
        frames.put(frame)
    os._exit(0)


IMPORT_SECONDS: Final = 120.0
DEATH_SECONDS: Final = 5.0
LOST_IN_A_ROW_MAX: Final = 20  # hung or dead: then the handler is not called any more

_MODULE: Final = "penstock.spark.pipelines.handler_process"


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
            result = Result("timed_out", f"timed out after {self._timeout_seconds:g} s")
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
        hint = "Spark tasks must be able to import the handler: install it there, or use --conf spark.submit.pyFiles=…"
        try:
            answer = self._exchange(framed(self._setup), IMPORT_SECONDS)
        except _TimedOut:
            self.stop()
            raise InvalidField(f"handler: the import takes longer than {IMPORT_SECONDS:g} s", hint=hint) from None
        problem: str | None = (
            f"the import ends the process: {self._death()}" if answer is None else msgspec.msgpack.decode(answer)
        )
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
        """Send, and read the answer; None when the process is gone."""
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
            data = b""
            while len(data) < count:
                left_ms = (deadline - self._clock.monotonic()) / 1000
                if left_ms <= 0 or not poll.poll(left_ms):
                    raise _TimedOut
                chunk = os.read(descriptor, count - len(data))
                if not chunk:
                    break
                data += chunk
            return data

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


if __name__ == "__main__":
    main()
