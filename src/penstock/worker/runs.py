"""What a worker holds: leases, and one run for each task in them.

    buffered ──► running ──► over           told: its finish has been accepted or refused, or there is none to tell
        └──────────────────────► dropped    cancelled, lost or released before it began

A run that could not be broken off in time is abandoned: reported before it is over, unless it has a key, and its slot
is given to others as long as not too many are.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any, Final

from penstock.model import Receipt
from penstock.model_tasks import Envelope
from penstock.tasks.context import TaskContext
from penstock.tasks.endings import Ending
from penstock.tasks.runs import timeout_of

NOT_BEGUN: Final = Ending("released")  # of a run whose lease may have expired before it began
SURE_SHARE: Final = 0.9  # of a lease; what is left then is too short to begin anything


def sure_us(seconds: float) -> int:
    """How long a lease can be relied on from the moment it was asked for, µs."""
    return round(seconds * 1_000_000 * SURE_SHARE)


class Stage(Enum):
    """Where a run stands."""

    BUFFERED = "buffered"
    RUNNING = "running"
    OVER = "over"


class Why(Enum):
    """Why a run was broken off."""

    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"
    LOST = "its lease was lost"
    STOPPING = "the worker stops"


class Lease:
    """A lease, held until every run of it is told. It is extended as a whole.

    It surely lasts until `sure_until`, on the worker's monotonic clock: counted from when the worker asked for it,
    since nobody knows how long the answer was on its way, and less a margin: a rest too short to matter is no use.
    """

    __slots__ = ("due", "is_extending", "is_lost", "left", "nonce", "queue", "sure_until")

    def __init__(self, queue: str, nonce: int, count: int, sure_until: int = 0) -> None:
        self.queue = queue
        self.nonce = nonce
        self.left = count  # runs of it that are not told
        self.is_lost = False
        self.is_extending = False
        self.due = 0  # when it is extended next
        self.sure_until = sure_until

    def holds(self, now: int) -> bool:
        """Whether nobody else can have its tasks yet."""
        return now < self.sure_until


class Run:
    """One attempt at one task, in this worker."""

    __slots__ = (
        "attempt", "context", "deadline", "envelope", "handle", "has_slot", "is_abandoned", "is_ending", "is_told",
        "key", "lease", "progress", "progress_told", "receipt", "since", "stage", "task", "telling", "trace", "why",
    )  # fmt: skip

    def __init__(self, lease: Lease, receipt: Receipt, envelope: Envelope, task: Any, since: int) -> None:
        self.lease = lease
        self.receipt = receipt
        self.envelope = envelope
        self.task = task  # None for one that nobody here knows
        self.attempt = receipt.attempt
        self.since = since  # when it came, and later when it began; monotonic µs
        self.deadline = 0  # when its time is over; 0: never
        self.stage = Stage.BUFFERED
        self.why: Why | None = None
        self.has_slot = False  # it counts among those that run
        self.is_abandoned = False  # it was broken off and does not end
        self.is_told = False  # its finish was handed on before it was over
        self.handle: Any = None  # what its lane breaks it off by
        self.context: TaskContext | None = None  # what the task may know of it; made when it begins
        self.key: str | None = None
        self.trace: str | None = None
        self.is_ending = False  # how it ended is about to be told
        self.progress: bytes | None = None  # the latest; set in any thread
        self.progress_told: bytes | None = None  # the one that the broker has
        self.telling: asyncio.Task[None] | None = None

    @property
    def timeout_seconds(self) -> float | None:
        """How long it may take."""
        return timeout_of(self.task, self.envelope)

    def fields(self) -> dict[str, Any]:
        """What its log lines carry."""
        return {"task_id": self.envelope.task_id, "task_type": self.envelope.task_type, "attempt": self.attempt}
