"""Values that tasks have in a field, to complete what somebody types into a search.

The work is bounded, however many tasks there are. Who may read all queues is served from the indexes: from one value to
the next, and at most `COUNTED` tasks of each. Who may read some of them is served from the newest tasks of these, so
that tasks of others cost nothing and hide nothing. Names of arguments come from the newest tasks in either case.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from penstock.model_tasks import Suggestion, TaskState
from penstock.storage.task_changes import Code
from penstock.task_index.queries import Names

COUNTED: Final = 1_000  # tasks of one value; more are not counted
VALUES_MAX: Final = 2_000  # that are looked at for one request
NEWEST: Final = 10_000  # tasks that are looked at where no index helps
QUEUES_MAX: Final = 500  # among which these are distributed
_NONE: Final = {"type": "-1", "worker": "0", "workflow": "''", "schedule": "''"}  # what stands for no value
_COLUMNS: Final = {"task_type": "type", "worker": "worker", "workflow": "workflow", "schedule": "schedule"}
_decode: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def suggest(
    connection: sqlite3.Connection,
    names: Names,
    field: str,
    prefix: str,
    limit: int,
    may: Callable[[str], bool] | None,
) -> list[Suggestion]:
    """Up to `limit` values in order, of tasks in queues for which `may` is true; None: in all queues."""
    queues = None if may is None else [id for id, name in sorted(names.queues.items()) if may(name)]
    if field == "status":
        return [Suggestion(state.value) for state in TaskState if state.startswith(prefix)][:limit]
    if field == "queue":
        return list(islice(_queues(connection, names, prefix, queues), limit))
    if field == "kwargs":
        found = _argument_names(connection, names, queues)
        return _sorted((f"kwargs.{name}" for name in found), prefix, limit)
    column = _COLUMNS[field]
    if queues is None:
        return list(islice(_indexed(connection, names, column, prefix), limit))
    rows = {row[0] for row in _newest(connection, column, queues)}
    texts = rows if column in ("workflow", "schedule") else {names.texts.get(row, "") for row in rows}
    return _sorted(texts, prefix, limit)


def _sorted(values: Iterable[str], prefix: str, limit: int) -> list[Suggestion]:
    return [Suggestion(value) for value in sorted({*values} - {""}) if value.startswith(prefix)][:limit]


def _queues(
    connection: sqlite3.Connection, names: Names, prefix: str, queues: Collection[int] | None
) -> Iterator[Suggestion]:
    ids: dict[str, list[int]] = {}  # a queue that was deleted and created again has several
    for id, name in names.queues.items():
        if name.startswith(prefix) and (queues is None or id in queues):
            ids.setdefault(name, []).append(id)
    for name in islice(sorted(ids), VALUES_MAX):
        chosen = ", ".join(map(str, ids[name]))
        count = _count(connection, f"queue IN ({chosen})", ())
        if count:
            yield _counted(name, count)


def _indexed(connection: sqlite3.Connection, names: Names, column: str, prefix: str) -> Iterator[Suggestion]:
    is_word = column in ("type", "worker")
    values = _words(names, prefix) if is_word else _texts(connection, column, prefix)
    for value in islice(values, VALUES_MAX):
        key = names.words[value] if is_word else value
        # The second term names the partial index.
        count = _count(connection, f"{column} = ? AND {column} <> {_NONE[column]}", (key,))
        if count:
            yield _counted(value, count)


def _words(names: Names, prefix: str) -> Iterable[str]:
    return sorted(word for word in dict(names.words) if word and word.startswith(prefix))


def _texts(connection: sqlite3.Connection, column: str, prefix: str) -> Iterator[str]:
    """From one value to the next, each by one look at the index."""
    query = f"SELECT {column} FROM tasks WHERE {column} {{}} ? AND {column} <> '' ORDER BY {column} LIMIT 1"
    row = connection.execute(query.format(">="), (prefix,)).fetchone()
    while row is not None and row[0].startswith(prefix):
        yield row[0]
        row = connection.execute(query.format(">"), (row[0],)).fetchone()


def _count(connection: sqlite3.Connection, term: str, values: tuple[Any, ...]) -> int:
    query = f"SELECT count(*) FROM (SELECT 1 FROM tasks WHERE {term} LIMIT {COUNTED + 1})"
    return int(connection.execute(query, values).fetchone()[0])


def _counted(value: str, count: int) -> Suggestion:
    return Suggestion(value, count if count <= COUNTED else None)


def _argument_names(connection: sqlite3.Connection, names: Names, queues: Collection[int] | None) -> set[str]:
    found: set[str] = set()
    for stored, queue in _newest(connection, "kwargs, queue", queues):
        try:
            found.update(_decode(names.opened(queue, stored, "{}")))
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            continue
    return found


def _newest(connection: sqlite3.Connection, columns: str, queues: Collection[int] | None) -> Iterator[tuple[Any, ...]]:
    """The newest tasks; of some queues, an equal part of each and of each state there."""
    if queues is None:
        yield from connection.execute(f"SELECT {columns} FROM tasks ORDER BY submitted_at DESC LIMIT {NEWEST}")
        return
    used = [id for id in queues if _count(connection, "queue = ?", (id,))][:QUEUES_MAX]
    share = NEWEST // max(1, len(used) * len(Code))
    query = f"SELECT {columns} FROM tasks WHERE queue = ? AND state = ? ORDER BY submitted_at DESC LIMIT {share + 1}"
    for queue in used:
        for code in Code:
            yield from connection.execute(query, (queue, int(code)))
