"""Forgetting tasks: by a filter, by their ids, or because they have been final for long enough.

Only final tasks are forgotten, and none that an unfinished child may still ask for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from penstock.catalogue import schema
from penstock.catalogue.queries import Names, Search, rows_of
from penstock.catalogue.store import Store
from penstock.model_tasks import TaskFilter
from penstock.storage.task_states import FINAL_FROM

AT_ONCE: Final = 2_000
_FORGET: Final = f"""
DELETE FROM tasks WHERE number IN (SELECT value FROM json_each(?)) AND state >= {FINAL_FROM} AND NOT EXISTS (
    SELECT 1 FROM parents JOIN tasks AS child ON child.task_id = parents.child
    WHERE parents.parent = tasks.task_id AND child.state < {FINAL_FROM}
)
"""


def forget(store: Store, wanted: TaskFilter, names: Names, now: int) -> int:
    """Forget all final tasks that match."""
    search = Search(wanted, names, now)
    numbers: list[int] = []
    with store.reading() as connection:
        for statement in search.statements("SELECT number FROM tasks", ""):
            numbers += [number for (number,) in connection.execute(statement, search.values)]
    return _forget(store, numbers)


def forget_ids(store: Store, ids: Iterable[bytes]) -> int:
    """Forget those of some tasks that are final."""
    with store.reading() as connection:
        numbers = [row[0] for row in rows_of(connection, ids)]
    return _forget(store, numbers)


def _forget(store: Store, numbers: Sequence[int]) -> int:
    gone = 0
    for start in range(0, len(numbers), AT_ONCE):
        with store.writing() as connection:
            part = msgspec.json.encode(numbers[start : start + AT_ONCE]).decode()
            gone += connection.execute(_FORGET, (part,)).rowcount
    return gone


def expire(store: Store, until: int) -> int:
    """Forget tasks that were final before an instant; how many."""
    gone = 0
    while True:
        with store.writing() as connection:
            count = connection.execute(schema.EXPIRE, (until, AT_ONCE)).rowcount
        gone += count
        if count < AT_ONCE:
            return gone
