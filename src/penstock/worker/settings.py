"""Settings of a worker, checked once when it is made."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from penstock import limits
from penstock.errors import InvalidField
from penstock.model import check_name, check_seconds

CONCURRENCY_MAX: Final = 10_000
THREADS_MAX: Final = 1_000
PROCESSES_MAX: Final = 512
LEASE_SECONDS_MIN: Final = 0.5


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a worker; docs/workers.md has a row for each."""

    worker_id: str
    queues: tuple[str, ...]
    concurrency: int = 16
    threads: int = 16
    processes: int = 0
    lease_seconds: float = limits.lease_seconds_default
    stop_seconds: float = 60.0
    prefetch_max: int = 1_000
    abandoned_max: int = 16
    restarts_when_stuck: bool = False
    is_draining: bool = False  # stop when nothing is left to do


def settings(
    queues: Iterable[str],
    *,
    concurrency: int = 16,
    threads: int | None = None,
    processes: int = 0,
    lease_seconds: float = limits.lease_seconds_default,
    stop_seconds: float = 60.0,
    prefetch_max: int = 1_000,
    abandoned_max: int | None = None,
    restart_when_stuck: bool = False,
    drain: bool = False,
    worker_id: str | None = None,
) -> Settings:
    """Checked settings; an `InvalidField` names the option that is wrong."""
    if isinstance(queues, str):
        raise InvalidField(f"queues: {queues!r} is not a list of names", hint=f"write [{queues!r}]")
    names = tuple(dict.fromkeys(check_name(name) for name in queues))
    if not names:
        raise InvalidField("queues: none", hint="declare a task, or give the queues to work on")
    count = _whole(concurrency, "concurrency", 1, CONCURRENCY_MAX)
    thread_count = min(count, THREADS_MAX) if threads is None else _whole(threads, "threads", 1, THREADS_MAX)
    lease = check_seconds(lease_seconds, "lease_seconds", limits.lease_seconds_max)
    if lease < LEASE_SECONDS_MIN:
        raise InvalidField(f"lease_seconds: {lease_seconds!r} is under {LEASE_SECONDS_MIN:g}")
    return Settings(
        worker_id=new_worker_id() if worker_id is None else check_name(worker_id, "worker_id"),
        queues=names,
        concurrency=count,
        threads=thread_count,
        processes=_whole(processes, "processes", 0, PROCESSES_MAX),
        lease_seconds=lease,
        stop_seconds=check_seconds(stop_seconds, "stop_seconds"),
        prefetch_max=_whole(prefetch_max, "prefetch_max", 0, limits.lease_messages_max),
        abandoned_max=thread_count if abandoned_max is None else _whole(abandoned_max, "abandoned_max", 0, THREADS_MAX),
        restarts_when_stuck=bool(restart_when_stuck),
        is_draining=bool(drain),
    )


def new_worker_id() -> str:
    """`host-pid-xxxx`: new for every start, since the leases of the last one are not ours."""
    host = "".join(char if char.isascii() and char.isalnum() else "-" for char in socket.gethostname()).strip("-")
    return f"{host[:64] or 'worker'}-{os.getpid()}-{secrets.token_hex(2)}"


def _whole(value: Any, name: str, least: int, greatest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= greatest:
        raise InvalidField(f"{name}: {value!r} is not a whole number from {least} to {greatest:,}")
    return value
