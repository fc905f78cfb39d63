"""What a cost is: something that grows, work that is done beside it, and how fast its price may rise."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded import BlockingSession, Session

Work = Callable[[], object]
CONSTANT, LINEAR = 0.35, 1.15  # exponents, with room for what does not grow, for logarithms and for the weather


class Cost(NamedTuple):
    """`prepare` makes as many as it is told, and answers with the work whose price is asked for."""

    name: str
    grows: str  # what there is more and more of
    prepare: Callable[[Setting, int], Work]
    sizes: tuple[int, int, int]  # measured by the clock
    steps_at: tuple[int, int]  # counted in steps
    exponent_max: float = LINEAR
    hold_exponent_max: float = CONSTANT  # of the longest hold of the lock, in steps
    hold_ms_max: float | None = 50.0
    repeats: int = 3


class WatchedLock:
    """Stands in for the lock of a shard and remembers the longest hold, by the gauge that it is given."""

    def __init__(self, lock: Any, gauge: Callable[[], float]) -> None:
        self._lock = lock
        self._gauge = gauge
        self._since = 0.0
        self.longest = 0.0

    def __enter__(self) -> None:
        self._lock.acquire()
        self._since = self._gauge()

    def __exit__(self, *error: object) -> None:
        self.longest = max(self.longest, self._gauge() - self._since)
        self._lock.release()


class Setting:
    """A shard in a directory of its own, without threads, with a clock that is moved by hand; opened when asked for."""

    def __init__(self, path: Path, gauge: Callable[[], float]) -> None:
        self.path = path
        self.clock = ManualClock()
        self.rng = random.Random(1)
        self.stack = ExitStack()  # for what has to be ended afterwards
        self._gauge = gauge
        self._session: Session | None = None
        self._lock: WatchedLock | None = None

    @property
    def session(self) -> Session:
        if self._session is None:
            self._session = self.opened()
        return self._session

    def opened(self, **options: Any) -> Session:
        """A session with options of its own; the first one that is opened is `session`, and its lock is watched."""
        given = {"durability": "os", "clock": self.clock, "rng": self.rng, "background": False, **options}
        session = Session(self.path, **given)
        self.stack.callback(session.close)
        if self._session is None:
            self._session = session
            self._lock = WatchedLock(session.shard.lock, self._gauge)
            session.shard.lock = self._lock  # type: ignore[assignment]  # nobody uses more of a lock
        return session

    @property
    def ps(self) -> Penstock:
        return Penstock(BlockingSession(self.session))

    def begin(self) -> None:
        """What comes now counts."""
        if self._lock is not None:
            self._lock.longest = 0.0

    @property
    def longest_hold(self) -> float:
        return 0.0 if self._lock is None else self._lock.longest

    def close(self) -> None:
        self.stack.close()
