"""Every error Penstock raises on purpose.

    PenstockError
    ├── InputError              the caller can fix the request; nothing was changed
    │   ├── InvalidName             invalid_name
    │   ├── InvalidField            invalid_field
    │   ├── UnknownOption           unknown_option
    │   ├── TooLarge                too_large
    │   ├── NotJson                 not_json: a ValueError too
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
    │   ├── WorkerNotFound          worker_not_found
    │   ├── ConnectionNotFound      connection_not_found
    │   ├── RunNotFound             run_not_found
    │   ├── OperationNotFound       operation_not_found
    │   ├── AccessNotFound          access_not_found
    │   └── Closed                  closed
    ├── AccessError             the caller may not do this
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
name of the class in lower case, as above; groups have their own.
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


def reason(error: BaseException) -> str:
    """Why an operation of the system failed, in words: without the number of the error and what Python adds."""
    if isinstance(error, ConnectionRefusedError) or "Connect call failed" in str(error):
        return "connection refused"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if not text:
        return type(error).__name__
    file = getattr(error, "filename", None)
    about = f"{file}: " if isinstance(file, str) else ""
    return f"{about}{text[:1].lower()}{text[1:]}" if text[1:2].islower() else f"{about}{text}"


def _cut(message: str) -> str:
    """A message whose values are no longer than they may be."""
    if len(message) > _HEAD_LENGTH + _TAIL_LENGTH:
        message = f"{message[:_HEAD_LENGTH]}…{message[-_TAIL_LENGTH:]}"
    return _LONG.sub(lambda value: f"{value[1] or ''}{value[2] or value[3]}…", message)


class PenstockError(Exception):
    """The base class of all errors that Penstock raises on purpose."""

    code: ClassVar[str] = "error"
    hint_default: ClassVar[str] = ""
    repeats_values: ClassVar[bool] = False  # those of the request, which may be of any length
    is_counted = False  # among the refusals of a broker

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
    """A queue, group, partition or consumer name is not valid."""

    hint_default = "a name is 1 to 128 letters, digits, '.', '_' or '-', and starts with a letter or digit"


class InvalidField(InputError):
    """A field has a value of the wrong type or outside its range; the message says what it takes."""


class UnknownOption(InputError):
    """The option does not exist; the hint names the closest one that does."""


class TooLarge(InputError):
    """A payload, key, set of headers or batch exceeds its limit."""

    hint_default = "split it, or store it elsewhere and push a reference to it"


class NotJson(InputError, ValueError):
    """The payload that was to be decoded as JSON is something else."""

    hint_default = "read its bytes with .payload; a payload is JSON if a dict, list or number was pushed"


class BadBatch(InputError):
    """The bytes are not a valid batch."""

    hint_default = "build batches with penstock.Batch; the layout is in docs/formats/batch.md"


class BadReceipt(InputError):
    """The receipt is not one that this system issued."""

    hint_default = "pass the receipt of a delivery unchanged: queue:partition:offset:attempt:nonce"


class BadRequest(InputError):
    """The bytes are not a request of the protocol that they arrived by."""


class BadQuery(InputError):
    """The SQL statement cannot be run."""

    hint_default = "the views are messages, events, tasks, and one for each queue; see docs/sql.md"


class BadSettings(InputError):
    """The broker cannot start with these settings; every line of the message is one problem."""

    repeats_values = False  # they are those of whoever starts the broker
    hint_default = "docs/configuration.md lists every setting"


class StateError(PenstockError):
    """The request is valid, but the current state does not allow it."""

    code = "conflict"
    repeats_values = True


class QueueNotFound(StateError):
    """No queue has this name."""

    hint_default = "push to it or create it first; check the spelling"


class QueueExists(StateError):
    """The queue already exists, with other options."""

    hint_default = "update it to change its options, or pass exist_ok=True"


class GroupNotFound(StateError):
    """The queue has no group of this name."""

    hint_default = "create_group creates it, and so does start= in lease, consume or subscribe"


class GroupExists(StateError):
    """The group already exists."""

    hint_default = "use seek to move an existing group"


class MessageNotFound(StateError):
    """No message has this id, or it is no longer kept."""

    hint_default = "check the id; raise the queue's retention to keep messages longer"


class HistoryLost(StateError):
    """Retention has removed messages that a reader of the history asked for."""

    hint_default = "start from the oldest message kept, or skip what is gone (failOnDataLoss=false)"


class LeaseLost(StateError):
    """The lease behind this receipt expired, was already settled, or passed to another consumer."""

    hint_default = "do not settle it again: the message is settled, or will be delivered again"


class QueueFull(StateError):
    """The queue holds `max_length` unsettled messages, or its namespace has reached a quota."""

    hint_default = "wait for consumers, raise max_length, or set overflow='drop_oldest'"


class RateLimited(StateError):
    """A rate limit is reached; `retry_after_seconds` says when to retry."""

    hint_default = "retry after retry_after_seconds, or raise the limit"

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_seconds = retry_after_seconds


class PushPaused(StateError):
    """Pushes to this queue, its namespace or the whole broker are paused."""

    hint_default = "try again later; 'penstock pauses' shows who has paused what, and why"
    retry_after_seconds: ClassVar[float] = 10.0


class ProducerFenced(StateError):
    """A newer producer with the same name has taken over: this one must stop."""

    hint_default = "only the latest producer of a name may push; start again to take over"


class MemberFenced(StateError):
    """The group has rebalanced without this member, or its generation is over."""

    hint_default = "join the group again"


class SinkConflict(StateError):
    """The sink is bound to another queue or to another query."""

    hint_default = "give it a sinkId of its own, or set resetSink=true to start over"


class TaskNotFound(StateError):
    """No task has this id, or it is no longer kept."""

    hint_default = "check the id; final tasks are kept for 7 days unless the broker's settings say otherwise"


class TaskConflict(StateError):
    """The state of the task does not allow this."""

    hint_default = "check its state first"


class ScheduleNotFound(StateError):
    """No schedule has this name."""

    hint_default = "list them with 'penstock schedules'"


class WorkerNotFound(StateError):
    """No worker with this id has sent a heartbeat recently."""

    hint_default = "list them with 'penstock workers'"


class ConnectionNotFound(StateError):
    """No connection has this id, or it has ended."""

    hint_default = "list them with 'penstock connections list'"


class RunNotFound(StateError):
    """No run of this pipeline has this id, or it is no longer kept."""

    hint_default = "list them with 'penstock pipeline runs'"


class OperationNotFound(StateError):
    """No operation has this id, or it finished long ago."""

    hint_default = "list them with 'penstock operations'"


class AccessNotFound(StateError):
    """No key, user, role or namespace has this name."""

    hint_default = "list them with 'penstock key list', 'user list', 'role list' or 'namespace list'"


class Closed(StateError):
    """The handle was closed."""

    hint_default = "open it again with penstock.open()"


class AccessError(PenstockError):
    """The caller may not do this."""

    code = "access"


class NotAuthenticated(AccessError):
    """The broker requires a token, and it is missing or not valid."""

    hint_default = "pass a valid token"


class NotAuthorised(AccessError):
    """The caller is authenticated but not authorised."""

    hint_default = "ask the operator of the broker for a grant"


class TaskError(PenstockError):
    """The task has no result."""

    code = "task"


class TaskDied(TaskError):
    """The task failed for good; the message ends with the traceback of its last run."""

    hint_default = "fix the cause, then retry the task"


class ResultLost(TaskError):
    """The task completed, but its result could not be stored: it is not JSON, or too large."""

    hint_default = "the work itself is done; return a JSON value"


class TaskCancelled(TaskError):
    """The task was cancelled before it had a result."""


class TaskUnfinished(TaskError, TimeoutError):
    """The task did not finish within the timeout."""

    hint_default = "the task keeps running; wait longer"


class SparkMissing(PenstockError):
    """PySpark, or the Java that it needs, is not installed."""

    hint_default = "pip install 'penstock-mq[spark]'; apt install openjdk-17-jre-headless"


class ServerError(PenstockError):
    """An error between a client and its broker."""

    code = "server"


class Unavailable(ServerError):
    """No broker answers, or the connection was lost. Requests in flight may or may not have been executed."""

    hint_default = "check that the broker is running and the address is right, then retry"

    def __init__(self, message: str, *, retry_after_seconds: float = 0.0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_seconds = retry_after_seconds  # 0: nobody knows


class Moved(ServerError):
    """This node is a spare; `address` is where the owner can be reached, empty when there is none right now."""

    hint_default = "Penstock clients follow automatically; other clients must connect to that address"

    def __init__(self, message: str, *, address: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.address = address


class TlsFailed(ServerError):
    """The TLS handshake failed: a certificate was not accepted, or one side does not use TLS. Nothing was sent."""

    hint_default = "see the TLS section of docs/security.md"


class Internal(ServerError):
    """An internal error of the broker; its log has the details."""

    hint_default = "see the broker's log for the cause, and please report this"


class StorageError(PenstockError):
    """An error of the storage."""

    code = "storage"


class NotADataDirectory(StorageError):
    """The path is a file, or a directory with other content."""

    hint_default = "use a new or empty directory, or one that Penstock created"


class DirectoryInUse(StorageError):
    """Another process has the data directory open."""

    hint_default = "only one process may open a data directory; stop that one or connect to it"


class DiskReadOnly(StorageError):
    """The data directory cannot be written."""

    hint_default = "make the directory writable for this user"


class DiskFull(StorageError):
    """The disk is nearly full: pushes are refused, settling still works."""

    hint_default = "free some space or lower the retention; consumers can continue"


class StoreUnavailable(StorageError):
    """The connection to the store was lost, or a deadline passed. What was sent may or may not have happened."""

    hint_default = "check that PostgreSQL is running and reachable; Penstock resumes automatically"


class StoreRefused(StorageError):
    """The store refused a connection or a statement; `sqlstate` is PostgreSQL's own code, empty without an answer."""

    sqlstate = ""


class Deposed(StorageError):
    """Another node owns the shard now; this one makes no more changes."""

    hint_default = "this node becomes a spare, and clients move to the new owner"


class Damaged(StorageError):
    """Bytes that were durable once no longer match their checksum."""

    hint_default = "run 'penstock doctor' to see what is affected, then 'penstock doctor --repair'"


class OutcomeUnknown(StorageError):
    """A write or sync failed midway: the operation may or may not have happened."""

    hint_default = "check whether it happened before you retry; the data must be opened again"
