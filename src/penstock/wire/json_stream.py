"""Messages of the WebSocket, from the client: JSON objects whose `type` says which one it is. docs/websocket.md.

Each may carry an `id`, which comes back with the answer. What is answered is made in server/websocket.py, from the same
JSON that HTTP answers with.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from penstock import limits
from penstock.model import DEFAULT_GROUP, Durability
from penstock.wire import json_models as models
from penstock.wire.json_errors import Reader

Id = int | str | None
Name = Annotated[str, Meta(min_length=1, max_length=limits.name_length_max)]
Credit = Annotated[int, Meta(ge=1, le=2**31)]


class Subscribe(models.Request, tag_field="type", tag="subscribe"):
    """Have messages delivered as they come, `credit` of them until more is given. The client names the subscription."""

    subscription: Name
    queue: str
    id: Id = None
    group: str = DEFAULT_GROUP
    credit: Annotated[int, Meta(ge=0, le=2**31)] = 0
    batch: models.Limit = 100
    lease_ms: models.LeaseMs | None = None
    consumer: str = ""
    partitions: list[models.Partition] | None = None
    auto_ack: bool = False
    start: models.Position | None = None


class GiveCredit(models.Request, tag_field="type", tag="credit"):
    """Allow so many messages more."""

    subscription: Name
    messages: Credit
    id: Id = None


class Events(models.Request, tag_field="type", tag="events"):
    """Hear of what happens to queues: changes at once, counters at an interval. Tasks and workers are other topics."""

    subscription: Name
    id: Id = None
    topics: Annotated[frozenset[Literal["queues", "tasks", "workers"]], Meta(min_length=1)] = frozenset({"queues"})
    queues: Annotated[list[str], Meta(min_length=1, max_length=10_000)] | None = None
    interval_ms: float = 1000.0
    task_types: Annotated[frozenset[str], Meta(min_length=1, max_length=10_000)] | None = None
    task_ids: Annotated[frozenset[models.TaskId], Meta(min_length=1, max_length=10_000)] | None = None
    workflow: str | None = None


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


class Ping(models.Request, tag_field="type", tag="ping"):
    """Answered with a pong."""

    id: Id = None


Settlement = Ack | Nack | Reject | Release | Snooze
Said = Subscribe | GiveCredit | Events | Unsubscribe | Push | Settlement | Extend | Ping

said: Final[Reader[Said]] = Reader(Said)  # type: ignore[arg-type]
