"""Metrics for Prometheus: what the meter counted and what the state says, as text, when somebody asks.

`render` belongs into a thread: it may take a while, takes no lock and pauses between families, so that the event loop
goes on meanwhile.
"""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import generate_latest

from penstock.embedded import Session
from penstock.telemetry.meter import Meter
from penstock.telemetry.state import OUTCOMES, PAUSE_SECONDS, GroupRow, group_rows
from penstock.telemetry.text import CONTENT_TYPE, histograms, numbers
from penstock.version import VERSION

_WORKER_STATES: Final = ("alive", "stuck", "stopping", "dead")
_GAUGES_OF_GROUP: Final = ("ready", "leased", "delayed", "dead", "lag")


class Metrics:
    """All metrics of one broker. Making it puts a stopwatch around the commits of its shard."""

    def __init__(self, session: Session, meter: Meter) -> None:
        self._shard = shard = session.shard
        self._session = session
        self._desk = session.desk
        self._meter = meter
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        shard.commit.around = self._timed

    def render(self) -> tuple[bytes, str]:
        """The text, and its content type."""
        parts = []
        for family in self.families():
            parts.append(family.encode())
            time.sleep(PAUSE_SECONDS)
        parts.append(generate_latest(self._process))
        return b"".join(parts), CONTENT_TYPE

    def families(self) -> Iterator[str]:
        """The text of each family but those of the process."""
        yield from self._counted()
        yield from self._of_groups(group_rows(self._shard))
        yield from self._of_tasks()
        yield from self._of_shard()
        yield from self._of_connections()

    def _timed(self, sync: Callable[[], None]) -> None:
        clock = self._shard.clock
        began = clock.monotonic()
        sync()
        self._meter.took("commit", (clock.monotonic() - began) / 1e6)

    def _counted(self) -> Iterator[str]:
        meter = self._meter
        pushes = list(meter.pushes.items())
        yield numbers("penstock_pushed_messages", ((labels, counts[0]) for labels, counts in pushes))
        yield numbers("penstock_pushed_bytes", ((labels, counts[1]) for labels, counts in pushes))
        deliveries, refusals = list(meter.deliveries.items()), list(meter.refusals.items())
        yield numbers("penstock_delivered_messages", ((labels, counts[0]) for labels, counts in deliveries))
        yield numbers("penstock_refused_requests", ((labels, counts[0]) for labels, counts in refusals))
        for operation, histogram in meter.durations.items():
            yield histograms(f"penstock_{operation}_duration_seconds", [((), histogram)])
        waits = [((queue,), histogram) for queue, histogram in list(meter.waits.items())]
        yield histograms("penstock_delivery_latency_seconds", waits)

    def _of_groups(self, rows: dict[tuple[str, str], GroupRow]) -> Iterator[str]:
        for name in _GAUGES_OF_GROUP:
            yield numbers(f"penstock_{name}_messages", ((labels, getattr(row, name)) for labels, row in rows.items()))
        now = self._shard.clock.now()
        ages = ((labels, max(0, now - row.oldest_at) / 1e6 if row.oldest_at else 0.0) for labels, row in rows.items())
        yield numbers("penstock_oldest_unsettled_age_seconds", ages)
        outcomes = (
            ((*labels, OUTCOMES[outcome]), count)
            for labels, row in rows.items()
            for outcome, count in enumerate(row.outcomes)
            if count
        )
        yield numbers("penstock_settled_messages", outcomes)

    def _of_tasks(self) -> Iterator[str]:
        runs, times = list(self._meter.runs.items()), list(self._meter.run_times.items())
        yield numbers("penstock_task_runs", ((labels, counts[0]) for labels, counts in runs))
        yield histograms("penstock_task_run_seconds", [((task_type,), found) for task_type, found in times])
        workers = self._desk.registry.workers()
        states = Counter(worker.state for worker in workers)
        yield numbers("penstock_workers", (((state,), states[state]) for state in _WORKER_STATES))
        abandoned = sum(worker.info.abandoned for worker in workers if worker.state != "dead")
        yield numbers("penstock_abandoned_runs", [((), abandoned)])
        yield numbers("penstock_blocked_tasks", [((), len(self._shard.core.tasks.held))])
        yield numbers("penstock_waiting_for_tasks", [((), len(self._desk.waiters))])

    def _of_shard(self) -> Iterator[str]:
        journal, store, queues = self._shard.journal, self._shard.store, list(self._shard.core.queues.values())
        segments = store.files() if store is not None else []
        found: dict[str, float] = {
            "penstock_queues": len(queues),
            "penstock_partitions": sum(len(queue.partitions) for queue in queues),
            "penstock_journal_frames": journal.sequence,
            "penstock_journal_durable_frames": journal.durable_sequence,
            "penstock_journal_bytes": journal.size_bytes(),
            "penstock_journal_files": len(journal.full_files()) + 1,
            "penstock_segment_bytes": sum(file.bytes for file in segments),
            "penstock_segment_files": len(segments),
            "penstock_disk_full": int(journal.disk_full),
            "penstock_waiting_leases": len(self._shard.waiters),
        }
        yield from (numbers(name, [((), number)]) for name, number in found.items())
        failures = (((sleeper.role,), sleeper.failures) for sleeper in self._session.sleepers())
        yield numbers("penstock_upkeep_failures", failures)

    def _of_connections(self) -> Iterator[str]:
        connections = list(self._meter.connections.items())
        yield numbers("penstock_connections", (((protocol,), counts[0]) for protocol, counts in connections))
        yield numbers("penstock_accepted_connections", (((protocol,), counts[1]) for protocol, counts in connections))
        yield numbers("penstock_build", [((VERSION, platform.python_version()), 1)])
