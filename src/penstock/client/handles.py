"""What `penstock.open` and `penstock.connect` return, for threads and for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn, Self

from penstock.client._async.system import Queues as AsyncQueues
from penstock.client._sync.system import Queues
from penstock.client.session import AsyncSession, Session
from penstock.forks import refuse_pickling


class Penstock(Queues):
    """An open system. Use it as a context manager, or call `close()`. Safe to share between threads."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self)

    @property
    def session(self) -> Session:
        """What is behind it, for other faces of the same system."""
        return self._session

    def close(self) -> None:
        """Close it cleanly. A second call does nothing."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncPenstock(AsyncQueues):
    """An open system: `async with penstock.aio.open("./data") as ps`. It opens when the block is entered."""

    def __init__(self, open_session: Callable[[], AsyncSession]) -> None:
        self._open_session = open_session
        self._opened: AsyncSession | None = None

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self)

    @property
    def _session(self) -> AsyncSession:  # type: ignore[override]
        if self._opened is None:
            self._opened = self._open_session()
        return self._opened

    @property
    def session(self) -> AsyncSession:
        """What is behind it, for other faces of the same system."""
        return self._session

    async def close(self) -> None:
        """Close it cleanly. A second call does nothing."""
        if self._opened is not None:
            await self._opened.close()

    async def __aenter__(self) -> Self:
        if self._opened is None:
            self._opened = await asyncio.to_thread(self._open_session)
        await self._opened.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
