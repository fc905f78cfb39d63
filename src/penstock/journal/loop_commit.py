"""Commits that an event loop sends itself, where the journal can: no thread between a request and its reply.

The loop sends what was gathered, goes on, and receives the answer when the socket of the journal has it. One commit is
under way at a time. Whatever is not plain (a lost connection, a new file, a row too large to send at once, a late
answer) is left to the thread that syncs: it finds out how a commit ended, also one that was sent from here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from penstock.journal import Journal, Socket

PATIENCE_SECONDS: Final = 1.0  # then a thread waits for the answer, up to its deadline


def nothing() -> None:
    """Nobody measures."""


class LoopCommit:
    """The commits of one event loop. Everything here runs on its thread.

    `begun` is called before each commit, and what it returns when that has ended. `on_answered` is called then too,
    however it ended; `on_late` when a thread has to see to it.
    """

    def __init__(
        self,
        journal: Journal,
        loop: asyncio.AbstractEventLoop,
        begun: Callable[[], Callable[[], object]],
        on_answered: Callable[[], object],
        on_late: Callable[[], object],
    ) -> None:
        self.is_sent = False  # a commit is under way
        self._begun = begun
        self._can_send = journal.is_remote  # the others sync, and that blocks
        self._journal = journal
        self._loop = loop
        self._on_answered = on_answered
        self._on_late = on_late
        self._number = 0  # of commits that were sent
        self._on_taken: Callable[[], object] = nothing
        self._ended: Callable[[], object] = nothing
        self._watched: Socket | None = None
        self._descriptor = -1
        self._timer: asyncio.TimerHandle | None = None

    def send(self) -> bool:
        """Send what was gathered, or have it follow the commit that is under way; False when that takes a thread."""
        if self.is_sent:
            return True
        if not self._can_send:
            return False
        self._number += 1
        ended = self._begun()
        self._on_taken = partial(self._taken_over, self._number)
        socket = self._journal.send_commit(self._on_taken)
        if socket is None:
            return False
        if socket is not self._watched and not self._watch(socket):
            return False
        self.is_sent, self._ended = True, ended
        if self._timer is None:
            self._timer = self._loop.call_later(PATIENCE_SECONDS, self._look, self._number)
        return True

    def close(self) -> None:
        """Watch nothing any more."""
        self.is_sent = False
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __del__(self) -> None:
        if self._descriptor >= 0:  # its loop is gone
            os.close(self._descriptor)

    def _watch(self, socket: Socket) -> bool:
        self._unwatch()
        try:
            # One of its own: the other may be closed at any time, by any thread, and its number be another's then.
            descriptor = os.dup(socket.fileno())
        except OSError:
            return False
        try:
            self._loop.add_reader(descriptor, self._readable)
        except (RuntimeError, OSError):  # not every loop can
            os.close(descriptor)
            return False
        self._watched, self._descriptor = socket, descriptor
        return True

    def _unwatch(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        self._watched = None
        if descriptor >= 0:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.remove_reader(descriptor)
            os.close(descriptor)

    def _readable(self) -> None:
        if not self.is_sent:
            self._unwatch()  # the server has ended the connection
        elif self._journal.receive_commit(self._on_taken):
            self._end()

    def _taken_over(self, number: int) -> None:
        """Another thread has received the answer, and calls this."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._taken, number)

    def _taken(self, number: int) -> None:
        if self.is_sent and number == self._number:
            self._end()

    def _end(self) -> None:
        self.is_sent = False
        self._ended()
        self._on_answered()

    def _look(self, number: int) -> None:
        """From time to time: whether the same commit is still under way."""
        self._timer = None
        if not self.is_sent:
            return
        if number == self._number:
            if self._journal.receive_commit(self._on_taken):
                self._end()
            else:
                self._on_late()
        self._timer = self._loop.call_later(PATIENCE_SECONDS, self._look, self._number)
