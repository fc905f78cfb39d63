"""What consumers need of threads: `task_runtime` has the same names for asyncio.

Leases are extended at half their time, by one thread for all consumers of a session. The thread lives while somebody
consumes. It sleeps until the first lease is due: leases that are worked off sooner cost it nothing, since a lease that
is taken later is due later, unless it is shorter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from penstock.errors import PenstockError, StateError

if TYPE_CHECKING:
    from penstock.client._sync.delivery import Leased
    from penstock.client.session import Pipeline, Session

Event = threading.Event
Lock = threading.Lock
sleep: Final = time.sleep
Pause = Callable[[float], bool]  # sleeps; False when the work is over

_KEEPERS: Final[WeakKeyDictionary[Session, LeaseKeeper]] = WeakKeyDictionary()
_FINDING: Final = threading.Lock()


class LeaseKeeper:
    """Extends the leases of all consumers of a session."""

    def __init__(self, session: Session) -> None:
        self._clock = session.clock
        self._changed = threading.Condition()
        self._held: dict[int, tuple[int, Leased]] = {}  # by nonce: when it is due, and what
        self._consumers = 0
        self._thread: threading.Thread | None = None
        self._wakes_at = 0.0

    @contextmanager
    def consuming(self) -> Iterator[LeaseKeeper]:
        """Somebody may hold leases; the thread ends with the last of them."""
        with self._changed:
            self._consumers += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="penstock-lease", daemon=True)
                self._thread.start()
        try:
            yield self
        finally:
            with self._changed:
                self._consumers -= 1
                ended = self._thread if not self._consumers else None
                if ended is not None:
                    self._thread = None
                    self._changed.notify_all()
            if ended is not None:
                ended.join()

    @contextmanager
    def holding(self, leased: Leased) -> Iterator[None]:
        """Keep a lease alive until the block ends, or the lease does."""
        due = self._due(leased)
        with self._changed:
            self._held[leased.nonce] = (due, leased)
            if due < self._wakes_at:
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._held.pop(leased.nonce, None)

    def _due(self, leased: Leased) -> int:
        return self._clock.monotonic() + round(leased.lease_seconds * 500_000)

    def _run(self) -> None:
        me = threading.current_thread()
        with self._changed:
            while self._thread is me:
                now = self._clock.monotonic()
                due = [leased for at, leased in self._held.values() if at <= now]
                if due:
                    self._changed.release()
                    try:
                        self._extend(due)
                    finally:
                        self._changed.acquire()
                    continue
                self._wakes_at = min((at for at, _ in self._held.values()), default=float("inf"))
                self._changed.wait(None if not self._held else (self._wakes_at - now) / 1e6)

    def _extend(self, due: list[Leased]) -> None:
        for leased in due:
            is_lost = False
            try:
                leased.extend(leased.lease_seconds)
            except StateError:  # the lease is over, or the handle closed
                is_lost = True
            except PenstockError:  # the broker may be back in time
                pass
            with self._changed:
                if leased.nonce in self._held:
                    if is_lost:
                        del self._held[leased.nonce]
                    else:
                        self._held[leased.nonce] = (self._due(leased), leased)


def keeper_of(session: Session) -> LeaseKeeper:
    """The keeper of a session; its consumers share it."""
    with _FINDING:
        keeper = _KEEPERS.get(session)
        if keeper is None:
            keeper = _KEEPERS[session] = LeaseKeeper(session)
        return keeper


def keeping_leases(session: Session) -> AbstractContextManager[LeaseKeeper]:
    """A keeper of leases for a consumer."""
    return keeper_of(session).consuming()


@contextmanager
def background(work: Callable[[Pause], None]) -> Iterator[None]:
    """Run `work` in a thread beside the block; it ends with the block."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(lambda seconds: not over.wait(seconds),), name="penstock-member")
    thread.daemon = True
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def call(callback: Callable[[list[str]], Any] | None, partitions: list[str]) -> None:
    """Call a callback."""
    if callback is not None:
        callback(partitions)


def wait_for(event: threading.Event, seconds: float) -> None:
    """Return when the event is set, or after `seconds`."""
    event.wait(seconds)


def confirm_left(pipeline: Pipeline) -> None:
    """A consumer left its loop: what it settled is durable before it goes on."""
    pipeline.confirm()
