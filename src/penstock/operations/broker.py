"""Operations on the broker itself, on its stored files, and those of sinks and producers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

from penstock.model import Freed, PauseState, check_name
from penstock.operations.base import SOME_QUEUE, Action, Check, Operation, Repeat, operation
from penstock.operations.types import NamespacePrefix, Paused, PauseReason, Profiled, ProfileSeconds, QueueName
from penstock.replies import BackupState, HistoryInfo, ServerInfo, SinkState


@operation(
    Action.MONITOR,
    http="GET /info",
    route="get_info",
    queues=(),
)
class Info(Operation[ServerInfo], frozen=True):
    """Version, durability and number of queues of the broker.

    Whoever connects may ask; queues that they may not monitor are not counted.
    """


@operation(
    Action.OPERATE,
    http="POST /seal",
    route="seal_segments",
    reply="sealed",
)
class Seal(Operation[int], frozen=True):
    """Write everything so far to the Parquet history."""


@operation(
    Action.OPERATE,
    http="POST /sync",
    route="sync_journal",
    reply="sequence",
)
class Sync(Operation[int], frozen=True):
    """Have the disk store everything so far; the sequence up to which the journal is durable.

    With the durability `os` or `interval` a reply does not wait for the disk. This does.
    """


@operation(
    Action.OPERATE,
    http="POST /compact",
    route="compact_segments",
)
class Compact(Operation[Freed], frozen=True):
    """Apply retention now."""


@operation(
    Action.MONITOR,
    http="GET /pauses",
    route="list_pauses",
    reply="pauses",
)
class Pauses(Operation[list[PauseState]], frozen=True):
    """What is paused: the broker, namespaces, queues and groups, since when and why."""

    def queues(self) -> Iterable[str]:
        return ()

    def visible(self, reply: list[PauseState], may: Callable[[str], bool]) -> list[PauseState]:
        return [pause for pause in reply if may(pause.queue or f"{pause.namespace}.*") or pause.scope == "broker"]


@operation(
    Action.OPERATE,
    http="POST /pause",
    errors=("invalid_field",),
    route="pause_broker",
    example={"what": "push", "reason": "the disk is replaced"},
)
class PauseBroker(Operation[None], frozen=True):
    """Pause every queue of the broker but its own: `what` is delivery, push or all."""

    what: Paused = "all"
    reason: PauseReason = ""


@operation(
    Action.OPERATE,
    http="POST /resume",
    errors=("invalid_field",),
    route="resume_broker",
    example={"what": "all"},
)
class ResumeBroker(Operation[None], frozen=True):
    """Resume the broker. What is paused by itself, a namespace, a queue or a group, stays so."""

    what: Paused = "all"


@operation(
    Action.MANAGE,
    http="POST /namespaces/{namespace}/pause",
    errors=("invalid_field",),
    route="pause_namespace",
    example={"what": "push", "reason": "the tenant moves"},
)
class PauseNamespace(Operation[None], frozen=True):
    """Pause every queue of a namespace: `what` is delivery, push or all.

    Those are the queues whose names begin with the namespace and a dot, be it declared or not, new ones too.
    """

    namespace: NamespacePrefix
    what: Paused = "all"
    reason: PauseReason = ""

    def queues(self) -> Iterable[str]:
        return (f"{self.namespace}.*",)


@operation(
    Action.MANAGE,
    http="POST /namespaces/{namespace}/resume",
    errors=("invalid_field",),
    route="resume_namespace",
    example={"what": "all"},
)
class ResumeNamespace(Operation[None], frozen=True):
    """Resume a namespace. What is paused by itself, a queue or a group, stays so."""

    namespace: NamespacePrefix
    what: Paused = "all"

    def queues(self) -> Iterable[str]:
        return (f"{self.namespace}.*",)


@operation(
    Action.PUSH,
    http="POST /producers",
    errors=("invalid_name", "disk_full"),
    route="register_producer",
    status=201,
    example={"name": "shop-1"},
    queues=(SOME_QUEUE,),
)
class InitProducer(Operation[tuple[int, int]], frozen=True):
    """The id and the next epoch of a named producer; earlier epochs are fenced.

    A producer belongs to who has registered it: the same name of somebody else is another producer.
    """

    producer: Annotated[str, Check(check_name)]


@operation(
    Action.OPERATE,
    http="POST /backups",
    route="start_backup",
    status=202,
    repeat=Repeat.NEVER,
    errors=("invalid_field", "conflict", "storage"),
    example={"destination": "/var/backups/penstock", "keep": 7},
)
class StartBackup(Operation[BackupState], frozen=True):
    """Begin a backup of everything to a directory of the broker's machine, or to a URL such as s3://bucket/path.

    With `keep`, older moments than the newest so many are removed afterwards. With a passphrase, keys and users are in
    it too, encrypted. The owner of the broker may name any destination, others one that the setting `backups` lists.
    """

    destination: str
    keep: int | None = None
    passphrase: str = ""

    def __repr__(self) -> str:
        return f"StartBackup({self.destination!r})"


@operation(
    Action.OPERATE,
    http="GET /backups",
    route="get_backup",
)
class GetBackup(Operation[BackupState], frozen=True):
    """The backup that runs, or the last one."""


@operation(
    Action.OPERATE,
    http="POST /profiles",
    route="take_profile",
    repeat=Repeat.NEVER,
    reply="text",
    errors=("invalid_field", "conflict"),
    example={"what": "memory", "seconds": 5},
)
class TakeProfile(Operation[str], frozen=True):
    """Look at what the broker is busy with: `cpu`, `memory` or `threads`. One at a time, where `profile` is set.

    `cpu` is collapsed stacks, `memory` what the lines of code hold that allocated meanwhile, `threads` where each
    thread and each task of the event loop is; names only.
    """

    what: Profiled
    seconds: ProfileSeconds = 5.0


# stored files, for readers of history: they hold every queue


@operation(Action.EXPORT)
class History(Operation[HistoryInfo], frozen=True):
    """Where the stored files are, and up to which sequence the journal is durable."""


@operation(Action.EXPORT)
class ListFiles(Operation[list[tuple[str, int]]], frozen=True):
    """Names and sizes of the files in one of the directories."""

    directory: str


@operation(Action.EXPORT)
class Fetch(Operation[bytes | None], frozen=True):
    """Part of a stored file; None when the file is not there."""

    name: str
    position: int
    length: int


@operation(Action.EXPORT)
class Pin(Operation[None], frozen=True):
    """Keep segment files from being removed while they are read; repeat it to renew the pin."""

    name: str
    files: list[str] | None = None


@operation(Action.EXPORT)
class Unpin(Operation[None], frozen=True):
    """Remove a pin."""

    name: str


# sinks; the queue is the one that the messages are for: who may push there may do this


@operation(Action.PUSH)
class Stage(Operation[None], frozen=True):
    """Write bytes into a staged file, at a position; the same bytes again do no harm."""

    queue: QueueName
    name: str
    position: int
    data: bytes


@operation(Action.PUSH)
class DiscardStaged(Operation[None], frozen=True):
    """Remove staged files that will not be committed."""

    queue: QueueName
    names: list[str]


@operation(Action.PUSH)
class CommitSink(Operation[SinkState], frozen=True):
    """Commit the next part of a sink's batch: the staged files that hold its messages. Repeat it until all are in.

    A batch is known by its number, so one that is already in stays as it is.
    """

    queue: QueueName
    sink: str
    batch: int
    staged: tuple[str, ...] = ()
    origin: str = ""  # what numbers the batches, such as the id of a streaming query; "" is anything
    is_reset: bool = False  # start over where another origin, or none, has been before
    is_once: bool = False  # nobody asks for it later than a day


@operation(Action.PUSH)
class GetSinkState(Operation[SinkState], frozen=True):
    """The last batch of a sink that is committed, and the progress of the next."""

    queue: QueueName
    sink: str
