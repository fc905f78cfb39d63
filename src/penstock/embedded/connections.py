"""Who is connected to a broker: every connection with who is on it, since when, and what is under way.

Connections enter and leave on the event loop; others may look. A session without a broker has none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import NamedTuple, Protocol

from penstock.errors import ConnectionNotFound
from penstock.model import to_datetime
from penstock.replies import ConnectionPage, ConnectionView


class Activity(NamedTuple):
    """What a connection is about at this moment."""

    protocol: str
    principal: str
    address: str
    client: str  # what the program calls itself
    streams: int = 0  # deliveries and events that are sent as they come
    in_flight: int = 0  # requests without a reply
    producer: str = ""


class Connected(Protocol):
    """A connection, as the registry sees it."""

    def activity(self) -> Activity:
        """Called by any thread; it must not block."""
        ...

    def end(self) -> None:
        """End the connection. Called on the event loop."""
        ...


class Connections:
    """The connections of one broker."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._known: dict[int, tuple[Connected, int]] = {}
        self._next = 1
        self.loop: asyncio.AbstractEventLoop | None = None  # of the broker

    def enter(self, connection: Connected) -> int:
        """A connection was made; the number under which it is known."""
        number = self._next
        self._next += 1
        self._known[number] = (connection, self._now())
        return number

    def leave(self, number: int) -> None:
        """It has ended."""
        self._known.pop(number, None)

    def page(self, limit: int) -> ConnectionPage:
        """Those that are there, the oldest first."""
        known = self._known.copy()
        views = [_view(number, *entry) for number, entry in islice(known.items(), limit)]
        return ConnectionPage(connections=views, total=len(known))

    def end(self, connection_id: str) -> None:
        """End one of them."""
        entry = self._known.get(int(connection_id)) if connection_id.isascii() and connection_id.isdecimal() else None
        if entry is None or self.loop is None:
            raise ConnectionNotFound(f"there is no connection {connection_id!r}")
        with suppress(RuntimeError):  # the loop is closed, and all of them with it
            self.loop.call_soon_threadsafe(entry[0].end)


def _view(number: int, connection: Connected, since: int) -> ConnectionView:
    return ConnectionView(connection_id=str(number), since=to_datetime(since), **connection.activity()._asdict())
