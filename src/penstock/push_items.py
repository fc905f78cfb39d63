"""Batches of those items of a push that can be stored, with what is wrong with the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from penstock.batch import Batch
from penstock.errors import InputError
from penstock.replies import PushFailure

Some = tuple[Batch, Sequence[int], dict[int, PushFailure]]  # the batch, the places of its rows, and those that failed


def build_some(items: Any, build: Callable[[Any], Batch] = Batch.build) -> Some:
    """The batch of those items of which one can be built; raises what is wrong with all of them together."""
    if not isinstance(items, Sequence | Batch) and isinstance(items, Iterable) and not hasattr(items, "slice"):
        items = list(items)
    try:
        batch = build(items)
    except InputError:
        if isinstance(items, bytes | bytearray | memoryview | str | Batch) or not hasattr(items, "__len__"):
            raise
        failures = _failures(items, build)
        if not failures:
            raise
        rows = [row for row in range(len(items)) if row not in failures]
        return build(_some(items, rows)), rows, failures
    return batch, range(batch.count), {}


def _failures(items: Any, build: Callable[[Any], Batch]) -> dict[int, PushFailure]:
    failures: dict[int, PushFailure] = {}
    for row in range(len(items)):
        try:
            build(_some(items, [row]))
        except InputError as error:
            failures[row] = PushFailure(error.code, error.message.removeprefix("item 0: "), error.hint)
    return failures


def _some(items: Any, rows: Sequence[int]) -> Any:
    """Some of the items: of a table its rows."""
    return [items[row] for row in rows] if isinstance(items, Sequence) else items.take(rows)
