"""What a task is, to every layer: its envelope, its states, how a run of it ends, and what is reported of it.

A task is a message whose content type is `TASK` and whose payload is an `Envelope` in JSON. Priority, delay, key, time
to live, attempts and trace are the message's own. A worker leases it from the group `default` and finishes it.

    scheduled ──due──► pending ──leased──► running ──► completed
        ▲                 ▲                │  │  └───► dead         retries are used up, or it may not be retried
        │   parents done  │    its delay   │  └──────► failed ──due──► pending
     blocked ─────────────┘    snoozed ◄───┘           cancelled      from every state that is not final

Arguments, results and progress are JSON text, never pickled objects.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

import msgspec

from penstock.model import Receipt


class TaskState(StrEnum):
    """Where a task stands. Those of `FINAL` do not change any more by themselves."""

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
    """The payload of a task. `args` and `kwargs` are JSON as the caller gave them."""

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


class TaskSubmission(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task to be stored. Plain ones may as well be pushed: see `tasks_batch`."""

    task_id: str
    task_type: str
    queue: str
    is_named: bool = False  # the caller chose the id: submitted again, it is the same task
    args: bytes = b"[]"  # JSON
    kwargs: bytes = b"{}"  # JSON
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
    """The result of a submission: `is_new` is false when `task_id` names one that was there before."""

    task_id: str
    is_new: bool = True


class Finish(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one run of a task ended. `delay_seconds` None means the queue's backoff."""

    receipt: Receipt
    task_id: str
    outcome: Literal["completed", "failed", "dead", "snoozed", "cancelled", "released"]
    result: bytes = b"null"  # JSON; of a completed one
    error: str = ""  # the traceback's text, or why it was cancelled
    delay_seconds: float | None = None
    task_type: str = ""  # this and how long it ran are for the metrics, and may be left out
    run_seconds: float = 0.0


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt at a task, as its history shows it."""

    attempt: int
    worker: str
    started_at: datetime
    ended_at: datetime | None = None
    outcome: str = ""  # a word of the events table, or "" while it runs
    error: str = ""


LOST_OUTCOMES: Final = ("timed_out", "interrupted")  # of runs that were lost with their worker

RESULT_ERROR: Final = "penstock:result_error"  # the only key of what stands for a result that could not be stored
RESULT_ERROR_START: Final = b'{"%b":' % RESULT_ERROR.encode()


def result_error_json(text: str) -> bytes:
    """What is stored in the place of a result that could not be: why, as `TaskView.result_error` reads it."""
    return msgspec.json.encode({RESULT_ERROR: text})


class TaskView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task, as it is shown. `runs` is filled when one task is asked for, not in lists."""

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
    def result_error(self) -> str:
        """Why a completed task has no result: it could not be stored. "" when it has one, or is not completed."""
        if self.result is None or not self.result.startswith(RESULT_ERROR_START):
            return ""
        return str(msgspec.json.decode(self.result, type=dict[str, str])[RESULT_ERROR])


class TaskCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks of a queue are in each state. Messages that are no tasks are not counted."""

    queue: str
    scheduled: int = 0
    pending: int = 0
    blocked: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    dead: int = 0
    cancelled: int = 0


class TaskFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which tasks are meant; every field that is set must match. Newest first."""

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
    limit: int = 50
    cursor: str | None = None  # from the page before


class TaskPage(msgspec.Struct, frozen=True):
    """Some tasks, and where to go on: None when these are the last."""

    tasks: list[TaskView]
    cursor: str | None = None


class OperationAction(StrEnum):
    """What an operation does with the tasks that match its filter."""

    PURGE = "purge"
    CANCEL = "cancel"


class OperationState(StrEnum):
    """Whether an operation is being worked on."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


class OperationView(msgspec.Struct, frozen=True, kw_only=True):
    """An operation on many tasks, and how far it is."""

    operation_id: str
    action: OperationAction
    state: OperationState
    filter: TaskFilter
    started_at: datetime
    updated_at: datetime
    ended_at: datetime | None = None  # set when it is over
    matched: int = 0  # tasks that matched when it began
    cancelled: int = 0
    purged: int = 0
    error: str = ""  # why it failed

    @property
    def is_over(self) -> bool:
        return self.state is not OperationState.RUNNING


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


class WorkerNews(msgspec.Struct, frozen=True):
    """What a worker receives: runs to break off, because their tasks were cancelled."""

    cancelled: tuple[str, ...] = ()  # task ids


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker, as it is shown: alive, stuck, stopping, or dead for a while before it is forgotten."""

    info: WorkerInfo
    owner: str = ""  # the principal that it runs as; "" for the owner of the broker
    state: Literal["alive", "stuck", "stopping", "dead"]
    first_seen_at: datetime
    last_heartbeat_at: datetime


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A task that is submitted by the clock."""

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
    """A schedule, as it is shown."""

    spec: ScheduleSpec
    next_at: datetime | None  # None while it is paused
    last_at: datetime | None = None  # the last tick that became a task
    last_task_id: str = ""
