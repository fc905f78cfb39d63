"""Penstock: a durable queue for Python. Message queue, task queue and replayable log in one.

import penstock

with penstock.open("./data") as ps:
ps.queue("mail").push(b"hello")
for delivery in ps.queue("mail").lease(10):
print(delivery.payload)
delivery.ack()
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock import limits
from penstock.errors import PenstockError
from penstock.model import (
    ContentType,
    Durability,
    GroupStats,
    Message,
    MessageId,
    QueueOptions,
    QueueStats,
    Receipt,
    check_path,
    check_size,
)
from penstock.version import VERSION

if TYPE_CHECKING:
    from penstock import aio
    from penstock.batch import Batch
    from penstock.client._sync.delivery import Delivery, Leased
    from penstock.client._sync.queue import Queue
    from penstock.client.handles import Penstock
    from penstock.client.observers import Measurement, Metrics, Observer
    from penstock.client.values import BaseDelivery, PushResult
    from penstock.clock import Clock
    from penstock.model_tasks import TaskState, TaskView
    from penstock.seals import Wrapper
    from penstock.spark.pipelines.custom import pipeline
    from penstock.tasks.app import App
    from penstock.tasks.context import TaskContext, current_task
    from penstock.tasks.endings import Cancel, Retry, Snooze
    from penstock.tasks.job import Job
    from penstock.tasks.middleware import Middleware
    from penstock.tasks.task import Task
    from penstock.tasks.workflows import Workflow, chain, graph, group

__version__ = VERSION

__all__ = [
    "App",
    "BaseDelivery",
    "Batch",
    "Cancel",
    "ContentType",
    "Delivery",
    "GroupStats",
    "Job",
    "Leased",
    "Measurement",
    "Message",
    "MessageId",
    "Middleware",
    "Observer",
    "Penstock",
    "PenstockError",
    "PushResult",
    "Queue",
    "QueueOptions",
    "QueueStats",
    "Receipt",
    "Retry",
    "Snooze",
    "Task",
    "TaskContext",
    "TaskState",
    "TaskView",
    "Workflow",
    "__version__",
    "aio",
    "chain",
    "connect",
    "current_task",
    "graph",
    "group",
    "open",
    "open_in_memory",
    "pipeline",
]

# Loaded when first used: what they need (NumPy, Arrow) takes long, and not every program that imports us needs it.
_LAZY: Final = {
    "penstock.batch": ("Batch",),
    "penstock.client._sync.delivery": ("Delivery", "Leased"),
    "penstock.client._sync.queue": ("Queue",),
    "penstock.client.handles": ("Penstock",),
    "penstock.client.observers": ("Measurement", "Observer"),
    "penstock.client.values": ("BaseDelivery", "PushResult"),
    "penstock.model_tasks": ("TaskState", "TaskView"),
    "penstock.spark.pipelines.custom": ("pipeline",),
    "penstock.tasks.app": ("App",),
    "penstock.tasks.context": ("TaskContext", "current_task"),
    "penstock.tasks.endings": ("Cancel", "Retry", "Snooze"),
    "penstock.tasks.job": ("Job",),
    "penstock.tasks.middleware": ("Middleware",),
    "penstock.tasks.task": ("Task",),
    "penstock.tasks.workflows": ("Workflow", "chain", "graph", "group"),
}
_HOMES: Final = {name: home for home, names in _LAZY.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "aio":
        return importlib.import_module("penstock.aio")
    if name not in _HOMES:
        from penstock.refusals import likeness  # imported for mistakes only

        meant = likeness(name, __all__)
        raise AttributeError(f"module 'penstock' has no attribute {name!r}" + (f"; {meant}" if meant else ""))
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


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
    """Open a data directory in this process, creating it if needed. Returns a `Penstock`.

    `durability` says when a call returns: `fsync` once the data is on disk (nothing confirmed is ever lost), `os` once
    the operating system has it, `interval` likewise with a sync every `sync_seconds`. Full journal files are sealed as
    Parquet; with `sealing=False` only by `ps.seal()`. Encrypted queues need a `master_key`, a `kms_command` or `keys`.
    docs/configuration.md explains the other options.

    Raises `DirectoryInUse` if a process has it open, `NotADataDirectory` if it has other files, `Damaged` if it is
    damaged.
    """
    from penstock.client.handles import Penstock
    from penstock.client.observers import observers_of
    from penstock.client.observing import embedded_observed
    from penstock.embedded.blocking import BlockingSession
    from penstock.embedded.session import Session, segments_at, upkeep_of

    observers_of(metrics)  # refuses what is none, before anything is opened
    session = Session(
        check_path(path),
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
    return Penstock(embedded_observed(BlockingSession(session), metrics))


def open_in_memory(*, clock: Clock | None = None, rng: random.Random | None = None) -> Penstock:
    """Open a Penstock that stores nothing on disk: for tests, and for queues that may end with the process."""
    from penstock.client.handles import Penstock
    from penstock.embedded.blocking import BlockingSession
    from penstock.embedded.session import Session

    return Penstock(BlockingSession(Session(None, durability="os", clock=clock, rng=rng)))


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
    """Connect to a broker at `penstock://host:port` or `http://host:port`. Returns a `Penstock`.

    Several URLs are tried in turn. With TLS, use `penstocks://` or `https://`: `tls_ca` is a file with the CAs to
    trust instead of the system's; `tls_certificate` and `tls_key` authenticate the client. `client` names this program
    in the broker's metrics and logs. `connect_seconds` limits connecting, `timeout` every call after that. A rate
    limit is waited for up to `rate_limit_seconds` (`timeout` if None). With `linger_ms`, concurrent pushes wait for
    one another and are sent together, at most `batch_max` at a time. A `producer` name lets a successor take over:
    earlier connections with that name can no longer push. `metrics` is a function or an `Observer` that receives every
    measurement (docs/telemetry.md). See docs/client.md for details.

    Raises `Unavailable` if no broker answers, `TlsFailed` if TLS fails and `NotAuthenticated` if the token is not
    accepted.
    """
    from penstock.client.handles import Penstock
    from penstock.client.observers import observers_of
    from penstock.remote.settings import session, settings

    observers = observers_of(metrics)
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
    if not observers:
        return Penstock(session(wanted))
    from penstock.client.observing import observed  # late: it knows sessions in this process too

    return Penstock(observed(session(wanted), observers))
