"""Metrics for Prometheus: what the meter counted and what the state says, as text, when somebody asks.

`FAMILIES` declares every metric; docs/metrics.md is held to it. `Metrics.render` belongs into a thread: it may take a
while, takes no lock and pauses between families, so that the event loop goes on meanwhile. The text (format 0.0.4) is
written straight from the numbers: an object for every line would be thousands of objects per scrape, and the garbage
collector would stop the event loop to look through them.

Every number is read as it is at the moment; see `telemetry.groups`.
"""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from msgspec.structs import asdict
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import generate_latest

from penstock import limits
from penstock.model import Outcome
from penstock.telemetry.groups import PAUSE_SECONDS, GroupRow, Pace, group_row
from penstock.telemetry.meter import OTHERS, Histogram, Meter
from penstock.version import VERSION

if TYPE_CHECKING:
    from penstock.delivery.group import Group
    from penstock.delivery.log import Queue
    from penstock.embedded.session import Session
    from penstock.shard.shard import Shard

Kind = Literal["counter", "gauge", "histogram", "info"]


class Family(NamedTuple):
    """One metric; counters are exposed with `_total` behind their name, an info with `_info`."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


_OF_GROUP: Final = ("queue", "group")

FAMILIES: Final = {
    family.name: family
    for family in (
        Family("penstock_pushed_messages", "counter", ("queue", "protocol"), "Messages pushed."),
        Family("penstock_pushed_bytes", "counter", ("queue", "protocol"), "Bytes of payload pushed."),
        Family("penstock_delivered_messages", "counter", _OF_GROUP, "Messages delivered, counting every attempt."),
        Family("penstock_settled_messages", "counter", (*_OF_GROUP, "outcome"), "Deliveries by outcome."),
        Family("penstock_refused_requests", "counter", ("queue", "code"), "Requests answered with an error."),
        Family("penstock_ready_messages", "gauge", _OF_GROUP, "Messages that could be leased now."),
        Family("penstock_leased_messages", "gauge", _OF_GROUP, "Messages leased by consumers."),
        Family("penstock_delayed_messages", "gauge", _OF_GROUP, "Messages waiting for their delivery time or a retry."),
        Family("penstock_dead_messages", "gauge", _OF_GROUP, "Dead letters of this group."),
        Family("penstock_lag_messages", "gauge", _OF_GROUP, "Messages not yet settled by the group."),
        Family("penstock_oldest_unsettled_age_seconds", "gauge", _OF_GROUP, "Age of the oldest unsettled message."),
        Family("penstock_queues", "gauge", (), "Queues, including dead-letter queues."),
        Family("penstock_partitions", "gauge", (), "Partitions of all queues."),
        Family("penstock_push_duration_seconds", "histogram", (), "Time from a push to its durable reply."),
        Family(
            "penstock_lease_duration_seconds", "histogram", (), "Time to answer a lease, without waiting for messages."
        ),
        Family("penstock_settle_duration_seconds", "histogram", (), "Time from a settlement until it was durable."),
        Family("penstock_commit_duration_seconds", "histogram", (), "Time of one write and sync of the journal."),
        Family("penstock_delivery_latency_seconds", "histogram", ("queue",), "Time from push to delivery."),
        Family("penstock_task_runs", "counter", ("task_type", "outcome"), "Task runs by outcome."),
        Family("penstock_task_run_seconds", "histogram", ("task_type",), "Duration of task runs."),
        Family("penstock_blocked_tasks", "gauge", (), "Tasks that wait for their parents."),
        Family("penstock_tasks", "gauge", ("state",), "Tasks by state, at most a second old."),
        Family("penstock_workers", "gauge", ("state",), "Workers: alive, stuck, stopping or dead."),
        Family("penstock_abandoned_runs", "gauge", (), "Task runs that workers could not interrupt."),
        Family("penstock_waiting_for_tasks", "gauge", (), "Tasks whose end a client waits for."),
        Family("penstock_journal_frames", "counter", (), "Frames appended since the directory was created."),
        Family("penstock_journal_durable_frames", "counter", (), "Frames that are durable."),
        Family("penstock_journal_bytes", "gauge", (), "Bytes in journal files, not yet sealed."),
        Family("penstock_journal_files", "gauge", (), "Journal files, including the one in use."),
        Family("penstock_segment_bytes", "gauge", (), "Bytes in sealed segment files."),
        Family("penstock_segment_files", "gauge", (), "Sealed segment files."),
        Family("penstock_segment_cache_bytes", "gauge", (), "Bytes in the segment cache; only with remote segments."),
        Family("penstock_segment_cache_reads", "counter", ("result",), "Blocks of segments read: hit or miss."),
        Family("penstock_disk_full", "gauge", (), "1 while pushes are refused because the disk is nearly full."),
        Family("penstock_upkeep_failures", "counter", ("role",), "Failed rounds of a background role."),
        Family("penstock_connections", "gauge", ("protocol",), "Open connections."),
        Family("penstock_accepted_connections", "counter", ("protocol",), "Connections accepted."),
        Family("penstock_logins", "counter", ("outcome", "credential"), "Logins by outcome."),
        Family("penstock_jwt_key_failures", "counter", (), "Failed reads of jwt_keys; only with JWTs."),
        Family("penstock_jwt_keys_age_seconds", "gauge", (), "Time since jwt_keys were last read; only with JWTs."),
        Family("penstock_waiting_leases", "gauge", (), "Leases and streams that wait for messages."),
        Family(
            "penstock_tls_certificate_expiry_seconds", "gauge", (), "Time until the certificate expires; only with TLS."
        ),
        Family("penstock_paused", "gauge", ("scope", "name", "group", "what"), "1 if push or delivery is paused."),
        Family("penstock_namespace_usage", "gauge", ("namespace", "quota"), "Resources a namespace uses."),
        Family("penstock_namespace_limit", "gauge", ("namespace", "quota"), "Quotas of a namespace."),
        Family("penstock_build", "info", ("version", "python"), "1, with the versions as labels."),
    )
}


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_SUFFIX: Final = {"counter": "_total", "info": "_info"}
_KIND: Final = {"info": "gauge"}
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def numbers(name: str, rows: Iterable[tuple[tuple[str, ...], float]]) -> str:
    """A counter, a gauge or an info: the values of its labels, and the number."""
    family = FAMILIES[name]
    shown = name + _SUFFIX.get(family.kind, "")
    lines = [f"{shown}{_braced(_labels(family.labels, values))} {number}\n" for values, number in rows]
    return _head(shown, _KIND.get(family.kind, family.kind), family.help) + "".join(lines)


def histograms(name: str, rows: Iterable[tuple[tuple[str, ...], Histogram]]) -> str:
    """A histogram for each set of labels."""
    family = FAMILIES[name]
    lines = [_head(name, "histogram", family.help)]
    for values, histogram in rows:
        labels = _labels(family.labels, values)
        within = labels + "," if labels else ""
        counts = histogram.cumulated()
        lines += [f'{name}_bucket{{{within}le="{bound}"}} {count}\n' for bound, count in counts]
        lines.append(f"{name}_count{_braced(labels)} {counts[-1][1]}\n")
        lines.append(f"{name}_sum{_braced(labels)} {histogram.sum_seconds}\n")
    return "".join(lines)


def _head(name: str, kind: str, said: str) -> str:
    return f"# HELP {name} {said}\n# TYPE {name} {kind}\n"


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    pairs = zip(names, values, strict=True)
    return ",".join([f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs])


def _braced(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


OUTCOMES: Final = {int(outcome): outcome.name.lower() for outcome in Outcome}


def group_rows(shard: Shard) -> dict[tuple[str, str], GroupRow]:
    """A row for every group of the oldest queues, and one for all groups of the others together.

    The oldest, because they stay the oldest: a counter must not move from one series to another.
    """
    pace = Pace()
    queues = shard.queues()
    rows: dict[tuple[str, str], GroupRow] = {}
    for queue, group in islice(_groups(queues), limits.metrics_series_max):
        rows[queue.name, group.name] = group_row(group, pace)
    others = [group_row(group, pace) for _, group in islice(_groups(queues), limits.metrics_series_max, None)]
    if others:
        rows[OTHERS, OTHERS] = _together(others)
    return rows


def _groups(queues: list[Queue]) -> Iterator[tuple[Queue, Group]]:
    return ((queue, group) for queue in queues for group in list(queue.groups.values()))


def _together(rows: list[GroupRow]) -> GroupRow:
    ready, leased, delayed, dead, lag = (sum(column) for column in zip(*(row[:5] for row in rows), strict=True))
    instants = [row.oldest_at for row in rows if row.oldest_at]
    outcomes = tuple(map(sum, zip(*(row.outcomes for row in rows), strict=True)))
    return GroupRow(ready, leased, delayed, dead, lag, min(instants, default=0), outcomes)


_WORKER_STATES: Final = ("alive", "stuck", "stopping", "dead")
_GAUGES_OF_GROUP: Final = ("ready", "leased", "delayed", "dead", "lag")


class Metrics:
    """All metrics of one broker."""

    def __init__(self, session: Session, meter: Meter) -> None:
        self._shard = session.shard
        self._session = session
        self._tasks = session.tasks
        self._meter = meter
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        session.set_meter(meter)

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
        yield from self._of_namespaces()
        yield from self._of_pauses()

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
        workers = self._tasks.registry.workers()
        states = Counter(worker.state for worker in workers)
        yield numbers("penstock_workers", (((state,), states[state]) for state in _WORKER_STATES))
        abandoned = sum(worker.info.abandoned for worker in workers if worker.state != "dead")
        yield numbers("penstock_abandoned_runs", [((), abandoned)])
        yield numbers("penstock_blocked_tasks", [((), self._shard.blocked_task_count)])
        yield numbers("penstock_waiting_for_tasks", [((), len(self._tasks.waiters))])
        yield numbers("penstock_tasks", (((state.value,), count) for state, count in self._tasks.totals().items()))

    def _of_shard(self) -> Iterator[str]:
        journal, store, queues = self._shard.journal, self._shard.store, self._shard.queues()
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
        cache = None if store is None else store.disk.cache
        yield numbers("penstock_segment_cache_bytes", [] if cache is None else [((), cache.bytes)])
        reads = [] if cache is None else [(("hit",), cache.hits), (("miss",), cache.misses)]
        yield numbers("penstock_segment_cache_reads", reads)
        failures = (((sleeper.role,), sleeper.failures) for sleeper in self._session.sleepers())
        yield numbers("penstock_upkeep_failures", failures)

    def _of_pauses(self) -> Iterator[str]:
        core = self._shard.core
        pauses = islice(core.pauses.all(core), limits.metrics_series_max)
        rows = [
            ((pause.scope, pause.queue or pause.namespace, pause.group, what), 1)
            for pause in pauses
            for what in ("push", "delivery")
            if getattr(pause, what)
        ]
        yield numbers("penstock_paused", rows)

    def _of_namespaces(self) -> Iterator[str]:
        records = list(islice(self._session.access.document.namespaces.items(), limits.metrics_series_max))
        usage = self._session.usage()
        used = [(name, asdict(usage[name])) for name, _ in records if name in usage]
        allowed = [(name, asdict(record.quotas)) for name, record in records]
        for metric, rows in (("penstock_namespace_usage", used), ("penstock_namespace_limit", allowed)):
            values = (((name, quota), value) for name, row in rows for quota, value in row.items())
            yield numbers(metric, (row for row in values if row[1] is not None))

    def _of_connections(self) -> Iterator[str]:
        connections = list(self._meter.connections.items())
        yield numbers("penstock_connections", (((protocol,), counts[0]) for protocol, counts in connections))
        yield numbers("penstock_accepted_connections", (((protocol,), counts[1]) for protocol, counts in connections))
        expires_at = self._meter.certificate_expires_at
        left = [((), (expires_at - self._shard.clock.now()) / 1e6)] if expires_at else []
        yield numbers("penstock_tls_certificate_expiry_seconds", left)
        yield from self._of_logins()
        yield numbers("penstock_build", [((VERSION, platform.python_version()), 1)])

    def _of_logins(self) -> Iterator[str]:
        yield numbers("penstock_logins", list(self._meter.logins.items()))
        source = self._meter.key_source
        yield numbers("penstock_jwt_key_failures", [] if source is None else [((), source.failures)])
        read_at = None if source is None else source.refreshed_at
        ages = [] if read_at is None else [((), max(0, self._shard.clock.now() - read_at) / 1e6)]
        yield numbers("penstock_jwt_keys_age_seconds", ages)
