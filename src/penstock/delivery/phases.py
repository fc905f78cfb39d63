"""The phases of a message in one group, and every legal move between them, as one table.

    fresh ──lease──▶ leased ──ack──────────────────────────▶ settled
      │                │  ├──nack, time-out, interruption──▶ waiting ──due──▶ ready ──lease──▶ leased
      │                │  ├──release──────────────────────────────────────▶ ready
      │                │  └──reject, last attempt──▶ settled (dead) ──redrive──▶ ready
      └──expire, evict, purge, cancel, overflow, skip, lose──▶ settled (dropped)

A phase is one byte in `Progress.states`. `fresh` is what no one has touched: it costs nothing until something beyond
it has been touched.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from penstock.model import Outcome


class Phase(IntEnum):
    """Where a message stands in one group; the value is its byte."""

    FRESH = 0
    LEASED = 1
    WAITING = 2
    READY = 3
    SETTLED = 4


# What each outcome makes of a delivery or of a message that nobody holds.
AFTER: Final[dict[int, int]] = {
    Outcome.ACKED: Phase.SETTLED,
    Outcome.RETRIED: Phase.WAITING,
    Outcome.TIMED_OUT: Phase.WAITING,
    Outcome.INTERRUPTED: Phase.WAITING,
    Outcome.SNOOZED: Phase.WAITING,
    Outcome.RELEASED: Phase.READY,
    Outcome.REJECTED: Phase.SETTLED,
    Outcome.DEAD: Phase.SETTLED,
    Outcome.DISCARDED: Phase.SETTLED,
    Outcome.EXPIRED: Phase.SETTLED,
    Outcome.EVICTED: Phase.SETTLED,
    Outcome.PURGED: Phase.SETTLED,
    Outcome.CANCELLED: Phase.SETTLED,
    Outcome.OVERFLOWED: Phase.SETTLED,
    Outcome.SKIPPED: Phase.SETTLED,
    Outcome.REDRIVEN: Phase.SETTLED,
    Outcome.LOST: Phase.SETTLED,
}

# Outcomes that spend an attempt and leave the message alive.
COUNTED: Final[frozenset[int]] = frozenset({Outcome.RETRIED, Outcome.TIMED_OUT, Outcome.INTERRUPTED})

# Outcomes after which the message is in the dead-letter queue.
DEAD: Final[frozenset[int]] = frozenset({Outcome.DEAD, Outcome.REJECTED})

FRESH: Final = int(Phase.FRESH)
LEASED: Final = int(Phase.LEASED)
WAITING: Final = int(Phase.WAITING)
READY: Final = int(Phase.READY)
SETTLED: Final = int(Phase.SETTLED)
