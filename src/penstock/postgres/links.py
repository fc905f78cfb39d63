"""Connections of one process to a store: a small pool with retries, and the fence.

A query is repeated after a lost connection. A change is one transaction that first locks the row of the shard with the
owner's term: if that row is missing, another node has taken over, and nothing is changed. Changes are idempotent,
because after a lost connection it is unknown whether the first attempt was committed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar
from weakref import WeakSet

from penstock.clock import SystemClock
from penstock.errors import Closed, Deposed, StorageError, StoreRefused, StoreUnavailable
from penstock.postgres.link import HURRY_SECONDS, Link
from penstock.postgres.target import Target

T = TypeVar("T")

READ_SECONDS: Final = 10.0
CHANGE_SECONDS: Final = 30.0
RETRY_SECONDS_MIN: Final = 0.02
RETRY_SECONDS_MAX: Final = 0.25
IDLE_MAX: Final = 2  # connections that are kept for later

FENCE: Final = "SELECT 1 FROM penstock.shards WHERE shard = $1 AND term = $2 FOR SHARE"
# Taking the row's lock waits until no change of the same term is under way; the commit is synchronous.
RENEW: Final = "UPDATE penstock.shards SET renewals = renewals + 1 WHERE shard = $1 AND term = $2"

_clock = SystemClock()


class Links:
    """Connections to one store. Safe to use from several threads."""

    def __init__(self, target: Target, role: str) -> None:
        self.target = target
        self.role = role
        self._idle: list[Link] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._hurried_until: int | None = None  # how long anything is retried, once closing has begun
        self._is_away = False  # the server could not be reached after that
        self._made: WeakSet[Link] = WeakSet()

    def new(self, *, statement_seconds: float | None = None) -> Link:
        """A connection for the caller's own use."""
        if self._is_away:
            raise StoreUnavailable(f"{self.target.shown} does not answer, and is being closed")
        options = {} if statement_seconds is None else {"statement_seconds": statement_seconds}
        try:
            link = Link(self.target, self.role, **options)
        except StorageError:
            self._is_away = self._hurried_until is not None
            raise
        self._made.add(link)
        if self._hurried_until is not None:
            link.hurry()
        return link

    def hurry(self) -> None:
        """Closing begins: what does not succeed within `HURRY_SECONDS` fails, so that closing takes bounded time."""
        with self._lock:
            if self._hurried_until is None:
                self._hurried_until = _clock.monotonic() + round(HURRY_SECONDS * 1_000_000)
                for link in list(self._made):
                    link.hurry()

    @property
    def is_given_up(self) -> bool:
        """Whether `hurry` was called more than `HURRY_SECONDS` ago: nothing is retried any more."""
        return self._hurried_until is not None and _clock.monotonic() >= self._hurried_until

    def note_lost(self) -> None:
        """A connection was lost. After `is_given_up`, no other is made."""
        self._is_away = self._is_away or self.is_given_up

    @contextmanager
    def borrowed(self) -> Iterator[Link]:
        """Borrow a connection. A broken one is not kept; an exception rolls back its transaction."""
        with self._lock:
            if self._closed.is_set():
                raise Closed("the store is closed")
            link = self._idle.pop() if self._idle else None
        link = link or self.new()
        try:
            yield link
        except BaseException as error:
            link.rollback()
            if isinstance(error, StoreUnavailable):
                self.note_lost()
            raise
        finally:
            with self._lock:
                is_kept = link.is_open and len(self._idle) < IDLE_MAX and not self._closed.is_set()
                if is_kept:
                    self._idle.append(link)
            if not is_kept:
                link.close()

    def ask(self, question: Callable[[Link], T]) -> T:
        """Run a query, and repeat it after a lost connection."""

        def once() -> T:
            with self.borrowed() as link:
                return question(link)

        return self.patiently(once, READ_SECONDS)

    def patiently(self, action: Callable[[], T], seconds: float) -> T:
        """Run an action, and repeat it after transient errors for at most the given number of seconds."""
        until, pause = _clock.monotonic() + round(seconds * 1_000_000), RETRY_SECONDS_MIN
        while True:
            try:
                return action()
            except (StoreUnavailable, StoreRefused) as error:
                hurried = self._hurried_until
                last = until if hurried is None else min(until, hurried)
                if not is_passing(error) or _clock.monotonic() >= last or self._closed.wait(pause):
                    raise
            pause = min(2 * pause, RETRY_SECONDS_MAX)

    def pause(self, seconds: float) -> None:
        """Wait, or until it is closed."""
        self._closed.wait(seconds)

    def close(self) -> None:
        """Close all connections, including those of `new`."""
        with self._lock:
            self._closed.set()
            everyone = list(self._made)
            self._idle.clear()
        for link in everyone:
            link.close()


class Fenced:
    """Changes of one shard in one term. `on_deposed` is called when another node has a later term."""

    def __init__(self, links: Links, shard: int, term: int) -> None:
        self.links = links
        self.shard = shard
        self.term = term
        self.on_deposed: Callable[[Deposed], object] = lambda error: None

    def change(self, action: Callable[[Link], T]) -> T:
        """Run `action` in one fenced transaction; repeated when its outcome is unknown."""
        return self.links.patiently(lambda: self._once(action), CHANGE_SECONDS)

    def _once(self, action: Callable[[Link], T]) -> T:
        with self.links.borrowed() as link:
            link.begin()
            if link.one(FENCE, self.shard, self.term) is None:
                raise self.deposed()
            result = action(link)
            link.commit()
            return result

    def deposed(self) -> Deposed:
        """Notify `on_deposed`, and return the error to raise."""
        error = Deposed(f"another node has taken over: term {self.term} of shard {self.shard} has ended")
        self.on_deposed(error)
        return error


def is_passing(error: StorageError) -> bool:
    """Whether an error is transient: the server restarts, or changes its role."""
    if isinstance(error, StoreUnavailable):
        return True
    # No answer; shutting down, starting, crashed; too many connections; read-only before a shutdown; serialization.
    return isinstance(error, StoreRefused) and (
        not error.sqlstate
        or error.sqlstate[:2] in ("57", "08")
        or error.sqlstate in ("53300", "25006", "40001", "40P01")
    )
