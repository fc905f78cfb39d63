"""What is asked of a shard or a broker: small values, checked where they are made, shared by every layer above."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from penstock import limits
from penstock.errors import InvalidField
from penstock.model import Message, MessageId, Outcome, Position, Receipt, check_seconds, to_datetime, to_micros
from penstock.model_tasks import TaskState

if TYPE_CHECKING:
    from penstock.batch import Batch

PartitionChoice = int | str | Sequence[int | str | None] | None
Producer = tuple[int, int, int]  # id, epoch, sequence
QueueOrder = Literal["fair", "listed"]
OnError = Literal["fail", "skip"]  # of a push


class SinkCommit(msgspec.Struct, frozen=True):
    """A batch of a sink: the staged files that hold its messages."""

    queue: str
    sink: str
    batch: int
    staged: tuple[str, ...] = ()
    origin: str = ""  # what numbers the batches, such as the id of a streaming query; "" is anything
    is_reset: bool = False  # start over where another origin, or none, has been before
    is_once: bool = False  # nobody asks for it later than a day


class Target(NamedTuple):
    """A task that somebody wants to end or to forget: where the task index says that it is."""

    task_id: bytes
    queue: int
    partition: int | None  # None when it has no message, as the position
    position: int | None
    has_open_child: bool  # whether an unfinished task waits for it, or may ask for its result
    submitted_at: int
    number: int


class ParentFound(msgspec.Struct, frozen=True):
    """A task that others are to wait for, as the task index knows it. `position` is None while it is held itself."""

    position: MessageId | None
    state: TaskState


class LeaseRequest(msgspec.Struct, frozen=True, gc=False):
    """What a consumer asks for."""

    count_max: int = 1
    lease_seconds: float | None = None
    consumer: str = ""
    partitions: tuple[int | str, ...] | None = None
    auto_ack: bool = False
    member: str = ""  # of the group: takes only from partitions it owns
    generation: int = 0  # the last that the member received
    client: str = ""  # who asks, for limits by client
    start: Position | None = None  # where the group begins if this lease makes it; None: it must exist
    owner: str = ""  # the principal that the lease belongs to; "" for the owner of the broker
    task_types: frozenset[str] | None = None  # tasks of these types only; None: whatever there is

    def in_existing_group(self) -> LeaseRequest:
        """This request without `start`: a group that was deleted since is not created again."""
        return self if self.start is None else msgspec.structs.replace(self, start=None)


class QueueChoice(msgspec.Struct, frozen=True):
    """Which queues a lease over several takes from: names, and prefixes that end with `*`.

    `fair` serves all of them in turn; `listed` serves what stands earlier in the list first, and in turn what matches
    the same prefix.
    """

    names: tuple[str, ...]
    order: QueueOrder = "fair"


def check_session_seconds(value: Any) -> float:
    """How long a member of a group may be silent."""
    seconds = check_seconds(value, "session_seconds", limits.session_seconds_max)
    if seconds < limits.session_seconds_min:
        raise InvalidField(f"session_seconds: {value!r} is under {limits.session_seconds_min:g}")
    return seconds


class Settling(msgspec.Struct, frozen=True, gc=False):
    """How a delivery is to end. `delay_seconds` None means the queue's backoff."""

    outcome: Outcome
    delay_seconds: float | None = None
    error: str = ""


ACK: Final = Settling(Outcome.ACKED)
RELEASE: Final = Settling(Outcome.RELEASED)


class PushOperation(msgspec.Struct, frozen=True):
    """Part of a transaction: messages for one queue."""

    queue: str
    batch: Batch
    partition: PartitionChoice = None


class SettleOperation(msgspec.Struct, frozen=True):
    """Part of a transaction: the end of one delivery."""

    receipt: Receipt
    how: Settling


Operation = PushOperation | SettleOperation


class LetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters are meant; every field that is set must match. Headers are named as in `dead_letter`."""

    group: str | None = None
    reason: str | None = None
    error_contains: str | None = None
    key: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    ids: frozenset[MessageId] | None = None  # of the dead letters themselves
    limit: int = 1_000_000
    from_offset: int = 0  # of the dead letters themselves: where a listing in pages goes on

    def __post_init__(self) -> None:
        for name in ("since", "until"):
            value = getattr(self, name)
            if value is not None:
                msgspec.structs.force_setattr(self, name, to_datetime(to_micros(value, name)))

    def matches(self, letter: Message) -> bool:
        """Whether a dead letter is meant."""
        headers = letter.headers or {}
        assert letter.pushed_at is not None
        return (
            (self.group is None or headers.get(DEAD_GROUP) == self.group)
            and (self.reason is None or headers.get(DEAD_REASON) == self.reason)
            and (self.error_contains is None or self.error_contains in headers.get(DEAD_ERROR, ""))
            and (self.key is None or letter.key == self.key)
            and (self.since is None or letter.pushed_at >= self.since)
            and (self.until is None or letter.pushed_at < self.until)
            and (self.ids is None or letter.id in self.ids)
        )


# Headers that a dead letter carries beside those of the message.
DEAD_ORIGIN = "penstock-origin"
DEAD_GROUP = "penstock-group"
DEAD_REASON = "penstock-reason"
DEAD_ERROR = "penstock-error"
DEAD_ATTEMPTS = "penstock-attempts"
DEAD_FIRST_AT = "penstock-first-delivered-at"
DEAD_LAST_AT = "penstock-last-delivered-at"
DEAD_CONSUMER = "penstock-last-consumer"
DEAD_AT = "penstock-dead-at"
DEAD_PUSHED_AT = "penstock-pushed-at"  # when the message was pushed that died
