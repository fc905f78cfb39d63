"""What JSON requests about tasks, workers and schedules hold; and between them and the values of `model_tasks`.

Both ends use these models: a client writes them, a server reads them, OpenAPI is made from them. `args`, `kwargs`,
results and progress are JSON and kept byte for byte. What is answered is in `json_task_views`, and
what a client does with both in `json_tasks_client`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Raw, UnsetType

from penstock import limits
from penstock.errors import BadReceipt, InvalidField
from penstock.model import Receipt, check_name, check_priority, to_micros
from penstock.model_tasks import (
    Finish,
    MissedPolicy,
    OperationAction,
    ParentPolicy,
    ScheduleSpec,
    Takes,
    TaskFilter,
    TaskState,
    TaskSubmission,
    WorkerInfo,
)
from penstock.wire.json_errors import OneOrMany
from penstock.wire.json_models import Delay, Instant, Priority, Request, Ttl

TASKS_MAX: Final = 100_000  # in one request
PAGE_MAX: Final = 1_000
PARENTS_MAX: Final = 10_000
DEFAULT_QUEUE: Final = "default"

_STATES: Final = "|".join(TaskState)

TaskId = Annotated[str, Meta(pattern="^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", description="A UUID.")]
TaskType = Annotated[str, Meta(pattern="^[A-Za-z0-9._-]{1,200}$")]
Args = Annotated[Raw, Meta(extra_json_schema={"type": "array"})]
Kwargs = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]
Attempts = Annotated[int, Meta(ge=1, le=limits.attempts_max)]
Wait = Annotated[float, Meta(ge=0, le=limits.wait_seconds_max * 1000)]
Count = Annotated[int, Meta(ge=0, le=2**62)]
Outcome = Literal["completed", "failed", "dead", "snoozed", "cancelled", "released"]


class NewTask(Request, omit_defaults=True):
    """A task to submit. With a `task_id` it may be sent again: it is the same task."""

    task_type: TaskType
    queue: str = DEFAULT_QUEUE
    args: Args | UnsetType = UNSET
    kwargs: Kwargs | UnsetType = UNSET
    task_id: TaskId | None = None
    priority: Priority = limits.priority_default
    delay_ms: Delay = 0.0
    deliver_at: Instant | None = None
    ttl_ms: Ttl | None = None
    timeout_ms: Ttl | None = None
    max_attempts: Attempts | None = None
    key: str | None = None
    unique_key: str | None = None
    unique_ms: Ttl | None = None
    depends_on: Annotated[tuple[TaskId, ...], Meta(max_length=PARENTS_MAX)] = ()
    on_parent_failure: ParentPolicy = "cancel"
    takes: Takes = "none"
    workflow: str = ""
    headers: dict[str, str] | None = None
    trace: str | None = None


class NewTasks(Request):
    """Tasks to submit: all of them are stored, or none. Parents may be among them, in any order."""

    tasks: Annotated[list[NewTask], Meta(min_length=1, max_length=TASKS_MAX)]


submission: Final = OneOrMany(NewTask, NewTasks, "tasks")


class FinishedRun(Request, omit_defaults=True):
    """How a run ended. `result` is of a completed one; without `delay_ms` a failed one waits as its queue says."""

    receipt: str
    task_id: TaskId
    outcome: Outcome
    result: Raw | UnsetType = UNSET
    error: str = ""
    delay_ms: Delay | None = None
    task_type: Annotated[str, Meta(max_length=200, description="For the metrics, as is `run_ms`.")] = ""
    run_ms: Annotated[float, Meta(ge=0, le=1e15)] = 0.0


class FinishedRuns(Request):
    """Runs that ended, each accepted or refused by itself. `is_again`: sent before, and the answer was lost."""

    finishes: Annotated[list[FinishedRun], Meta(min_length=1, max_length=limits.lease_messages_max)]
    is_again: bool = False


finished: Final = OneOrMany(FinishedRun, FinishedRuns, "finishes")


class Progress(Request):
    """How far a run is, in any JSON."""

    receipt: str
    task_id: TaskId
    progress: Raw


class TaskChoice(Request, omit_defaults=True):
    """Which tasks; every field that is set must match."""

    status: tuple[TaskState, ...] = ()
    task_type: str | None = None
    queue: str | None = None
    worker: str | None = None
    workflow: str | None = None
    schedule: str | None = None
    since: Instant | None = None
    until: Instant | None = None
    argument: str | None = None
    error_contains: str | None = None


class NewOperation(TaskChoice, omit_defaults=True, kw_only=True):
    """What to do with all tasks that match. Begun again with the same id, it is the same operation."""

    action: OperationAction
    operation_id: str = ""


class TaskSearch(TaskChoice, omit_defaults=True):
    """Which tasks to list, newest first, in pages: the next one begins at the `cursor` of this one."""

    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 50
    cursor: str | None = None


class TasksQuery(Request):
    """The same in a URL; several states with commas between them."""

    status: Annotated[str, Meta(pattern=f"^({_STATES})(,({_STATES}))*$")] | None = None
    task_type: str | None = None
    queue: str | None = None
    worker: str | None = None
    workflow: str | None = None
    schedule: str | None = None
    since: Instant | None = None
    until: Instant | None = None
    argument: str | None = None
    error_contains: str | None = None
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 50
    cursor: str | None = None


class WaitQuery(Request):
    """How long to wait for it."""

    wait_ms: Wait = 0.0


class WorkerHeartbeat(Request, omit_defaults=True):
    """What a worker tells about itself."""

    host: str = ""
    pid: Count = 0
    queues: tuple[str, ...] = ()
    task_types: tuple[str, ...] = ()
    concurrency: Count = 0
    running: Count = 0
    abandoned: Count = 0
    completed: Count = 0
    failed: Count = 0
    cpu_percent: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    memory_bytes: Count = 0
    version: str = ""
    is_stopping: bool = False
    is_stuck: bool = False


class NewSchedule(Request, omit_defaults=True):
    """A task that is submitted by the clock."""

    cron: str
    task_type: TaskType
    queue: str = DEFAULT_QUEUE
    timezone: str = "UTC"
    missed: MissedPolicy = "skip"
    args: Args | UnsetType = UNSET
    kwargs: Kwargs | UnsetType = UNSET
    timeout_ms: Ttl | None = None
    max_attempts: Attempts | None = None
    priority: Priority = limits.priority_default
    key: str | None = None
    is_paused: bool = False
    is_declared: bool = False


# into values


def submission_of(given: NewTask, new_id: str, place: str = "", trace: str | None = None) -> TaskSubmission:
    """A task to store. `new_id` is for one that brings none, `place` what errors begin with: `tasks[3].`.

    What a type cannot tell, such as whether a name is legal, whoever stores it finds out.
    """
    args, kwargs = arguments_of(given, place)
    if given.deliver_at is not None and to_micros(given.deliver_at, "deliver_at") > limits.instant_us_max:
        raise InvalidField(f"{place}deliver_at: {given.deliver_at} is after the year 9999")
    if given.unique_ms is not None and given.unique_key is None:
        raise InvalidField(f"{place}unique_ms: it says how long a unique_key holds, and there is none")
    return TaskSubmission(
        task_id=given.task_id or new_id,
        task_type=given.task_type,
        queue=given.queue,
        is_named=given.task_id is not None,
        args=args,
        kwargs=kwargs,
        timeout_seconds=seconds(given.timeout_ms),
        depends_on=given.depends_on,
        on_parent_failure=given.on_parent_failure,
        takes=given.takes,
        workflow=given.workflow,
        unique_key=given.unique_key,
        unique_seconds=seconds(given.unique_ms),
        key=given.key,
        priority=given.priority if isinstance(given.priority, int) else check_priority(given.priority),
        delay_seconds=given.delay_ms / 1000,
        deliver_at=given.deliver_at,
        ttl_seconds=seconds(given.ttl_ms),
        max_attempts=given.max_attempts,
        headers=given.headers,
        trace=given.trace or trace,
    )


def arguments_of(given: NewTask | NewSchedule, place: str = "") -> tuple[bytes, bytes]:
    """Arguments are an array and an object; the decoder has seen that they are JSON."""
    args = json_of(given.args, b"[]")
    kwargs = json_of(given.kwargs, b"{}")
    if not args.startswith(b"["):
        raise InvalidField(f"{place}args: it is not an array", hint='positional arguments are an array: [1, "two"]')
    if not kwargs.startswith(b"{"):
        raise InvalidField(f"{place}kwargs: it is not an object", hint='arguments by name are an object: {"to": "ann"}')
    return args, kwargs


def finish_of(given: FinishedRun, place: str = "") -> Finish:
    """How a run ended."""
    return Finish(
        receipt=receipt_of(given.receipt, place),
        task_id=given.task_id,
        outcome=given.outcome,
        result=json_of(given.result, b"null"),
        error=given.error,
        delay_seconds=seconds(given.delay_ms),
        task_type=given.task_type,
        run_seconds=given.run_ms / 1000,
    )


def receipt_of(text: str, place: str = "") -> Receipt:
    """A receipt from its text."""
    try:
        return Receipt.parse(text)
    except BadReceipt as error:
        raise BadReceipt(f"{place}receipt: {error.message}") from None


def filter_of(given: TaskChoice | TasksQuery) -> TaskFilter:
    """Which tasks are meant."""
    states: Iterable[str] = given.status.split(",") if isinstance(given.status, str) else given.status or ()
    return TaskFilter(
        states=tuple(map(TaskState, states)),
        **{name: getattr(given, name) for name in SAME},
        submitted_since=given.since,
        submitted_until=given.until,
        limit=getattr(given, "limit", PAGE_MAX),
        cursor=getattr(given, "cursor", None),
    )


def choice_of(wanted: TaskFilter) -> TaskChoice:
    """The same from a filter."""
    return TaskChoice(**_chosen(wanted))


def operation_of(wanted: TaskFilter, action: str, operation_id: str) -> NewOperation:
    """An operation to begin."""
    return NewOperation(**_chosen(wanted), action=OperationAction(action), operation_id=operation_id)


def _chosen(wanted: TaskFilter) -> dict[str, Any]:
    same = {name: getattr(wanted, name) for name in SAME}
    return {"status": wanted.states, **same, "since": wanted.submitted_since, "until": wanted.submitted_until}


SAME: Final = ("task_type", "queue", "worker", "workflow", "schedule", "argument", "error_contains")


def info_of(worker_id: str, given: WorkerHeartbeat) -> WorkerInfo:
    """What a worker tells about itself."""
    return WorkerInfo(worker_id=worker_id, **{name: getattr(given, name) for name in WorkerHeartbeat.__struct_fields__})


def spec_of(name: str, given: NewSchedule) -> ScheduleSpec:
    """A schedule."""
    args, kwargs = arguments_of(given)
    return ScheduleSpec(
        name=name,
        cron=given.cron,
        timezone=given.timezone,
        missed=given.missed,
        task_type=given.task_type,
        queue=check_name(given.queue),
        args=args,
        kwargs=kwargs,
        timeout_seconds=seconds(given.timeout_ms),
        max_attempts=given.max_attempts,
        priority=check_priority(given.priority),
        key=given.key,
        is_paused=given.is_paused,
        is_declared=given.is_declared,
    )


def seconds(ms: float | None) -> float | None:
    """Milliseconds as seconds."""
    return None if ms is None else ms / 1000


def milliseconds(duration: float | None) -> float | None:
    """Seconds as milliseconds; no more digits than a clock has."""
    return None if duration is None else round(duration * 1000, 3)


def json_of(given: Raw | UnsetType, default: bytes) -> bytes:
    """JSON as it came."""
    return default if isinstance(given, UnsetType) else bytes(given)


def raw(text: bytes, default: bytes) -> Raw | UnsetType:
    """JSON as it is; nothing when it is the default."""
    return UNSET if text == default else Raw(text)
