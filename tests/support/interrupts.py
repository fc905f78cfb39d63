"""Exceptions that come from outside, at a line of the package that a test chooses: Ctrl-C, or a time-out by a signal.

`Interruption` counts the lines that a call runs through in this thread, and raises at one of them. A trace sees two
lines at which no signal handler can run, since CPython looks for signals only after calls, at the start of functions
and where loops go back: `try:`, which does nothing, and the line of a `with` a second time, between its last line and
the release of the lock. They do not count.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import penstock
from penstock.errors import OutcomeUnknown

PACKAGE: Final = str(Path(penstock.__file__).parent)
Where = tuple[str, int]  # file within the package, and line


class CtrlC(BaseException):
    """What a signal handler raises."""


class Late(Exception):
    """What a handler of SIGALRM raises, say: an ordinary exception that no code of ours foresees."""


class Interruption:
    """Watches the lines that this thread runs through; at the one numbered `at` it raises `error`."""

    def __init__(self, at: int = -1, error: type[BaseException] = CtrlC, on_line: Callable[[], None] | None = None):
        self.lines: list[Where] = []
        self._at = at
        self._error = error
        self._on_line = on_line

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this lasts. The exception that it raised ends here."""
        sys.settrace(self._called)
        try:
            yield
        except (CtrlC, Late, OutcomeUnknown):  # or what was made of it: nobody knows how far it came
            pass
        finally:
            sys.settrace(None)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and frame.f_lasti not in _no_places(frame.f_code):
            place = len(self.lines)
            self.lines.append((frame.f_code.co_filename[len(PACKAGE) + 1 :], frame.f_lineno))
            if self._on_line is not None:
                self._on_line()
            if place == self._at:
                sys.settrace(None)
                raise self._error
        return self._line


@cache
def _no_places(code: CodeType) -> frozenset[int]:
    """Lines that do nothing; and where a `with` statement calls `__exit__(None, None, None)`, its body being done."""
    found = set()
    instructions = list(dis.get_instructions(code))
    for place, each in enumerate(instructions):
        if each.starts_line is not None and each.opname == "NOP":
            found.add(each.offset)
        rest = [one for one in instructions[place : place + 8] if one.opname not in {"NOP", "SWAP", "PUSH_NULL"}]
        if (
            each.starts_line is not None
            and len(rest) >= 3
            and all(one.opname == "LOAD_CONST" and one.argval is None for one in rest[:3])
        ):
            found.add(each.offset)
    return frozenset(found)
