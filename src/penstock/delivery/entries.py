"""What the journal holds: entries, and their bytes.

A frame is a list of entries that are applied all together or not at all. Each entry is

    kind u8 | 0 0 0 | length u32 | body, padded with zeros to a multiple of 8

All integers are little-endian. The body of a push is binary, so that its batch lies aligned and is used in place:

    queue u32 | rows u32 | pushed_at i64 | producer u64 | producer_sequence u64 | producer_epoch u32 | parts u32
    parts × ( partition u32 | count u32 | first_offset i64 )
    rows × partition i32, −1 for a refused row, padded to 8    (rows is 0 when all rows go to the one partition)
    batch bytes

Every other body is a MessagePack array of the kind and the fields of a record, in the order in which they are declared
below; new fields come last, with a default. Records carry outcomes (offsets, due times, drawn jitter), never inputs:
applying them decides nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock import limits
from penstock.errors import StorageError, TooLarge

if TYPE_CHECKING:
    from penstock.batch import Batch


FOREVER: Final = 2**62  # an instant that never comes
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


class Compacted(msgspec.Struct, array_like=True, tag_field="kind", tag=30):
    """Messages of one partition that compaction removed: offsets [first, end), as int64 pairs, sorted and apart.

    Whoever has not settled one of them has it settled as `compacted`.
    """

    queue: int
    partition: int
    at: int
    ranges: bytes


class Revived(msgspec.Struct, array_like=True, tag_field="kind", tag=10):
    """Messages that are ready again in their group, attempts reset: dead letters, or tasks that are retried by hand."""

    queue: int
    group: int
    at: int
    spans: list[Span]
    was: int = 0  # the outcome of those that are settled; 0: they died


class Closing(msgspec.Struct, array_like=True, tag_field="kind", tag=11):
    """The end of an owner's time: a clean stop, everything before this frame was durable.

    With a `term`: the start of the next one's. A node has taken the shard over, and serves when this frame is durable.
    """

    at: int
    queue: int = 0  # no queue: ids start at 1
    term: int = 0
    node: str = ""


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


Failure = tuple[str, str, str, list[int]]  # code, message, hint, and the rows that failed with it


class Answered(msgspec.Struct, array_like=True, tag_field="kind", tag=14):
    """The reply to a producer for this frame, when its pushes do not say all of it: the ids of each push.

    Of a push alone also which rows were duplicates, and which failed: those have no id. Older versions pass both over.
    """

    queue: int  # 0: a transaction
    producer: int
    epoch: int
    producer_sequence: int
    at: int
    pushes: list[list[IdRun]]
    duplicates: list[int] = []
    failures: list[Failure] = []


class SinkCommitted(msgspec.Struct, array_like=True, tag_field="kind", tag=15):
    """The pushes of this frame are a batch of a sink. One that takes several frames names its files in each."""

    queue: int
    sink: str
    batch: int
    at: int
    origin: str  # what numbers the batches: another one starts over
    is_once: bool  # it is not used again later than a day
    staged: list[str] = []  # files that hold the batch; none when all of it is in this frame
    done: int = 0  # how many of them are in


class Note(msgspec.Struct, array_like=True, gc=False):
    """A note on one task: the result, error or progress of a run, or that it was cancelled."""

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
    """Notes on tasks of one queue. How their deliveries ended is in the `Settled` of the same frame."""

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
    """Tasks of one queue that the task index forgets: at these places, and of these ids where there was no message.

    All of them are final; those that this frame cancels are too.
    """

    queue: int
    at: int
    spans: list[Span]
    ids: bytes = b""  # 16 each

    def id_list(self) -> list[bytes]:
        return [self.ids[start : start + 16] for start in range(0, len(self.ids), 16)]


class OperationSet(msgspec.Struct, array_like=True, tag_field="kind", tag=23, frozen=True):
    """The state of an operation on many things: begun, a step further, or over. The frame has what the step did."""

    RUNNING: ClassVar = 1
    DONE: ClassVar = 2
    STOPPED: ClassVar = 3
    FAILED: ClassVar = 4
    WAITING: ClassVar = 5  # for somebody to continue it after its canary

    operation_id: str
    action: str  # a word of `OperationAction`
    filter: bytes  # JSON: which tasks; or a plan for dead letters or messages
    state: int
    started_at: int
    at: int  # of this step
    phase: int = 0  # purging: first those that wait, then those that are final
    cursor: tuple[int, int] | None = None  # a task (when submitted, its number), or a partition and the next offset
    matched: int = 0  # that matched when it began
    cancelled: int = 0
    purged: int = 0
    error: str = ""
    queue: int = 0  # that it is confined to; 0: none, ids start at 1
    who: str = ""
    as_of: int = 0  # what matched then is meant; 0: when it began
    rate: float = 0.0  # items per second; 0: as fast as it goes
    canary: int = 0
    has_continued: bool = False  # after the canary
    done: int = 0
    failed: int = 0
    errors: tuple[tuple[str, str, str], ...] = ()  # id, code, message: the last ones
    ends: tuple[int, ...] = ()  # offsets where the partitions of its queue ended when it began


class AttemptsLost(msgspec.Struct, array_like=True, tag_field="kind", tag=24, gc=False):
    """Attempts at tasks that were lost with their worker: counted apart. They are settled earlier in the same frame."""

    queue: int
    group: int
    at: int
    spans: list[Span]


class PauseSet(msgspec.Struct, array_like=True, tag_field="kind", tag=26, frozen=True):
    """What of a queue, a group, a namespace or the broker is paused from now on; neither: it is resumed.

    Without a queue, `namespace` is meant, or the broker as a whole. A group only has its delivery paused.
    """

    queue: int  # 0: no single queue, ids start at 1
    group: int  # −1: no single group
    namespace: str
    push: bool
    delivery: bool
    at: int
    reason: str = ""


Record = (
    Leased | Settled | QueueSet | QueueDeleted | PartitionsAdded | GroupSet | GroupDeleted | Trimmed | Compacted
    | Revived | Closing | Produced | ProducerSet | Answered | SinkCommitted | TasksNoted | TaskHeld | TaskFreed
    | UniqueTaken | ScheduleSet | ScheduleFired | TasksPurged | OperationSet | AttemptsLost | PauseSet
)  # fmt: skip

Int32s = NDArray[np.int32]
Part = tuple[int, int, int]  # partition, accepted rows, first offset

HEAD: Final = struct.Struct("<BxxxI")
FRAME_BYTES_MAX: Final = limits.frame_bytes_max - limits.KIB  # of all entries; the rest is for heads
PUSH_HEAD: Final = struct.Struct("<IIqQQII")
PUSH_PART: Final = struct.Struct("<IIq")
PUSH_ONE: Final = struct.Struct("<BxxxIIIqQQIIIIq")  # head, push head and one part in one go
PUSH_ONE_FLAGS: Final = struct.Struct("<BxxxIIIqQQIIIIq4xI")  # the same, and the columns of the batch behind it
PUSH: Final = 1
SEALED: Final = 25  # an entry of an encrypted queue, which `storage/sealed_frames.py` writes and opens


@dataclass(slots=True, eq=False)
class Push:
    """A batch appended to a queue. `parts` lists (partition, accepted rows, first offset), by partition."""

    queue: int
    pushed_at: int
    parts: Sequence[Part]
    batch: bytes | memoryview
    rows: Int32s | None = None  # partition of each row of the batch; None when all rows go to the one partition
    producer: tuple[int, int, int] = (0, 0, 0)  # id, epoch, sequence
    columns: Batch | None = None  # the batch, parsed, when the maker of the entry had it

    def rows_by_part(self) -> list[Int64s | None]:
        """For each part the rows of the batch that went to it; None for "all of them"."""
        if self.rows is None:
            return [None]
        order = np.argsort(self.rows, kind="stable")
        refused = int(np.searchsorted(self.rows[order], 0))
        ends = np.cumsum([count for _, count, _ in self.parts]) + refused
        return [order[end - count : end] for end, (_, count, _) in zip(ends.tolist(), self.parts, strict=True)]

    def positions(self, count: int) -> tuple[Int32s, Int64s]:
        """Partition and offset of each of the batch's `count` rows; −1 for a refused row."""
        if not self.parts:
            return np.full(count, -1, np.int32), np.full(count, -1, np.int64)
        if self.rows is None:
            ((number, _, first),) = self.parts
            return np.full(count, number, np.int32), np.arange(first, first + count)
        offsets = np.full(count, -1, np.int64)
        _, counts, firsts = np.array(self.parts, np.int64).T
        accepted = np.argsort(self.rows, kind="stable")[int((self.rows < 0).sum()) :]
        starts = np.cumsum(counts) - counts  # of each part among the accepted rows
        offsets[accepted] = np.repeat(firsts - starts, counts) + np.arange(len(accepted))
        return self.rows.astype(np.int32, copy=False), offsets


Entry = Push | Record

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Record)
_KINDS: Final[dict[type, int]] = {kind: kind.__struct_config__.tag for kind in Record.__args__}
_PADS: Final = tuple(bytes(n) for n in range(8))


def encode_push_one(queue: int, pushed_at: int, partition: int, offset: int, batch: bytes) -> bytes:
    """The bytes of a frame that pushes one batch of one message: `encode([Push(…)])`, shorter."""
    length = PUSH_HEAD.size + PUSH_PART.size + len(batch)
    return PUSH_ONE.pack(PUSH, length, queue, 0, pushed_at, 0, 0, 0, 1, partition, 1, offset) + batch


def encode_apart(entries: Sequence[Entry]) -> tuple[bytes, bytes | memoryview]:
    """The bytes of one frame's entries, and by itself the batch of a push that comes last: it need not be copied."""
    last = entries[-1]
    if type(last) is not Push:
        return encode(entries), b""
    push = encode_push(last)
    batch = push.pop()
    head = b"".join(push)
    pieces = _pieces(entries[:-1]) if len(entries) > 1 else []
    size = len(head) + len(batch)
    if pieces or size > FRAME_BYTES_MAX:
        check_frame(size + sum(map(len, pieces)))
    return b"".join([*pieces, HEAD.pack(PUSH, size), head]), batch


def encode(entries: Sequence[Entry]) -> bytes:
    """The bytes of one frame's entries."""
    if len(entries) == 1 and type(entries[0]) is not Push:
        body = _encoder.encode(entries[0])
        size = len(body)
        if size > FRAME_BYTES_MAX:
            check_frame(size)
        return HEAD.pack(_KINDS[type(entries[0])], size) + body + _PADS[-size % 8]
    data = b"".join(_pieces(entries))
    check_frame(len(data))
    return data


def check_frame(size: int) -> None:
    """Refuse a frame that is too large while nothing has changed: a decision that makes one must not stop the shard."""
    if size > FRAME_BYTES_MAX:
        raise TooLarge(f"a frame cannot hold {size:,} bytes", hint="send fewer items per request")


def _pieces(entries: Sequence[Entry]) -> list[Any]:
    pieces: list[Any] = []
    for entry in entries:
        pieces += entry_pieces(*encode_body(entry))
    return pieces


def entry_pieces(kind: int, body: list[Any]) -> list[Any]:
    """An entry of a kind, in pieces: its head, its body, and the padding."""
    length = sum(map(len, body))
    return [HEAD.pack(kind, length), *body, _PADS[-length % 8]]


def encode_body(entry: Entry) -> tuple[int, list[Any]]:
    """The kind of an entry, and its body in pieces."""
    return (PUSH, encode_push(entry)) if isinstance(entry, Push) else (_KINDS[type(entry)], [_encoder.encode(entry)])


def entry_bytes(entry: Entry) -> int:
    """How much of a frame an entry takes, to a few bytes; a batch is not copied for it."""
    if not isinstance(entry, Push):
        return HEAD.size + len(_encoder.encode(entry))
    rows = 0 if entry.rows is None else 4 * len(entry.rows)
    return HEAD.size + PUSH_HEAD.size + PUSH_PART.size * len(entry.parts) + rows + len(entry.batch)


def encode_push(push: Push) -> list[Any]:
    """The body of a push, in pieces, so that the batch is copied only once."""
    producer, epoch, sequence = push.producer
    rows = 0 if push.rows is None else len(push.rows)
    head = PUSH_HEAD.pack(push.queue, rows, push.pushed_at, producer, sequence, epoch, len(push.parts))
    pieces: list[Any] = [head, *(PUSH_PART.pack(part, count, first) for part, count, first in push.parts)]
    if push.rows is not None:
        column = push.rows.astype(np.int32, copy=False).tobytes()
        pieces += [column, _PADS[-len(column) % 8]]
    pieces.append(push.batch)
    return pieces


def decode(data: memoryview) -> Iterator[Entry]:
    """Entries of one frame. The frame's checksum has been verified: what is here, we wrote."""
    for kind, body in split(data):
        yield decode_push(body) if kind == PUSH else _decoder.decode(body)


def decode_push_one(data: memoryview) -> tuple[int, int, int, int, bytes] | None:
    """(queue, pushed_at, partition, offset, batch) of a frame that pushes one message of nobody, without options."""
    if len(data) < PUSH_ONE_FLAGS.size:
        return None
    (kind, length, queue, rows, pushed_at, producer, _, _, parts, partition, count, offset, flags) = (
        PUSH_ONE_FLAGS.unpack_from(data)
    )
    if kind != PUSH or rows or producer or flags or parts != 1 or count != 1 or HEAD.size + length != len(data):
        return None
    return queue, pushed_at, partition, offset, bytes(data[PUSH_ONE.size :])


def decode_pushes(data: memoryview) -> Iterator[Push]:
    """Only the pushes of one frame."""
    return (decode_push(body) for kind, body in split(data) if kind == PUSH)


def split(data: memoryview, *, is_raw: bool = False) -> Iterator[tuple[int, memoryview]]:
    """(kind, body) of each entry of one frame, for those who want only some of them; `is_raw`: sealed ones too."""
    position = 0
    while position < len(data):
        kind, length = HEAD.unpack_from(data, position)
        if kind == SEALED and not is_raw:
            raise is_encrypted()
        position += HEAD.size
        yield kind, data[position : position + length]
        position += length + -length % 8


def is_encrypted() -> StorageError:
    """The error for who reads entries of encrypted queues without the keys."""
    hint = "set master_key or kms_command, or use penstock.open(path, master_key=…)"
    return StorageError("it contains messages of encrypted queues, and no master key is set", hint=hint)


def decode_record(body: memoryview) -> Record:
    """The entry that a body of any kind but a push holds."""
    record: Record = _decoder.decode(body)
    return record


def decode_push(body: memoryview) -> Push:
    """The inverse of `encode_push`; the batch is a view into `body`."""
    queue, row_count, pushed_at, producer, sequence, epoch, part_count = PUSH_HEAD.unpack_from(body)
    position = PUSH_HEAD.size
    parts = [
        (part, count, first)
        for part, count, first in PUSH_PART.iter_unpack(body[position : position + part_count * PUSH_PART.size])
    ]
    position += part_count * PUSH_PART.size
    rows = None
    if row_count:
        rows = np.frombuffer(body, np.int32, row_count, position)
        position += row_count * 4 + row_count % 2 * 4
    return Push(queue, pushed_at, parts, body[position:], rows, (producer, epoch, sequence))
