"""Questions to the task index: one task, many by their ids, pages of those that match.

Pages are newest first, by the instant of submission and, within it, by the task's number. A cursor names the last task
that was shown, so that paging costs the same however far one is, and what is new meanwhile moves nothing.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from penstock import limits
from penstock.errors import InvalidField
from penstock.model import MessageId, Outcome, to_datetime, to_micros
from penstock.model_tasks import Run, TaskFilter, TaskPage, TaskState, TaskView
from penstock.requests import ParentFound, Target
from penstock.storage.task_changes import FINAL_FROM, Code, id_text
from penstock.storage.task_rows import Identity, Key
from penstock.task_index import database
from penstock.task_index.argument_filter import argument_terms

LIMIT_MAX: Final = limits.task_page_max
IDS_AT_ONCE: Final = 500
Cursor = tuple[int, int]  # the instant of submission and the number of the last task that was shown

COLUMNS: Final = (
    "number", "task_id", "type", "queue", "partition", "position", "state", "priority", "max_attempts", "attempt",
    "worker", "submitted_at", "due_at", "started_at", "finished_at", "outcome", "args", "kwargs", "result", "progress",
    "error", "timeout_seconds", "depends_on", "workflow", "schedule", "message_key", "trace",
)  # fmt: skip
SELECT: Final = f"SELECT {', '.join(COLUMNS)} FROM tasks"
_STATES: Final = {
    Code.BLOCKED: TaskState.BLOCKED,
    Code.RUNNING: TaskState.RUNNING,
    Code.COMPLETED: TaskState.COMPLETED,
    Code.DEAD: TaskState.DEAD,
    Code.CANCELLED: TaskState.CANCELLED,
}
# Stored states, each with what else must hold of a task that is shown so.
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


def state_of(code: int, due_at: int, now: int) -> TaskState:
    """How a stored state is shown."""
    if code == Code.WAITING:
        return TaskState.SCHEDULED if due_at > now else TaskState.PENDING
    if code == Code.FAILED:
        return TaskState.FAILED if due_at > now else TaskState.PENDING
    return _STATES[Code(code)]


def view(row: Sequence[Any], names: Names, now: int, runs: tuple[Run, ...] = ()) -> TaskView:
    """A row as it is shown."""
    (
        _, task_id, type_, queue, partition, position, code, priority, max_attempts, attempt,
        worker, submitted_at, due_at, started_at, finished_at, _, args, kwargs, result, progress,
        error, timeout_seconds, depends_on, workflow, schedule, key, trace,
    ) = row  # fmt: skip
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
    task = dict(zip(COLUMNS, row, strict=True))
    found = connection.execute(
        "SELECT attempt, worker, started_at, ended_at, outcome, error FROM runs WHERE number = ? ORDER BY started_at",
        (task["number"],),
    ).fetchall()
    last_run = (task["attempt"], task["worker"], task["started_at"])
    is_told = any(run[:3] == last_run for run in found)
    if task["started_at"] and not is_told and (task["state"] >= FINAL_FROM or task["state"] == Code.RUNNING):
        is_final = task["state"] >= FINAL_FROM
        last = (task["finished_at"], task["outcome"], task["error"]) if is_final else (0, 0, "")
        error = "" if last[1] == Outcome.ACKED else last[2]
        found.append((task["attempt"], task["worker"], task["started_at"], *last[:2], error))
    return tuple(
        Run(
            attempt=attempt,
            worker=names.texts.get(worker, ""),
            started_at=to_datetime(started_at),
            ended_at=to_datetime(ended_at) if ended_at else None,
            outcome=_WORDS.get(outcome, ""),
            error=error,
        )
        for attempt, worker, started_at, ended_at, outcome, error in found
    )


def rows_of(connection: sqlite3.Connection, ids: Iterable[bytes]) -> Iterator[tuple[Any, ...]]:
    """The rows of some tasks; those that are not known are left out."""
    wanted = list(ids)
    for start in range(0, len(wanted), IDS_AT_ONCE):
        part = wanted[start : start + IDS_AT_ONCE]
        yield from connection.execute(f"{SELECT} WHERE task_id IN ({', '.join('?' * len(part))})", part)


def parent_of(row: Sequence[Any], names: Names, now: int) -> ParentFound:
    """Where a task of a row is, and how it stands."""
    queue, partition, position, code, due_at = *row[3:7], row[12]
    place = None if position is None else _message_id(names, queue, partition, position)
    return ParentFound(place, state_of(code, due_at, now))


class Search:
    """A filter as SQL. `values` has what its terms name."""

    def __init__(self, wanted: TaskFilter, names: Names, now: int) -> None:
        self.is_empty = False
        self.limit = _limit(wanted.limit)
        self.values: dict[str, Any] = {"now": now}
        self.terms: list[str] = []
        self.codes = _codes(wanted.states)
        words = names.words
        queues = [id for id, name in names.queues.items() if name == wanted.queue]
        self.selective = any(value is not None for value in (wanted.worker, wanted.workflow, wanted.schedule))
        self.by_state = wanted.task_type is not None or wanted.queue is not None or bool(wanted.states)
        self._equal("type", wanted.task_type, words.get(wanted.task_type or ""))
        self._equal("worker", wanted.worker, words.get(wanted.worker or "") or None)
        self._equal("workflow", wanted.workflow, wanted.workflow or None)
        self._equal("schedule", wanted.schedule, wanted.schedule or None)
        if wanted.queue is not None:
            # A queue that was deleted and made again has tasks under each of its numbers.
            self.is_empty = self.is_empty or not queues
            self.terms.append(f"queue IN ({', '.join(map(str, queues))})")
        self._bound("submitted_at >= :since", "since", wanted.submitted_since)
        self._bound("submitted_at < :until", "until", wanted.submitted_until)
        if wanted.error_contains is not None:
            self.terms.append("instr(error, :error) > 0")
            self.values["error"] = wanted.error_contains
        if wanted.argument is not None:
            term, values = argument_terms(wanted.argument)
            self.terms.append(term)
            self.values |= values

    def _equal(self, column: str, wanted: str | None, value: Any) -> None:
        if wanted is None:
            return
        if value is None:
            self.is_empty = True  # nobody has ever said this word
            return
        self.terms.append(f"{column} = :{column}")
        if column in ("worker", "workflow", "schedule"):
            self.terms.append(f"{column} <> {0 if column == 'worker' else repr('')}")  # the words of the partial index
        self.values[column] = value

    def _bound(self, term: str, name: str, instant: datetime | None) -> None:
        if instant is not None:
            self.terms.append(term)
            self.values[name] = to_micros(instant, "submitted_" + name)

    def after(self, cursor: tuple[int, int]) -> None:
        """Only what comes after a task."""
        self.terms.append("(submitted_at, number) < (:cursor_at, :cursor_number)")
        self.values["cursor_at"], self.values["cursor_number"] = cursor

    def statements(self, select: str, order: str) -> list[str]:
        """One for all, or one for each stored state where an index is by states: each is in order by itself."""
        if self.is_empty:
            return []
        if self.selective or not self.by_state:
            states = " OR ".join(_term(code, also) for code, also in self.codes)
            return [self._statement(select, [f"({states})"] if states else [], order)]
        codes = self.codes or [(code, "") for code in Code]
        return [self._statement(select, [_term(code, also)], order) for code, also in codes]

    def _statement(self, select: str, more: list[str], order: str) -> str:
        where = " AND ".join([*more, *self.terms])
        return f"{select} {f'WHERE {where}' if where else ''} {order}"


def _term(code: Code, also: str) -> str:
    return f"(state = {code:d} AND {also})" if also else f"state = {code:d}"


def _codes(states: Sequence[TaskState]) -> list[tuple[Code, str]]:
    return [each for state in dict.fromkeys(states) for each in _SHOWN[TaskState(state)]]


def _limit(limit: int) -> int:
    if not 1 <= limit <= LIMIT_MAX:
        raise InvalidField(f"limit: {limit} is outside 1 to {LIMIT_MAX}")
    return limit


_TARGET: Final = (
    f"SELECT task_id, queue, partition, position, {database.HAS_OPEN_CHILD}, submitted_at, number FROM tasks"
)


def targets(
    connection: sqlite3.Connection, wanted: TaskFilter, names: Names, now: int, cursor: Cursor | None, limit: int
) -> list[Target]:
    """The next ones of those that match, newest first."""
    search = Search(wanted, names, now)
    if cursor is not None:
        search.after(cursor)
    order = f"ORDER BY submitted_at DESC, number DESC LIMIT {limit}"
    lists = [connection.execute(statement, search.values) for statement in search.statements(_TARGET, order)]
    rows = heapq.merge(*lists, key=lambda row: row[5:], reverse=True) if len(lists) != 1 else lists[0]
    return [Target(*row) for row in islice(rows, limit)]


def count(connection: sqlite3.Connection, wanted: TaskFilter, names: Names, now: int) -> int:
    """How many match."""
    search = Search(wanted, names, now)
    statements = search.statements("SELECT count(*) FROM tasks", "")
    return sum(connection.execute(statement, search.values).fetchone()[0] for statement in statements)


def expired(connection: sqlite3.Connection, final_before: int, limit: int) -> list[Target]:
    """Tasks that were final before an instant, and that no unfinished child may ask for."""
    return [Target(*row) for row in connection.execute(f"{_TARGET} {database.EXPIRED}", (final_before, limit))]


def closed_targets(connection: sqlite3.Connection, ids: Sequence[bytes]) -> list[Target]:
    """Those of some tasks that are final, and that no unfinished child may ask for."""
    found = []
    for task_id in ids:
        rows = connection.execute(f"{_TARGET} WHERE task_id = ? AND state >= {FINAL_FROM}", (task_id,))
        found += [target for row in rows if not (target := Target(*row)).has_open_child]
    return found


def page(connection: sqlite3.Connection, wanted: TaskFilter, names: Names, now: int) -> TaskPage:
    """One page of the tasks that match: as many as are asked for, or as may be sent in one answer, at least one."""
    search = Search(wanted, names, now)
    if wanted.cursor is not None:
        search.after(decode_cursor(wanted.cursor))
    order = f"ORDER BY submitted_at DESC, number DESC LIMIT {search.limit + 1}"
    lists = [connection.execute(statement, search.values) for statement in search.statements(SELECT, order)]
    # Each is in order; together they are merged.
    rows = heapq.merge(*lists, key=lambda row: (row[11], row[0]), reverse=True) if len(lists) != 1 else lists[0]
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
    """Names a task of a page: the next one begins after it."""
    return f"{row[11]:x}-{row[0]:x}"


def decode_cursor(text: str) -> tuple[int, int]:
    """The inverse; `InvalidField` for what was not made here."""
    try:
        at, number = (int(part, 16) for part in text.split("-"))
        if 0 <= at < 1 << 63 and 0 <= number < 1 << 63:
            return at, number
    except ValueError:
        pass
    raise InvalidField(f"cursor: {text!r} is none", hint="pass the cursor of the page before, as it was")


def identify(connection: sqlite3.Connection, keys: Iterable[Key], names: Names) -> dict[Key, Identity]:
    """Which tasks are, or were until they were forgotten, at some places, or have some ids."""
    told: dict[Key, Identity] = {}
    for key in keys:
        of_id = isinstance(key, bytes)
        values = (key, key) if isinstance(key, bytes) else (*key, *key)
        for task_id, type_, number, until in connection.execute(_IDENTIFY_ID if of_id else _IDENTIFY_PLACE, values):
            told[key] = Identity(task_id, names.texts.get(type_, ""), number, until)
    return told


# One that is known comes last, and wins.
_IDENTIFY_ID: Final = """
SELECT task_id, type, number, until FROM forgotten WHERE task_id = ? AND partition < 0
UNION ALL SELECT task_id, type, number, NULL FROM tasks WHERE task_id = ?
"""
_IDENTIFY_PLACE: Final = """
SELECT task_id, type, number, until FROM forgotten WHERE queue = ? AND partition = ? AND position = ?
UNION ALL SELECT task_id, type, number, NULL FROM tasks WHERE queue = ? AND partition = ? AND position = ?
"""
