"""The phases of a message in one group, and every legal move between them, as one table.

    fresh ──lease──▶ leased ──ack────────────────────────────────────▶ settled
                       ├──nack, time-out, interruption, snooze───────▶ waiting ──due──▶ ready ──lease──▶ leased
                       ├──release────────────────────────────────────▶ ready
                       └──reject, last attempt──▶ settled (dead) ──revive──▶ waiting
    fresh, waiting, ready ──expire, overflow, compact────────────────▶ settled (dropped)
    whatever is not settled ──evict, purge, cancel, skip, lose───────▶ settled (dropped)

An event is an outcome, or one of `lease`, `due` and `revive`. A move that is not in `MOVES` is illegal: a failed
lookup. Decisions look at the phase before they decide a move, so that `apply` need not. Two things are no moves: an
entry may name messages that are settled already, which stay as they are and are not counted twice; and in replay a
lease may meet a message that still waits, since time made it ready before and time is not in the journal. After a hole
in the journal, which only a repair passes over, an entry may find any phase: each is then what the last entry said.

A phase is one byte in `Progress.states`. `fresh` is what no one has touched: it costs nothing until something beyond
it has been touched.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Literal

from penstock.model import Outcome


class Phase(IntEnum):
    """The phase of a message in one group; the value is its byte."""

    FRESH = 0
    LEASED = 1
    WAITING = 2
    READY = 3
    SETTLED = 4


FRESH: Final = int(Phase.FRESH)
LEASED: Final = int(Phase.LEASED)
WAITING: Final = int(Phase.WAITING)
READY: Final = int(Phase.READY)
SETTLED: Final = int(Phase.SETTLED)

Event = Outcome | Literal["lease", "due", "revive"]

_HELD: Final = (LEASED,)
_UNHELD: Final = (FRESH, READY, WAITING)
_UNSETTLED: Final = (*_HELD, *_UNHELD)

# Each event: the phases in which it may happen, and the phase after it.
EVENTS: Final[dict[Event, tuple[tuple[int, ...], int]]] = {
    "lease": ((FRESH, READY), LEASED),
    "due": ((WAITING,), READY),
    "revive": ((SETTLED, WAITING), WAITING),  # of those that wait the due time changes
    Outcome.ACKED: (_HELD, SETTLED),
    Outcome.RETRIED: (_HELD, WAITING),
    Outcome.TIMED_OUT: (_HELD, WAITING),
    Outcome.INTERRUPTED: (_HELD, WAITING),
    Outcome.SNOOZED: (_HELD, WAITING),
    Outcome.RELEASED: (_HELD, READY),
    Outcome.REJECTED: (_HELD, SETTLED),
    Outcome.DEAD: ((LEASED, FRESH), SETTLED),  # fresh: it waited longer than `max_wait_seconds`
    Outcome.DISCARDED: ((LEASED, FRESH), SETTLED),
    Outcome.EXPIRED: (_UNHELD, SETTLED),
    Outcome.OVERFLOWED: (_UNHELD, SETTLED),
    Outcome.EVICTED: (_UNSETTLED, SETTLED),
    Outcome.PURGED: (_UNSETTLED, SETTLED),
    Outcome.CANCELLED: (_UNSETTLED, SETTLED),
    Outcome.SKIPPED: (_UNSETTLED, SETTLED),
    Outcome.REDRIVEN: (_UNSETTLED, SETTLED),
    Outcome.LOST: (_UNSETTLED, SETTLED),
    Outcome.COMPACTED: (_UNHELD, SETTLED),
}

MOVES: Final = {(Phase(phase), event): Phase(after) for event, (before, after) in EVENTS.items() for phase in before}

# The phase after each outcome, whatever it was before.
AFTER: Final[dict[int, int]] = {event: after for event, (_, after) in EVENTS.items() if isinstance(event, Outcome)}

LEASABLE: Final = EVENTS["lease"][0]
DROPPABLE: Final = _UNHELD  # what time or a full queue may drop: nobody holds it

# Outcomes that spend an attempt and leave the message alive.
COUNTED: Final[frozenset[int]] = frozenset({Outcome.RETRIED, Outcome.TIMED_OUT, Outcome.INTERRUPTED})

# Outcomes after which the message is in the dead-letter queue.
DEAD: Final[frozenset[int]] = frozenset({Outcome.DEAD, Outcome.REJECTED})
