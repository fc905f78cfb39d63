"""The Spark table: one warm session on two cores, ten million messages of 100 bytes."""

from __future__ import annotations

from collections.abc import Callable

from bench.measure import Row, Scale
from bench.spark import burden, scans, streams, writes

GROUPS: dict[str, Callable[[Scale], list[Row]]] = {
    "scan": scans.whole,
    "count": scans.counted,
    "filter": scans.filtered,
    "tail": scans.tail,
    "stream": streams.sustained,
    "stream latency": streams.latency,
    "sink": writes.sink,
    "archive": writes.archive,
    "burden": burden.pushing_meanwhile,
}
