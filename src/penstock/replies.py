"""What a shard, or a broker, answers: the common language of the embedded core, the wire and the client.

Replies hold columns and rows, not messages: an id, a payload or a receipt is made when someone looks at it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import repeat
from typing import Any, Final, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.model import Message, MessageId

Int64s = NDArray[np.int64]
_id_of: Final = partial(tuple.__new__, MessageId)  # what the class does, without a call in Python


class Times(Protocol):
    """When messages were pushed, by offset: read from a segment when someone asks."""

    def of(self, offset: int) -> int: ...

    def of_all(self, offsets: Sequence[int]) -> Int64s: ...


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Some deliveries whose rows lie in one batch."""

    batch: Any  # a Batch; before it is loaded, the extent of a segment that holds it
    rows: slice | Int64s | list[int]  # of the batch, one per offset
    partitions: str | Sequence[str]  # one name when all are of the same
    offsets: Sequence[int]
    attempts: int | Sequence[int]  # one number when all are the same
    pushed_at: int | Sequence[int] | Times  # one instant when all are the same, one each, or by offset

    def partition(self, index: int) -> str:
        return self.partitions if isinstance(self.partitions, str) else self.partitions[index]

    def part(self, first: int, end: int) -> Piece:
        """Some of its deliveries."""
        if first == 0 and end == len(self.offsets):
            return self
        rows = self.rows
        return Piece(
            self.batch,
            slice(rows.start + first, rows.start + end) if isinstance(rows, slice) else rows[first:end],
            self.partitions if isinstance(self.partitions, str) else self.partitions[first:end],
            self.offsets[first:end],
            self.attempts if isinstance(self.attempts, int) else self.attempts[first:end],
            self.pushed_at[first:end] if isinstance(self.pushed_at, Sequence) else self.pushed_at,
        )

    def payloads(self) -> list[bytes]:
        """One for each delivery, in order."""
        if len(self.offsets) == 1:
            return [self.batch.payload(self.row(0))]
        rows = np.array(self.rows, np.int64) if isinstance(self.rows, list) else self.rows
        payloads: list[bytes] = self.batch.payloads(rows)
        return payloads

    def row(self, index: int) -> int:
        return self.rows.start + index if isinstance(self.rows, slice) else int(self.rows[index])

    def attempt(self, index: int) -> int:
        return self.attempts if isinstance(self.attempts, int) else self.attempts[index]

    def pushed(self, index: int) -> int:
        if isinstance(self.pushed_at, int):
            return self.pushed_at
        return self.pushed_at[index] if isinstance(self.pushed_at, Sequence) else self.pushed_at.of(self.offsets[index])

    def pushed_all(self) -> Sequence[int] | Int64s:
        """One instant for each delivery, in order."""
        if isinstance(self.pushed_at, int):
            return [self.pushed_at] * len(self.offsets)
        return self.pushed_at if isinstance(self.pushed_at, Sequence) else self.pushed_at.of_all(self.offsets)


class LeaseReply(msgspec.Struct, frozen=True, gc=False):
    """A lease: `nonce` 0 and no pieces when there was nothing to be had."""

    queue: str
    group: str
    nonce: int
    expires_at: int
    pieces: Sequence[Piece]
    count: int
    lease_seconds: float = 0.0  # how long it lasts, unless it is extended
    batch_max: int = 0  # how many a consumer should take at a time, by the options of the queue; 0: any number


class LeaseReplies(msgspec.Struct, frozen=True, gc=False):
    """A lease over several queues: one lease for each queue that had something; none when there was nothing."""

    leases: Sequence[LeaseReply]
    count: int


def leases_of(reply: Any) -> Sequence[LeaseReply]:
    """The leases of a reply, over one queue or over several; none when it is another reply."""
    if isinstance(reply, LeaseReplies):
        return reply.leases
    return (reply,) if isinstance(reply, LeaseReply) else ()


class PushFailure(msgspec.Struct, array_like=True, frozen=True):
    """Why a message of a push was not stored, as an error travels."""

    code: str
    message: str
    hint: str = ""


class PushReply(msgspec.Struct, frozen=True):
    """Where each row of a pushed batch went. `rows` is the partition number of each row, as the journal has it."""

    queue: str
    count: int
    parts: Sequence[tuple[str, int, int, Int64s | None]]  # partition, accepted rows, first offset, rows (None: all)
    duplicates: Mapping[int, MessageId]
    failures: Mapping[int, PushFailure] = {}  # rows that were skipped

    def among(self, rows: Sequence[int], count: int, failures: Mapping[int, PushFailure]) -> PushReply:
        """This reply as that of a larger push: its rows are these of `count`, and some more failed."""
        if len(rows) == count:
            return msgspec.structs.replace(self, failures={**self.failures, **failures})
        places = np.array(rows, np.int64)
        parts = [
            (partition, accepted, first, places if where is None else places[where])
            for partition, accepted, first, where in self.parts
        ]
        # A row repeated within the batch names the row that came first.
        duplicates = {
            rows[row]: id if id.partition else MessageId(id.queue, "", rows[id.offset])
            for row, id in self.duplicates.items()
        }
        known = {rows[row]: failure for row, failure in self.failures.items()}
        return PushReply(self.queue, count, parts, duplicates, {**known, **failures})

    def ids(self) -> list[MessageId]:
        """One id per row that did not fail, in order; a duplicate has the id of the message that came first."""
        return [id for id in self.places() if id is not None]

    def places(self) -> Sequence[MessageId | None]:
        """One id per row, in order; None for one that failed."""
        if len(self.parts) == 1 and not self.duplicates:
            ((partition, accepted, first, rows),) = self.parts
            if rows is None and accepted == self.count:
                return list(map(_id_of, zip(repeat(self.queue), repeat(partition), range(first, first + accepted))))
        ids: list[MessageId | None] = [None] * self.count
        for partition, accepted, first, rows in self.parts:
            where = range(accepted) if rows is None else rows.tolist()
            for index, row in enumerate(where):
                ids[row] = MessageId(self.queue, partition, first + index)
        for row, known in self.duplicates.items():
            # A row repeated within the batch points at the row that came first.
            ids[row] = known if known.partition else ids[known.offset]
        return ids


class Membership(msgspec.Struct, frozen=True):
    """The assignment of a member of a group, received when it joins and with every heartbeat."""

    member: str
    generation: int
    assigned: list[str]  # partitions that are its own now
    revoking: list[str]  # partitions that it shall release: finish, then leave them out of `held`
    heartbeat_seconds: float  # how often to send one


class Member(msgspec.Struct, frozen=True):
    """A member of a group."""

    member: str
    generation: int
    partitions: list[str]
    last_heartbeat_at: datetime


class SinkState(msgspec.Struct, frozen=True):
    """How far a sink is: `batch` is the last that is in, −1 for none; of the next, `done` of `count` files are in."""

    batch: int = -1
    done: int = 0
    count: int = 0


class HistoryInfo(msgspec.Struct, frozen=True):
    """The location of the stored files, and the sequence up to which the journal is durable."""

    shard_id: str  # 32 hex digits, as the file PENSTOCK has them
    directory: str
    host: str  # where that directory is
    durable_sequence: int
    incarnation: str = ""  # of a directory that was restored: then the shard's id is not enough to tell it

    @property
    def identity(self) -> str:
        """What tells this history from every other."""
        return self.incarnation or self.shard_id


class BackupState(msgspec.Struct, frozen=True):
    """The running backup, or the last one since the broker started."""

    destination: str = ""
    status: Literal["none", "running", "done", "failed"] = "none"
    bytes_done: int = 0
    bytes_total: int = 0  # that had to be copied
    moment: str = ""  # its id, when it is done
    sequence: int = 0  # of the last journal frame in it
    code: str = ""  # of the error, when it failed
    error: str = ""

    @property
    def is_over(self) -> bool:
        return self.status != "running"


class QueueKeys(msgspec.Struct, frozen=True):
    """Data keys by id. An erased key is empty."""

    keys: list[tuple[bytes, bytes]]

    def __repr__(self) -> str:
        return f"<QueueKeys: {len(self.keys)}>"


class DataKeyView(msgspec.Struct, frozen=True):
    """A data key, without the key material."""

    id: str
    queue: str
    created_at: datetime
    state: str  # current, old or erased


class ServerInfo(msgspec.Struct, frozen=True):
    """The version and settings that a broker reports about itself."""

    version: str
    durability: str
    queues: int


class MessageState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a message in one group, and the reason: `code` and `text` are those of `why`."""

    group: str
    state: str  # ready, delayed, leased, waiting, settled, dead, lost or skipped
    code: str
    text: str
    attempts: int = 0  # that have failed so far
    outcome: str = ""  # how the last delivery ended that left it unsettled
    error: str = ""  # of the last attempt that failed
    failed_at: datetime | None = None
    due_at: datetime | None = None  # of the next attempt
    consumer: str = ""  # who holds it
    leased_at: datetime | None = None
    expires_at: datetime | None = None  # when that lease ends


class MessageDetails(msgspec.Struct, frozen=True):
    """A message and its state in each group."""

    message: Message
    groups: list[MessageState]


class MessageEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a message: pushed, leased, redriven, or the outcome of a delivery."""

    at: datetime
    what: str  # pushed, leased, redriven, or an outcome: acked, retried, timed_out, dead, expired, …
    group: str = ""
    attempt: int = 0
    consumer: str = ""
    error: str = ""
    due_at: datetime | None = None  # of the next attempt, while the journal holds the event
    letter: MessageId | None = None  # the dead letter that it became, or came back from


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """One message and its events, oldest first."""

    id: MessageId
    pushed_at: datetime
    key: str | None
    trace: str | None
    events: list[MessageEvent]


class MessageSearch(msgspec.Struct, frozen=True, kw_only=True):
    """The messages found, newest first, and how far back the search went."""

    timelines: list[Timeline]
    examined: int  # messages that were looked at
    looked_back_to: datetime | None  # when the oldest of them was pushed; None when there are none
    is_complete: bool  # nothing older is kept


class MessagePage(msgspec.Struct, frozen=True, kw_only=True):
    """Matching messages, newest first, and how far back the search went."""

    messages: list[Message]
    cursor: str | None = None  # continues the search; None: nothing is left
    examined: int = 0  # messages that were looked at for this page
    looked_back_to: datetime | None = None  # when the oldest of them was pushed


class PartitionSeek(msgspec.Struct, frozen=True):
    """The effect of a seek of a group in one partition."""

    partition: str
    from_offset: int  # the oldest that the group may still get
    to_offset: int
    redelivered: int  # messages that are settled, and would be delivered again
    skipped: int  # messages that are not settled, and would not be delivered
    leased: int  # messages whose leases would end


class SeekPreview(msgspec.Struct, frozen=True):
    """The effect that a seek of a group would have."""

    redelivered: int
    skipped: int
    leased: int
    partitions: list[PartitionSeek]


class LeaseView(msgspec.Struct, frozen=True):
    """An active lease."""

    lease_id: str  # 16 hex digits
    group: str
    consumer: str
    leased_at: datetime
    expires_at: datetime
    messages: int  # that are not settled yet
    partitions: list[str]


class ConnectionView(msgspec.Struct, frozen=True, kw_only=True):
    """A connection to a broker: its principal, age and activity."""

    connection_id: str
    protocol: str  # tcp, json, http, websocket or grpc
    principal: str
    address: str
    client: str  # what the program calls itself
    since: datetime
    streams: int  # deliveries and events that are sent as they come
    in_flight: int  # requests without a reply
    producer: str  # its id and epoch; "" when it numbers nothing


class ConnectionPage(msgspec.Struct, frozen=True, kw_only=True):
    """Connections, oldest first. `total` is the number of all connections."""

    connections: list[ConnectionView]
    total: int


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A process that serves a store, or is a spare for it."""

    node: str
    address: str
    role: Literal["owner", "spare"]
    state: Literal["alive", "draining", "dead"]
    heartbeat_age_seconds: float | None = None  # since its last heartbeat was seen; None: not yet
    durable_sequence: int | None = None
    lag: int | None = None  # frames of the owner that are not durable yet


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """The storage of a broker, and the nodes that share it. A directory or memory is never shared."""

    store: Literal["file", "memory", "postgres"]
    is_shared: bool
    location: str  # "" for who may not operate the broker
    status: Literal["ok", "away", "failed"]
    problem: str
    node: str
    owner: str
    term: int  # how often the owner has changed
    nodes: list[NodeView]


class TraceRun(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery of a message, or a run of a task. If it has not ended, it has no end and no outcome."""

    group: str
    attempt: int
    consumer: str
    started_at: datetime
    ended_at: datetime | None = None
    outcome: str = ""
    error: str = ""


class TraceStep(msgspec.Struct, frozen=True, kw_only=True):
    """A message or a task of a trace, with its total waiting and running time."""

    kind: Literal["message", "task"]
    id: MessageId
    queue: str
    key: str | None
    task_id: str = ""
    task_type: str = ""
    state: str = ""  # of a task
    pushed_at: datetime
    wait_seconds: float
    run_seconds: float
    runs: list[TraceRun]


class TraceReach(msgspec.Struct, frozen=True, kw_only=True):
    """How far back a queue was searched."""

    queue: str
    examined: int
    looked_back_to: datetime | None
    is_complete: bool


class TraceView(msgspec.Struct, frozen=True, kw_only=True):
    """The messages and tasks of a trace, in the order of their pushes.

    `is_cut` means that there are more of them, or that some queues were not searched.
    """

    trace: str
    began_at: datetime | None
    ended_at: datetime | None
    steps: list[TraceStep]
    queues: list[TraceReach]
    is_cut: bool


class PastGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group at a moment: `lag` counts unsettled messages, `leased` those in flight, `depth` the rest."""

    group: str
    depth: int
    leased: int
    lag: int


class PastQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue at a moment: lag and depth of the group that was furthest behind, and the leases of all groups.

    `is_cut` means that the moment is before `begins_at`, the start of the queue's history, so there are no numbers.
    """

    queue: str
    depth: int | None
    leased: int | None
    lag: int | None
    begins_at: datetime | None
    is_cut: bool
    groups: list[PastGroup]


class PastState(msgspec.Struct, frozen=True, kw_only=True):
    """The queues at a moment in the past."""

    at: datetime
    begins_at: datetime | None  # the latest beginning of the history of a queue; None: all of it is kept
    is_cut: bool
    queues: list[PastQueue]


class PipelineRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a pipeline, as reported by the process that runs it."""

    pipeline: str
    run: str
    state: Literal["running", "done", "failed"]
    started_at: datetime | None = None
    ended_at: datetime | None = None
    rows: int | None = None
    error: str = ""
    queues: tuple[str, ...] = ()
    summary: str = ""
    has_report: bool = False


class PipelineView(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline and its last runs, newest first."""

    name: str
    runs: list[PipelineRun]
