"""A report of the moment: counters, latencies and health of one open shard.

Counters are differences from the state at opening, so that nothing is counted on the way of a message. Latencies are
those that the session's meter was given: every call of a broker, those of an embedded session that was opened with
`metrics`, and the commits of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from penstock.delivery import admin
from penstock.delivery.log import Queue
from penstock.model import to_datetime, to_micros
from penstock.model_audit import OK, AuditFilter
from penstock.model_metrics import (
    COUNTERS,
    GAUGES,
    MARKED,
    MARKS_MAX,
    HealthReport,
    Latency,
    MetricsReport,
    QueueMetrics,
    SeriesMark,
)
from penstock.rollups.sampler import age_ms, counters_of, gauges_of
from penstock.telemetry.groups import Pace, group_row
from penstock.telemetry.meter import GRID, Histogram, Meter, quantile

if TYPE_CHECKING:
    from penstock.embedded.session import Session
    from penstock.shard.shard import Shard

AUDITED_MAX: Final = 10_000  # records of the audit log that are looked at for marks
_NOTHING: Final = (0,) * len(COUNTERS)
Baseline = Mapping[int, tuple[int, ...]]


def baseline_of(shard: Shard) -> Baseline:
    """The counters of every queue at this moment."""
    return {queue.id: counters_of(queue) for queue in shard.queues()}


def measure_commits(shard: Shard, meter: Meter) -> None:
    """Put a stopwatch around the syncs of a shard."""
    clock = shard.clock

    def timed(sync: Callable[[], None]) -> None:
        began = clock.monotonic()
        sync()
        meter.took("commit", (clock.monotonic() - began) / 1e6)

    def begun() -> Callable[[], None]:
        began = clock.monotonic()
        return lambda: meter.took("commit", (clock.monotonic() - began) / 1e6)

    shard.commit.around = timed
    shard.commit.begun = begun


def problems_of(session: Session) -> list[str]:
    """What somebody should look at, although it works."""
    problems = []
    if session.shard.journal.disk_full:
        problems.append("the disk is nearly full: pushes are refused, leases and acks continue")
    if not session.shard.throttle.is_set():
        problems.append("too many journal files are waiting to be sealed: pushes are slowed")
    for sleeper in session.sleepers():
        if not sleeper.is_running:
            problems.append(f"the {sleeper.role} has ended: restart the broker")
        elif sleeper.problem:
            problems.append(f"the {sleeper.role} fails and retries: {sleeper.problem}")
    return problems + [problem for notice in session.notices for problem in notice()]


def report(session: Session, queue: str | None) -> MetricsReport:
    """The metrics of one queue, or of all; reads memory, and asks the disk how much is free."""
    shard, meter = session.shard, session.meter
    queues = shard.queues() if queue is None else [admin.queue_named(shard.core, queue)]
    now, pace = shard.clock.now(), Pace()
    rows = [_queue_metrics(each, session.baseline, meter, now, pace) for each in queues]
    totals = {name: sum(getattr(row, name) for row in rows) for name in (*COUNTERS, *GAUGES[:-1])}
    if queue is None:
        totals["refused"] = sum(counts[0] for counts in list(meter.refusals.values()))
    waits = list(meter.waits.values()) if queue is None else [meter.waits.get(queue)]
    operations = meter.durations if queue is None else {}
    return MetricsReport(
        at=to_datetime(now),
        since=to_datetime(session.opened_at),
        totals=totals,
        queues=rows,
        latencies={
            **{operation: latency_of([histogram]) for operation, histogram in operations.items()},
            "delivery": latency_of(waits),
        },
        health=_health(session),
    )


def _queue_metrics(queue: Queue, baseline: Baseline, meter: Meter, now: int, pace: Pace) -> QueueMetrics:
    before = baseline.get(queue.id, _NOTHING)
    counters = (max(0, number - old) for number, old in zip(counters_of(queue), before, strict=True))
    gauges, oldest_at = gauges_of([group_row(group, pace) for group in list(queue.groups.values())])
    values = dict(zip((*COUNTERS, *GAUGES), (*counters, *gauges, age_ms(oldest_at, now)), strict=True))
    return QueueMetrics(name=queue.name, latency=latency_of([meter.waits.get(queue.name)]), **values)


def latency_of(histograms: Iterable[Histogram | None]) -> Latency:
    """The observations of some histograms together."""
    counts, seconds = [0] * (len(GRID) + 1), 0.0
    for histogram in histograms:
        if histogram is not None:
            counts = list(map(int.__add__, counts, histogram.counts))
            seconds += histogram.sum_seconds
    count = sum(counts)
    if not count:
        return Latency()
    shares = [quantile(counts, share) or 0.0 for share in (0.5, 0.95, 0.99)]
    return Latency(count, *(round(value * 1000, 4) for value in (seconds / count, *shares)))


def _health(session: Session) -> HealthReport:
    shard = session.shard
    journal, problems = shard.journal, problems_of(session)
    segments = shard.store.files() if shard.store is not None else []
    if journal.failed is not None:
        problems.insert(0, f"the journal stopped: {journal.failed}")
    status = "failed" if journal.failed is not None else "degraded" if problems else "ok"
    return HealthReport(
        status=status,  # type: ignore[arg-type]
        problems=problems,
        journal_bytes=journal.size_bytes(),
        segment_bytes=sum(file.bytes for file in segments),
        disk_free_bytes=journal.free_bytes(),
    )


def marks(session: Session, queue: str | None, since: datetime, until: datetime) -> list[SeriesMark]:
    """What was changed in a span of time, oldest first; of a queue, what concerns it."""
    records = session.audit.find(AuditFilter(outcome=OK, since=to_micros(since, "from")), AUDITED_MAX)
    found = [
        SeriesMark(datetime.fromisoformat(record.at), record.queue, record.what, record.who, _shown(record.arguments))
        for record in reversed(records)
        if record.what in MARKED and (queue is None or record.queue in ("", queue))
    ]
    return sorted((mark for mark in found if since <= mark.at < until), key=lambda mark: mark.at)[-MARKS_MAX:]


def _shown(arguments: Mapping[str, Any]) -> str:
    changes = arguments.get("changes") or arguments.get("options") or arguments
    return ", ".join(f"{name}={value}" for name, value in changes.items()) if isinstance(changes, Mapping) else ""
