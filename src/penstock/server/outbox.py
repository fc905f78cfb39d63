"""What is on its way to one peer, within bounds.

Whoever puts something in never waits; instead `full` is called when it holds too much, and `drained` when the peer has
taken half of it. Sources that can stop do so in between; a shell stops reading requests, whose answers would go in too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from penstock import limits


class Outbox:
    """Items for one peer, in order. `write` sends one item and returns when the peer has room for more."""

    def __init__(
        self,
        write: Callable[[Any], Awaitable[None]],
        full: Callable[[], None],
        drained: Callable[[], None],
        bytes_max: int = limits.outbox_bytes_max,
    ) -> None:
        self._write = write
        self._full = full
        self._drained = drained
        self._bytes_max = bytes_max
        self._items: deque[tuple[Any, int]] = deque()
        self._bytes = 0
        self._has_items = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_closed = False

    @property
    def is_full(self) -> bool:
        return not self._has_room.is_set()

    def put(self, item: Any, size: int) -> None:
        """To be sent after all that is in here; ignored once it is closed."""
        if self._is_closed:
            return
        self._items.append((item, size))
        self._bytes += size
        self._has_items.set()
        if self._bytes > self._bytes_max and not self.is_full:
            self._has_room.clear()
            self._full()

    async def room(self) -> None:
        """Return when it is not full."""
        await self._has_room.wait()

    def close(self) -> None:
        """Nothing more goes in; `run` returns when all is sent."""
        self._is_closed = True
        self._has_items.set()

    async def run(self) -> None:
        """Send, until it is closed and empty."""
        while True:
            while self._items:
                item, size = self._items[0]
                await self._write(item)
                self._items.popleft()
                self._bytes -= size
                if self.is_full and self._bytes <= self._bytes_max // 2:
                    self._has_room.set()
                    self._drained()
            if self._is_closed:
                return
            self._has_items.clear()
            await self._has_items.wait()
