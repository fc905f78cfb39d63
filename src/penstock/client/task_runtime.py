"""What consumers need of asyncio: `thread_runtime` has the same names for threads."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import StateError, Unavailable

if TYPE_CHECKING:
    from penstock.client._async.delivery import Leased
    from penstock.client.session import AsyncPipeline, AsyncSession

Event = asyncio.Event
Lock = asyncio.Lock
sleep: Final = asyncio.sleep
Pause = Callable[[float], Awaitable[bool]]  # sleeps; False when the work is over


class LeaseKeeper:
    """Extends leases while their deliveries are worked on."""

    @asynccontextmanager
    async def holding(self, leased: Leased) -> AsyncIterator[None]:
        """Extend a lease at half its time, until the block ends or the lease does."""
        keeper = asyncio.create_task(_extend(leased))
        try:
            yield
        finally:
            keeper.cancel()


async def _extend(leased: Leased) -> None:
    with suppress(StateError):  # the lease is over, or the handle closed
        while True:
            await asyncio.sleep(leased.lease_seconds / 2)
            with suppress(Unavailable):  # the broker may be back in time
                await leased.extend(leased.lease_seconds)


@asynccontextmanager
async def keeping_leases(session: AsyncSession) -> AsyncIterator[LeaseKeeper]:
    """A keeper of leases for a consumer."""
    yield LeaseKeeper()


@asynccontextmanager
async def background(work: Callable[[Pause], Awaitable[None]]) -> AsyncIterator[None]:
    """Run `work` beside the block; it ends with the block."""

    async def pause(seconds: float) -> bool:
        await asyncio.sleep(seconds)
        return True

    task = asyncio.ensure_future(work(pause))
    try:
        yield
    finally:
        task.cancel()


async def call(callback: Callable[[list[str]], Any] | None, partitions: list[str]) -> None:
    """Call a callback, which may be a coroutine function."""
    result = callback(partitions) if callback is not None else None
    if inspect.isawaitable(result):
        await result


async def wait_for(event: asyncio.Event, seconds: float) -> None:
    """Return when the event is set, or after `seconds`."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


async def confirm_left(pipeline: AsyncPipeline) -> None:
    """A consumer left its loop. Nothing is awaited, since the event loop may be closing: whoever commits next does."""
