"""Operations on the broker itself and on its stored files, and operations of sinks and producers."""

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
    """Get the broker's version, durability and number of queues.

    Every authenticated caller may ask. Queues that the caller may not monitor are not counted.
    """


@operation(
    Action.OPERATE,
    http="POST /seal",
    route="seal_segments",
    reply="sealed",
)
class Seal(Operation[int], frozen=True):
    """Write all messages so far to Parquet segments."""


@operation(
    Action.OPERATE,
    http="POST /sync",
    route="sync_journal",
    reply="sequence",
)
class Sync(Operation[int], frozen=True):
    """Sync the journal to disk. Returns the sequence up to which it is durable.

    With durability `os` or `interval`, replies do not wait for the disk. This operation does.
    """


@operation(
    Action.OPERATE,
    http="POST /compact",
    route="compact_segments",
)
class Compact(Operation[Freed], frozen=True):
    """Apply retention now, and return what was freed."""


@operation(
    Action.MONITOR,
    http="GET /pauses",
    route="list_pauses",
    reply="pauses",
    queues=(),
)
class Pauses(Operation[list[PauseState]], frozen=True):
    """List everything that is paused, with when and why: the broker, namespaces, queues and groups."""

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
    """Pause all queues of the broker except its internal ones.

    `what` is `delivery`, `push` or `all`.
    """

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
    """Resume the broker. Namespaces, queues and groups that were paused separately stay paused."""

    what: Paused = "all"


@operation(
    Action.MANAGE,
    http="POST /namespaces/{namespace}/pause",
    errors=("invalid_field",),
    route="pause_namespace",
    example={"what": "push", "reason": "the tenant moves"},
)
class PauseNamespace(Operation[None], frozen=True):
    """Pause all queues of a namespace.

    `what` is `delivery`, `push` or `all`. This affects every queue whose name begins with the namespace and a dot,
    including queues created later. The namespace does not have to be declared.
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
    """Resume a namespace. Queues and groups that were paused separately stay paused."""

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
    """Register a named producer. Returns its id and a new epoch, and fences earlier epochs.

    A producer belongs to the principal that registered it. The same name, registered by another principal, is a
    different producer.
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
    """Start a full backup to a directory on the broker's machine, or to a URL such as s3://bucket/path.

    With `keep`, only that number of the newest moments is kept afterwards. With `passphrase`, keys and users are
    included, encrypted. The owner of the broker may use any destination; others may use those listed in the setting
    `backups`.
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
    """Get the state of the running backup, or of the last one."""


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
    """Profile the broker: `cpu`, `memory` or `threads`.

    The setting `profile` must be on, and only one profile can run at a time. `cpu` returns collapsed stacks. `memory`
    returns the lines of code that allocated memory during the profile and still hold it. `threads` returns the current
    position of each thread and each task of the event loop. The result contains names only, no values.
    """

    what: Profiled
    seconds: ProfileSeconds = 5.0


# stored files, for readers of history: they hold every queue


@operation(Action.EXPORT)
class History(Operation[HistoryInfo], frozen=True):
    """Get the location of the stored files, and the sequence up to which the journal is durable."""


@operation(Action.EXPORT)
class ListFiles(Operation[list[tuple[str, int]]], frozen=True):
    """List the names and sizes of the files in one of the directories."""

    directory: str


@operation(Action.EXPORT)
class Fetch(Operation[bytes | None], frozen=True):
    """Read part of a stored file. Returns None if the file does not exist."""

    name: str
    position: int
    length: int


@operation(Action.EXPORT)
class Pin(Operation[None], frozen=True):
    """Protect segment files from being removed while they are read. Repeat it to renew the pin."""

    name: str
    files: list[str] | None = None


@operation(Action.EXPORT)
class Unpin(Operation[None], frozen=True):
    """Remove a pin."""

    name: str


# sinks; the queue is the one that the messages are for: who may push there may do this


@operation(Action.PUSH)
class Stage(Operation[None], frozen=True):
    """Write bytes to a staged file at a position. Writing the same bytes again is harmless."""

    queue: QueueName
    name: str
    position: int
    data: bytes


@operation(Action.PUSH)
class DiscardStaged(Operation[None], frozen=True):
    """Delete staged files that will not be committed."""

    queue: QueueName
    names: list[str]


@operation(Action.PUSH)
class CommitSink(Operation[SinkState], frozen=True):
    """Commit the next part of a sink's batch, from its staged files. Repeat it until all parts are committed.

    A batch is identified by its number, so a batch that was already committed is not committed again.
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
    """Get the last committed batch of a sink, and the progress of the next one."""

    queue: QueueName
    sink: str
