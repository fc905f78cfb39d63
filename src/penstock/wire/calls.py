"""Operations other than pushing, leasing and settling: one struct of arguments each, and the type of the result.

The fields are those of the session's method of the same name. Instants are RFC 3339 text, durations seconds, ids and
receipts text. Every protocol speaks of these operations; TCP carries them as they are, in CALL frames.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.errors import BadRequest
from penstock.model import Freed, Message, MessageId, PartitionLag, QueueOptions, QueueStats, Reason
from penstock.replies import HistoryInfo, Member, Membership, SinkState
from penstock.requests import LetterFilter
from penstock.wire.requests import PartitionOnWire

PositionOnWire = str | int | dict[str, int]


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of an operation; a field that no operation has is refused."""


# queues


class Queues(Arguments):
    """The names of all queues."""


class CreateQueue(Arguments):
    """Make a queue."""

    name: str
    options: dict[str, Any] = {}
    exist_ok: bool = False


class UpdateQueue(Arguments):
    """Change options of a queue."""

    name: str
    changes: dict[str, Any]


class DeleteQueue(Arguments):
    """The queue, its messages and its dead letters."""

    name: str


class Options(Arguments):
    """The options of a queue."""

    name: str


class Stats(Arguments):
    """The account of a queue and of its groups."""

    queue: str


class Pause(Arguments):
    """Hand nothing out, or go on."""

    name: str
    paused: bool = True


class Purge(Arguments):
    """Drop everything unsettled."""

    name: str


# messages


class Read(Arguments):
    """Browse a partition from an offset or an instant on."""

    queue: str
    partition: int | str = 0
    offset: int | None = None
    timestamp: str | None = None
    limit: int = 100


class Peek(Arguments):
    """The next messages of the default group, without effect."""

    queue: str
    limit: int = 1


class Delayed(Arguments):
    """Messages that are not due yet."""

    queue: str
    limit: int = 100


class Cancel(Arguments):
    """Take a message back before anyone has it."""

    id: str


class Why(Arguments):
    """Why is this message not delivered?"""

    id: str


class PushStep(msgspec.Struct, frozen=True, tag="push"):
    """Part of a transaction: messages for one queue, as a batch."""

    queue: str
    batch: bytes
    partition: PartitionOnWire = None


class SettleStep(msgspec.Struct, frozen=True, tag="settle"):
    """Part of a transaction: the end of one delivery."""

    receipt: str
    outcome: int
    delay_seconds: float | None = None
    error: str = ""


class Transact(Arguments):
    """Pushes and settles, all or nothing. `sequence` numbers it among the pushes of the connection's producer."""

    operations: list[PushStep | SettleStep]
    sequence: int = 0


# groups


class CreateGroup(Arguments):
    """An independent reader of a queue."""

    queue: str
    group: str
    start: PositionOnWire = "earliest"
    observes: bool = False


class DeleteGroup(Arguments):
    """Forget a group."""

    queue: str
    group: str


class Seek(Arguments):
    """Move a group."""

    queue: str
    group: str
    to: PositionOnWire
    partition: int | str | None = None


class Groups(Arguments):
    """Where each group of a queue stands in each partition."""

    queue: str


class Join(Arguments):
    """Become a member of a group."""

    queue: str
    group: str
    member: str
    session_seconds: float = 10.0


class Heartbeat(Arguments):
    """Stay a member; `held` names the partitions that the member still works on."""

    queue: str
    group: str
    member: str
    generation: int
    held: list[str] = []


class Leave(Arguments):
    """Leave a group."""

    queue: str
    group: str
    member: str
    generation: int


class Members(Arguments):
    """Who is in a group."""

    queue: str
    group: str


# dead letters


class DeadLetters(Arguments):
    """Dead letters that nobody has dealt with."""

    queue: str
    filter: LetterFilter = LetterFilter()


class Redrive(Arguments):
    """Send dead letters back to where they died; `rate` messages per second when given."""

    queue: str
    filter: LetterFilter = LetterFilter()
    rate: float | None = None


class ReplaceLetters(Arguments):
    """Edited messages in, the dead letters they come from settled, in one go."""

    queue: str
    ids: list[str]
    batch: bytes


class PurgeDeadLetters(Arguments):
    """Throw all dead letters of a queue away."""

    queue: str


# the broker itself


class Seal(Arguments):
    """Write everything so far to the Parquet history now."""


class Compact(Arguments):
    """Apply retention now."""


class InitProducer(Arguments):
    """The id and the next epoch of a named producer; whoever had the one before is fenced."""

    name: str


class Info(Arguments):
    """Who answers here."""


class ServerInfo(msgspec.Struct, frozen=True):
    """What a broker says about itself."""

    version: str
    durability: str
    queues: int


# stored files, for readers of history


class History(Arguments):
    """Where the stored files are, and up to which sequence the journal is durable."""


class ListFiles(Arguments):
    """Names and sizes in one of the directories."""

    directory: str


class Fetch(Arguments):
    """A piece of a stored file."""

    name: str
    position: int
    length: int


class Pin(Arguments):
    """Keep segment files from going while they are read; renewed by doing it again."""

    name: str
    files: list[str] | None = None


class Unpin(Arguments):
    """Let them go."""

    name: str


# sinks; the queue is the one that the messages are for: who may push there may do this


class Stage(Arguments):
    """Bytes of a staged file; the same again do no harm."""

    queue: str
    name: str
    position: int
    data: bytes


class DiscardStaged(Arguments):
    """Staged files that will not be committed."""

    queue: str
    names: list[str]


class CommitSink(Arguments):
    """The next part of a batch. Known by its number: asked again, what is in stays as it is."""

    queue: str
    sink: str
    batch: int
    staged: list[str]
    origin: str = ""
    is_reset: bool = False
    is_once: bool = False


class SinkStateOf(Arguments):
    """How far a sink is."""

    queue: str
    sink: str


# name: (arguments, type of the result)
CALLS: Final[dict[str, tuple[type[Arguments], Any]]] = {
    "queues": (Queues, list[str]),
    "create_queue": (CreateQueue, None),
    "update_queue": (UpdateQueue, None),
    "delete_queue": (DeleteQueue, None),
    "options": (Options, QueueOptions),
    "stats": (Stats, QueueStats),
    "pause": (Pause, None),
    "purge": (Purge, None),
    "read": (Read, list[Message]),
    "peek": (Peek, list[Message]),
    "delayed": (Delayed, list[Message]),
    "cancel": (Cancel, None),
    "why": (Why, list[Reason]),
    "transact": (Transact, list[list[MessageId]]),
    "create_group": (CreateGroup, None),
    "delete_group": (DeleteGroup, None),
    "seek": (Seek, None),
    "groups": (Groups, dict[str, list[PartitionLag]]),
    "join": (Join, Membership),
    "heartbeat": (Heartbeat, Membership),
    "leave": (Leave, None),
    "members": (Members, list[Member]),
    "dead_letters": (DeadLetters, list[Message]),
    "redrive": (Redrive, int),
    "replace_letters": (ReplaceLetters, None),
    "purge_dead_letters": (PurgeDeadLetters, None),
    "seal": (Seal, int),
    "compact": (Compact, Freed),
    "init_producer": (InitProducer, tuple[int, int]),
    "info": (Info, ServerInfo),
    "history": (History, HistoryInfo),
    "list_files": (ListFiles, list[tuple[str, int]]),
    "fetch": (Fetch, bytes | None),
    "pin": (Pin, None),
    "unpin": (Unpin, None),
    "stage": (Stage, None),
    "discard_staged": (DiscardStaged, None),
    "commit_sink": (CommitSink, SinkState),
    "sink_state": (SinkStateOf, SinkState),
}
NAMES: Final = {arguments: name for name, (arguments, _) in CALLS.items()}


def arguments_of(name: str) -> type[Arguments]:
    """The struct of an operation; `BadRequest` when there is none of this name."""
    found = CALLS.get(name)
    if found is None:
        raise BadRequest(f"call: there is no operation {name!r}")
    return found[0]


def result_of(name: str) -> Any:
    """The type of what an operation answers."""
    return CALLS[name][1]
