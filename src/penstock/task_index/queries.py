"""Queries of the task index: one task, many by their ids, pages of those that match.

Pages are newest first, by the instant of submission and, within it, by the task's number. A cursor names the last task
that was shown, so that every page costs the same, and new tasks move nothing.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from penstock import limits
from penstock.errors import InvalidField
from penstock.model import MessageId, Outcome, to_datetime, to_micros
from penstock.model_tasks import Run, TaskCounts, TaskFilter, TaskPage, TaskState, TaskView, id_text
from penstock.requests import ParentFound, Target
from penstock.storage.task_changes import FINAL_FROM, Code, id_bytes
from penstock.storage.task_rows import Identity, Key
from penstock.task_index import database
from penstock.task_index.argument_filter import OPENED, argument_terms

LIMIT_MAX: Final = limits.task_page_max
IDS_AT_ONCE: Final = 500
Cursor = tuple[int, int]  # the instant of submission and the number of the last task that was shown

COLUMNS: Final = (
    "number", "task_id", "type", "queue", "partition", "position", "state", "priority", "max_attempts", "attempt",
    "worker", "submitted_at", "due_at", "started_at", "finished_at", "outcome", "args", "kwargs", "result", "progress",
    "error", "timeout_seconds", "depends_on", "workflow", "schedule", "message_key", "trace",
)  # fmt: skip
STORED: Final = f"SELECT {', '.join(COLUMNS)} FROM tasks"  # rows as they are stored, to store them elsewhere
_RUN_ENDED: Final = "(SELECT max(ended_at) FROM runs WHERE runs.number = tasks.number)"
SELECT: Final = f"SELECT {', '.join(COLUMNS)}, {_RUN_ENDED} FROM tasks"  # rows for views
_STATES: Final = {
    Code.BLOCKED: TaskState.BLOCKED,
    Code.RUNNING: TaskState.RUNNING,
    Code.COMPLETED: TaskState.COMPLETED,
    Code.DEAD: TaskState.DEAD,
    Code.CANCELLED: TaskState.CANCELLED,
}
# For each state that is shown, the stored states with their extra condition.
_SHOWN: Final[dict[TaskState, tuple[tuple[Code, str], ...]]] = {
    TaskState.SCHEDULED: ((Code.WAITING, "due_at > :now"),),
    TaskState.PENDING: ((Code.WAITING, "due_at <= :now"), (Code.FAILED, "due_at <= :now")),
    TaskState.FAILED: ((Code.FAILED, "due_at > :now"),),
    **{state: ((code, ""),) for code, state in _STATES.items()},
}
_WORDS: Final = {outcome.value: outcome.name.lower() for outcome in Outcome}


class Names(NamedTuple):
    """Names behind the numbers in the rows."""

    texts: Mapping[int, str]
    words: Mapping[str, int]  # the inverse
    queues: Mapping[int, str]
    partitions: Mapping[tuple[int, int], str]
    attempts_max: Callable[[str], int]  # that a queue allows
    open_sealed: Callable[[int, bytes], str | None] | None = None  # values of encrypted queues

    def opened(self, queue: int, value: Any, erased: Any) -> Any:
        """A value as it was; `erased` when its data key is gone."""
        if type(value) is not bytes:
            return value
        text = None if self.open_sealed is None else self.open_sealed(queue, value)
        return erased if text is None else text


def state_of(code: int, due_at: int, now: int) -> TaskState:
    """The state that is shown for a stored one."""
    if code == Code.WAITING:
        return TaskState.SCHEDULED if due_at > now else TaskState.PENDING
    if code == Code.FAILED:
        return TaskState.FAILED if due_at > now else TaskState.PENDING
    return _STATES[Code(code)]


def view(row: Sequence[Any], names: Names, now: int, runs: tuple[Run, ...] = ()) -> TaskView:
    """The public view of a row."""
    (
        _, task_id, type_, queue, partition, position, code, priority, max_attempts, attempt,
        worker, submitted_at, due_at, started_at, finished_at, _, args, kwargs, result, progress,
        error, timeout_seconds, depends_on, workflow, schedule, key, trace, run_ended_at,
    ) = row  # fmt: skip
    args, kwargs = names.opened(queue, args, "[]"), names.opened(queue, kwargs, "{}")
    result, progress = names.opened(queue, result, None), names.opened(queue, progress, None)
    error, key = names.opened(queue, error, ""), names.opened(queue, key, None)
    name = names.queues.get(queue, f"#{queue}")
    return TaskView(
        task_id=id_text(task_id),
        task_type=names.texts.get(type_, ""),
        queue=name,
        state=state_of(code, due_at, now),
        priority=priority,
        attempt=attempt,
        max_attempts=max_attempts or names.attempts_max(name),
        args=args.encode(),
        kwargs=kwargs.encode(),
        result=None if result is None else result.encode(),
        progress=None if progress is None else progress.encode(),
        error=error,
        worker=names.texts.get(worker, ""),
        key=key,
        submitted_at=to_datetime(submitted_at),
        due_at=to_datetime(due_at) if due_at else None,
        started_at=to_datetime(started_at) if started_at else None,
        finished_at=to_datetime(finished_at) if finished_at else None,
        updated_at=to_datetime(max(submitted_at, started_at or 0, finished_at or 0, run_ended_at or 0)),
        timeout_seconds=timeout_seconds,
        depends_on=tuple(msgspec.json.decode(depends_on)) if depends_on else (),
        workflow=workflow,
        schedule=schedule,
        message_id="" if position is None else str(_message_id(names, queue, partition, position)),
        trace=trace,
        runs=runs,
    )


def _message_id(names: Names, queue: int, partition: int, position: int) -> MessageId:
    return MessageId(
        names.queues.get(queue, f"#{queue}"), names.partitions.get((queue, partition), str(partition)), position
    )


def runs_of(connection: sqlite3.Connection, row: Sequence[Any], names: Names) -> tuple[Run, ...]:
    """All attempts at a task, oldest first."""
    task = dict(zip(COLUMNS, row, strict=False))  # the instant at the end is for views
    runs = connection.execute(
        "SELECT attempt, worker, started_at, ended_at, outcome, error FROM runs WHERE number = ? ORDER BY started_at",
        (task["number"],),
    ).fetchall()
    last_run = (task["attempt"], task["worker"], task["started_at"])
    is_stored = any(run[:3] == last_run for run in runs)
    if task["started_at"] and not is_stored and (task["state"] >= FINAL_FROM or task["state"] == Code.RUNNING):
        is_final = task["state"] >= FINAL_FROM
        last = (task["finished_at"], task["outcome"], task["error"]) if is_final else (0, 0, "")
        error = "" if last[1] == Outcome.ACKED else last[2]
        runs.append((task["attempt"], task["worker"], task["started_at"], *last[:2], error))
    return tuple(
        Run(
            attempt=attempt,
            worker=names.texts.get(worker, ""),
            started_at=to_datetime(started_at),
            ended_at=to_datetime(ended_at) if ended_at else None,
            outcome=_WORDS.get(outcome, ""),
            error=names.opened(task["queue"], error, ""),
        )
        for attempt, worker, started_at, ended_at, outcome, error in runs
    )


def rows_of(connection: sqlite3.Connection, ids: Iterable[bytes], select: str = SELECT) -> Iterator[tuple[Any, ...]]:
    """The rows of some tasks; unknown ones are left out."""
    all_ids = list(ids)
    for start in range(0, len(all_ids), IDS_AT_ONCE):
        part = all_ids[start : start + IDS_AT_ONCE]
        yield from connection.execute(f"{select} WHERE task_id IN ({', '.join('?' * len(part))})", part)


def parent_of(row: Sequence[Any], names: Names, now: int) -> ParentFound:
    """Where the message of a task is, and the state of the task."""
    queue, partition, position, code, due_at = *row[3:7], row[12]
    message = None if position is None else _message_id(names, queue, partition, position)
    return ParentFound(message, state_of(code, due_at, now))


class Search:
    """A filter as SQL; `values` has the parameters of its terms."""

    def __init__(self, filter: TaskFilter, names: Names, now: int) -> None:
        self.is_empty = False
        self.is_oldest_first = False
        self.limit = _limit(filter.limit)
        self.values: dict[str, Any] = {"now": now}
        self.terms: list[str] = []
        self.codes = _codes(filter.states)
        words = names.words
        queues = [id for id, name in names.queues.items() if name == filter.queue]
        self.selective = any(value is not None for value in (filter.worker, filter.workflow, filter.schedule))
        self.by_state = filter.task_type is not None or filter.queue is not None or bool(filter.states)
        self._equal("type", filter.task_type, words.get(filter.task_type or ""))
        self._equal("worker", filter.worker, words.get(filter.worker or "") or None)
        self._equal("workflow", filter.workflow, filter.workflow or None)
        self._equal("schedule", filter.schedule, filter.schedule or None)
        if filter.queue is not None:
            # A queue that was deleted and created again has tasks under each of its ids.
            self.is_empty = self.is_empty or not queues
            self.terms.append(f"queue IN ({', '.join(map(str, queues))})")
        self._bound("submitted_at >= :since", "since", filter.submitted_since)
        self._bound("submitted_at < :until", "until", filter.submitted_until)
        if filter.task_ids is not None:
            chosen = [f"x'{id_bytes(task_id).hex()}'" for task_id in filter.task_ids]
            self.terms.append(f"task_id IN ({', '.join(chosen)})")
            self.selective = True
        if filter.error_contains is not None:
            text = f"CASE typeof(error) WHEN 'blob' THEN {OPENED}(queue, error) ELSE error END"
            self.terms.append(f"instr({text}, :error) > 0")
            self.values["error"] = filter.error_contains
        if filter.argument is not None:
            term, values = argument_terms(filter.argument)
            self.terms.append(term)
            self.values |= values

    def _equal(self, column: str, text: str | None, value: Any) -> None:
        if text is None:
            return
        if value is None:
            self.is_empty = True  # no task has this word
            return
        self.terms.append(f"{column} = :{column}")
        if column in ("worker", "workflow", "schedule"):
            self.terms.append(f"{column} <> {0 if column == 'worker' else repr('')}")  # the words of the partial index
        self.values[column] = value

    def _bound(self, term: str, name: str, instant: datetime | None) -> None:
        if instant is not None:
            self.terms.append(term)
            self.values[name] = to_micros(instant, "submitted_" + name)

    def freeze(self, *, with_cancelled_again: bool = False) -> None:
        """Only tasks that were at the given instant what they are: none that has ended, or failed a run, since.

        Or also those without a message that were cancelled since.
        """
        again = f" OR (state = {Code.CANCELLED:d} AND position IS NULL)" if with_cancelled_again else ""
        self.terms.append(f"(finished_at <= :now{again})")
        self.terms.append(f"(state <> {Code.FAILED:d} OR coalesce({_RUN_ENDED}, 0) <= :now)")

    def only(self, queues: Collection[int]) -> None:
        """Only tasks of these queues."""
        self.terms.append(f"queue IN ({', '.join(map(str, sorted(queues)))})")

    def after(self, cursor: tuple[int, int]) -> None:
        """Only tasks after the cursor."""
        beyond = ">" if self.is_oldest_first else "<"
        self.terms.append(f"(submitted_at, number) {beyond} (:cursor_at, :cursor_number)")
        self.values["cursor_at"], self.values["cursor_number"] = cursor

    def statements(self, select: str, order: str) -> list[str]:
        """One statement, or one per stored state where an index is by states; the rows of each are in order."""
        if self.is_empty:
            return []
        if self.selective or not self.by_state:
            states = " OR ".join(_term(code, also) for code, also in self.codes)
            return [self._statement(select, [f"({states})"] if states else [], order)]
        codes = self.codes or [(code, "") for code in Code]
        return [self._statement(select, [_term(code, also)], order) for code, also in codes]

    def rows(
        self, connection: sqlite3.Connection, select: str, limit: int, key: Callable[[Sequence[Any]], Any]
    ) -> Iterator[tuple[Any, ...]]:
        """At least the first `limit` rows that match, in order; `key` is (instant of submission, number)."""
        way = "" if self.is_oldest_first else "DESC"
        order = f"ORDER BY submitted_at {way}, number {way} LIMIT {limit}"
        cursors = [connection.execute(statement, self.values) for statement in self.statements(select, order)]
        return cursors[0] if len(cursors) == 1 else heapq.merge(*cursors, key=key, reverse=not self.is_oldest_first)

    def _statement(self, select: str, more: list[str], order: str) -> str:
        where = " AND ".join([*more, *self.terms])
        return f"{select} {f'WHERE {where}' if where else ''} {order}"


def _term(code: Code, also: str) -> str:
    return f"(state = {code:d} AND {also})" if also else f"state = {code:d}"


def _codes(states: Sequence[TaskState]) -> list[tuple[Code, str]]:
    return [term for state in dict.fromkeys(states) for term in _SHOWN[TaskState(state)]]


def _limit(limit: int) -> int:
    if not 1 <= limit <= LIMIT_MAX:
        raise InvalidField(f"limit: {limit} is outside 1 to {LIMIT_MAX}")
    return limit


_TARGET: Final = (
    f"SELECT task_id, queue, partition, position, {database.HAS_OPEN_CHILD}, submitted_at, number FROM tasks"
)


def targets(
    connection: sqlite3.Connection,
    filter: TaskFilter,
    names: Names,
    as_of: int,
    cursor: Cursor | None,
    limit: int,
    *,
    is_last_pass: bool,
) -> list[Target]:
    """The next of the tasks that match and did so at an instant, newest first.

    In the last pass of an operation the oldest come first, so parents before their children. Tasks without a message,
    which wait for a parent, are then among them also if they were cancelled again since.
    """
    search = Search(filter, names, as_of)
    search.is_oldest_first = is_last_pass
    search.freeze(with_cancelled_again=is_last_pass)
    if cursor is not None:
        search.after(cursor)
    rows = search.rows(connection, _TARGET, limit, lambda row: row[5:])
    return [Target(*row) for row in islice(rows, limit)]


def counts(connection: sqlite3.Connection, names: Names, now: int) -> list[TaskCounts]:
    """How many tasks of each queue are in each state."""
    waiting = f"({int(Code.WAITING)}, {int(Code.FAILED)})"
    rows = connection.execute(
        f"SELECT queue, state, 0, count(*) FROM tasks WHERE state NOT IN {waiting} GROUP BY queue, state"
    ).fetchall()
    rows += connection.execute(
        f"SELECT queue, state, due_at > ?, count(*) FROM tasks WHERE state IN {waiting} GROUP BY queue, state, 3",
        (now,),
    ).fetchall()
    found: dict[str, Counter[str]] = {}
    for queue, code, is_later, number in rows:
        state = state_of(code, now + is_later, now)
        found.setdefault(names.queues.get(queue, f"#{queue}"), Counter())[state.value] += number
    return [TaskCounts(queue=queue, **states) for queue, states in sorted(found.items())]


def count(connection: sqlite3.Connection, filter: TaskFilter, names: Names, as_of: int) -> int:
    """How many match, and did so at an instant."""
    search = Search(filter, names, as_of)
    search.freeze()
    statements = search.statements("SELECT count(*) FROM tasks", "")
    return sum(connection.execute(statement, search.values).fetchone()[0] for statement in statements)


def expired(connection: sqlite3.Connection, final_before: int, limit: int) -> list[Target]:
    """Tasks that were final before an instant and have no unfinished child."""
    return [Target(*row) for row in connection.execute(f"{_TARGET} {database.EXPIRED}", (final_before, limit))]


def closed_targets(connection: sqlite3.Connection, ids: Sequence[bytes]) -> list[Target]:
    """Those of some tasks that are final and have no unfinished child."""
    targets = []
    for task_id in ids:
        rows = connection.execute(f"{_TARGET} WHERE task_id = ? AND state >= {FINAL_FROM}", (task_id,))
        targets += [target for row in rows if not (target := Target(*row)).has_open_child]
    return targets


def page(
    connection: sqlite3.Connection,
    filter: TaskFilter,
    names: Names,
    now: int,
    may: Callable[[str], bool] | None = None,
) -> TaskPage:
    """One page of the tasks that match: at most `filter.limit`, fewer if they exceed what a reply may hold."""
    search = Search(filter, names, now)
    if may is not None:
        search.only({number for number, name in names.queues.items() if may(name)})
    if filter.cursor is not None:
        search.after(decode_cursor(filter.cursor))
    rows = search.rows(connection, SELECT, search.limit + 1, lambda row: (row[11], row[0]))
    shown: list[tuple[Any, ...]] = []
    size, cursor = 0, None
    for row in rows:
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if shown and (len(shown) == search.limit or size > PAGE_BYTES_MAX):
            cursor = encode_cursor(shown[-1])
            break
        shown.append(row)
    return TaskPage([view(row, names, now) for row in shown], cursor)


PAGE_BYTES_MAX: Final = limits.frame_bytes_max // 2


def encode_cursor(row: Sequence[Any]) -> str:
    """The cursor of a row: the next page begins after it."""
    return f"{row[11]:x}-{row[0]:x}"


def decode_cursor(text: str) -> tuple[int, int]:
    """The inverse of `encode_cursor`; `InvalidField` for anything else."""
    try:
        at, number = (int(part, 16) for part in text.split("-"))
        if 0 <= at < 1 << 63 and 0 <= number < 1 << 63:
            return at, number
    except ValueError:
        pass
    raise InvalidField(f"cursor: {text!r} is not a cursor", hint="pass the cursor of the previous page unchanged")


def identify(connection: sqlite3.Connection, keys: Iterable[Key], names: Names) -> dict[Key, Identity]:
    """The tasks that have, or had until they were forgotten, messages at some places, or some ids."""
    identities: dict[Key, Identity] = {}
    for key in keys:
        of_id = isinstance(key, bytes)
        values = (key, key) if isinstance(key, bytes) else (*key, *key)
        for task_id, type_, number, until in connection.execute(_IDENTIFY_ID if of_id else _IDENTIFY_PLACE, values):
            identities[key] = Identity(task_id, names.texts.get(type_, ""), number, until)
    return identities


# A task that is known comes last, and wins.
_IDENTIFY_ID: Final = """
SELECT task_id, type, number, until FROM forgotten WHERE task_id = ? AND partition < 0
UNION ALL SELECT task_id, type, number, NULL FROM tasks WHERE task_id = ?
"""
_IDENTIFY_PLACE: Final = """
SELECT task_id, type, number, until FROM forgotten WHERE queue = ? AND partition = ? AND position = ?
UNION ALL SELECT task_id, type, number, NULL FROM tasks WHERE queue = ? AND partition = ? AND position = ?
"""
