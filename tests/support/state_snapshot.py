"""All that a restart must bring back, as plain values that compare."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock import operations as ops
from penstock.client.handles import Penstock
from penstock.delivery.log import Queue
from penstock.embedded.session import Session
from penstock.model_letters import LetterFilter
from tests.support.operations import run_operation


def portrait(session: Session) -> dict[str, Any]:
    """The whole shard: every queue, group, message and dead letter."""
    return {name: _queue(session, name) for name in run_operation(session, ops.Queues())[0]}


def _queue(session: Session, name: str) -> dict[str, Any]:
    stats = run_operation(session, ops.Stats(name))[0]
    known = session.shard.core.by_name[name]
    return {
        "id": known.id,
        "options": msgspec.structs.asdict(run_operation(session, ops.GetOptions(name))[0]),
        "paused": stats.paused,
        "stats": dict(stats.groups),
        "lags": run_operation(session, ops.Groups(name))[0],
        "log": {partition.name: _log(session, name, partition.name) for partition in known.partitions},
        "delayed": [message.id for message in run_operation(session, ops.Delayed(name, 1000))[0]],
        "retries": _retries(known),
        "keys": _dedup_keys(known),
        "letters": [] if known.is_dlq else _letters(session, name),
    }


def _log(session: Session, queue: str, partition: str) -> list[Any]:
    return [
        (
            m.id,
            m.payload,
            m.key,
            m.priority,
            m.headers or None,
            m.dedup_key,
            m.available_at,
            m.expires_at,
            m.max_attempts,
        )
        for m in run_operation(session, ops.Read(queue, partition, None, None, 10_000))[0]
    ]


def _retries(queue: Queue) -> dict[Any, Any]:
    """Attempts and due times, which no public method tells."""
    found = {}
    for group in queue.groups.values():
        for progress in group.progress:
            where = (group.name, progress.partition.name)
            attempts = {
                offset: (tried.count, tried.first_at, tried.lost) for offset, tried in (progress.attempts or {}).items()
            }
            found[where] = (attempts, progress.dues or {}, progress.sparse or {}, progress.dead_offsets or set())
    return found


def _dedup_keys(queue: Queue) -> set[Any]:
    window = queue.dedup
    if window is None:
        return set()
    frozen = {
        (int(e["partition"]), int(e["offset"]), int(e["at"])) for run in window.runs.values() for e in run.records
    }
    return frozen | set(window.hot.values())


def _letters(session: Session, name: str) -> list[Any]:
    return [
        (letter.id, letter.payload, letter.headers)
        for letter in run_operation(session, ops.DeadLetters(name, LetterFilter()))[0]
    ]


def drained(ps: Penstock, queue: str, group: str = "default") -> list[tuple[bytes, int]]:
    """Everything that can be had now, acknowledged: payload and attempt."""
    found: list[tuple[bytes, int]] = []
    while leased := ps.queue(queue).lease(max=50, group=group):
        found += [(delivery.payload, delivery.attempt) for delivery in leased]
        leased.ack()
    return found
