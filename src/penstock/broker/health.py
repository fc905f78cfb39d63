"""How a broker is: alive, ready, and in numbers. Every protocol that has a word for it asks here.

Alive: its journal works; if it does not, the process leaves and is started again. Ready: it takes requests, which a
broker that is stopping does not. Degraded: it is ready, and somebody should look.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

import msgspec

from penstock.access import views
from penstock.broker.broker import Broker
from penstock.embedded.metrics import problems_of
from penstock.model import PauseState
from penstock.model_access import NamespaceView
from penstock.version import VERSION

Status = Literal["ok", "degraded", "spare", "stopping", "failed"]


class Readiness(msgspec.Struct, frozen=True):
    """Whether the broker accepts requests. `problems` says why not, or what an operator should look at."""

    status: Status
    problems: list[str]

    @property
    def is_ready(self) -> bool:
        return self.status in {"ok", "degraded"}


class WorkerCounts(msgspec.Struct, frozen=True):
    """The number of workers with a recent heartbeat, by state."""

    alive: int = 0
    stuck: int = 0
    stopping: int = 0
    dead: int = 0


class Health(msgspec.Struct, frozen=True):
    """Readiness, with the version, uptime and main counters of the broker."""

    status: Status
    problems: list[str]
    version: str
    uptime_seconds: float
    durability: str
    queues: int
    connections: int
    waiting_leases: int
    journal_bytes: int
    journal_files: int
    segment_bytes: int
    segment_files: int
    disk_full: bool
    disk_free_bytes: int | None  # None: there is no disk
    namespaces: list[NamespaceView]  # what each may use, and uses
    pauses: list[PauseState]  # what is paused
    workers: WorkerCounts


def livez(broker: Broker) -> bool:
    """Whether the process is worth keeping."""
    return broker.shard.journal.failed is None


def readyz(broker: Broker) -> Readiness:
    """Whether it takes requests now. Looks at memory only."""
    journal = broker.shard.journal
    if journal.failed is not None:
        return Readiness("failed", [f"the journal stopped: {journal.failed}"])
    if broker.elsewhere is not None:
        return Readiness("spare", ["this node is a spare: another node owns the shard"])
    if broker.is_draining:
        return Readiness("stopping", ["the broker is stopping"])
    problems = problems_of(broker.session)
    return Readiness("degraded" if problems else "ok", problems)


def health(broker: Broker) -> Health:
    """All of it. Asks the disk how much is free: call it in a thread."""
    shard, meter, ready = broker.shard, broker.meter, readyz(broker)
    segments = shard.store.files() if shard.store is not None else []
    now = broker.clock.now()
    return Health(
        status=ready.status,
        problems=ready.problems,
        version=VERSION,
        uptime_seconds=(now - (meter.started_at or now)) / 1e6,
        durability=shard.durability,
        queues=shard.queue_count,
        connections=meter.connections_open,
        waiting_leases=len(shard.waiters),
        journal_bytes=shard.journal.size_bytes(),
        journal_files=len(shard.journal.full_files()) + 1,
        segment_bytes=sum(file.bytes for file in segments),
        segment_files=len(segments),
        disk_full=shard.journal.disk_full,
        disk_free_bytes=shard.journal.free_bytes(),
        namespaces=views.namespaces(broker.session.access, broker.session.usage()),
        pauses=shard.core.pauses.all(shard.core),
        workers=_workers(broker),
    )


def _workers(broker: Broker) -> WorkerCounts:
    states = Counter(worker.state for worker in broker.session.tasks.registry.workers())
    return WorkerCounts(states["alive"], states["stuck"], states["stopping"], states["dead"])
