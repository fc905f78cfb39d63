"""Values of encrypted queues in the task index: arguments, results, errors, progress and keys are sealed, one by one.

A sealed value is a BLOB where others are TEXT, so a reader knows which it has. A search for text opens each
of the tasks that the rest of its filter leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from penstock.seals import Seals
from penstock.task_index.database import CHANGING, COLUMNS

ABOUT: Final = b"task index "
OF_TASK: Final = tuple(COLUMNS.index(name) for name in ("error", "result", "progress", "args", "kwargs", "message_key"))
OF_UPDATE: Final = tuple(CHANGING.index(name) for name in ("error", "result", "progress"))
QUEUE: Final = COLUMNS.index("queue")
RUN_ERROR, RUN_QUEUE = 5, 6


class IndexSeals:
    """Seals and opens values. `encrypted` is the live set of encrypted queues."""

    def __init__(self, seals: Seals, encrypted: AbstractSet[int]) -> None:
        self._seals = seals
        self._encrypted = encrypted

    def tasks(self, rows: Iterable[Sequence[Any]]) -> list[Sequence[Any]]:
        """Rows to insert, as they are stored."""
        return [self._row(row, OF_TASK, row[QUEUE]) for row in rows]

    def updates(self, rows: Iterable[Sequence[Any]]) -> list[Sequence[Any]]:
        """Rows that change some columns."""
        return [self._row(row, OF_UPDATE, row[QUEUE]) for row in rows]

    def runs(self, rows: Iterable[Sequence[Any]]) -> list[Sequence[Any]]:
        """Attempts that failed, with the queue behind the error."""
        return [self._row(row, (RUN_ERROR,), row[RUN_QUEUE]) for row in rows]

    def value(self, queue: int, value: Any) -> Any:
        """One value, as it is stored."""
        if not value or queue not in self._encrypted:
            return value
        return self._seals.seal(queue, value.encode(), _about(queue))

    def open(self, queue: int, value: bytes) -> str | None:
        """What was sealed; None when the data key was erased."""
        opened = self._seals.open(value, _about(queue))
        return None if opened is None else opened.decode()

    def _row(self, row: Sequence[Any], places: Sequence[int], queue: int) -> Sequence[Any]:
        if queue not in self._encrypted:
            return row
        stored = list(row)
        for place in places:
            stored[place] = self.value(queue, stored[place])
        return stored


def _about(queue: int) -> bytes:
    return ABOUT + str(queue).encode()
