"""Sessions of an app: opened when first needed, shared by all threads, one for each event loop.

A directory is held by one session, whoever asks; the asyncio ones are faces of it. To a broker every loop has its own
connection. A process that was forked opens its own, since connections do not survive that; a directory or memory that
its parent holds it cannot have.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

from penstock.clock import Clock
from penstock.errors import Closed
from penstock.forks import inherited
from penstock.model import Durability
from penstock.remote.settings import spelt_out


class SessionFactory:
    """Opens the sessions of an app: on a broker, a directory, or memory."""

    def __init__(
        self,
        url: str | Path | Sequence[str] | None,
        *,
        clock: Clock,
        token: str | Callable[[], str] | None = None,
        client: str | None = None,
        timeout: float = 30.0,
        durability: Durability = "fsync",
        rng: random.Random | None = None,
        background: bool = True,
    ) -> None:
        self.is_remote = not isinstance(url, Path | None) and (not isinstance(url, str) or "://" in spelt_out(url))
        self._embedded: dict[str, Any] = {"durability": "os" if url is None else durability, "background": background}
        self._clock, self._rng = clock, rng
        self._url = url
        self._settings: Any = None
        if self.is_remote:
            from penstock.remote.settings import settings

            self._settings = settings(
                cast("str | Sequence[str]", url), token=token, client=client, timeout=timeout, clock=clock, rng=rng
            )

    def open(self) -> Any:
        """A blocking session."""
        if self.is_remote:
            from penstock.remote.settings import session

            return session(self._settings)
        from penstock.embedded.blocking import BlockingSession
        from penstock.embedded.session import Session as EmbeddedSession

        path = cast("str | Path | None", self._url)
        return BlockingSession(EmbeddedSession(path, clock=self._clock, rng=self._rng, **self._embedded))

    async def open_async(self, embedded: Any) -> Any:
        """A session for the running loop; `embedded` is the one that holds the directory."""
        if self.is_remote:
            from penstock.remote.settings import async_session

            session = async_session(self._settings)
            await session.start()
            return session
        from penstock.embedded.asynchronous import AsyncSession as EmbeddedAsyncSession

        return EmbeddedAsyncSession(embedded.session)


class Sessions:
    """The open sessions of one app."""

    def __init__(self, factory: SessionFactory) -> None:
        self._factory = factory
        self._is_closed = False
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()  # held while the session for threads is opened
        self._loops_lock = threading.Lock()
        self._blocking: Any = None
        self._asynchronous: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()
        self._opening: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    def blocking(self) -> Any:
        """The session for threads."""
        session = self._blocking
        if session is not None and self._pid == os.getpid():
            return session
        self._check()
        with self._lock:
            if self._blocking is None:
                self._blocking = self._factory.open()
            return self._blocking

    async def asynchronous(self) -> Any:
        """The session for the running loop."""
        loop = asyncio.get_running_loop()
        session = self._asynchronous.get(loop)
        if session is not None and self._pid == os.getpid() and not self._is_closed:
            return session
        self._check()
        with self._loops_lock:
            opening = self._opening.setdefault(loop, asyncio.Lock())
        async with opening:
            if loop not in self._asynchronous:
                # Opening a directory replays its journal, which may take a while.
                embedded = None if self._factory.is_remote else await asyncio.to_thread(self.blocking)
                self._asynchronous[loop] = await self._factory.open_async(embedded)
            return self._asynchronous[loop]

    def _check(self) -> None:
        if self._pid != os.getpid():
            if self._blocking is not None and not self._factory.is_remote:
                raise inherited("what this App keeps its tasks in")  # a directory that is held, or memory
            self._forget()  # the locks too may be held by threads that were not forked
        if self._is_closed:
            raise Closed("this App is closed", hint="create a new App")

    def reopen(self) -> None:
        """May be used again after it was closed."""
        if self._is_closed:
            self._forget()
            self._is_closed = False

    def close(self) -> None:
        """Close the session for threads, and with a directory all of them."""
        if self._pid != os.getpid():
            self._forget()
        with self._lock:
            self._is_closed = True
            session, self._blocking = self._blocking, None
        if session is not None:
            session.close()

    async def aclose_loop(self) -> None:
        """Close the session of the running loop."""
        session = self._asynchronous.pop(asyncio.get_running_loop(), None)
        if session is not None and self._factory.is_remote:
            await session.close()

    async def aclose(self) -> None:
        """Close the session of the running loop and the one for threads."""
        await self.aclose_loop()
        await asyncio.to_thread(self.close)
