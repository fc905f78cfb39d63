"""How much of the machine a process uses: its share of a processor, and its memory.

From /proc where there is one; elsewhere memory is the most it ever had.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

_PAGE: Final = os.sysconf("SC_PAGESIZE")
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Usage:
    """Processor time between two looks; time is an argument."""

    def __init__(self, now: int) -> None:
        self._seen = (now, _cpu_seconds(()))

    def cpu_percent(self, now: int, children: Iterable[int] = ()) -> float:
        """Since the last look, of this process and of those that it started; 100 is one processor."""
        at, seconds = self._seen
        self._seen = (now, _cpu_seconds(children))
        return round(max(0.0, self._seen[1] - seconds) * 1e8 / max(1, now - at), 1)


def memory_bytes(children: Iterable[int] = ()) -> int:
    """Memory of this process and of some others."""
    return _memory("self") + sum(_memory(str(pid)) for pid in children)


def _memory(who: str) -> int:
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{who}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * _PAGE
    if who != "self":
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _cpu_seconds(children: Iterable[int]) -> float:
    times = os.times()  # those of children that are over are in it
    own = times.user + times.system + times.children_user + times.children_system
    return own + sum(map(_cpu_seconds_of, children))


def _cpu_seconds_of(pid: int) -> float:
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        # The second field is a name in parentheses, with whatever in it.
        fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
    return 0.0
