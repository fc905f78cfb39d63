"""What the client's faces need of a session: a shard in this process, or a broker over the wire.

A session executes operations (`penstock.operations`) and has methods of its own for what is hot: push, lease and
settle. Methods return, or are awaited, when their effect is durable. `Session` is for threads and may be shared between
them; `AsyncSession` belongs to one event loop. Both have the same methods.
"""

from __future__ import annotations

from typing import Protocol

from penstock.client._async.session import AsyncPipeline, AsyncSessionCalls
from penstock.client._sync.session import Pipeline, SessionCalls

__all__ = ["AsyncPipeline", "AsyncSession", "Pipeline", "Session"]


class Session(SessionCalls, Protocol):
    """For the blocking face."""


class AsyncSession(AsyncSessionCalls, Protocol):
    """For the asyncio face."""

    async def start(self) -> None:
        """Connect, or raise."""
