"""The asyncio face of the package: `penstock.aio.open`.

async with penstock.aio.open("./data") as ps:
await ps.queue("mail").push(b"hello")
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

from penstock.client.asynchronous import Penstock, Queue
from penstock.client.asynchronous_delivery import Delivery, Leased
from penstock.clock import Clock
from penstock.embedded import AsyncSession, Session
from penstock.model import Durability

__all__ = ["Delivery", "Leased", "Penstock", "Queue", "open", "open_in_memory"]


def open(
    path: str | Path,
    *,
    durability: Durability = "fsync",
    sync_seconds: float = 0.05,
    journal_file_seconds: float | None = None,
    clock: Clock | None = None,
    rng: random.Random | None = None,
) -> Penstock:
    """Like `penstock.open`; the directory is opened when the `async with` block is entered."""
    session = partial(
        Session,
        path,
        durability=durability,
        sync_seconds=sync_seconds,
        journal_file_seconds=journal_file_seconds,
        clock=clock,
        rng=rng,
    )
    return Penstock(lambda: AsyncSession(session()))


def open_in_memory(*, clock: Clock | None = None, rng: random.Random | None = None) -> Penstock:
    """Like `penstock.open_in_memory`."""
    return Penstock(lambda: AsyncSession(Session(None, durability="os", clock=clock, rng=rng)))
