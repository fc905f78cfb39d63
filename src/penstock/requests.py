"""What is asked of a shard or a broker: small values, checked where they are made, shared by every layer above."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from penstock import limits
from penstock.errors import InvalidField
from penstock.model import MessageId, Outcome, Position, Receipt, check_seconds
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


class OwnOperation(msgspec.Struct, frozen=True):
    """Part of a transaction: all of it is refused unless this member of a group owns the partitions now."""

    queue: str
    group: str
    member: str
    generation: int
    partitions: tuple[str, ...]


Operation = PushOperation | SettleOperation | OwnOperation
