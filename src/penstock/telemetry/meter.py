"""Counting while work is done: plain integers and arrays of buckets.

No locks: every method is for the broker's event loop, except `took("commit", …)`, which is for whichever thread leads
the group commit, of which there is never more than one. Readers in other threads see each number as it is at the
moment. What has a name gets a series of its own until there are `limits.metrics_series_max` of its kind; names that
come later share one, so that nobody can fill the memory by asking for queues that do not exist.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from math import ceil, sqrt
from typing import Final, Literal, Protocol, TypeVar

from penstock import limits

Operation = Literal["push", "lease", "settle", "commit"]
Labels = TypeVar("Labels", bound=tuple[str, ...])

OTHERS: Final = "~others"  # no name of a queue begins with a tilde
# Seconds, upper bounds. A sync takes fractions of a millisecond; a message may wait for hours.
DURATIONS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
RUNS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 3600.0)
TASK_TYPE_LENGTH_MAX: Final = 200
WAITS: Final = (0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 300.0, 3600.0)


class KeySource(Protocol):
    """Where the keys of JWTs come from."""

    failures: int  # readings that failed
    refreshed_at: int | None  # µs, of the last that went well


def _grid() -> tuple[float, ...]:
    """Upper bounds of the fine buckets, in seconds: `GRID_GROWTH` apart, and every bound that Prometheus shows."""
    geometric = [GRID_FIRST_SECONDS * GRID_GROWTH**step for step in range(GRID_STEPS)]
    return tuple(sorted({*geometric, *DURATIONS, *RUNS, *WAITS}))


GRID_FIRST_SECONDS: Final = 1e-6
GRID_GROWTH: Final = 1.12  # so a percentile is at most 6 % off
GRID_STEPS: Final = 237  # up to five days
GRID: Final = _grid()
# What observations of each bucket count as: the geometric middle.
MIDDLES: Final[tuple[float, ...]] = (GRID[0], *(sqrt(low * high) for low, high in pairwise(GRID)), GRID[-1])


class Histogram:
    """How many observations fell into each bucket of `GRID`, and their sum.

    All histograms have the same fine buckets, so any number of them can be added up and still answer for a percentile.
    `bounds` are the few that Prometheus is shown; each is in the grid, so they are exact.
    """

    __slots__ = ("bounds", "counts", "sum_seconds")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(GRID) + 1)  # the last is for all above the last bound
        self.sum_seconds = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(GRID, seconds)] += 1
        self.sum_seconds += seconds

    def cumulated(self) -> list[tuple[str, int]]:
        """(upper bound, observations up to it), as Prometheus wants it."""
        totals = list(accumulate(self.counts))
        rows = [(str(bound), totals[bisect_left(GRID, bound)]) for bound in self.bounds]
        return [*rows, ("+Inf", totals[-1])]


def quantile(counts: Sequence[int], share: float, middles: Sequence[float] = MIDDLES) -> float | None:
    """The seconds that this share of the observations did not exceed; None when there are none."""
    total = sum(counts)
    if not total:
        return None
    rank = max(1, ceil(share * total))
    return middles[bisect_left(list(accumulate(counts)), rank)]


class Meter:
    """The counters and histograms of one broker. `started_at` is when the broker started, in µs; 0 when unknown."""

    def __init__(self, started_at: int = 0) -> None:
        self.started_at = started_at
        self.certificate_expires_at = 0  # µs; 0 without TLS
        self.pushes: dict[tuple[str, str], list[int]] = {}  # (queue, protocol) → [messages, bytes]
        self.deliveries: dict[tuple[str, str], list[int]] = {}  # (queue, group) → [messages]
        self.refusals: dict[tuple[str, str], list[int]] = {}  # (queue, code) → [requests]
        self.waits: dict[str, Histogram] = {}  # queue → pushed → delivered
        self.durations: dict[Operation, Histogram] = {
            operation: Histogram(DURATIONS) for operation in ("push", "lease", "settle", "commit")
        }
        self.runs: dict[tuple[str, str], list[int]] = {}  # (task type, outcome) → [runs]
        self.run_times: dict[str, Histogram] = {}  # task type → how long its runs take
        self.connections: dict[str, list[int]] = {}  # protocol → [open now, ever]
        self.logins: dict[tuple[str, str], int] = {}  # (outcome, kind of credential) → logins
        self.key_source: KeySource | None = None  # of JWTs

    def pushed(self, queue: str, protocol: str, messages: int, bytes: int) -> None:
        """Messages were stored."""
        counts = self.pushes.get((queue, protocol)) or _series(self.pushes, (queue, protocol), (OTHERS, protocol), 2)
        counts[0] += messages
        counts[1] += bytes

    def leased(self, queue: str, group: str, messages: int, waited_seconds: float) -> None:
        """Messages were handed out; `waited_seconds` is from push to delivery, of the oldest among them."""
        counts = self.deliveries.get((queue, group)) or _series(self.deliveries, (queue, group), (OTHERS, OTHERS), 1)
        counts[0] += messages
        waits = self.waits.get(queue)
        if waits is None:
            name = queue if len(self.waits) < limits.metrics_series_max else OTHERS
            waits = self.waits.setdefault(name, Histogram(WAITS))
        waits.observe(waited_seconds)

    def refused(self, queue: str, code: str) -> None:
        """A request got an error for its answer."""
        counts = self.refusals.get((queue, code)) or _series(self.refusals, (queue, code), (OTHERS, code), 1)
        counts[0] += 1

    def took(self, operation: Operation, seconds: float) -> None:
        """How long it took, from the request until its answer was durable."""
        self.durations[operation].observe(seconds)

    def finished(self, runs: Iterable[tuple[str, str, float]]) -> None:
        """Runs of tasks have ended: type, outcome and seconds, as reported by their worker; 0 when it does not."""
        last: tuple[str, str] | None = None  # those of one worker are mostly of one kind
        counts, times = [0], Histogram(RUNS)
        for task_type, outcome, seconds in runs:
            if (task_type, outcome) != last:
                last = (task_type, outcome)
                name = task_type if len(task_type) <= TASK_TYPE_LENGTH_MAX else OTHERS
                counts = self.runs.get((name, outcome)) or _series(self.runs, (name, outcome), (OTHERS, outcome), 1)
                times = self._times_of(name)
            counts[0] += 1
            if seconds > 0:
                times.observe(seconds)

    def _times_of(self, task_type: str) -> Histogram:
        found = self.run_times.get(task_type)
        if found is None:
            name = task_type if len(self.run_times) < limits.metrics_series_max else OTHERS
            found = self.run_times.setdefault(name, Histogram(RUNS))
        return found

    def logged_in(self, outcome: str, credential: str) -> None:
        """Somebody has logged in, or has failed to."""
        self.logins[outcome, credential] = self.logins.get((outcome, credential), 0) + 1

    def connected(self, protocol: str) -> None:
        """A client's connection was accepted."""
        counts = self.connections.setdefault(protocol, [0, 0])
        counts[0] += 1
        counts[1] += 1

    def disconnected(self, protocol: str) -> None:
        """A connection that was counted has ended."""
        self.connections[protocol][0] -= 1

    @property
    def connections_open(self) -> int:
        """Connections of all protocols."""
        return sum(counts[0] for counts in self.connections.values())


def _series(counts: dict[Labels, list[int]], labels: Labels, shared: Labels, width: int) -> list[int]:
    """The counters of labels that were not seen before."""
    chosen = labels if len(counts) < limits.metrics_series_max else shared
    return counts.setdefault(chosen, [0] * width)
