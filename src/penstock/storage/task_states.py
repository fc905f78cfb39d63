"""The states of tasks as they are stored, what each outcome of a delivery makes of a task, and ids as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from penstock.errors import InvalidField
from penstock.model import Outcome


class Code(IntEnum):
    """States as they are stored. What waits is scheduled, pending or failed by its due time when somebody looks."""

    WAITING = 1
    FAILED = 2
    BLOCKED = 3
    RUNNING = 4
    COMPLETED = 10
    DEAD = 11
    CANCELLED = 12


PURGED: Final = 20  # in the sealed table only: the catalogue has no row of such a task
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
}
# Why a task ended that nobody ran, where the entry does not say it.
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
        found = bytes.fromhex(task_id.replace("-", ""))
    except ValueError:
        found = b""
    if len(found) != 16:
        raise InvalidField(f"task_id: {task_id!r} is no UUID")
    return found


def id_text(task_id: bytes) -> str:
    """The inverse."""
    text = task_id.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def parents_of(depends_on: Sequence[str], task_id: bytes) -> list[tuple[bytes, bytes]]:
    """(parent, child) for each parent that has an id."""
    pairs = []
    for parent in depends_on:
        try:
            pairs.append((id_bytes(parent), task_id))
        except InvalidField:
            continue
    return pairs
