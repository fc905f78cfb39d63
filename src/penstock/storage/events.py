"""The lifecycle of messages, from the journal's settled entries: one row per run of consecutive offsets."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.delivery.entries import Settled, Span
from penstock.model import Outcome
from penstock.storage.manifest import EventsOf
from penstock.storage.names import Names
from penstock.storage.schema import EVENTS, HAPPENINGS, SCHEMAS

_OUTCOMES: Final = {outcome.value: outcome.name.lower() for outcome in Outcome}


class EventRows:
    """Gathers settled entries; `table()` sorts them by queue, then as they happened."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._rows: list[tuple[Any, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, settled: Settled) -> None:
        """Entries of a queue that is gone are history of nothing, and left out."""
        if settled.queue not in self._names.queues:
            return
        queue = self._names.queues[settled.queue][0]
        group = self._names.groups.get((settled.queue, settled.group))
        ending = (settled.consumer or None, settled.leased_at or None, settled.at, settled.error or None)
        outcome = _OUTCOMES[settled.outcome]
        for span in settled.spans:
            partition = self._names.partition(settled.queue, span.partition)
            self._rows += [
                (queue, settled.queue, group, partition, first, first + count - 1, count, outcome, attempt, *ending)
                for first, count, attempt in _runs(span)
            ]

    def table(self) -> pa.Table:
        """The events table."""
        schema = SCHEMAS[EVENTS]
        self._rows.sort(key=lambda row: row[:2])
        columns = zip(*self._rows, strict=True) if self._rows else [()] * len(schema)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        return pa.table(arrays, schema=schema)


def summary(table: pa.Table, kind: str = EVENTS) -> list[EventsOf]:
    """What the manifest keeps about a file of events, or of tasks."""
    time = HAPPENINGS[kind]
    found = table.group_by("incarnation").aggregate([(time, "max"), (time, "count")])
    found = found.sort_by("incarnation")
    latest = found[f"{time}_max"].cast(pa.int64())
    columns = (column.to_pylist() for column in (found["incarnation"], found[f"{time}_count"], latest))
    return list(map(EventsOf, *columns))


def _runs(span: Span) -> list[tuple[int, int, int]]:
    """(first offset, count, attempt) of each run of consecutive offsets with one attempt."""
    if not span.offsets and not span.attempts:
        return [(span.first, span.count, span.attempt)]
    offsets = span.offset_array()
    attempts = np.frombuffer(span.attempts, np.uint16) if span.attempts else np.full(len(offsets), span.attempt)
    breaks = (np.diff(offsets) != 1) | (np.diff(attempts) != 0)
    firsts = np.append(0, np.flatnonzero(breaks) + 1)
    counts = np.diff(firsts, append=len(offsets))
    return list(zip(offsets[firsts].tolist(), counts.tolist(), attempts[firsts].tolist(), strict=True))
