"""A broker on a loop of its own kind, for tests of what serves it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from itertools import count
from typing import Any

import uvloop

from penstock.broker.access import LOCAL, Client
from penstock.broker.broker import Broker
from penstock.embedded.session import Session

SECONDS = 200  # nothing takes that long, however loaded the machine; a hang fails instead of hanging
SOMEONE = Client(LOCAL, "test", "127.0.0.1", "test")


def on_uvloop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine as a test."""

    @wraps(test)
    def run(*arguments: Any, **options: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(test(*arguments, **options), SECONDS))

    return run


async def until(holds: Callable[[], Any]) -> None:
    """Let others run until something holds."""
    for _ in count():
        if holds():
            return
        await asyncio.sleep(0)


@asynccontextmanager
async def broker_on(path: Any = None, **options: Any) -> AsyncIterator[Broker]:
    """A broker over a shard in memory, or in a directory."""
    session = Session(path)
    broker = Broker(session, **options)
    try:
        yield broker
    finally:
        await broker.drain()
        broker.close()
        await asyncio.to_thread(session.close)
