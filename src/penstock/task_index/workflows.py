"""Workflows, as the task index knows them: the tasks that share the name of one.

A workflow stands in the list where its newest task does, so a cursor names a task, as in pages of tasks. The work for a
page is bounded: it ends early, with a cursor, once `WALKED` tasks were looked at.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from penstock.errors import TaskNotFound, shown
from penstock.model import to_datetime
from penstock.model_tasks import TaskState, TaskView, WorkflowPage, WorkflowStatus, WorkflowView
from penstock.storage.task_changes import FINAL_FROM
from penstock.task_index.queries import PAGE_BYTES_MAX, SELECT, Names, decode_cursor, state_of, view

TASKS_MAX: Final = 1_000  # that are shown of one workflow
COUNTED: Final = 10_000  # that are counted of one
WALKED: Final = 20_000
_OF: Final = "workflow = :workflow AND workflow <> ''"  # the second term names the partial index
_NEWEST: Final = "ORDER BY submitted_at DESC, number DESC"


def page(
    connection: sqlite3.Connection,
    names: Names,
    now: int,
    limit: int,
    cursor: str | None,
    may: Callable[[str], bool] | None,
) -> WorkflowPage:
    """Some workflows, newest first, with their tasks in queues for which `may` is true; None: in all queues."""
    queues = _queues(names, may)
    hidden = set() if may is None else {id for id, name in names.queues.items() if not may(name)}
    after = (1 << 62, 0) if cursor is None else decode_cursor(cursor)
    found: list[WorkflowView] = []
    seen: set[str] = set()
    looked_at = 0
    for at, number, workflow, queue in _walk(connection, after):
        if len(found) == limit or looked_at >= WALKED:
            return WorkflowPage(found, f"{after[0]:x}-{after[1]:x}")
        after = (at, number)
        looked_at += 1
        if workflow in seen or queue in hidden:
            continue
        seen.add(workflow)
        if _newest_of(connection, workflow, queues) != number:
            continue  # it was on a page before
        rows = _summary(connection, workflow, queues)
        looked_at += len(rows)
        found.append(_view(workflow, rows, names, now))
    return WorkflowPage(found, None)


def find(
    connection: sqlite3.Connection, names: Names, now: int, workflow: str, may: Callable[[str], bool] | None
) -> WorkflowView:
    """One workflow, with its tasks."""
    queues = _queues(names, may)
    rows = _summary(connection, workflow, queues)
    if not rows:
        raise TaskNotFound(f"there is no workflow {shown(workflow)}, or none of its tasks is kept")
    query = f"{SELECT} WHERE {_OF} {queues} ORDER BY submitted_at, number LIMIT {TASKS_MAX + 1}"
    tasks: list[TaskView] = []
    size = 0
    for row in connection.execute(query, {"workflow": workflow}):
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if len(tasks) == TASKS_MAX or (tasks and size > PAGE_BYTES_MAX):
            return _view(workflow, rows, names, now, tasks, is_cut=True)
        tasks.append(view(row, names, now))
    return _view(workflow, rows, names, now, tasks)


def _queues(names: Names, may: Callable[[str], bool] | None) -> str:
    if may is None:
        return ""
    # Without an index on queues: the plus keeps SQLite on that of workflows.
    return f"AND +queue IN ({', '.join(str(id) for id, name in sorted(names.queues.items()) if may(name))})"


def _walk(connection: sqlite3.Connection, after: tuple[int, int]) -> sqlite3.Cursor:
    """Tasks of workflows, newest first; those of all queues, since each of them counts as looked at."""
    query = "SELECT submitted_at, number, workflow, queue FROM tasks WHERE workflow <> '' AND (submitted_at, number) <"
    return connection.execute(f"{query} (?, ?) {_NEWEST}", after)


def _newest_of(connection: sqlite3.Connection, workflow: str, queues: str) -> int:
    query = f"SELECT number FROM tasks WHERE {_OF} {queues} {_NEWEST} LIMIT 1"
    return int(connection.execute(query, {"workflow": workflow}).fetchone()[0])


def _summary(connection: sqlite3.Connection, workflow: str, queues: str) -> list[Sequence[Any]]:
    ended = "coalesce((SELECT max(ended_at) FROM runs WHERE runs.number = tasks.number), 0)"
    columns = f"queue, state, due_at, submitted_at, finished_at, max(submitted_at, started_at, finished_at, {ended})"
    query = f"SELECT {columns} FROM tasks WHERE {_OF} {queues} {_NEWEST} LIMIT {COUNTED + 1}"
    return connection.execute(query, {"workflow": workflow}).fetchall()


def _view(
    workflow: str,
    rows: Sequence[Sequence[Any]],
    names: Names,
    now: int,
    tasks: list[TaskView] | None = None,
    *,
    is_cut: bool = False,
) -> WorkflowView:
    counts = Counter(state_of(code, due_at, now) for _, code, due_at, *_ in rows[:COUNTED])
    is_over = all(row[1] >= FINAL_FROM for row in rows)
    return WorkflowView(
        workflow=workflow,
        status=_status(counts, is_over=is_over),
        submitted_at=to_datetime(min(row[3] for row in rows)),
        updated_at=to_datetime(max(row[5] for row in rows)),
        finished_at=to_datetime(max(row[4] for row in rows)) if is_over else None,
        tasks_total=len(rows[:COUNTED]),
        counts={state.value: counts[state] for state in TaskState},
        queues=sorted({names.queues.get(row[0], f"#{row[0]}") for row in rows}),
        is_cut=is_cut or len(rows) > COUNTED,
        tasks=tasks,
        critical_path=None if tasks is None else critical_path(tasks, now),
    )


def _status(counts: Mapping[TaskState, int], *, is_over: bool) -> WorkflowStatus:
    if not is_over:
        return "running"
    if counts[TaskState.DEAD]:
        return "failed"
    return "cancelled" if counts[TaskState.CANCELLED] else "completed"


def critical_path(tasks: Sequence[TaskView], now: int) -> list[str]:
    """The chain of dependent tasks that ran longest in all, first to last; of equal ones the one with more tasks.

    A task that runs counts up to now, one that has not begun as nothing. Tasks that wait for one that is not among
    them begin a chain.
    """
    known = {task.task_id: task for task in tasks}
    waits = {id: len({*task.depends_on} & known.keys()) for id, task in known.items()}
    children: dict[str, list[str]] = {}
    for id, task in known.items():
        for parent in {*task.depends_on} & known.keys():
            children.setdefault(parent, []).append(id)
    best: dict[str, tuple[float, int]] = {}
    before: dict[str, str] = {}
    ready = [id for id, number in waits.items() if not number]
    for id in ready:  # grows while it is walked: parents come before their children
        seconds, length = best.get(id, (0.0, 0))
        best[id] = (seconds + _ran(known[id], now), length + 1)
        for child in children.get(id, ()):
            if best[id] > best.get(child, (-1.0, 0)):
                best[child], before[child] = best[id], id
            waits[child] -= 1
            if not waits[child]:
                ready.append(child)
    if not ready:
        return []
    path = [max(ready, key=lambda id: best[id])]
    while path[-1] in before:
        path.append(before[path[-1]])
    return path[::-1]


def _ran(task: TaskView, now: int) -> float:
    if task.started_at is None:
        return 0.0
    is_running = task.state is TaskState.RUNNING
    end = to_datetime(now) if is_running else task.finished_at or task.updated_at
    return 0.0 if end is None else max(0.0, (end - task.started_at).total_seconds())
