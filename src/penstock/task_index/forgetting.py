"""Forgetting tasks: because the journal says so. Somebody purged them, or they have been final for long enough.

Frames that are about a forgotten task may not be sealed yet. Whoever seals them asks which task it was, so that is
remembered until they are.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import Entry, Span, TasksPurged
from penstock.delivery.progress import span_of
from penstock.delivery.tasks import is_settled
from penstock.requests import Target
from penstock.task_index import schema
from penstock.task_index.store import Store

AT_ONCE: Final = 2_000


def forget_places(connection: sqlite3.Connection, places: Iterable[tuple[int, Span]], until: int | None) -> None:
    """Those at some places of queues. `until` is the frame that says so; None when nothing will be sealed."""
    for queue, span in places:
        if span.offsets:
            offsets = msgspec.json.encode(span.offset_array().tolist()).decode()
            _forget(connection, schema.OF_OFFSETS, (queue, span.partition, offsets), until)
        else:
            last = span.first + span.count
            _forget(connection, schema.OF_RANGE, (queue, span.partition, span.first, last), until)


def forget_ids(connection: sqlite3.Connection, ids: Iterable[bytes], until: int | None) -> None:
    """Those of some tasks that never had a message."""
    for task_id in ids:
        _forget(connection, schema.OF_ID, (task_id,), until)


def decide_expired(core: DeliveryState, targets: Iterable[Target], now: int) -> list[Entry]:
    """Have the journal say that these are forgotten, but for those that were brought back. The lock is held."""
    places: dict[int, dict[int, list[int]]] = {}
    ids: dict[int, list[bytes]] = {}
    for target in targets:
        if target.partition is None or target.position is None:
            if target.task_id not in core.tasks.held:
                ids.setdefault(target.queue, []).append(target.task_id)
        elif is_settled(core, (target.queue, target.partition, target.position)):
            places.setdefault(target.queue, {}).setdefault(target.partition, []).append(target.position)
    return [
        TasksPurged(
            queue,
            now,
            [span_of(number, sorted(offsets)) for number, offsets in places.get(queue, {}).items()],
            b"".join(ids.get(queue, ())),
        )
        for queue in {**places, **ids}
    ]


def sealed(store: Store, sequence: int) -> None:
    """Everything up to a frame is sealed: nobody will ask which tasks it was about."""
    with store.writing() as connection:
        connection.execute(schema.SEALED, (sequence,))


def _forget(connection: sqlite3.Connection, where: str, values: tuple[Any, ...], until: int | None) -> None:
    if until is not None:
        connection.execute(schema.REMEMBER.format(where=where), (until, *values))
    connection.execute(schema.FORGET.format(where=where), values)
