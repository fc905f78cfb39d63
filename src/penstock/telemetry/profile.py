"""A profile of the running process: which functions its threads are in, looked at many times a second.

Nothing is traced and nothing is slowed but by the looking: a thread of its own walks every other thread's frames. The
answer is text in collapsed form, one line per stack and how often it was seen, which flame-graph tools read. It has
names of functions and files, never values. One at a time.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from types import FrameType
from typing import Final

from penstock.errors import InvalidField, StateError

SECONDS_MAX: Final = 60.0
INTERVAL_SECONDS: Final = 0.005
DEPTH_MAX: Final = 128

_busy: Final = threading.Lock()


def profile(seconds: float, stop: threading.Event | None = None) -> str:
    """Look at this process for some seconds, or until `stop` is set. Blocks: call it in a thread."""
    if not 0 < seconds <= SECONDS_MAX:
        raise InvalidField(f"seconds: {seconds!r} is not a number from 0 to {SECONDS_MAX:g}")
    if not _busy.acquire(blocking=False):
        raise StateError("a profile is being taken already", hint="wait until it is done, then ask again")
    try:
        return _text(_sample(seconds, stop or threading.Event()))
    finally:
        _busy.release()


def _sample(seconds: float, stop: threading.Event) -> Counter[str]:
    seen: Counter[str] = Counter()
    own = threading.get_ident()
    for _ in range(max(1, round(seconds / INTERVAL_SECONDS))):
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if ident != own:
                seen[_stack(names.get(ident, "?"), frame)] += 1
        if stop.wait(INTERVAL_SECONDS):
            break
    return seen


def _stack(thread: str, frame: FrameType | None) -> str:
    calls: list[str] = []
    while frame is not None and len(calls) < DEPTH_MAX:
        code = frame.f_code
        calls.append(f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname}")
        frame = frame.f_back
    return ";".join([thread, *reversed(calls)])


def _text(seen: Counter[str]) -> str:
    return "".join(f"{stack} {count}\n" for stack, count in seen.most_common())
