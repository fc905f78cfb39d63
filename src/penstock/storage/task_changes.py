"""Tasks as the journal describes them: their stored states, the names they refer to, and what has changed about each.

`Fold` gathers changes over many frames. A task that was submitted, leased and completed within one fold is one row to
insert. What is about a task from before is an update of the fields that it touches, keyed by the place of its message.
Only the group `default` counts. A message whose content type says task and whose payload is none is left out: it has no
id to be found by.

Lists, not objects: a broker makes tens of thousands of changes a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final

import msgspec
import numpy as np

from penstock.batch import Batch, layout
from penstock.delivery import entries
from penstock.delivery.entries import PUSH_HEAD, PUSH_PART, Leased, Note, Push, Settled, Span, TaskFreed, TaskHeld
from penstock.envelopes import parse_envelope
from penstock.errors import InvalidField
from penstock.model import DLQ_SUFFIX, ContentType, Outcome


class Code(IntEnum):
    """States as they are stored. WAITING and FAILED are shown as scheduled, pending or failed, by the due time."""

    WAITING = 1
    FAILED = 2
    BLOCKED = 3
    RUNNING = 4
    COMPLETED = 10
    DEAD = 11
    CANCELLED = 12


PURGED: Final = 20  # in the sealed table only: the task index has no row of such a task
FINAL_FROM: Final = 10  # codes of final states are not below this
ANY: Final = 100  # above all codes

# Plain integers: SQLite would ask for an adapter for anything else.
WAITING, FAILED, BLOCKED, RUNNING = int(Code.WAITING), int(Code.FAILED), int(Code.BLOCKED), int(Code.RUNNING)
COMPLETED, DEAD, CANCELLED = int(Code.COMPLETED), int(Code.DEAD), int(Code.CANCELLED)

AFTER: Final[dict[int, int]] = {
    Outcome.ACKED: COMPLETED,
    Outcome.RETRIED: FAILED,
    Outcome.TIMED_OUT: FAILED,
    Outcome.INTERRUPTED: FAILED,
    Outcome.SNOOZED: WAITING,
    Outcome.RELEASED: WAITING,
    Outcome.REJECTED: DEAD,
    Outcome.DEAD: DEAD,
    Outcome.DISCARDED: DEAD,
    Outcome.LOST: DEAD,
    Outcome.EXPIRED: CANCELLED,
    Outcome.EVICTED: CANCELLED,
    Outcome.PURGED: CANCELLED,
    Outcome.CANCELLED: CANCELLED,
    Outcome.OVERFLOWED: CANCELLED,
    Outcome.SKIPPED: CANCELLED,
    Outcome.REDRIVEN: CANCELLED,
    Outcome.COMPACTED: CANCELLED,
}
# The error of a task that ended without a run, where the entry has none.
WHY: Final[dict[int, str]] = {
    Outcome.EXPIRED: "it expired before it was run",
    Outcome.EVICTED: "it waited too long",
    Outcome.PURGED: "its queue was purged",
    Outcome.OVERFLOWED: "its queue was full",
    Outcome.SKIPPED: "its group was moved past it",
    Outcome.LOST: "its message was lost",
}


def id_bytes(task_id: str) -> bytes:
    """The 16 bytes of a task's id; `InvalidField` when it is none."""
    try:
        raw = bytes.fromhex(task_id.replace("-", ""))
    except ValueError:
        raw = b""
    if len(raw) != 16:
        raise InvalidField(f"task_id: {task_id!r} is not a UUID")
    return raw


def parents_of(depends_on: Sequence[str], task_id: bytes) -> list[tuple[bytes, bytes]]:
    """(parent, child) for each parent that has an id."""
    pairs = []
    for parent in depends_on:
        try:
            pairs.append((id_bytes(parent), task_id))
        except InvalidField:
            continue
    return pairs


class Known:
    """Names of queues, partitions and repeated texts, with their numbers; a fold adds to them.

    It is loaded again when a transaction fails.
    """

    def __init__(
        self,
        queues: dict[int, str],
        task_queues: set[int],
        words: dict[str, int],
        partitions: dict[tuple[int, int], str],
    ) -> None:
        self.queues = queues
        self.task_queues = task_queues
        self.words = words
        self.partitions = partitions
        self.new_queues: dict[int, str] = {}
        self.new_task_queues: set[int] = set()
        self.new_words: dict[str, int] = {"": 0} if not words else {}
        self.new_partitions: dict[tuple[int, int], str] = {}
        self.words.setdefault("", 0)
        self.texts = {number: text for text, number in words.items()}

    def word(self, text: str) -> int:
        """The number of a text that repeats."""
        number = self.words.get(text)
        if number is None:
            number = self.words[text] = self.new_words[text] = len(self.words)
            self.texts[number] = text
        return number

    def learn_queue(self, id: int, name: str) -> None:
        if self.queues.get(id) != name:
            self.queues[id] = self.new_queues[id] = name

    def learn_partitions(self, queue: int, first: int, names: Sequence[str]) -> None:
        for id, name in enumerate(names, first):
            if self.partitions.get((queue, id)) != name:
                self.partitions[queue, id] = self.new_partitions[queue, id] = name

    def has_tasks(self, queue: int) -> bool:
        """Whether messages of this queue may be tasks, called for one that looks like it; dead letters are no tasks."""
        if queue not in self.task_queues:
            if self.queues.get(queue, "").endswith(DLQ_SUFFIX):
                return False
            self.task_queues.add(queue)
            self.new_task_queues.add(queue)
        return True


TaskPosition = tuple[int, int, int]  # queue, partition, offset
Change = list[Any]  # `CHANGING` of the schema, the place, what lasts; of an update, the state that it must be below

STATE, DUE_AT, ATTEMPT, WORKER, STARTED_AT, FINISHED_AT, OUTCOME, ERROR, RESULT, PROGRESS = range(10)
QUEUE, PARTITION, POSITION, BELOW = 10, 11, 12, 13
NUMBER, TASK_ID, SUBMITTED_AT = 13, 14, 20  # of a new task
UPDATE_LENGTH: Final = 14
ROW_BITS: Final = 22  # of a task's number: which one of its frame it is; a frame cannot hold as many

DEFAULT_GROUP_ID: Final = 0  # every queue's first group is `default`

ENDED_BADLY: Final = frozenset({FAILED, DEAD, CANCELLED})
PUSH: Final = entries.PUSH
LEASED: Final = Leased.__struct_config__.tag
SETTLED: Final = Settled.__struct_config__.tag
HANDLED: Final = {
    kind.__struct_config__.tag
    for kind in (
        Leased,
        Settled,
        entries.QueueSet,
        entries.PartitionsAdded,
        entries.TasksNoted,
        entries.TasksPurged,
        TaskHeld,
        TaskFreed,
    )
}
# These may change any stored task: everything folded so far must be stored first.
SWEEPING: Final = {kind.__struct_config__.tag for kind in (entries.QueueDeleted, entries.GroupSet, entries.Revived)}


class Fold:
    """The changes of some frames: call `take_*` for each entry, store the changes, then `clear`."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.sequence = 0  # of the frame that is being taken
        self.at = 0  # the latest instant in an entry
        self.clear()

    def clear(self) -> None:
        self.changes: dict[TaskPosition, Change] = {}
        self.held: dict[bytes, Change] = {}  # new tasks that wait for their parents
        self.by_id: dict[bytes, Change] = {}  # updates of tasks that have no place yet
        self.runs: list[list[Any]] = []
        self._run_of: dict[TaskPosition, list[Any]] = {}  # those that this frame ended
        self.parents: list[tuple[bytes, bytes]] = []
        self.purged: list[tuple[int, Span]] = []  # (queue, where)
        self.purged_ids: list[bytes] = []  # of those that never had a place
        self.is_pressing = False  # a run ended here whose worker only the stored row has: store before the next run

    def begin_frame(self, sequence: int) -> None:
        """Begin a frame: notes refer to runs that ended in the same frame."""
        self.sequence = sequence
        if self._run_of:
            self._run_of = {}

    def __len__(self) -> int:
        return len(self.changes) + len(self.held) + len(self.by_id) + len(self.runs)

    # Submissions.

    def take_push(self, number: int, body: memoryview) -> int:
        """The tasks among the messages of a push; returns the number after theirs. Other pushes cost a glance."""
        _, rows, _, _, _, _, parts = PUSH_HEAD.unpack_from(body)
        start = PUSH_HEAD.size + parts * PUSH_PART.size + 4 * rows + rows % 2 * 4
        if not layout.flags_of(body[start : start + 8]) & layout.CONTENT_TYPE:
            return number
        return self.take_pushed(number, entries.decode_push(body))

    def take_pushed(self, number: int, push: Push) -> int:
        """The tasks of a decoded push whose messages have content types."""
        queue, batch = push.queue, Batch(push.batch)
        kinds = batch.content_type
        if kinds is None:
            return number
        chosen = np.flatnonzero(kinds == ContentType.TASK)
        if not len(chosen) or not self.known.has_tasks(queue):
            return number
        self.at = max(self.at, push.pushed_at)
        partitions, offsets = push.positions(batch.count)
        rows = None if len(chosen) == batch.count else chosen.tolist()
        positions = zip(partitions[chosen].tolist(), offsets[chosen].tolist(), strict=True)
        for (partition, offset), change in zip(positions, self._made(number, push, batch, rows), strict=True):
            if change is None or offset < 0:
                continue
            change[PARTITION], change[POSITION] = partition, offset
            held = self.held.pop(change[TASK_ID], None)
            if held is not None:
                held[STATE], held[PARTITION], held[POSITION] = change[STATE], partition, offset
                change = held
            self.changes[queue, partition, offset] = change
        return number + len(chosen)

    def take_held(self, number: int, held: TaskHeld) -> int:
        """A task that waits for its parents."""
        self.known.has_tasks(held.queue)
        self.at = max(self.at, held.at)
        push = Push(held.queue, held.at, [(0, 1, 0)], held.batch)
        (change,) = self._made(number, push, Batch(held.batch), None)
        if change is not None:
            change[STATE] = BLOCKED
            # Held again after it was cancelled, it is the same task: the update that ended it is void.
            self.by_id.pop(held.task_id, None)
            before = self.held.get(held.task_id)
            if before is not None:
                change[NUMBER], change[SUBMITTED_AT] = before[NUMBER], before[SUBMITTED_AT]
            self.held[held.task_id] = change
        return number + 1

    def _made(self, number: int, push: Push, batch: Batch, rows: list[int] | None) -> list[Change | None]:
        """A new row for each of the batch's rows, without its partition and offset; None for what is no task."""
        count, pushed_at, queue = batch.count, push.pushed_at, push.queue
        columns: list[list[Any]] = [
            batch.payloads(),
            _numbers(batch.priority, count, 128),
            _numbers(batch.max_attempts, count, 0),
            _dues(batch, pushed_at),
            _texts(batch, layout.KEY),
            _texts(batch, layout.TRACE),
        ]
        if rows is not None:
            columns = [[column[row] for row in rows] for column in columns]
        made: list[Change | None] = []
        word = self.known.word
        for payload, priority, attempts_max, due_at, key, trace in zip(*columns, strict=True):
            number += 1
            try:
                envelope = parse_envelope(payload)
                task_id = id_bytes(envelope.task_id)
            except InvalidField:
                made.append(None)
                continue
            depends_on = envelope.depends_on
            made.append(
                [
                    WAITING, due_at, 0, 0, 0, 0, 0, "", None, None,
                    queue, None, None,
                    number, task_id, word(envelope.task_type), priority, attempts_max, text_of(envelope.args),
                    text_of(envelope.kwargs), pushed_at, envelope.timeout_seconds,
                    msgspec.json.encode(depends_on).decode() if depends_on else "",
                    envelope.workflow, envelope.schedule, key, trace,
                ]
            )  # fmt: skip
            if depends_on:
                self.parents += parents_of(depends_on, task_id)
        return made

    # Changes of state.

    def take_leased(self, leased: Leased) -> None:
        if leased.group != DEFAULT_GROUP_ID or leased.queue not in self.known.task_queues:
            return
        at, worker = leased.at, self.known.word(leased.consumer)
        self.at = max(self.at, at)
        for span in leased.spans:
            for change, attempt in self._of_span(leased.queue, span):
                if change[STATE] is None or change[STATE] < FINAL_FROM:
                    change[:FINISHED_AT] = (RUNNING, 0, attempt, worker, at)

    def take_settled(self, settled: Settled) -> None:
        if settled.group != DEFAULT_GROUP_ID or settled.queue not in self.known.task_queues:
            return
        state, at, leased_at, outcome = AFTER[settled.outcome], settled.at, settled.leased_at, settled.outcome
        worker = self.known.word(settled.consumer)
        # The error of the run before is cleared once another one failed, or the task was ended.
        error = settled.error or WHY.get(outcome) or ("" if state in ENDED_BADLY else None)
        is_final = state >= FINAL_FROM
        # Recovery does not know who held what it closes: the lease does.
        has_worker = bool(settled.consumer) or leased_at != at
        self.at = max(self.at, at)
        for span in settled.spans:
            dues = iter(span.due_array().tolist()) if span.dues else None
            for change, attempt in self._of_span(settled.queue, span):
                due_at = next(dues) if dues is not None else 0
                if change[STATE] is not None and change[STATE] >= FINAL_FROM:
                    continue  # a purge, say, names whole ranges: a final state stays as it is
                change[STATE], change[DUE_AT], change[OUTCOME] = state, due_at, outcome
                change[FINISHED_AT] = at if is_final else 0
                if error is not None:
                    change[ERROR] = error
                if leased_at:
                    change[ATTEMPT] = attempt
                    if has_worker:
                        change[WORKER], change[STARTED_AT] = worker, leased_at
                    if not is_final:
                        self._end_run(change, at, outcome, error or "")

    def _end_run(self, change: Change, at: int, outcome: int, error: str) -> None:
        """Note a run that ended. Worker and start are None where only the stored row has them."""
        position = (change[QUEUE], change[PARTITION], change[POSITION])
        self._run_of[position] = run = [*change[ATTEMPT:FINISHED_AT], at, outcome, error, *position]
        self.runs.append(run)
        self.is_pressing = self.is_pressing or change[STARTED_AT] is None

    def take_noted(self, noted: entries.TasksNoted) -> None:
        """Results, progress and errors of runs."""
        self.at = max(self.at, noted.at)
        for note in noted.notes:
            change = self._of_note(noted.queue, note)
            text = str(note.data, "utf-8", "replace")
            if note.what == Note.RESULT:
                change[RESULT] = text
            elif note.what == Note.PROGRESS:
                change[PROGRESS] = text
            else:
                change[ERROR] = text
                run = self._run_of.get((noted.queue, note.partition, note.offset))
                if run is not None and run[0] == note.attempt:
                    run[5] = text

    def take_freed(self, freed: TaskFreed) -> None:
        """A held task is cancelled. For one that is released, its push says so."""
        self.at = max(self.at, freed.at)
        if freed.how == TaskFreed.CANCELLED:
            change = self._of_id(freed.queue, freed.task_id)
            change[:FINISHED_AT] = (CANCELLED, 0, *change[ATTEMPT:FINISHED_AT])
            change[FINISHED_AT], change[OUTCOME], change[ERROR] = freed.at, int(Outcome.CANCELLED), freed.error

    def take_purged(self, purged: entries.TasksPurged) -> None:
        """Tasks are forgotten; updates of stored ones are not needed any more."""
        self.purged += [(purged.queue, span) for span in purged.spans]
        self.purged_ids += purged.id_list()
        for span in purged.spans:
            for offset in span.offset_array().tolist():
                change = self.changes.get((purged.queue, span.partition, offset))
                if change is not None and len(change) == UPDATE_LENGTH:
                    del self.changes[purged.queue, span.partition, offset]

    def take_revived(self, revived: entries.Revived) -> None:
        """Ready again, with all attempts. Everything folded before was stored."""
        if revived.group != DEFAULT_GROUP_ID or revived.queue not in self.known.task_queues:
            return
        self.at = max(self.at, revived.at)
        for span in revived.spans:
            dues = span.due_array().tolist() if span.dues else [0] * span.count
            for (change, _), due_at in zip(self._of_span(revived.queue, span), dues, strict=True):
                change[:WORKER] = (WAITING, due_at, 0)
                change[STARTED_AT] = change[FINISHED_AT] = change[OUTCOME] = 0
                change[BELOW] = ANY

    def _of_span(self, queue: int, span: Span) -> list[tuple[Change, int]]:
        """The change of each message of a span, and its attempt."""
        changes, partition, attempt = self.changes, span.partition, span.attempt
        offsets = range(span.first, span.first + span.count) if not span.offsets else span.offset_array().tolist()
        attempts = np.frombuffer(span.attempts, np.uint16).tolist() if span.attempts else None
        changed: list[tuple[Change, int]] = []
        for index, offset in enumerate(offsets):
            position = (queue, partition, offset)
            change = changes.get(position)
            if change is None:
                changes[position] = change = [*_UNTOUCHED, queue, partition, offset, FINAL_FROM]
            changed.append((change, attempt if attempts is None else attempts[index]))
        return changed

    def _of_note(self, queue: int, note: Note) -> Change:
        if note.offset < 0:
            return self._of_id(queue, note.task_id)
        position = (queue, note.partition, note.offset)
        change = self.changes.get(position)
        if change is None:
            self.changes[position] = change = [*_UNTOUCHED, *position, FINAL_FROM]
        return change

    def _of_id(self, queue: int, task_id: bytes) -> Change:
        """The change of a task without a message: its id takes the place of the offset."""
        change = self.held.get(task_id) or self.by_id.get(task_id)
        if change is None:
            self.by_id[task_id] = change = [*_UNTOUCHED, queue, None, task_id, FINAL_FROM]
        return change


_UNTOUCHED: Final = [None] * 10
TAKE: Final[dict[type, Callable[[Fold, Any], None]]] = {
    Settled: Fold.take_settled,
    entries.TasksNoted: Fold.take_noted,
    TaskFreed: Fold.take_freed,
    entries.Revived: Fold.take_revived,
}


def text_of(json: msgspec.Raw) -> str:
    """JSON as text; payloads are of any origin, so it may be no UTF-8."""
    return str(json, "utf-8", "replace")


def _numbers(column: Any, count: int, default: int) -> list[int]:
    return [default] * count if column is None else column.tolist()


def _texts(batch: Batch, flag: int) -> list[str | None]:
    column = batch.text(flag)
    return [None] * batch.count if column is None else column.to_list()


def _dues(batch: Batch, pushed_at: int) -> list[int]:
    """When each may be delivered first, as the delivery core computes it; 0 when at once."""
    dues = None
    if batch.delay is not None:
        dues = np.where(batch.delay > 0, pushed_at + batch.delay, 0)
    if batch.deliver_at is not None:
        dues = batch.deliver_at if dues is None else np.maximum(dues, batch.deliver_at)
    return [0] * batch.count if dues is None else dues.tolist()
