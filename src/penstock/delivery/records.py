"""Everything that the journal tells but messages themselves: one small value per kind of entry.

Each is a MessagePack array of its kind and its fields, in the order below; new fields come last, with a default. They
carry outcomes (offsets, due times, drawn jitter), never inputs: applying them decides nothing.
"""

from __future__ import annotations

import struct
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
IdRun = tuple[str, str, int, int]  # ids that follow each other: queue, partition, first offset, count


class Span(msgspec.Struct, array_like=True, gc=False):
    """Some offsets of one partition: `first` and `count`, or, when they are scattered, `offsets` (int64 bytes)."""

    partition: int
    first: int
    count: int
    attempt: int = 1
    offsets: bytes = b""
    attempts: bytes = b""  # uint16 per offset, when they differ
    dues: bytes = b""  # int64 per offset: when each is due again

    def offset_array(self) -> Int64s:
        if self.offsets:
            return np.frombuffer(self.offsets, np.int64)
        return np.arange(self.first, self.first + self.count, dtype=np.int64)

    def due_array(self) -> Int64s:
        return np.frombuffer(self.dues, np.int64)


class Leased(msgspec.Struct, array_like=True, tag_field="kind", tag=2, gc=False):
    """Messages handed to a consumer. Never waited for; recovery closes what is still open."""

    queue: int
    group: int
    nonce: int
    at: int
    consumer: str
    spans: list[Span]


class Settled(msgspec.Struct, array_like=True, tag_field="kind", tag=3, gc=False):
    """Deliveries, or waiting messages, that ended. `leased_at` is 0 for messages that no one held."""

    queue: int
    group: int
    outcome: int
    at: int
    leased_at: int
    consumer: str
    error: str
    spans: list[Span]


class QueueSet(msgspec.Struct, array_like=True, tag_field="kind", tag=4):
    """A queue created, or its options or pause changed. `options` is JSON."""

    queue: int
    name: str
    options: bytes
    paused: bool
    at: int


class QueueDeleted(msgspec.Struct, array_like=True, tag_field="kind", tag=5):
    """A queue and all that it held is gone; its id is never used again."""

    queue: int


class PartitionsAdded(msgspec.Struct, array_like=True, tag_field="kind", tag=6):
    """Partitions made on first use or by growth; the first gets the id `first`."""

    queue: int
    first: int
    names: list[str]


class GroupSet(msgspec.Struct, array_like=True, tag_field="kind", tag=7):
    """A group created, or moved by seek: `starts` lists (partition, offset) for each partition that it concerns."""

    queue: int
    group: int
    name: str
    at: int
    starts: list[tuple[int, int]]
    latest: bool = False  # partitions that appear later start at their end instead of their beginning
    observes: bool = False  # it follows the log and is no load: see `Group`


class GroupDeleted(msgspec.Struct, array_like=True, tag_field="kind", tag=8):
    """A group is forgotten."""

    queue: int
    group: int


class Trimmed(msgspec.Struct, array_like=True, tag_field="kind", tag=9):
    """Retention moved the start of some partitions: (partition, start_offset)."""

    queue: int
    starts: list[tuple[int, int]]


class Revived(msgspec.Struct, array_like=True, tag_field="kind", tag=10):
    """Messages that are ready again in their group, attempts reset: dead letters, or tasks that are retried by hand."""

    queue: int
    group: int
    at: int
    spans: list[Span]
    was: int = 0  # the outcome that those which are settled had; 0: they died


class Closing(msgspec.Struct, array_like=True, tag_field="kind", tag=11):
    """A clean stop: everything before this frame was durable."""

    at: int
    queue: int = 0  # no queue: ids start at 1


class Produced(msgspec.Struct, array_like=True, tag_field="kind", tag=12, gc=False):
    """Whose the rows of a push in this frame are, when many producers' messages were folded into one batch.

    The batch lies at `first` of `partition`. Packed in `rows`, for each that has a producer:
    producer u64 | producer_sequence u64 | producer_epoch u32 | row u32.
    """

    ROW: ClassVar = struct.Struct("<QQII")

    queue: int
    at: int
    partition: int
    first: int
    rows: bytes


class ProducerSet(msgspec.Struct, array_like=True, tag_field="kind", tag=13):
    """A named producer begins an epoch; whoever pushes in an older one is refused."""

    producer: int
    epoch: int
    at: int
    queue: int = 0  # no queue: ids start at 1


class Answered(msgspec.Struct, array_like=True, tag_field="kind", tag=14):
    """What a producer was told of this frame, when its pushes do not say all of it: the ids of each push."""

    queue: int  # 0: a transaction
    producer: int
    epoch: int
    producer_sequence: int
    at: int
    pushes: list[list[IdRun]]


class SinkCommitted(msgspec.Struct, array_like=True, tag_field="kind", tag=15):
    """The pushes of this frame are a batch of a sink. One that takes several frames names its files in each."""

    queue: int
    sink: str
    batch: int
    at: int
    origin: str  # what numbers the batches: another one begins anew
    is_once: bool  # nobody asks for it later than a day
    staged: list[str] = []  # files that hold the batch; none when all of it is in this frame
    done: int = 0  # how many of them are in


class Note(msgspec.Struct, array_like=True, gc=False):
    """Something told of one task: what a run of it gave, or said, or that it was cancelled."""

    RESULT: ClassVar = 1  # data is JSON
    ERROR: ClassVar = 2  # data is text
    PROGRESS: ClassVar = 3  # data is JSON
    CANCELLED: ClassVar = 4  # data is text: why

    task_id: bytes  # 16
    partition: int
    offset: int
    attempt: int  # 0 when it was not running
    what: int
    data: bytes


class TasksNoted(msgspec.Struct, array_like=True, tag_field="kind", tag=16, gc=False):
    """Notes on tasks of one queue. What became of their deliveries is told by the `Settled` of the same frame."""

    queue: int
    at: int
    worker: str
    notes: list[Note]


class Parent(msgspec.Struct, array_like=True, gc=False):
    """A task that another one waits for: where its message is. `offset` is −1 while it is itself held."""

    task_id: bytes  # 16
    queue: int
    partition: int
    offset: int


class TaskHeld(msgspec.Struct, array_like=True, tag_field="kind", tag=17):
    """A task that waits for its parents. Its message is pushed when the last of them is done.

    One that was cancelled meanwhile is held again by another entry when it is retried.
    """

    CANCEL: ClassVar = 0  # it is cancelled when a parent dies or is cancelled
    RUN: ClassVar = 1  # it runs all the same

    queue: int
    task_id: bytes  # 16
    at: int
    parents: list[Parent]  # those that were not final when it was submitted
    policy: int
    batch: bytes  # of one message


class TaskFreed(msgspec.Struct, array_like=True, tag_field="kind", tag=18):
    """A held task waits no more: its message is pushed in this frame, or it is cancelled and never will be."""

    PUSHED: ClassVar = 1
    CANCELLED: ClassVar = 2

    queue: int
    task_id: bytes  # 16
    at: int
    how: int
    partition: int  # −1 when it was cancelled, as the offset
    offset: int
    error: str  # why it was cancelled
    because: bytes = b""  # 16: the parent whose end it was, if that was why


class UniqueTaken(msgspec.Struct, array_like=True, tag_field="kind", tag=19):
    """A unique key that belongs to a task: until an instant, or while the task is not final when `until` is 0."""

    queue: int
    hash: bytes  # 16
    task_id: bytes  # 16
    until: int
    partition: int
    offset: int  # −1: it is held


class ScheduleSet(msgspec.Struct, array_like=True, tag_field="kind", tag=20):
    """A schedule made, changed or deleted. `spec` is JSON; `next_at` is 0 while it is paused."""

    name: str
    spec: bytes
    next_at: int
    at: int
    is_deleted: bool
    queue: int = 0  # no queue: ids start at 1


class ScheduleFired(msgspec.Struct, array_like=True, tag_field="kind", tag=21):
    """A tick of a schedule: its task is pushed in this frame. Without a task id, ticks that were missed are skipped."""

    name: str
    tick_at: int
    next_at: int
    task_id: bytes  # 16, or empty
    queue: int = 0  # no queue: ids start at 1


class TasksPurged(msgspec.Struct, array_like=True, tag_field="kind", tag=22):
    """Tasks of one queue that the catalogue forgets: at these places, and of these ids where they never had a message.

    All of them are final; those that this frame cancels are too.
    """

    queue: int
    at: int
    spans: list[Span]
    ids: bytes = b""  # 16 each

    def id_list(self) -> list[bytes]:
        return [self.ids[start : start + 16] for start in range(0, len(self.ids), 16)]


class OperationSet(msgspec.Struct, array_like=True, tag_field="kind", tag=23, frozen=True):
    """An operation on many tasks as it stands: begun, a step further, or over. What a step did is in the same frame."""

    RUNNING: ClassVar = 1
    DONE: ClassVar = 2
    STOPPED: ClassVar = 3
    FAILED: ClassVar = 4

    operation_id: str
    action: str  # "purge" or "cancel"
    filter: bytes  # JSON: which tasks
    state: int
    started_at: int
    at: int  # of this step
    phase: int = 0  # purging: first those that wait, then those that are final
    cursor: tuple[int, int] | None = None  # the task that was looked at last: when it was submitted, and its number
    matched: int = 0  # tasks that matched when it began
    cancelled: int = 0
    purged: int = 0
    error: str = ""
    queue: int = 0  # no queue: ids start at 1


class AttemptsLost(msgspec.Struct, array_like=True, tag_field="kind", tag=24, gc=False):
    """Attempts at tasks that were lost with their worker: counted apart. They are settled earlier in the same frame."""

    queue: int
    group: int
    at: int
    spans: list[Span]


Record = (
    Leased
    | Settled
    | QueueSet
    | QueueDeleted
    | PartitionsAdded
    | GroupSet
    | GroupDeleted
    | Trimmed
    | Revived
    | Closing
    | Produced
    | ProducerSet
    | Answered
    | SinkCommitted
    | TasksNoted
    | TaskHeld
    | TaskFreed
    | UniqueTaken
    | ScheduleSet
    | ScheduleFired
    | TasksPurged
    | OperationSet
    | AttemptsLost
)
