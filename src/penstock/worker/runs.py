"""What a worker holds: leases, and one run for each task in them.

    buffered ──► running ──► ended
        └────────────────────► ended     cancelled, lost or released before it started

A run that could not be interrupted in time is abandoned: reported before it has ended, unless it has a key, and its
slot is given to others as long as not too many are.
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

NOT_STARTED: Final = Ending("released")  # of a run whose lease may have expired before it started
SURE_SHARE: Final = 0.9  # of a lease; what is left then is too short to start anything


def sure_us(seconds: float) -> int:
    """How long a lease can be relied on from the moment it was requested, µs."""
    return round(seconds * 1_000_000 * SURE_SHARE)


class Stage(Enum):
    """How far a run is."""

    BUFFERED = "buffered"
    RUNNING = "running"
    ENDED = "ended"


class InterruptReason(Enum):
    """Why a run was interrupted."""

    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"
    LEASE_LOST = "its lease was lost"
    STOPPING = "the worker stops"


class Lease:
    """A lease, held until every run of it is reported. It is extended as a whole.

    It surely lasts until `sure_until`, on the worker's monotonic clock: counted from when the worker requested it,
    since nobody knows how long the reply was on its way, and less a margin too short to start anything in.
    """

    __slots__ = ("due", "is_extending", "is_lost", "nonce", "queue", "sure_until", "unreported", "worker")

    def __init__(self, queue: str, nonce: int, count: int, sure_until: int = 0, worker: str = "") -> None:
        self.queue = queue
        self.worker = worker  # the id of the worker that has it
        self.nonce = nonce
        self.unreported = count  # runs of it that the broker has no report of
        self.is_lost = False
        self.is_extending = False
        self.due = 0  # when it is extended next
        self.sure_until = sure_until

    def holds(self, now: int) -> bool:
        """Whether nobody else can have its tasks yet."""
        return now < self.sure_until


class Run:
    """One attempt at one task."""

    __slots__ = (
        "attempt", "context", "deadline", "envelope", "handle", "has_slot", "interrupt_reason", "is_abandoned",
        "is_ending", "is_reported", "key", "lease", "progress", "progress_sent", "progress_task", "receipt", "since",
        "stage", "task", "trace",
    )  # fmt: skip

    def __init__(self, lease: Lease, receipt: Receipt, envelope: Envelope, task: Any, since: int) -> None:
        self.lease = lease
        self.receipt = receipt
        self.envelope = envelope
        self.task = task  # None when the app has no such task
        self.attempt = receipt.attempt
        self.since = since  # when it was leased, and later when it started; monotonic µs
        self.deadline = 0  # when it times out; 0: never
        self.stage = Stage.BUFFERED
        self.interrupt_reason: InterruptReason | None = None
        self.has_slot = False  # it counts among those that run
        self.is_abandoned = False  # it was interrupted and does not end
        self.is_reported = False  # its finish was reported before it ended
        self.handle: Any = None  # what its executor interrupts it by
        self.context: TaskContext | None = None  # what the task sees of it; made when it starts
        self.key: str | None = None
        self.trace: str | None = None
        self.is_ending = False  # its finish is about to be reported
        self.progress: bytes | None = None  # the latest; set in any thread
        self.progress_sent: bytes | None = None  # what the broker has
        self.progress_task: asyncio.Task[None] | None = None

    @property
    def timeout_seconds(self) -> float | None:
        """How long it may take."""
        return timeout_of(self.task, self.envelope)

    def fields(self, **more: Any) -> dict[str, Any]:
        """What its log lines carry."""
        envelope = self.envelope
        about = {"task_id": envelope.task_id, "task_type": envelope.task_type, "attempt": self.attempt}
        return {"worker": self.lease.worker, **about, **more}
