"""The lives of tasks, for the sealed table: one row per frame that changed something about a task.

The first row of a task has what it was submitted with. Rows after it have what changed, and null for the rest. A lease
has no row of its own, since the row that ends the run says when it began and who ran it; but tasks that still run at
the end get one.

What settles a message only names its place. Tasks that were submitted in other files are looked up with `identify`;
messages that it does not know are no tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from penstock.delivery.entries import Entry, Leased, Push, TaskHeld, TasksPurged
from penstock.model import Outcome
from penstock.model_tasks import id_text
from penstock.storage.schema import EVENT_ROWS_AT_ONCE, TASKS, Names, table_of
from penstock.storage.task_changes import (
    ATTEMPT,
    DUE_AT,
    ERROR,
    FINAL_FROM,
    NUMBER,
    OUTCOME,
    POSITION,
    PROGRESS,
    PURGED,
    QUEUE,
    RESULT,
    ROW_BITS,
    STARTED_AT,
    STATE,
    TAKE,
    UPDATE_LENGTH,
    WORKER,
    Change,
    Code,
    Fold,
    Known,
    TaskPosition,
)

Key = TaskPosition | bytes  # where a task's message is, or its id


class Identity(NamedTuple):
    """Identifies a task."""

    task_id: bytes
    task_type: str
    number: int
    until: int | None = None  # the sequence at which the task index forgot it; None while it is known


Waiting = tuple[Key, int, Change, int]  # what changed, when, and in which frame
Identify = Callable[[Iterable[Key]], Mapping[Key, Identity]]

_STATES: Final = {
    Code.FAILED: "failed",
    Code.BLOCKED: "blocked",
    Code.RUNNING: "running",
    Code.COMPLETED: "completed",
    Code.DEAD: "dead",
    Code.CANCELLED: "cancelled",
    PURGED: "purged",
}
_OUTCOMES: Final = {outcome.value: outcome.name.lower() for outcome in Outcome}


class TaskRows:
    """Gathers the changes of frames, in the order of the journal; `tables()` returns them."""

    def __init__(
        self,
        names: Names,
        identify: Identify | None = None,
        task_queues: Iterable[int] = (),
        *,
        remembers: bool = False,
    ) -> None:
        self._names = names
        self._remembers = remembers or identify is None
        self._identify = identify
        queues = {id: name for id, (name, _) in names.queues.items()}
        self._fold = Fold(Known(queues, set(task_queues), {}, {}))
        self._submitted: dict[Key, Identity] = {}  # submitted in what is gathered, if that is to be remembered
        self._running: dict[Key, list[Any]] = {}  # attempt, worker, since when
        self._waiting: list[Waiting] = []
        self._sequence = 0
        self._tables: list[pa.Table] = []

    def take(self, sequence: int, entries: Iterable[Entry]) -> None:
        """The entries of one frame."""
        fold, number = self._fold, sequence << ROW_BITS
        fold.at, self._sequence = 0, sequence
        purged: list[Waiting] = []
        for entry in entries:
            if entry.queue not in self._names.queues:
                continue  # of a queue that is gone
            if isinstance(entry, TasksPurged):
                purged += _purged(entry, sequence)
            else:
                number = self._take(number, entry)
        if len(fold):
            self._end_runs()
            for changes in (fold.held, fold.changes, fold.by_id):
                self._waiting += [(key, fold.at, change, sequence) for key, change in changes.items()]
            fold.clear()
        self._waiting += purged
        if len(self._waiting) >= EVENT_ROWS_AT_ONCE:
            self._gather()

    def _take(self, number: int, entry: Entry) -> int:
        """Take one entry; returns the number after those of the tasks that it submits."""
        fold = self._fold
        if isinstance(entry, Push):
            return fold.take_pushed(number, entry)
        if isinstance(entry, TaskHeld):
            return fold.take_held(number, entry)
        if isinstance(entry, Leased):
            fold.take_leased(entry)
            self._note_running()
        elif type(entry) in TAKE:
            TAKE[type(entry)](fold, entry)
        return number

    def _note_running(self) -> None:
        """What was leased is remembered until its run ends."""
        for key, change in list(self._fold.changes.items()):
            if change[STATE] == Code.RUNNING:
                self._running[key] = change[ATTEMPT : STARTED_AT + 1]
                if len(change) == UPDATE_LENGTH:
                    del self._fold.changes[key]

    def _end_runs(self) -> None:
        """Complete entries, a purge for example, that do not describe the run that they end."""
        for key, change in self._fold.changes.items():
            if change[STATE] is not None and change[STATE] != Code.RUNNING and key in self._running:
                run = self._running.pop(key)
                if change[STARTED_AT] is None:
                    change[ATTEMPT : STARTED_AT + 1] = run

    def tables(self) -> list[pa.Table]:
        """What was gathered since the last call."""
        tables, self._tables = self._tables, []
        return tables

    def finish(self) -> None:
        """Gather the rest, once all frames were taken."""
        for key, run in self._running.items():
            change = [int(Code.RUNNING), None, *run, *[None] * 5, *key, FINAL_FROM]
            self._waiting.append((key, run[-1], change, self._sequence))
        self._running = {}
        self._gather()

    def _gather(self) -> None:
        """Make a table of the waiting changes, which takes less room."""
        waiting, self._waiting = self._waiting, []
        identities = self._identities(waiting)
        rows = [
            self._row(change, at, identity)
            for key, at, change, sequence in waiting
            if (identity := identities.get(key)) is None or _is_shown(change, identity, sequence)
        ]
        kept = [row for row in rows if row is not None]
        if kept:
            self._tables.append(table_of(TASKS, kept))

    def _identities(self, waiting: list[Waiting]) -> Mapping[Key, Identity]:
        if self._remembers:
            for key, _, change, _ in waiting:
                if len(change) > UPDATE_LENGTH:
                    number, task_id, type_ = change[NUMBER : NUMBER + 3]
                    self._submitted[key] = self._submitted[task_id] = Identity(
                        task_id, self._fold.known.texts[type_], number
                    )
        unknown = [key for key, _, change, _ in waiting if len(change) <= UPDATE_LENGTH and key not in self._submitted]
        if self._identify is None or not unknown:
            return self._submitted
        return {**self._submitted, **self._identify(unknown)}

    def _row(self, change: Change, at: int, identity: Identity | None) -> tuple[Any, ...] | None:
        texts = self._fold.known.texts
        args = kwargs = None
        lasting: tuple[Any, ...] = (None,) * 8
        if len(change) > UPDATE_LENGTH:
            number, task_id, type_, priority, max_attempts, args, kwargs, at, timeout_seconds, *words = change[NUMBER:]
            depends_on, workflow, schedule, key, trace = words
            identity = Identity(task_id, texts[type_], number)
            lasting = (
                priority,
                max_attempts or None,
                timeout_seconds,
                depends_on or None,
                workflow or None,
                schedule or None,
                key,
                trace,
            )
        if identity is None:
            return None
        return (
            id_text(identity[0]),
            identity[1],
            *self._position(*change[QUEUE : POSITION + 1]),
            _state(change, at),
            at,
            _OUTCOMES.get(change[OUTCOME]),
            change[ATTEMPT] or (None if args is not None else change[ATTEMPT]),
            texts.get(change[WORKER] or 0) or None,
            change[STARTED_AT] or None,
            change[DUE_AT] or None,
            args,
            kwargs,
            change[RESULT],
            change[PROGRESS],
            change[ERROR] or None,
            *lasting,
            identity[2],
        )

    def _position(self, queue: int, partition: int | None, offset: Any) -> tuple[Any, ...]:
        name = self._names.queues[queue][0]
        if partition is None:
            return name, queue, None, None, None
        return name, queue, self._names.partition(queue, partition), partition, offset


def _purged(entry: TasksPurged, sequence: int) -> list[Waiting]:
    """A row for each task that the task index forgets, so that it does so when it is rebuilt."""
    positions: list[tuple[Key, list[Any]]] = [
        ((entry.queue, span.partition, offset), [entry.queue, span.partition, offset])
        for span in entry.spans
        for offset in span.offset_array().tolist()
    ]
    positions += [(task_id, [entry.queue, None, task_id]) for task_id in entry.id_list()]
    return [(key, entry.at, [PURGED, *[None] * 9, *position, FINAL_FROM], sequence) for key, position in positions]


def _is_shown(change: Change, identity: Identity, sequence: int) -> bool:
    """What happens to a message after its task was forgotten is not shown."""
    if change[STATE] == PURGED:
        return identity.until is not None and sequence <= identity.until
    return identity.until is None or sequence <= identity.until or len(change) > UPDATE_LENGTH


def _state(change: Change, at: int) -> str:
    code = change[STATE]
    if code is None:
        return "running"  # it reported progress
    if code == Code.WAITING:
        return "scheduled" if (change[DUE_AT] or 0) > at else "pending"
    return _STATES[code]
