"""A lock at whose release somebody else gets a turn: another thread, without a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from penstock.embedded.session import Session


class TurnTaking:
    """A lock that gives others a turn whenever it is released, if it was told to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.on_release: Callable[[], None] | None = None

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()
        turn, self.on_release = self.on_release, None
        if turn is not None and error[0] is None:
            try:
                turn()
            finally:
                self.on_release = turn


def take_turns(session: Session) -> TurnTaking:
    """Put such a lock into a session that nobody uses yet and that has no threads of its own."""
    shard: Any = session.shard
    shard.lock = TurnTaking()
    lock: TurnTaking = shard.lock
    return lock
