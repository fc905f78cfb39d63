"""Operations other than pushing, leasing and settling: one struct of arguments each, and the type of the result.

The fields are those of the session's method of the same name. Instants are RFC 3339 text, durations seconds, ids and
receipts text. Every protocol speaks of these operations; TCP carries them as they are, in CALL frames.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.errors import BadRequest
from penstock.model import Freed, Message, MessageId, PartitionLag, QueueOptions, QueueStats, Reason
from penstock.model_tasks import OperationView, ScheduleView, Submitted, TaskPage, TaskView, WorkerNews, WorkerView
from penstock.replies import HistoryInfo, Member, Membership, SinkState
from penstock.wire.calls.arguments import Arguments
from penstock.wire.calls.groups import (
    CreateGroup,
    DeleteGroup,
    Groups,
    Heartbeat,
    Join,
    Leave,
    Members,
    Seek,
)
from penstock.wire.calls.messages import (
    Cancel,
    Delayed,
    Peek,
    PushStep,
    Read,
    SettleStep,
    Transact,
    Why,
)
from penstock.wire.calls.queues import (
    CreateQueue,
    DeadLetters,
    DeleteQueue,
    Options,
    Pause,
    Purge,
    PurgeDeadLetters,
    Queues,
    Redrive,
    ReplaceLetters,
    Stats,
    UpdateQueue,
)
from penstock.wire.calls.storage import (
    CommitSink,
    Compact,
    DiscardStaged,
    Fetch,
    History,
    Info,
    InitProducer,
    ListFiles,
    Pin,
    Seal,
    ServerInfo,
    SinkStateOf,
    Stage,
    Unpin,
)
from penstock.wire.calls.tasks import (
    AwaitNews,
    BeginOperation,
    CancelTask,
    DeleteSchedule,
    FindOperation,
    FindTask,
    FinishTasks,
    ForgetWorker,
    HeartbeatWorker,
    ListTasks,
    NoteProgress,
    Operations,
    RetryTask,
    Schedules,
    SetSchedule,
    StopOperation,
    SubmitTasks,
    WaitTask,
    Workers,
)
from penstock.wire.errors import ErrorReply
from penstock.wire.requests import PositionOnWire

__all__ = [
    "CALLS",
    "NAMES",
    "Arguments",
    "AwaitNews",
    "BeginOperation",
    "Cancel",
    "CancelTask",
    "CommitSink",
    "Compact",
    "CreateGroup",
    "CreateQueue",
    "DeadLetters",
    "Delayed",
    "DeleteGroup",
    "DeleteQueue",
    "DeleteSchedule",
    "DiscardStaged",
    "Fetch",
    "FindOperation",
    "FindTask",
    "FinishTasks",
    "ForgetWorker",
    "Groups",
    "Heartbeat",
    "HeartbeatWorker",
    "History",
    "Info",
    "InitProducer",
    "Join",
    "Leave",
    "ListFiles",
    "ListTasks",
    "Members",
    "NoteProgress",
    "Operations",
    "Options",
    "Pause",
    "Peek",
    "Pin",
    "PositionOnWire",
    "Purge",
    "PurgeDeadLetters",
    "PushStep",
    "Queues",
    "Read",
    "Redrive",
    "ReplaceLetters",
    "RetryTask",
    "Schedules",
    "Seal",
    "Seek",
    "ServerInfo",
    "SetSchedule",
    "SettleStep",
    "SinkStateOf",
    "Stage",
    "Stats",
    "StopOperation",
    "SubmitTasks",
    "Transact",
    "Unpin",
    "UpdateQueue",
    "WaitTask",
    "Why",
    "Workers",
    "arguments_of",
    "result_of",
]

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
    "submit_tasks": (SubmitTasks, list[Submitted]),
    "finish_tasks": (FinishTasks, dict[int, ErrorReply]),
    "note_progress": (NoteProgress, None),
    "task": (FindTask, TaskView),
    "tasks": (ListTasks, TaskPage),
    "wait_task": (WaitTask, TaskView),
    "cancel_task": (CancelTask, TaskView),
    "retry_task": (RetryTask, TaskView),
    "begin_operation": (BeginOperation, OperationView),
    "operation": (FindOperation, OperationView),
    "operations": (Operations, list[OperationView]),
    "stop_operation": (StopOperation, OperationView),
    "heartbeat_worker": (HeartbeatWorker, WorkerNews),
    "worker_news": (AwaitNews, WorkerNews),
    "forget_worker": (ForgetWorker, None),
    "workers": (Workers, list[WorkerView]),
    "set_schedule": (SetSchedule, ScheduleView),
    "delete_schedule": (DeleteSchedule, None),
    "schedules": (Schedules, list[ScheduleView]),
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
