"""Every error Penstock raises on purpose.

    PenstockError
    ├── InputError              the caller can fix the request; nothing was changed
    │   ├── InvalidName             invalid_name
    │   ├── InvalidField            invalid_field
    │   ├── UnknownOption           unknown_option
    │   ├── TooLarge                too_large
    │   ├── BadBatch                bad_batch
    │   ├── BadReceipt              bad_receipt
    │   ├── BadRequest              bad_request
    │   ├── BadQuery                bad_query
    │   └── BadSettings             bad_settings
    ├── StateError              the request is well formed, the state does not allow it
    │   ├── QueueNotFound           queue_not_found
    │   ├── QueueExists             queue_exists
    │   ├── GroupNotFound           group_not_found
    │   ├── GroupExists             group_exists
    │   ├── MessageNotFound         message_not_found
    │   ├── HistoryLost             history_lost
    │   ├── LeaseLost               lease_lost
    │   ├── QueueFull               queue_full
    │   ├── RateLimited             rate_limited
    │   ├── PushPaused              push_paused
    │   ├── ProducerFenced          producer_fenced
    │   ├── MemberFenced            member_fenced
    │   ├── SinkConflict            sink_conflict
    │   ├── TaskNotFound            task_not_found
    │   ├── TaskConflict            task_conflict
    │   ├── ScheduleNotFound        schedule_not_found
    │   ├── OperationNotFound       operation_not_found
    │   ├── AccessNotFound          access_not_found
    │   └── Closed                  closed
    ├── AccessError             who asks may not do this
    │   ├── NotAuthenticated        not_authenticated
    │   └── NotAuthorised           not_authorised
    ├── TaskError               errors that the caller of a task receives
    │   ├── TaskDied                task_died
    │   ├── TaskCancelled           task_cancelled
    │   ├── ResultLost              result_lost
    │   └── TaskUnfinished          task_unfinished
    ├── SparkMissing            spark_missing: Spark, or the Java that it needs, is not installed
    ├── ServerError             between a client and its broker
    │   ├── Unavailable             unavailable
    │   ├── Moved                   moved
    │   ├── TlsFailed               tls_failed
    │   └── Internal                internal
    └── StorageError            the disk under the shard
        ├── NotADataDirectory       not_a_data_directory
        ├── DirectoryInUse          directory_in_use
        ├── DiskReadOnly            disk_read_only
        ├── DiskFull                disk_full
        ├── StoreUnavailable        store_unavailable
        ├── StoreRefused            store_refused
        ├── Deposed                 deposed
        ├── Damaged                 damaged
        └── OutcomeUnknown          outcome_unknown

Each class has a `code` that stays the same over every protocol, and a `hint` that says what to do next. The code is the
name of the class in lower case, as above; groups have one of their own.
"""

from __future__ import annotations

import re
from typing import ClassVar, Final

MESSAGE_LENGTH: Final = 400  # what is longer repeats values that are cut
ECHO_LENGTH_MAX: Final = 100  # of such a value
_HEAD_LENGTH: Final = 2000
_TAIL_LENGTH: Final = 500
_LETTER: Final = r"""(?:[^'"`\\]|\\.)"""  # of a quoted value
_LONG: Final = re.compile(rf"""(['"`])({_LETTER}{{{ECHO_LENGTH_MAX}}}){_LETTER}+|(\S{{{ECHO_LENGTH_MAX}}})\S+""")


def printable(text: str) -> str:
    """Text with escapes in place of what a terminal, or a reader of logs, would obey rather than show."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in "\n\t" else ascii(letter)[1:-1] for letter in text)


def shown(value: object) -> str:
    """A value as an error repeats it: what is long is cut before anything is made of it."""
    if isinstance(value, str | bytes) and len(value) > ECHO_LENGTH_MAX:
        return f"{value[:ECHO_LENGTH_MAX]!r}…"
    return repr(value)


def _cut(message: str) -> str:
    """A message whose values are no longer than they may be."""
    if len(message) > _HEAD_LENGTH + _TAIL_LENGTH:
        message = f"{message[:_HEAD_LENGTH]}…{message[-_TAIL_LENGTH:]}"
    return _LONG.sub(lambda value: f"{value[1] or ''}{value[2] or value[3]}…", message)


class PenstockError(Exception):
    """The root: catch this to catch everything Penstock raises on purpose."""

    code: ClassVar[str] = "error"
    hint_default: ClassVar[str] = ""
    repeats_values: ClassVar[bool] = False  # those of the request, which may be of any length

    def __init_subclass__(cls) -> None:
        if "code" not in cls.__dict__:
            cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        if self.repeats_values and len(message) > MESSAGE_LENGTH:
            message = _cut(message)
        message = printable(message)
        super().__init__(message)
        self.message = message
        self.hint = self.hint_default if hint is None else hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InputError(PenstockError):
    """The request itself is wrong; nothing was changed."""

    code = "bad_input"
    repeats_values = True


class InvalidName(InputError):
    """A queue, group, partition or consumer name that could not be stored."""

    hint_default = "a name is 1 to 128 letters, digits, '.', '_' or '-', and starts with a letter or digit"


class InvalidField(InputError):
    """A field has a value of the wrong type or outside its range."""

    hint_default = "the message names the field and what it takes; nothing was changed"


class UnknownOption(InputError):
    """An option that does not exist; the hint names the closest one that does."""


class TooLarge(InputError):
    """A payload, key, header set or batch is over its limit."""

    hint_default = "split it up, or store it elsewhere and push its address"


class BadBatch(InputError):
    """Bytes that claim to be a batch and are not a sound one."""

    hint_default = "build batches with penstock.Batch; the layout is in docs/formats/batch.md"


class BadReceipt(InputError):
    """A receipt that was never issued by this system."""

    hint_default = "pass the receipt of a delivery unchanged: queue:partition:offset:attempt:nonce"


class BadRequest(InputError):
    """Bytes that are no request of the protocol they came by."""

    hint_default = "check the protocol's page in docs/: the request was not understood and nothing was changed"


class BadQuery(InputError):
    """A statement in SQL that cannot be run."""

    hint_default = "the views are messages, events, tasks, and one for each queue; see docs/sql.md"


class BadSettings(InputError):
    """Settings that a broker cannot start with; every line of the message is one problem."""

    repeats_values = False  # they are those of whoever starts the broker
    hint_default = "docs/configuration.md lists every setting"


class StateError(PenstockError):
    """A well-formed request that the present state does not allow."""

    code = "conflict"
    repeats_values = True


class QueueNotFound(StateError):
    """No queue has this name."""

    hint_default = "push to it or create it first; check the spelling"


class QueueExists(StateError):
    """The queue is there already, with other options."""

    hint_default = "update it to change its options, or say exist_ok if the same options will do"


class GroupNotFound(StateError):
    """The queue has no group of this name."""

    hint_default = "create_group makes it, and so does start= in lease, consume or subscribe"


class GroupExists(StateError):
    """The group is there already."""

    hint_default = "seek moves an existing group"


class MessageNotFound(StateError):
    """No message has this id, or it is no longer kept."""

    hint_default = "check the id; raise the queue's retention if it is needed for longer"


class HistoryLost(StateError):
    """A reader of the history wants messages that retention has removed."""

    hint_default = "start from what is kept, or let the reader skip what is gone (failOnDataLoss=false)"


class LeaseLost(StateError):
    """The lease behind this receipt expired, was settled already, or passed to another consumer."""

    hint_default = "the message is settled or will be delivered again; do not settle it twice"


class QueueFull(StateError):
    """The queue holds `max_length` unsettled messages and refuses new ones, or its namespace is at a quota."""

    hint_default = "wait for consumers, raise max_length, or set overflow='drop_oldest'"


class RateLimited(StateError):
    """A token bucket is empty; `retry_after_seconds` says when it will have enough."""

    hint_default = "wait as long as retry_after_seconds says, or raise the limit"

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_seconds = retry_after_seconds


class PushPaused(StateError):
    """Somebody has paused pushes to this queue, its namespace or the whole broker."""

    hint_default = "try again later; 'penstock pauses' shows who has paused what, and why"
    retry_after_seconds: ClassVar[float] = 10.0


class ProducerFenced(StateError):
    """Another producer of the same name has begun since: this one is a leftover and must stop."""

    hint_default = "only the latest producer of a name may push; start again to take over"


class MemberFenced(StateError):
    """A member of a group that the group has gone on without, or a generation that is over."""

    hint_default = "join the group again"


class SinkConflict(StateError):
    """A sink counts its batches for another queue, or another query has counted them before."""

    hint_default = "give it a sinkId of its own, or set resetSink=true to start over"


class TaskNotFound(StateError):
    """No task has this id, or it is no longer kept."""

    hint_default = "check the id; final tasks are kept for 7 days unless the broker's settings say otherwise"


class TaskConflict(StateError):
    """The state of the task does not allow this."""

    hint_default = "look at its state first"


class ScheduleNotFound(StateError):
    """No schedule has this name."""

    hint_default = "list them with 'penstock schedules'"


class OperationNotFound(StateError):
    """No operation has this id, or it was over long ago."""

    hint_default = "list them with 'penstock operations'"


class AccessNotFound(StateError):
    """No key, user, role or namespace has this name."""

    hint_default = "list them with 'penstock key list', 'user list', 'role list' or 'namespace list'"


class Closed(StateError):
    """The handle was closed."""

    hint_default = "open it again with penstock.open()"


class AccessError(PenstockError):
    """Who asks may not do this."""

    code = "access"


class NotAuthenticated(AccessError):
    """The broker requires a token, and it is missing or not valid."""

    hint_default = "pass a valid token"


class NotAuthorised(AccessError):
    """Who asks is known, and may not do this."""

    hint_default = "ask the broker's operator for the right to do this"


class TaskError(PenstockError):
    """There is no result to be had."""

    code = "task"


class TaskDied(TaskError):
    """The task failed for good; the message ends with the traceback of its last run."""

    hint_default = "fix the cause, then retry it"


class ResultLost(TaskError):
    """The task is completed, and its result could not be stored: it is not JSON, or too large."""

    hint_default = "its work is done; return what JSON can hold"


class TaskCancelled(TaskError):
    """The task was cancelled before it had a result."""


class TaskUnfinished(TaskError, TimeoutError):
    """The result was waited for, and the time is over."""

    hint_default = "wait for longer; the task goes on"


class SparkMissing(PenstockError):
    """PySpark, or the Java that it runs on, is not there."""

    hint_default = "pip install 'penstock-mq[spark]'; apt install openjdk-17-jre-headless"


class ServerError(PenstockError):
    """Between a client and its broker."""

    code = "server"


class Unavailable(ServerError):
    """No broker answers, or the connection was lost. What was under way may or may not have happened."""

    hint_default = "check that the broker runs and the address is right, then try again"

    def __init__(self, message: str, *, retry_after_seconds: float = 0.0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_seconds = retry_after_seconds  # 0: nobody knows


class Moved(ServerError):
    """This node is a spare; `address` is where the owner can be reached, empty when there is none right now."""

    hint_default = "clients of Penstock follow by themselves; others connect to the address"

    def __init__(self, message: str, *, address: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.address = address


class TlsFailed(ServerError):
    """The broker or the client could not prove itself, or one of them does not speak TLS; nothing was sent."""

    hint_default = "docs/security.md has a section about TLS"


class Internal(ServerError):
    """A fault of the broker's own; its log has the details."""

    hint_default = "look into the broker's log; please report this"


class StorageError(PenstockError):
    """The disk under the shard."""

    code = "storage"


class NotADataDirectory(StorageError):
    """The path is a file, or a directory that holds something else."""

    hint_default = "name a new or empty directory, or one that Penstock made"


class DirectoryInUse(StorageError):
    """Another process holds the data directory."""

    hint_default = "one process at a time may hold a data directory; stop that one or connect to it"


class DiskReadOnly(StorageError):
    """The data directory cannot be written."""

    hint_default = "make the directory writable for this user"


class DiskFull(StorageError):
    """Free space is under the guard; pushes are refused, settles still work."""

    hint_default = "free some space or lower retention; consumers may go on"


class StoreUnavailable(StorageError):
    """The connection to the store was lost, or a deadline passed. What was sent may or may not have happened."""

    hint_default = "check that PostgreSQL runs and can be reached; Penstock goes on by itself when it is back"


class StoreRefused(StorageError):
    """The store refused a connection or a statement; `sqlstate` is PostgreSQL's own code, empty without an answer."""

    sqlstate = ""


class Deposed(StorageError):
    """Another node owns the shard now: this one changes nothing any more."""

    hint_default = "the node becomes a spare, and clients go to the new owner"


class Damaged(StorageError):
    """Bytes that were durable once no longer match their checksum."""

    hint_default = "run 'penstock doctor' to see what is affected, then 'penstock doctor --repair'"


class OutcomeUnknown(StorageError):
    """A write or sync failed midway: the operation may or may not have happened."""

    hint_default = "look before you retry; the shard must be opened again"
