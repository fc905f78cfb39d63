"""SQL over the history, for clients of a broker: a process of its own answers, so that no query can hold the broker up.

It is started by the first query and ended when it has had nothing to do for a minute. Queries run one after the other.
One that takes too long is ended with its process.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

import msgspec

from penstock.errors import BadQuery, RateLimited, Unavailable

QUERY_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 60.0
ROWS_MAX: Final = 10_000
WAITING_MAX: Final = 8  # queries that wait for their turn
_LENGTH: Final = struct.Struct("<I")


class HistoryQueries:
    """One child process, for one location. Use it from the event loop."""

    def __init__(self, location: str, environment: Mapping[str, str] | None = None) -> None:
        self._location = location
        self._environment = {**os.environ, **(environment or {})}
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._ends: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Future[int]] = set()  # processes that were killed and are not gone yet

    async def run(
        self,
        query: str,
        queues: Sequence[str],
        rows_max: int,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> msgspec.Raw:
        """The result as JSON. `queues` are those that the caller may read."""
        if self._waiting >= WAITING_MAX:
            raise RateLimited("too many queries are waiting", hint="try again in a few seconds")
        request = {
            "location": self._location,
            "query": query,
            "rows_max": rows_max,
            "queues": queues,
            "since": since,
            "until": until,
        }
        self._waiting += 1
        try:
            async with self._turn:
                return _result(await self._ask(msgspec.json.encode(request)))
        finally:
            self._waiting -= 1

    async def _ask(self, request: bytes) -> bytes:
        try:
            async with asyncio.timeout(QUERY_SECONDS):
                process = await self._started()
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(_LENGTH.pack(len(request)) + request)
                await process.stdin.drain()
                (length,) = _LENGTH.unpack(await process.stdout.readexactly(_LENGTH.size))
                answer = await process.stdout.readexactly(length)
        except TimeoutError:
            self._end()
            hint = "query less: a shorter time with since and until, or fewer queues; or use `penstock sql`"
            raise BadQuery(f"the query took longer than {QUERY_SECONDS:.0f} s", hint=hint) from None
        except (OSError, asyncio.IncompleteReadError):
            self._end()
            raise Unavailable("the query process ended", hint="try again; see its log for the cause") from None
        except asyncio.CancelledError:  # the client has gone in the middle of an answer
            self._end()
            raise
        self._ends = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._end)
        return answer

    async def _started(self) -> asyncio.subprocess.Process:
        if self._ends is not None:
            self._ends.cancel()
        if self._process is not None and self._process.returncode is not None:
            self._end()
        if self._process is None:
            pipe = asyncio.subprocess.PIPE
            words = (sys.executable, "-m", "penstock.history.child")
            self._process = await asyncio.create_subprocess_exec(
                *words, stdin=pipe, stdout=pipe, env=self._environment, limit=8 << 20
            )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        waiting = asyncio.ensure_future(process.wait())
        self._ending.add(waiting)
        waiting.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End the process."""
        if self._ends is not None:
            self._ends.cancel()
        self._end()
        await asyncio.gather(*self._ending)


class _Error(msgspec.Struct):
    code: str
    message: str
    hint: str = ""


class _Answer(msgspec.Struct):
    error: _Error | None = None


def _result(answer: bytes) -> msgspec.Raw:
    if not answer.startswith(b'{"error"'):
        return msgspec.Raw(answer)
    error = msgspec.json.decode(answer, type=_Answer).error
    assert error is not None
    raise BadQuery(error.message, hint=error.hint)
