"""The embedded table: one group of rows per file, in the order of the table."""

from __future__ import annotations

from collections.abc import Callable

from bench.embedded import delays, depth, leasing, opening, partitions, pushing, queues, rollups, streams, timeline
from bench.measure import Row, Scale

GROUPS: dict[str, Callable[[Scale], list[Row]]] = {
    "push_many os": pushing.many_os,
    "push_many fsync": pushing.many_fsync,
    "push one os": pushing.one_os,
    "push one fsync": pushing.one_fsync,
    "lease tail": leasing.from_the_tail,
    "lease sealed": leasing.from_segments,
    "lease one": leasing.one_at_a_time,
    "lease queues": queues.over_many,
    "priorities": leasing.five_priorities,
    "delayed rate": delays.rate,
    "delayed memory": delays.memory_of_a_million,
    "delayed year": delays.memory_of_a_year,
    "partitions memory": partitions.memory,
    "partitions rate": partitions.rates,
    "depth rate": depth.rates,
    "depth memory": depth.memory,
    "rollups": rollups.cpu_share,
    "compaction": streams.compaction,
    "stages": streams.stages,
    "timeline": timeline.one_message,
    "open journal": opening.full_journal_file,
    "open sealed": opening.sealed,
}
