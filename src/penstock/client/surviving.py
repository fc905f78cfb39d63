"""Consumers that outlive their queue: when it, or their group, is deleted, they begin again as soon as it is there.

Whether a group was deleted by itself, or went with a queue that has been created again since, nobody can tell who was
not there: so who asks to survive the one survives the other.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, suppress
from typing import Final, TypeVar

from penstock.errors import GroupNotFound, QueueNotFound

D = TypeVar("D")
LOOK_SECONDS: Final = 1.0  # how often it is looked whether they are back


def surviving(run: Callable[[], Iterator[D]], stop: threading.Event | None) -> Iterator[D]:
    """What `run` hands out, begun anew whenever queue or group are gone."""
    stop = stop or threading.Event()
    while not stop.is_set():
        try:
            yield from run()
        except (QueueNotFound, GroupNotFound):
            stop.wait(LOOK_SECONDS)
        else:
            return


async def surviving_tasks(run: Callable[[], AsyncGenerator[D]], stop: asyncio.Event | None) -> AsyncGenerator[D]:
    """Asyncio version of `surviving`: closing it closes what `run` hands out."""
    stop = stop or asyncio.Event()
    while not stop.is_set():
        try:
            async with aclosing(run()) as deliveries:
                async for delivery in deliveries:
                    yield delivery
        except (QueueNotFound, GroupNotFound):
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOOK_SECONDS)
        else:
            return
