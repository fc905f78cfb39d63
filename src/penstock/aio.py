"""The asyncio API of the package: `penstock.aio.open` and `penstock.aio.connect`.

async with penstock.aio.open("./data") as ps:
    await ps.queue("mail").push(b"hello")
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from penstock import limits
from penstock.client._async.delivery import Delivery, Leased
from penstock.client._async.queue import Queue
from penstock.client.handles import AsyncPenstock as Penstock
from penstock.client.observers import Metrics, observers_of
from penstock.client.observing import embedded_observed_async, observed_async
from penstock.clock import Clock
from penstock.embedded.asynchronous import AsyncSession
from penstock.embedded.session import Session, segments_at, upkeep_of
from penstock.model import Durability, check_path, check_size
from penstock.remote.settings import async_session, settings
from penstock.seals import Wrapper

__all__ = ["Delivery", "Leased", "Penstock", "Queue", "connect", "open", "open_in_memory"]


def open(
    path: str | Path,
    *,
    durability: Durability = "fsync",
    sync_seconds: float = 0.05,
    journal_file_bytes: int | None = None,
    journal_file_frames: int | None = None,
    journal_file_seconds: float | None = None,
    compaction_seconds: float | None = None,
    sealing: bool = True,
    task_retention_seconds: float = limits.task_retention_seconds,
    task_result_bytes_max: int = limits.task_result_bytes_max,
    data_mode: str | None = None,
    audit: bool = False,
    master_key: str | Path | bytes | None = None,
    kms_command: str | None = None,
    keys: Wrapper | None = None,
    segments: str | Path | None = None,
    segments_cache_bytes: int = limits.segments_cache_bytes_default,
    history: bool = False,
    metrics: Metrics = False,
    clock: Clock | None = None,
    rng: random.Random | None = None,
) -> Penstock:
    """Asyncio version of `penstock.open()`: the directory is opened when the `async with` block is entered."""
    check_path(path)
    session = partial(
        Session,
        path,
        durability=durability,
        sync_seconds=sync_seconds,
        journal_file_bytes=check_size(journal_file_bytes, "journal_file_bytes", *limits.journal_file_bytes_range),
        upkeep=upkeep_of(journal_file_frames, journal_file_seconds, compaction_seconds, sealing),
        task_retention_seconds=task_retention_seconds,
        task_result_bytes_max=task_result_bytes_max,
        data_mode=data_mode,
        audit=audit,
        master_key=master_key,
        kms_command=kms_command,
        keys=keys,
        segments=segments_at(segments, segments_cache_bytes),
        history=history,
        clock=clock,
        rng=rng,
    )
    observers_of(metrics)  # refuses what is none
    return Penstock(lambda: embedded_observed_async(AsyncSession(session()), metrics))


def open_in_memory(*, clock: Clock | None = None, rng: random.Random | None = None) -> Penstock:
    """Asyncio version of `penstock.open_in_memory()`."""
    return Penstock(lambda: AsyncSession(Session(None, durability="os", clock=clock, rng=rng)))


def connect(
    urls: str | Sequence[str],
    *,
    token: str | Callable[[], str] | None = None,
    tls_ca: str | Path | None = None,
    tls_certificate: str | Path | None = None,
    tls_key: str | Path | None = None,
    client: str | None = None,
    producer: str | None = None,
    linger_ms: float | None = None,
    batch_max: int = 1_000,
    timeout: float = 30.0,
    connect_seconds: float = 5.0,
    rate_limit_seconds: float | None = None,
    metrics: Metrics = False,
    clock: Clock | None = None,
    rng: random.Random | None = None,
) -> Penstock:
    """Asyncio version of `penstock.connect()`: it connects when the `async with` block is entered, or at first use."""
    wanted = settings(
        urls,
        token=token,
        tls_ca=tls_ca,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        client=client,
        producer=producer,
        linger_ms=linger_ms,
        batch_max=batch_max,
        timeout=timeout,
        connect_seconds=connect_seconds,
        rate_limit_seconds=rate_limit_seconds,
        clock=clock,
        rng=rng,
    )
    observers = observers_of(metrics)
    return Penstock(lambda: observed_async(async_session(wanted), observers))
