"""What this process is busy with: where its threads are, what allocates memory, where every thread and task waits.

    cpu       a thread of its own walks every other thread's frames, many times a second. Collapsed stacks, one line
              for each with how often it was seen, which flame-graph tools read.
    memory    allocations are traced for some seconds; then the lines of code that hold most of what was allocated
              meanwhile, beside what the process holds altogether. Tracing slows the process while it goes on. The
              trace is read in one go, and no other thread runs meanwhile, the event loop neither: about 0.2 µs for
              each block that is still held. So tracing ends early when about 80,000 blocks are traced.
    threads   the stack of each thread, and of the tasks of the event loop, those that are alike counted.

All of it is text with names of functions and files, never values. One at a time.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final

import psutil

from penstock import limits
from penstock.errors import InvalidField, StateError

SECONDS_MAX: Final = limits.profile_seconds_max
INTERVAL_SECONDS: Final = 0.005
DEPTH_MAX: Final = 128
LINES_MAX: Final = 50  # of code, in a profile of memory
TRACER_BYTES_MAX: Final = 4 << 20  # of the tracer's own table, which has about 53 for each traced block
LOOK_SECONDS: Final = 0.01  # a busy process allocates about 10,000 blocks in this time
_HOMES: Final = tuple(sorted({str(Path(path)) for path in sys.path if path}, key=len, reverse=True))

_busy: Final = threading.Lock()


def profile(seconds: float, stop: threading.Event | None = None) -> str:
    """Look at the threads for some seconds, or until `stop` is set. Blocks: call it in a thread."""
    return _alone(seconds, lambda: _collapsed(_sample(seconds, stop or threading.Event())))


def memory(seconds: float, stop: threading.Event | None = None) -> str:
    """Trace allocations for some seconds, or until `stop` is set. Blocks: call it in a thread."""
    return _alone(seconds, lambda: "\n".join(_allocations(seconds, stop or threading.Event())) + "\n")


def threads(loop: asyncio.AbstractEventLoop | None = None) -> str:
    """Where each thread is, and each task of an event loop."""
    return _alone(1.0, lambda: "\n".join([*_threads(), *(() if loop is None else _tasks(loop))]) + "\n")


def _alone(seconds: float, look: Callable[[], str]) -> str:
    if not 0 < seconds <= SECONDS_MAX:
        raise InvalidField(f"seconds: {seconds!r} is not a number from 0 to {SECONDS_MAX:g}")
    if not _busy.acquire(blocking=False):
        raise StateError("a profile is already being taken", hint="wait until it is done, then ask again")
    try:
        return look()
    finally:
        _busy.release()


# the processor


def _sample(seconds: float, stop: threading.Event) -> Counter[str]:
    seen: Counter[str] = Counter()
    for _ in range(max(1, round(seconds / INTERVAL_SECONDS))):
        seen.update(_stacks())
        if stop.wait(INTERVAL_SECONDS):
            break
    return seen


def _stacks() -> list[str]:
    """Of every other thread. No frame is kept: it would keep the locals of a function that has returned."""
    own = threading.get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    return [_stack(names.get(ident, "?"), frame) for ident, frame in frames.items() if ident != own]


def _stack(thread: str, frame: FrameType | None) -> str:
    calls = [f"{call.f_globals.get('__name__', '?')}.{call.f_code.co_qualname}" for call in _frames(frame)]
    return ";".join([thread, *calls])


def _collapsed(seen: Counter[str]) -> str:
    return "".join(f"{stack} {count}\n" for stack, count in seen.most_common())


# memory


def _allocations(seconds: float, stop: threading.Event) -> Iterator[str]:
    if tracemalloc.is_tracing():
        raise StateError("another part of this program already traces allocations", hint="stop that first")
    before = psutil.Process().memory_info().rss
    tracemalloc.start(1)
    try:
        took = _trace(seconds, stop)
        current, peak = tracemalloc.get_traced_memory()
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    now = psutil.Process().memory_info().rss
    yield f"# resident: {now:,} bytes, {now - before:+,} during the profile"
    yield f"# traced for {took:.2f} s: {current:,} bytes still held, {peak:,} at most"
    yield f"# objects that the garbage collector knows, by generation: {', '.join(map(str, gc.get_count()))}"
    yield "# bytes  blocks  line"
    for line in snapshot.statistics("lineno")[:LINES_MAX]:
        frame = line.traceback[0]
        yield f"{line.size} {line.count} {_short(frame.filename)}:{frame.lineno}"


def _trace(seconds: float, stop: threading.Event) -> float:
    """Until the time is over, or enough is traced; how long it was."""
    took = 0.0
    while took < seconds and tracemalloc.get_tracemalloc_memory() < TRACER_BYTES_MAX:
        if stop.wait(min(LOOK_SECONDS, seconds - took)):
            break
        took += LOOK_SECONDS
    return min(took, seconds)


def _short(file: str) -> str:
    """The name of a file without the directory that it was imported from."""
    for home in _HOMES:
        if file.startswith(home + "/"):
            return file[len(home) + 1 :]
    return file


# threads and tasks


def _threads() -> Iterator[str]:
    own = threading.get_ident()
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if thread.ident != own and thread.ident in frames:
            yield f"thread {thread.name}" + (" (daemon)" if thread.daemon else "")
            yield from _lines(_frames(frames[thread.ident]))


def _tasks(loop: asyncio.AbstractEventLoop) -> Iterator[str]:
    seen: Counter[tuple[str, ...]] = Counter()
    for task in asyncio.all_tasks(loop):
        stack = task.get_stack(limit=DEPTH_MAX)
        seen[tuple(_lines(stack)) if stack else (f"    {task.get_coro()!r}".split(" at 0x")[0],)] += 1
    for lines, count in seen.most_common():
        yield f"asyncio tasks: {count}"
        yield from lines


def _frames(frame: FrameType | None) -> list[FrameType]:
    """The calls of a stack, outermost first."""
    found: list[FrameType] = []
    while frame is not None and len(found) < DEPTH_MAX:
        found.append(frame)
        frame = frame.f_back
    return found[::-1]


def _lines(frames: Iterable[FrameType]) -> Iterator[str]:
    for frame in frames:
        code = frame.f_code
        yield f"    {_short(code.co_filename)}:{frame.f_lineno} {code.co_qualname}"
