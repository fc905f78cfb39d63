"""The lifecycle of messages, from the journal's settled entries: one row per run of consecutive offsets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.delivery.entries import Settled, Span
from penstock.model import Outcome
from penstock.storage.manifest import EventsOf
from penstock.storage.names import Names
from penstock.storage.schema import EVENTS, HAPPENINGS, HAPPENINGS_AT_ONCE, SCHEMAS

_OUTCOMES: Final = {outcome.value: outcome.name.lower() for outcome in Outcome}

Row = tuple[Any, ...]


class EventRows:
    """Gathers settled entries; what it hands out is sorted by queue, then as it happened."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._rows: dict[tuple[str, int], list[Row]] = {}  # by the queue's name and number
        self._tables: dict[tuple[str, int], list[pa.Table]] = {}  # those before them

    def add(self, settled: Settled) -> None:
        """Entries of a queue that is gone are history of nothing, and left out."""
        if settled.queue not in self._names.queues:
            return
        queue = self._names.queues[settled.queue][0]
        group = self._names.groups.get((settled.queue, settled.group))
        ending = (settled.consumer or None, settled.leased_at or None, settled.at, settled.error or None)
        outcome = _OUTCOMES[settled.outcome]
        rows = self._rows.setdefault((queue, settled.queue), [])
        for span in settled.spans:
            partition = self._names.partition(settled.queue, span.partition)
            rows += [
                (queue, settled.queue, group, partition, first, first + count - 1, count, outcome, attempt, *ending)
                for first, count, attempt in _runs(span)
            ]
        if len(rows) >= HAPPENINGS_AT_ONCE:
            self._tables.setdefault((queue, settled.queue), []).append(_table(rows))
            rows.clear()

    def tables(self) -> Iterator[pa.Table]:
        """Everything, once all has been added."""
        rows: list[Row] = []  # of several queues: most have little to say
        for key in sorted(self._rows):
            if key in self._tables:
                yield _table(rows)
                rows = []
                yield from self._tables.pop(key)
            rows += self._rows.pop(key)
            if len(rows) >= HAPPENINGS_AT_ONCE:
                yield _table(rows)
                rows = []
        yield _table(rows)


def _table(rows: list[Row]) -> pa.Table:
    schema = SCHEMAS[EVENTS]
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
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
