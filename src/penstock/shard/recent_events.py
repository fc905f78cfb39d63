"""What the frames of the journal that are not sealed say about messages: leases, settlements, revivals.

The index follows the journal when somebody asks, from where it was last, and forgets what has been sealed since.
Nothing on the way of a push, a lease or a settlement feeds it. It pauses while it reads, so that other threads have
their turn.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.delivery.entries import Leased, Revived, Settled, Span, decode_record, split
from penstock.journal import Journal
from penstock.storage.parquet import runs_of

FRAMES_AT_ONCE: Final = 256  # between two pauses: a fraction of a millisecond
PAUSE_SECONDS: Final = 0.0002
CHUNKS_MAX: Final = 32
LEASED: Final = 0
REVIVED: Final = -1
KINDS: Final = {kind.__struct_config__.tag for kind in (Leased, Settled, Revived)}


class RecentEvent(NamedTuple):
    """An entry about a run of offsets. `what` is an outcome, `LEASED` or `REVIVED`. Instants are µs, 0 for none."""

    queue: int
    group: int
    partition: int
    first: int
    last: int
    what: int
    attempt: int
    at: int
    leased_at: int
    due_at: int
    consumer: int  # which of the texts
    error: int
    sequence: int


Rows = NDArray[np.int64]
_WIDTH: Final = len(RecentEvent._fields)
_QUEUE, _PARTITION, _FIRST, _LAST, _SEQUENCE = map(
    RecentEvent._fields.index, ("queue", "partition", "first", "last", "sequence")
)
_TEXTS: Final = tuple(map(RecentEvent._fields.index, ("consumer", "error")))


class RecentEvents:
    """For one thread at a time."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.clear()

    def clear(self) -> None:
        """Forget everything; the next `follow` starts where the segments end."""
        self._reader = self._journal.reader()
        self._after = 0  # the last frame that was read
        self._sealed = 0  # frames up to this one are forgotten
        self._new: list[RecentEvent] = []
        self._chunks: list[Rows] = []
        self.texts: list[str] = [""]
        self._numbers: dict[str, int] = {"": 0}

    def __len__(self) -> int:
        return len(self._new) + sum(map(len, self._chunks))

    def follow(self, sealed: int, until: int) -> None:
        """Read the frames over `sealed`, up to `until`. `FileNotFoundError`: more have been sealed by now."""
        if sealed > self._sealed:
            self._forget(sealed)
            self._sealed, self._after = sealed, max(self._after, sealed)
        try:
            for count, (sequence, _, frame) in enumerate(self._reader.read(self._after, until), 1):
                for kind, body in split(frame):
                    if kind in KINDS:
                        self._new += self._events(decode_record(body), sequence)
                self._after = sequence
                if count % FRAMES_AT_ONCE == 0:
                    time.sleep(PAUSE_SECONDS)
        except FileNotFoundError:
            self.clear()
            raise

    def find(self, queue: int, partition: int, offset: int, after: int) -> list[RecentEvent]:
        """What frames over `after` say about one message, in the order of the journal."""
        if self._new:
            self._chunks.append(np.array(self._new, np.int64).reshape(-1, _WIDTH))
            self._new = []
            if len(self._chunks) > CHUNKS_MAX:
                self._chunks = [np.concatenate(self._chunks)]
        found: list[RecentEvent] = []
        for rows in self._chunks:
            is_about = (rows[:, _QUEUE] == queue) & (rows[:, _PARTITION] == partition) & (rows[:, _SEQUENCE] > after)
            is_about &= (rows[:, _FIRST] <= offset) & (rows[:, _LAST] >= offset)
            found += [RecentEvent(*row) for row in rows[is_about].tolist()]
        return found

    def _forget(self, sealed: int) -> None:
        """Drop what the segments have, and the texts that nothing needs any more."""
        rows = np.concatenate([*self._chunks, np.array(self._new, np.int64).reshape(-1, _WIDTH)])
        rows = rows[rows[:, _SEQUENCE] > sealed]
        texts = [self.texts[number] for number in np.unique(rows[:, _TEXTS]).tolist()]
        numbers = {text: number for number, text in enumerate(dict.fromkeys(["", *texts]))}
        renumbered = np.array([numbers.get(text, 0) for text in self.texts], np.int64)
        rows[:, _TEXTS] = renumbered[rows[:, _TEXTS]]
        self._new, self._chunks = [], [rows] if len(rows) else []
        self._numbers, self.texts = numbers, list(numbers)

    def _events(self, entry: object, sequence: int) -> Iterator[RecentEvent]:
        if isinstance(entry, Leased):
            consumer = self._number(entry.consumer)
            for span in entry.spans:
                for first, count, attempt in runs_of(span):
                    yield RecentEvent(
                        *(entry.queue, entry.group, span.partition, first, first + count - 1, LEASED, attempt),
                        *(entry.at, entry.at, 0, consumer, 0, sequence),
                    )
        elif isinstance(entry, Settled):
            consumer, error = self._number(entry.consumer), self._number(entry.error)
            for partition, first, last, attempt, due in _with_dues(entry.spans):
                yield RecentEvent(
                    *(entry.queue, entry.group, partition, first, last, entry.outcome, attempt),
                    *(entry.at, entry.leased_at, due, consumer, error, sequence),
                )
        elif isinstance(entry, Revived):
            for partition, first, last, _, due in _with_dues(entry.spans):
                yield RecentEvent(
                    *(entry.queue, entry.group, partition, first, last, REVIVED, 0, entry.at, 0, due, 0, 0, sequence)
                )

    def _number(self, text: str) -> int:
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return number


def _with_dues(spans: Iterable[Span]) -> Iterator[tuple[int, int, int, int, int]]:
    """(partition, first, last, attempt, due) of runs; where messages have due times of their own, of each."""
    for span in spans:
        dues = iter(span.due_array().tolist()) if span.dues else None
        for first, count, attempt in runs_of(span):
            if dues is None:
                yield span.partition, first, first + count - 1, attempt, 0
                continue
            for offset in range(first, first + count):
                yield span.partition, offset, offset, attempt, next(dues)
