"""The seam between the desk and the ways of running: on the loop, in threads, in processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from penstock.tasks.endings import Ending
from penstock.worker.runs import Run

MayBegin = Callable[[Run], bool]  # whether its lease still holds; asked right before a run begins, in any thread
NOT_BEGUN: Final = Ending("released")  # told of a run that might not begin any more
Ended = Callable[[Run, Ending | None], None]  # told once of every run, on the loop; None: it was broken off


class Lane(Protocol):
    """A way of running: on the loop, in threads, in processes."""

    size: int  # so many at once
    running: int
    abandoned: int  # runs that do not end and whose slots others have; see `desk`
    waiting: deque[Run]
    buffered: int  # of those that wait, some may have been dropped

    def start(self, run: Run) -> None:
        """Run it; `ended` is called on the loop, later."""

    def break_off(self, run: Run) -> bool:
        """Whether it will end by that."""
