"""What the JSON frames of TCP hold: types 1 to 9, for workers and submitters in any language. docs/formats/tcp.md.

Submissions and finishes are those of HTTP; what only frames have is here.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from penstock import limits
from penstock import operations as ops
from penstock.model_tasks import Takes, TaskState, WorkerInfo
from penstock.wire.json_errors import Reader
from penstock.wire.json_models import LeaseMs, Request, TaskId, Wait
from penstock.wire.json_operations import json_of
from penstock.wire.json_shapes import Shape
from penstock.wire.json_tasks import TASK_SEARCH, FinishResult
from penstock.wire.json_views import ErrorFields

QUEUES_MAX: Final = 100
CLAIMED_MAX: Final = 10_000


class Claim(Request):
    """Tasks for a worker, from the first of some queues that has any."""

    worker_id: str
    queues: Annotated[tuple[str, ...], Meta(min_length=1, max_length=QUEUES_MAX)]
    max: Annotated[int, Meta(ge=1, le=CLAIMED_MAX)] = 1
    wait_ms: Wait = 0.0
    lease_ms: LeaseMs | None = None


PROGRESS: Final = json_of(ops.NoteProgress)
# A worker is there, holds what it works on, and reports progress; or it leaves.
HEARTBEAT: Final = Shape(
    WorkerInfo,
    "Heartbeat",
    is_request=True,
    more=[
        ("receipts", Annotated[tuple[str, ...], Meta(max_length=limits.lease_messages_max)], ()),
        ("lease_ms", LeaseMs, limits.lease_seconds_default * 1000),
        ("progress", Annotated[tuple[PROGRESS.body, ...], Meta(max_length=CLAIMED_MAX)], ()),  # type: ignore[name-defined]
        ("is_leaving", bool, False),
    ],
)


class Query(Request):
    """One task, as it is or once it is final."""

    task_id: TaskId
    wait_ms: Wait = 0.0


class Cancel(Request):
    """Take a task back, waiting or running."""

    task_id: TaskId


class Parent(Struct):
    """A task that had to come first: `result` is there when it completed and its result could be stored."""

    task_id: str
    status: TaskState
    result: Raw | UnsetType = UNSET


class ClaimedTask(Struct, kw_only=True):
    """A task to run now. `parents` is there when the task takes their results."""

    task_id: str
    task_type: str
    queue: str
    args: Raw
    kwargs: Raw
    attempt: int
    priority: int
    key: str | None
    headers: dict[str, str]
    timeout_ms: float | None
    takes: Takes
    depends_on: tuple[str, ...]
    parents: list[Parent] | UnsetType = UNSET
    workflow: str
    schedule: str
    scheduled_at: str
    trace: str | None
    submitted_at: datetime
    receipt: str
    expires_at: datetime


class Claimed(Struct):
    """Tasks to run; none when there was nothing to be had."""

    tasks: list[ClaimedTask]


class Held(Struct):
    """What became of one receipt that was to be held."""

    receipt: str
    status: Literal["ok", "error"]
    expires_at: datetime | UnsetType = UNSET
    error: ErrorFields | UnsetType = UNSET


class HeartbeatAnswer(Struct):
    """What a worker is told: tasks to break off, how long it holds what, and what became of its progress."""

    cancelled: list[str]
    leases: list[Held]
    progress: list[FinishResult]


claim: Final = Reader(Claim)
heartbeat: Final[Reader[Any]] = Reader(HEARTBEAT.type)
query: Final = Reader(Query)
cancel: Final = Reader(Cancel)
search: Final[Reader[Any]] = Reader(TASK_SEARCH.type)
