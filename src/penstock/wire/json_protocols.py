"""JSON of the frames of TCP (types 1 to 9, docs/formats/tcp.md) and of the WebSocket (docs/websocket.md).

Workers and submitters in any language use the frames: submissions and finishes are those of HTTP, what only frames have
is here. A message of the WebSocket is an object whose `type` says which one it is. Each may carry an `id`, which comes
back with the reply; replies are made of the same JSON as those of HTTP.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from penstock import limits
from penstock import operations as ops
from penstock.model import DEFAULT_GROUP, Durability
from penstock.model_tasks import Takes, TaskState, WorkerInfo
from penstock.wire import json_models as models
from penstock.wire.json_models import ErrorFields, LeaseMs, Request, TaskId, Wait
from penstock.wire.json_operations import json_of
from penstock.wire.json_reader import Reader
from penstock.wire.json_shapes import Shape
from penstock.wire.json_tasks import TASK_SEARCH, FinishResult

QUEUES_MAX: Final = 100
CLAIMED_MAX: Final = 10_000


class Auth(Request):
    """Who asks: an API key or a JWT."""

    token: str

    def __repr__(self) -> str:
        return "Auth()"


AUTH: Final = Reader(Auth)


class Claim(Request):
    """Tasks for a worker, from the first of some queues that has any."""

    worker_id: str
    queues: Annotated[tuple[str, ...], Meta(min_length=1, max_length=QUEUES_MAX)]
    max: Annotated[int, Meta(ge=1, le=CLAIMED_MAX)] = 1
    wait_ms: Wait = 0.0
    lease_ms: LeaseMs | None = None
    task_types: models.TaskTypes | None = None  # those that the worker can run; all


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
    """A task that had to come first: `result` is there when it completed and its result could be stored, or else
    `result_base64` when that is bytes.
    """

    task_id: str
    status: TaskState
    result: Raw | UnsetType = UNSET
    result_base64: bytes | UnsetType = UNSET


class ClaimedTask(Struct, kw_only=True):
    """A task to run now. `parents` is there when the task takes their results, `payload_base64` when bytes are among
    its arguments.
    """

    task_id: str
    task_type: str
    queue: str
    args: Raw
    kwargs: Raw
    payload_base64: bytes | UnsetType = UNSET
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
    """The result for one receipt that was to be held."""

    receipt: str
    status: Literal["ok", "error"]
    expires_at: datetime | UnsetType = UNSET
    error: ErrorFields | UnsetType = UNSET


class HeartbeatAnswer(Struct):
    """What a worker receives: tasks to break off, until when it holds each lease, the results for its progress;
    and what an operator wants of it.
    """

    cancelled: list[str]
    leases: list[Held]
    progress: list[FinishResult]
    requested: str = ""  # what an operator wants: "quiet", "stop" or nothing
    grace_ms: float | None = None  # for what runs, before it stops


claim: Final = Reader(Claim)
heartbeat: Final[Reader[Any]] = Reader(HEARTBEAT.type)
query: Final = Reader(Query)
cancel: Final = Reader(Cancel)
search: Final[Reader[Any]] = Reader(TASK_SEARCH.type)


Id = int | str | None
Name = Annotated[str, Meta(min_length=1, max_length=limits.name_length_max)]
Credit = Annotated[int, Meta(ge=1, le=2**31)]


class Subscribe(models.Request, tag_field="type", tag="subscribe"):
    """Have messages delivered as they come, `credit` of them until more is given. The client names the subscription."""

    subscription: Name
    queue: str | None = None
    id: Id = None
    queues: models.QueueNames | None = None  # instead of `queue`: names, and prefixes that end with `*`
    order: models.QueueOrder = "fair"
    group: str = DEFAULT_GROUP
    credit: Annotated[int, Meta(ge=0, le=2**31)] = 0
    batch: models.Limit = 100
    lease_ms: models.LeaseMs | None = None
    consumer: str = ""
    partitions: list[models.Partition] | None = None
    auto_ack: bool = False
    start: models.Position | None = None


class GiveCredit(models.Request, tag_field="type", tag="credit"):
    """Allow this many more messages."""

    subscription: Name
    messages: Credit
    id: Id = None


Topic = Literal["queues", "tasks", "workers", "task_counts", "operations", "dead_letters", "schedules", "cluster"]


class Events(models.Request, tag_field="type", tag="events"):
    """Receive what happens to queues: changes at once, counters at an interval. Tasks and workers are other topics."""

    subscription: Name
    id: Id = None
    topics: Annotated[frozenset[Topic], Meta(min_length=1)] = frozenset({"queues"})
    queues: Annotated[list[str], Meta(min_length=1, max_length=10_000)] | None = None
    interval_ms: float = 1000.0
    task_types: Annotated[frozenset[str], Meta(min_length=1, max_length=10_000)] | None = None
    task_ids: Annotated[frozenset[models.TaskId], Meta(min_length=1, max_length=10_000)] | None = None
    workflow: str | None = None
    changed_only: bool = True


class Unsubscribe(models.Request, tag_field="type", tag="unsubscribe"):
    """End a subscription; what it delivered and is not settled is given back."""

    subscription: Name
    id: Id = None


class Push(models.Request, tag_field="type", tag="push"):
    """Messages for one queue: all of them are stored, or none."""

    queue: str
    messages: models.Messages
    id: Id = None
    durability: Durability | None = None
    on_error: models.OnError = "fail"


class PushSome(models.SkippingPush, tag_field="type", tag="push", kw_only=True):
    """The same, each message still to be read."""

    queue: str
    id: Id = None


push_some: Final = Reader(PushSome)


class Ack(models.Ack, tag_field="type", tag="ack"):
    """Done."""

    id: Id = None


class Nack(models.Nack, tag_field="type", tag="nack"):
    """Again later."""

    id: Id = None


class Reject(models.Reject, tag_field="type", tag="reject"):
    """To the dead letters."""

    id: Id = None


class Release(models.Release, tag_field="type", tag="release"):
    """Given back."""

    id: Id = None


class Snooze(models.Snooze, tag_field="type", tag="snooze"):
    """Again after a time, not counted."""

    id: Id = None


class Extend(models.Extend, tag_field="type", tag="extend"):
    """Hold on."""

    id: Id = None


class Login(models.Request, tag_field="type", tag="auth"):
    """Who asks: an API key or a JWT, or of a page over plain http the secret of its tab. The first message."""

    token: str = ""
    tab: str = ""
    id: Id = None

    def __repr__(self) -> str:
        return "Login()"


class Ping(models.Request, tag_field="type", tag="ping"):
    """Answered with a pong."""

    id: Id = None


Settlement = Ack | Nack | Reject | Release | Snooze
ClientMessage = Login | Subscribe | GiveCredit | Events | Unsubscribe | Push | Settlement | Extend | Ping

client_message: Final[Reader[ClientMessage]] = Reader(ClientMessage)  # type: ignore[arg-type]
