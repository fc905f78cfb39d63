"""What a task is, to every layer: its envelope, its states, how a run of it ends, and what is reported of it.

A task is a message whose content type is `TASK` and whose payload is an `Envelope` in JSON. Priority, delay, key, time
to live, attempts and trace are the message's own. A worker leases it from the group `default` and finishes it.

    scheduled ──due──► pending ──leased──► running ──► completed
        ▲                 ▲                │  │  └───► dead         retries are used up, or it may not be retried
        │   parents done  │    its delay   │  └──────► failed ──due──► pending
     blocked ─────────────┘    snoozed ◄───┘           cancelled      from every state that is not final

Arguments, results and progress are JSON text, never pickled objects. Bytes among the arguments follow the envelope as
they are: each stands in the arguments as `{"penstock:bytes": length}`, and `payload` has all of them, in their order. A
result of bytes is `{"penstock:base64": "…"}`.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple

import msgspec

from penstock.model import Receipt
from penstock.model_letters import LetterFilter, MessageFilter


class TaskState(StrEnum):
    """The state of a task. Final states, those in `FINAL`, change only when someone retries the task."""

    SCHEDULED = "scheduled"  # not due yet
    PENDING = "pending"  # waits for a worker
    BLOCKED = "blocked"  # waits for its parents
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"  # waits for its next attempt
    DEAD = "dead"
    CANCELLED = "cancelled"


FINAL: Final = frozenset({TaskState.COMPLETED, TaskState.DEAD, TaskState.CANCELLED})

ParentPolicy = Literal["cancel", "run"]  # what a child does when a parent dies or is cancelled
Takes = Literal["none", "one", "all"]  # what a child gets of its parents' results, as its first argument
MissedPolicy = Literal["skip", "catch_up"]  # for ticks that came while no broker ran


NO_ARGS: Final = msgspec.Raw(b"[]")  # one object each: only the default itself is left out of the payload
NO_KWARGS: Final = msgspec.Raw(b"{}")


class Envelope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The payload of a task. `args` and `kwargs` are JSON, exactly as the caller passed them."""

    task_id: str  # a UUID, in lower case with hyphens
    task_type: str
    args: msgspec.Raw = NO_ARGS
    kwargs: msgspec.Raw = NO_KWARGS
    timeout_seconds: float | None = None
    depends_on: tuple[str, ...] = ()
    on_parent_failure: ParentPolicy = "cancel"
    takes: Takes = "none"
    workflow: str = ""  # the id of the chain, group or graph it belongs to
    schedule: str = ""  # the name of the schedule that made it
    scheduled_at: str = ""  # the tick it was made for, RFC 3339
    payload: bytes | None = None  # bytes among the arguments; they follow the JSON


class TaskSubmission(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task to store."""

    task_id: str
    task_type: str
    queue: str
    is_named: bool = False  # the caller chose the id: submitted again, it is the same task
    args: bytes = b"[]"  # JSON
    kwargs: bytes = b"{}"  # JSON
    payload: bytes | None = None  # the bytes that `{"penstock:bytes": length}` stand for, or else the first argument
    timeout_seconds: float | None = None
    depends_on: tuple[str, ...] = ()
    on_parent_failure: ParentPolicy = "cancel"
    takes: Takes = "none"
    workflow: str = ""
    unique_key: str | None = None  # no second one of this key in this queue …
    unique_seconds: float | None = None  # … for this long after the first; None: while the first is not final
    key: str | None = None
    priority: int = 128
    delay_seconds: float = 0.0
    deliver_at: datetime | None = None
    ttl_seconds: float | None = None
    max_attempts: int | None = None
    headers: dict[str, str] | None = None
    trace: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the queue alone can take care of it."""
        return not self.depends_on and self.unique_key is None


class Submitted(msgspec.Struct, frozen=True):
    """The result of a submission. `is_new` is false if a task with this `task_id` existed before."""

    task_id: str
    is_new: bool = True


class Finish(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one run of a task ended. If `delay_seconds` is None, the queue's backoff applies."""

    receipt: Receipt
    task_id: str
    outcome: Literal["completed", "failed", "dead", "snoozed", "cancelled", "released"]
    result: bytes = b"null"  # JSON; of a completed one
    error: str = ""  # the traceback's text, or why it was cancelled
    delay_seconds: float | None = None
    task_type: str = ""  # this and how long it ran are for the metrics, and may be left out
    run_seconds: float = 0.0


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run of a task."""

    attempt: int
    worker: str
    started_at: datetime
    ended_at: datetime | None = None
    outcome: str = ""  # a word of the events table, or "" while it runs
    error: str = ""


LOST_OUTCOMES: Final = ("timed_out", "interrupted")  # of runs that were lost with their worker

BYTES_MARK: Final = "penstock:bytes"  # the only key of what stands for bytes among the arguments: how many they are
_RESULT_BYTES_START: Final = b'{"penstock:base64":"'  # of what stands for a result of bytes

RESULT_ERROR: Final = "penstock:result_error"  # the only key of what stands for a result that could not be stored
RESULT_ERROR_START: Final = b'{"%b":' % RESULT_ERROR.encode()


def result_error_json(text: str) -> bytes:
    """What is stored in the place of a result that could not be: why, as `TaskView.result_error` reads it."""
    return msgspec.json.encode({RESULT_ERROR: text})


def result_of_bytes(data: bytes | bytearray | memoryview) -> bytes:
    """What is stored for a result that is bytes."""
    return _RESULT_BYTES_START + b2a_base64(data, newline=False) + b'"}'


def bytes_of_result(result: bytes | None) -> bytes | None:
    """The bytes that a task returned; None when its result is JSON, or there is none."""
    if result is None or not result.startswith(_RESULT_BYTES_START):
        return None
    return a2b_base64(result[len(_RESULT_BYTES_START) : -2])


def decoded_result(result: bytes) -> Any:
    """What a task returned, as bytes or as what its JSON holds."""
    data = bytes_of_result(result)
    return msgspec.json.decode(result) if data is None else data


class TaskView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task. `runs` is set when a single task is requested, not in lists."""

    task_id: str
    task_type: str
    queue: str
    state: TaskState
    priority: int = 128
    attempt: int = 0  # of the last run; 0 before the first
    max_attempts: int = 0
    args: bytes = b"[]"  # JSON, as the three below
    kwargs: bytes = b"{}"
    result: bytes | None = None
    progress: bytes | None = None
    error: str = ""  # of the last run that failed, or why it was cancelled
    worker: str = ""  # that runs it, or ran it last
    key: str | None = None
    submitted_at: datetime
    due_at: datetime | None = None  # when the next attempt may start, while it waits
    started_at: datetime | None = None
    finished_at: datetime | None = None  # set when it is final
    updated_at: datetime | None = None  # when it was submitted, started or ended a run, whichever was last
    lease_expires_at: datetime | None = None  # of the lease under which it runs; set when one task is asked for
    timeout_seconds: float | None = None
    depends_on: tuple[str, ...] = ()
    workflow: str = ""
    schedule: str = ""
    message_id: str = ""  # queue/partition/offset; "" while it is blocked
    trace: str | None = None
    runs: tuple[Run, ...] = ()

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    @property
    def attempts_lost(self) -> int:
        """Attempts that ended with their worker, since the task was submitted or retried; `task_attempts_lost_max` of
        them are its end. 0 where `runs` is not filled.
        """
        lost = 0
        for run in self.runs:
            lost = (0 if run.attempt == 1 else lost) + (run.outcome in LOST_OUTCOMES)
        return lost

    @property
    def result_bytes(self) -> bytes | None:
        """The result when the task returned bytes; None when it is JSON."""
        return bytes_of_result(self.result)

    @property
    def result_error(self) -> str:
        """Why a completed task has no result: it could not be stored. "" when it has one, or is not completed."""
        if self.result is None or not self.result.startswith(RESULT_ERROR_START):
            return ""
        return str(msgspec.json.decode(self.result, type=dict[str, str])[RESULT_ERROR])


class TaskCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of tasks of a queue in each state. Messages that are not tasks are not counted."""

    queue: str
    scheduled: int = 0
    pending: int = 0
    blocked: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    dead: int = 0
    cancelled: int = 0


class Suggestion(msgspec.Struct, frozen=True):
    """A value of a field, and the number of tasks that have it; None if that is not known."""

    value: str
    count: int | None = None


class TaskFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A filter for tasks. A task must match every field that is set."""

    states: tuple[TaskState, ...] = ()
    task_type: str | None = None
    queue: str | None = None
    worker: str | None = None
    workflow: str | None = None
    schedule: str | None = None
    submitted_since: datetime | None = None
    submitted_until: datetime | None = None
    argument: str | None = (
        None  # a value that stands somewhere in the arguments, or path=value ("kwargs.to=a@b.c", "args.0=7")
    )
    error_contains: str | None = None
    task_ids: tuple[str, ...] | None = None  # some tasks by their ids
    limit: int = 50
    cursor: str | None = None  # from the page before

    @property
    def looks_inside(self) -> bool:
        """Whether it asks about arguments or errors."""
        return self.argument is not None or self.error_contains is not None

    @property
    def needs_read(self) -> bool:
        """Whether a count of those that match tells what only readers see."""
        return self.looks_inside


class TaskPage(msgspec.Struct, frozen=True):
    """A page of tasks, and the cursor of the next page; None on the last page."""

    tasks: list[TaskView]
    cursor: str | None = None


WorkflowStatus = Literal["running", "completed", "failed", "cancelled"]


class WorkflowView(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow, with its tasks in queues that the caller may read."""

    workflow: str
    status: WorkflowStatus  # running while a task is not final, failed when one is dead
    submitted_at: datetime  # its first task
    updated_at: datetime
    finished_at: datetime | None = None  # set when every task is final
    tasks_total: int
    counts: dict[str, int]  # by state
    queues: list[str]
    is_cut: bool = False  # there are more tasks than are shown, or more than are counted
    tasks: list[TaskView] | None = None  # the oldest first; None in a list of workflows
    critical_path: list[str] | None = None  # ids of the dependent tasks that ran longest in all, first to last


class WorkflowPage(msgspec.Struct, frozen=True):
    """A page of workflows, and the cursor of the next page; None on the last page."""

    workflows: list[WorkflowView]
    cursor: str | None = None


class OperationAction(StrEnum):
    """What a bulk operation does with the items that match its filter."""

    PURGE = "purge"  # tasks
    CANCEL = "cancel"
    RETRY = "retry"
    REDRIVE = "redrive"  # dead letters
    DISCARD = "discard"
    REPLAY = "replay"  # messages of the past


TASK_ACTIONS: Final = (OperationAction.PURGE, OperationAction.CANCEL, OperationAction.RETRY)


class OperationState(StrEnum):
    """The state of a bulk operation."""

    RUNNING = "running"
    WAITING = "waiting_for_canary"  # its first items are done; it waits for "continue"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"
    COUNTED = "counted"  # a dry run: nothing was begun


class ItemError(NamedTuple):
    """Why an operation failed for one item."""

    id: str
    code: str
    message: str


class BulkOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Options of a bulk operation."""

    dry_run: bool = False  # only count
    rate: float | None = None  # items per second at most
    canary: int | None = None  # that many first; then it waits until somebody continues it
    as_of: datetime | None = None  # what matched at this moment is meant; None: now


class OperationView(msgspec.Struct, frozen=True, kw_only=True):
    """A bulk operation on tasks, dead letters or messages, and its progress."""

    operation_id: str  # "" for a dry run
    action: OperationAction
    state: OperationState
    filter: TaskFilter | None = None  # of tasks
    letters: LetterFilter | None = None  # of dead letters
    messages: MessageFilter | None = None  # of messages that are replayed
    queue: str | None = None  # that it is confined to
    target: str | None = None  # the queue that copies go to
    who: str = ""  # has begun it
    started_at: datetime
    updated_at: datetime
    ended_at: datetime | None = None  # set when it is over
    as_of: datetime | None = None  # what matched at this moment is meant
    matched: int = 0  # that matched then; 0 until they are counted
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    purged: int = 0
    rate: float | None = None
    canary: int | None = None  # where it waits, or waited
    errors: tuple[ItemError, ...] = ()  # the last ones
    error: str = ""  # why it failed, or what it waits for
    samples: tuple[str, ...] = ()  # of a dry run: ids of some that match
    is_exact: bool = True  # false: a dry run stopped counting, and `matched` is the least there are
    expires_at: datetime | None = None  # while it waits after its canary: when it is stopped unless it is continued

    @property
    def is_over(self) -> bool:
        return self.state not in (OperationState.RUNNING, OperationState.WAITING)


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker reports about itself with every heartbeat. `worker_id` is the `consumer` of its leases."""

    worker_id: str
    host: str = ""
    pid: int = 0
    queues: tuple[str, ...] = ()
    task_types: tuple[str, ...] = ()
    concurrency: int = 0
    running: int = 0
    abandoned: int = 0  # runs that were broken off and do not end
    completed: int = 0  # since it started
    failed: int = 0
    cpu_percent: float = 0.0
    memory_bytes: int = 0
    version: str = ""
    is_stopping: bool = False
    is_stuck: bool = False  # more are abandoned than it can do without
    is_quiet: bool = False  # it takes no more tasks, as an operator wanted


WorkerRequest = Literal["", "quiet", "stop"]


class WorkerNews(msgspec.Struct, frozen=True):
    """News for a worker: runs to abort because their tasks were cancelled, and requests of operators.

    `requested` is what the worker should do now: "quiet" means take no more tasks, "" take tasks again, "stop" exit
    after the running tasks have ended. They have `grace_seconds` for that, or the worker's own grace period.
    """

    cancelled: tuple[str, ...] = ()  # task ids
    requested: WorkerRequest = ""
    grace_seconds: float | None = None


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker. Its state is alive, stuck, quiet, stopping or dead; dead workers are listed for a while.

    `requested` is what an operator asked for. The worker may not have done it yet.
    """

    info: WorkerInfo
    owner: str = ""  # the principal that it runs as; "" for the owner of the broker
    state: Literal["alive", "stuck", "quiet", "stopping", "dead"]
    first_seen_at: datetime
    last_heartbeat_at: datetime
    requested: WorkerRequest = ""
    requested_at: datetime | None = None


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A task that is submitted regularly."""

    name: str
    cron: str  # five fields, or six with seconds first; or @hourly and the like
    timezone: str = "UTC"
    missed: MissedPolicy = "skip"
    task_type: str
    queue: str
    args: bytes = b"[]"  # JSON
    kwargs: bytes = b"{}"  # JSON
    timeout_seconds: float | None = None
    max_attempts: int | None = None
    priority: int = 128
    key: str | None = None
    is_paused: bool = False
    is_declared: bool = False  # by the code of an app, which may take it back; see `Declarations.gone`


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule and its ticks."""

    spec: ScheduleSpec
    next_at: datetime | None  # None while it is paused
    last_at: datetime | None = None  # the last tick that became a task
    last_task_id: str = ""


class ScheduleRun(msgspec.Struct, frozen=True, kw_only=True):
    """A task that was submitted by running a schedule manually."""

    task_id: str
    schedule: str
    queue: str
    submitted_at: datetime


class NextTick(msgspec.Struct, frozen=True):
    """When a schedule is due, in UTC and as local time in its time zone."""

    at: datetime
    local: str


class PastRun(msgspec.Struct, frozen=True, kw_only=True):
    """A task that a schedule submitted, by a tick or manually, and its state."""

    task_id: str
    trigger: Literal["tick", "manual"]
    at: datetime
    state: TaskState
    started_at: datetime | None = None
    finished_at: datetime | None = None
    error: str = ""


class ScheduleTicks(msgspec.Struct, frozen=True, kw_only=True):
    """The next ticks of a schedule, and its last runs, newest first.

    For a paused schedule, these are the ticks that it would have.
    """

    schedule: str
    cron: str
    timezone: str
    is_paused: bool
    next: list[NextTick]
    runs: list[PastRun]


def id_text(task_id: bytes) -> str:
    """A task id as people see it."""
    text = task_id.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
