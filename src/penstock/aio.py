"""The asyncio face of the package: `penstock.aio.open` and `penstock.aio.connect`.

async with penstock.aio.open("./data") as ps:
await ps.queue("mail").push(b"hello")
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import penstock
from penstock.client._async.delivery import Delivery, Leased
from penstock.client._async.queue import Queue
from penstock.client.handles import AsyncPenstock as Penstock
from penstock.embedded.asynchronous import AsyncSession
from penstock.embedded.session import Session
from penstock.model import check_path
from penstock.remote.settings import async_session, settings

__all__ = ["Delivery", "Leased", "Penstock", "Queue", "connect", "open", "open_in_memory"]

P = ParamSpec("P")
T = TypeVar("T")


def _takes_arguments_of(blocking: Callable[P, Any]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Give a function the arguments of its blocking twin, which declares them with their defaults."""
    signature = inspect.signature(blocking)

    def declare(function: Callable[..., T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            arguments = signature.bind(*args, **kwargs)
            arguments.apply_defaults()
            return function(**arguments.arguments)

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return declare


@_takes_arguments_of(penstock.open)
def open(path: str | Path, **options: Any) -> Penstock:
    """Like `penstock.open`; the directory is opened when the `async with` block is entered."""
    check_path(path)
    session = partial(Session, path, **options)
    return Penstock(lambda: AsyncSession(session()))


@_takes_arguments_of(penstock.open_in_memory)
def open_in_memory(**options: Any) -> Penstock:
    """Like `penstock.open_in_memory`."""
    return Penstock(lambda: AsyncSession(Session(None, durability="os", **options)))


@_takes_arguments_of(penstock.connect)
def connect(urls: str | Sequence[str], **options: Any) -> Penstock:
    """Like `penstock.connect`; connects when the `async with` block is entered, or when it is first used."""
    wanted = settings(urls, **options)
    return Penstock(lambda: async_session(wanted))
