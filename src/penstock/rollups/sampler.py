"""Looking at a shard once a second: what has changed since the last look, for every queue and the broker.

The look takes no lock, like that of a scrape (`telemetry.groups`), and is bounded: it goes on where the last one
stopped when its budget of steps is used up. What it did not get to shows in a later second; nothing is lost, since
counters are differences from the last look. A queue that no frame has touched since then is passed over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock import limits
from penstock.delivery.phases import AFTER, SETTLED
from penstock.model import Outcome
from penstock.model_metrics import COUNTERS, GAUGES
from penstock.rollups.slices import GRID_BUCKETS, Slice, new_slice
from penstock.rollups.tiers import BROKER, ENDINGS, LATENCY_ROWS, OTHERS
from penstock.telemetry.groups import GroupRow, Pace, group_row
from penstock.telemetry.meter import OTHERS as OTHERS_NAME
from penstock.telemetry.meter import Histogram, Meter

if TYPE_CHECKING:
    from penstock.delivery.group import Group
    from penstock.delivery.log import Queue
    from penstock.shard.shard import Shard

STEPS_MAX: Final = 2_048  # queues, groups and partitions that one look may cost
SKETCHES_MAX: Final = 64  # queues whose latencies one look may compare
_ENDINGS: Final = tuple(tuple(map(int, outcomes)) for outcomes in ENDINGS.values())
_FINAL: Final = [int(outcome) for outcome in Outcome if AFTER[outcome] == SETTLED]
PACE_US: Final = 10_000_000  # between two looks that a pace is made of
PACE_LOOKS: Final = 7
_NO_OUTCOMES: Final = [0] * (max(Outcome) + 1)
_NOTHING: Final = (0,) * len(COUNTERS)


def counters_of(queue: Queue) -> tuple[int, ...]:
    """The counters of a queue, in the order of `COUNTERS`, since some moment in the past."""
    groups = list(queue.groups.values())
    pushed = sum([partition.end for partition in list(queue.partitions)])
    if len(groups) == 1:
        outcomes, delivered = groups[0].outcomes, groups[0].delivered
    else:
        outcomes = list(map(sum, zip(*(group.outcomes for group in groups), strict=True))) or _NO_OUTCOMES
        delivered = sum(group.delivered for group in groups)
    return (pushed, delivered, *[sum([outcomes[outcome] for outcome in ending]) for ending in _ENDINGS])


def gauges_of(rows: Sequence[GroupRow]) -> tuple[tuple[int, ...], int]:
    """The gauges of a queue from its groups, in the order of `GAUGES`; its age is when the oldest was pushed."""
    if len(rows) == 1:
        return rows[0][:5], rows[0].oldest_at
    gauges = (
        sum(row.ready for row in rows),
        sum(row.leased for row in rows),
        sum(row.delayed for row in rows),
        sum(row.dead for row in rows),
        max((row.lag for row in rows), default=0),
    )
    return gauges, min((row.oldest_at for row in rows if row.oldest_at), default=0)


def age_ms(oldest_at: int, now: int) -> int:
    """How old the oldest message is that is not settled; 0 when there is none."""
    return max(0, now - oldest_at) // 1_000 if oldest_at else 0


def _settled(group: Group) -> int:
    """Messages that a group has finished since the process started."""
    return sum([group.outcomes[outcome] for outcome in _FINAL])


class Seen:
    """A queue at the last look."""

    __slots__ = ("counters", "gauges", "id", "oldest_at", "settled", "touched")

    def __init__(self, id: int) -> None:
        self.id = id  # of its row
        self.touched = -1
        self.counters: tuple[int, ...] = _NOTHING
        self.gauges: tuple[int, ...] = (0,) * (len(GAUGES) - 1)
        self.oldest_at = 0
        # How much each group had settled, by its id, and when: a look every few seconds of the last minute.
        self.settled: deque[tuple[int, dict[int, int]]] = deque(maxlen=PACE_LOOKS)


class Sampler:
    """Compares the state of a shard with that of the look before. `meter` has what only a broker counts."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.meter: Meter | None = None
        self._seen: dict[int, Seen] = {}  # by queue id
        self._next = 0  # where the next look begins, among the queues
        self._shown = 0  # queues that have a row of their own
        # Latencies at the last look, by the name of the queue or operation.
        self._latencies: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        self._refused = 0
        self._is_first = True
        self.names: dict[int, str] = {}  # of the rows

    def look(self, at: int, *, everything: bool) -> Slice:
        """What happened since the last look; with `everything`, a row also for queues where nothing did."""
        queues = self._shard.queues()
        self._forget(queues)
        deltas = self._look_at(queues)
        now = self._shard.clock.now()
        rows = self._rows(deltas, now, everything=everything)
        cells = self._cells(queues, sketches_max=len(queues) if everything else SKETCHES_MAX)
        part = new_slice(at, [*rows, self._total(deltas, now)], self._broker_row(), cells)
        self._is_first = False
        return part

    # queues

    def _forget(self, queues: Sequence[Queue]) -> None:
        alive = {queue.id for queue in queues}
        for id in [id for id in self._seen if id not in alive]:
            if self._seen.pop(id).id == id:
                self._shown -= 1
                self.names.pop(id, None)

    def _look_at(self, queues: Sequence[Queue]) -> dict[int, list[int]]:
        """Row id → what its counters grew by; within the budget."""
        deltas: dict[int, list[int]] = {}
        pace, steps, count = Pace(), 0, len(queues)
        first, self._next = self._next, 0
        for number in range(count):
            if steps >= STEPS_MAX:
                self._next = (first + number) % count
                break
            queue = queues[(first + number) % count]
            steps += 1
            seen = self._seen.get(queue.id) or self._new(queue)
            if seen.touched == queue.touched and not seen.gauges[2]:  # what is delayed comes due by itself
                continue
            steps += len(queue.partitions) * (1 + len(queue.groups))
            grown = self._compare(queue, seen, pace)
            before = deltas.get(seen.id)  # of another queue that shares the row
            deltas[seen.id] = grown if before is None else list(map(int.__add__, before, grown))
        return deltas

    def _new(self, queue: Queue) -> Seen:
        is_shown = self._shown < limits.metrics_series_max
        self._shown += is_shown
        seen = self._seen[queue.id] = Seen(queue.id if is_shown else OTHERS)
        self.names[seen.id] = queue.name if is_shown else OTHERS_NAME
        if self._is_first:
            self._compare(queue, seen, Pace())  # what happened before the first look is no news
            seen.touched = -1
        return seen

    def _compare(self, queue: Queue, seen: Seen, pace: Pace) -> list[int]:
        seen.touched = queue.touched
        rows = [group_row(group, pace) for group in list(queue.groups.values())]
        counters = counters_of(queue)
        # A group that was deleted takes its counts with it.
        pairs = zip(counters, seen.counters, strict=True)
        grown = [now - before if now > before else 0 for now, before in pairs]
        seen.counters = counters
        seen.gauges, seen.oldest_at = gauges_of(rows)
        now = self._shard.clock.monotonic()
        if not seen.settled or now - seen.settled[-1][0] >= PACE_US:
            seen.settled.append((now, {group.id: _settled(group) for group in list(queue.groups.values())}))
        return grown

    def settled_per_second(self, queue: int, group: int) -> float | None:
        """How many messages a group settles in a second, over the last minute; None when nobody looked meanwhile."""
        seen, known = self._seen.get(queue), self._shard.core.queues.get(queue)
        now = self._shard.clock.monotonic()
        looks = [] if seen is None else [look for look in list(seen.settled) if now - look[0] <= PACE_US * PACE_LOOKS]
        reader = None if known is None else known.groups.get(group)
        before = next((look for look in looks if group in look[1] and now > look[0]), None)
        if reader is None or before is None:
            return None
        return max(0, _settled(reader) - before[1][group]) * 1e6 / (now - before[0])

    def _rows(self, deltas: Mapping[int, Sequence[int]], now: int, *, everything: bool) -> list[list[int]]:
        rows: dict[int, list[int]] = {}
        for seen in self._seen.values():
            if not (everything or seen.id in deltas):
                continue
            gauges = [*seen.gauges, age_ms(seen.oldest_at, now)]
            row = rows.get(seen.id)
            if row is None:
                rows[seen.id] = [seen.id, *deltas.get(seen.id, _NOTHING), *gauges]
            else:  # several queues share it
                row[len(COUNTERS) + 1 :] = map(sum, zip(row[len(COUNTERS) + 1 :], gauges, strict=True))
                row[-1] = max(row[-1] - gauges[-1], gauges[-1])
        return list(rows.values())

    def _total(self, deltas: Mapping[int, Sequence[int]], now: int) -> list[int]:
        counters = map(sum, zip(_NOTHING, *deltas.values(), strict=True))
        gauges = map(sum, zip(*(seen.gauges for seen in self._seen.values()), strict=True))
        oldest_at = min((seen.oldest_at for seen in self._seen.values() if seen.oldest_at), default=0)
        return [BROKER, *counters, *(gauges if self._seen else (0,) * (len(GAUGES) - 1)), age_ms(oldest_at, now)]

    # the broker

    def _broker_row(self) -> list[int]:
        shard, meter = self._shard, self.meter
        refused = 0 if meter is None else sum(counts[0] for counts in list(meter.refusals.values()))
        grown = 0 if self._is_first else refused - self._refused
        self._refused = refused
        segments = shard.store.files() if shard.store is not None else []
        return [
            grown,
            0 if meter is None else meter.connections_open,
            len(shard.waiters),
            shard.journal.size_bytes(),
            sum(file.bytes for file in segments),
        ]

    # latencies

    def _cells(self, queues: Sequence[Queue], *, sketches_max: int) -> list[tuple[int, int, int]]:
        """Row id, bucket and observations since the last look, of as many queues as `sketches_max`."""
        meter = self.meter
        if meter is None:
            return []
        cells: list[tuple[int, int, int]] = []
        for operation, histogram in meter.durations.items():
            cells += self._compare_latencies(LATENCY_ROWS[operation], f"~{operation}", histogram)
        changed = 0
        for queue in queues:
            waits = meter.waits.get(queue.name)
            if waits is not None and self._sums.get(queue.name) != waits.sum_seconds:
                cells += self._compare_latencies(queue.id, queue.name, waits)
                changed += 1
                if changed >= sketches_max:
                    break
        return cells

    def _compare_latencies(self, id: int, name: str, histogram: Histogram) -> list[tuple[int, int, int]]:
        if self._sums.get(name) == histogram.sum_seconds:
            return []
        self._sums[name] = histogram.sum_seconds
        counts = histogram.counts.copy()
        before = self._latencies.get(name)
        self._latencies[name] = counts
        if self._is_first:
            return []
        if before is None:
            before = [0] * len(counts)
        pairs = enumerate(zip(counts, before, strict=True))
        return [(id, bucket // GRID_BUCKETS, count - old) for bucket, (count, old) in pairs if count > old]
