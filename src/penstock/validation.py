"""Validation of what comes from outside: arguments of the public methods, requests, tasks, workers and schedules.

A value is checked once, at the edge; the error names the field and the value. `where` is put in front of the name of a
field when there are several of a kind: `tasks[2].args`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, Final, TypeVar

import msgspec

from penstock import limits, refusals
from penstock.batch import encode_one_with, fields, layout
from penstock.envelopes import bytes_in, with_bytes_first
from penstock.errors import InputError, InvalidField, StorageError, TooLarge
from penstock.model import (
    MessageId,
    Outcome,
    Position,
    check_name,
    check_priority,
    check_seconds,
    to_datetime,
    to_micros,
)
from penstock.model_letters import LetterFilter
from penstock.model_tasks import (
    TASK_ACTIONS,
    OperationAction,
    OperationState,
    OperationView,
    ScheduleSpec,
    TaskFilter,
    TaskState,
    TaskSubmission,
    WorkerInfo,
)
from penstock.refusals import number, number_range
from penstock.replies import BackupState
from penstock.requests import LeaseRequest, QueueChoice, Settling

PushOptions = tuple[
    str | None,  # key
    int | str,  # priority
    float,  # delay
    datetime | str | None,  # deliver_at
    float | None,  # ttl
    Mapping[str, str] | None,  # headers
    str | None,  # dedup_key
    int | None,  # max_attempts
    str | None,  # trace
]
_OFFSET_MAX: Final = 2**62
PLAIN: Final[PushOptions] = (None, limits.priority_default, 0, None, None, None, None, None, None)


def one(payload: Any, options: PushOptions) -> bytes:
    """A batch of one message."""
    if options == PLAIN:
        return encode_one_with(payload)
    key, priority, delay, deliver_at, ttl, headers, dedup_key, max_attempts, trace = options
    return encode_one_with(
        payload,
        key=key,
        priority=priority,
        delay_us=fields.delay_us(delay),
        deliver_at_us=fields.deliver_at_us(deliver_at),
        ttl_us=fields.ttl_us(ttl),
        headers=headers,
        dedup_key=dedup_key,
        max_attempts=max_attempts,
        trace=trace,
    )


def lease_request(
    max: int,
    lease_seconds: float | None,
    consumer: str | None,
    partitions: Sequence[int | str] | None,
    auto_ack: bool,
    member: str = "",
    generation: int = 0,
    start: Position | None = None,
    types: Any = None,
) -> LeaseRequest:
    """What a lease asks for; `types` are those of tasks."""
    if isinstance(max, bool) or not isinstance(max, int) or not 1 <= max <= limits.lease_messages_max:
        raise InvalidField(f"max: {max!r} is not a whole number from 1 to {limits.lease_messages_max:,}")
    if lease_seconds is not None:
        _lease_length(lease_seconds, "lease_seconds")
    if consumer:
        check_name(consumer, "consumer")
    if member:
        check_name(member, "member")
    flag(auto_ack, "auto_ack")
    about = (max, lease_seconds, consumer or "", _some_partitions(partitions), auto_ack, member, generation)
    where = None if start is None else position(start, "start")
    return LeaseRequest(*about, start=where, task_types=task_types(types))


def task_types(values: Any) -> frozenset[str] | None:
    """The types of tasks that a lease is for; None for whatever there is."""
    if values is None:
        return None
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidField(f"task_types: {values!r} is not a list of types")
    names = frozenset(values)
    if not 1 <= len(names) <= limits.worker_names_max or not all(isinstance(name, str) for name in names):
        raise InvalidField(f"task_types: 1 to {limits.worker_names_max:,} types are required, not {len(names):,}")
    return names


def skips(on_error: Any) -> bool:
    """Whether a push skips the messages that cannot be stored."""
    if on_error not in ("fail", "skip"):
        raise InvalidField(f"on_error: {on_error!r} is neither 'fail' nor 'skip'")
    return bool(on_error == "skip")


def queue_choice(queues: Any, order: Any = "fair") -> QueueChoice:
    """The queues of a lease over several: names, and prefixes such as `shop.*`."""
    if isinstance(queues, str):
        queues = (queues,)
    if not isinstance(queues, Iterable):
        raise InvalidField(f"queues: {queues!r} is not a list of names")
    names = tuple(dict.fromkeys(map(_queue_or_prefix, queues)))
    if not 1 <= len(names) <= limits.lease_names_max:
        raise InvalidField(f"queues: {len(names)} names are outside 1 to {limits.lease_names_max}")
    if order not in ("fair", "listed"):
        raise InvalidField(f"order: {order!r} is neither 'fair' nor 'listed'")
    return QueueChoice(names, order)


def stream_queues(
    queue: str | None, queues: Sequence[str] | None, order: str, partitions: Any
) -> tuple[str, QueueChoice | None]:
    """What a stream delivers from: one queue, or several."""
    if bool(queue) == bool(queues):
        raise InvalidField("queue: give either queue or queues")
    if not queues:
        return str(queue), None
    if partitions is not None:
        raise InvalidField("partitions: need a single queue", hint="use queue instead of queues")
    return "", queue_choice(queues, order)


def _queue_or_prefix(name: Any) -> str:
    if isinstance(name, str) and name.endswith("*"):
        if name != "*":
            check_name(name[:-1], "queues")
        return name
    return check_name(name, "queue")


def _some_partitions(value: Any) -> tuple[int | str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidField(f"partitions: {value!r} is not a list of partitions")
    return tuple(partition(item, "partitions") for item in value)


def partition(value: Any, name: str = "partition") -> int | str:
    """A partition by number or by name; whether there is one the queue knows."""
    if isinstance(value, str):
        return check_name(value, name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise InvalidField(f"{name}: {value!r} is neither a number from 0 nor a name")
    return value


def message_id(value: Any) -> MessageId:
    """An id, or its text."""
    id = value if isinstance(value, MessageId) else MessageId.parse(value)
    check_name(id.queue)
    check_name(id.partition, "partition")
    if isinstance(id.offset, bool) or not isinstance(id.offset, int) or not 0 <= id.offset <= _OFFSET_MAX:
        raise InvalidField(f"id: {id.offset!r} is not an offset", hint="an id looks like queue/partition/offset")
    return id


def position(value: Any, name: str) -> Position:
    """A place in a queue: a word, an offset, an instant, or an offset for each partition."""
    if isinstance(value, str):
        if value not in ("earliest", "begin", "latest", "end"):
            to_micros(value, name)
        return value
    if isinstance(value, datetime):
        to_micros(value, name)
        return value
    if isinstance(value, Mapping) and value:
        return {str(partition(key, name)): _position_offset(offset, name) for key, offset in value.items()}
    return _position_offset(value, name)


def _position_offset(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _OFFSET_MAX:
        hint = "use earliest, latest, an offset, a time, or an offset for each partition"
        raise InvalidField(f"{name}: {value!r} is not a position", hint=hint)
    return value


def wire_position(value: Any, name: str) -> str | int | dict[str, int]:
    """A position as it travels: an instant is RFC 3339 text."""
    checked = position(value, name)
    if isinstance(checked, datetime):
        return checked.isoformat()
    return dict(checked) if isinstance(checked, Mapping) else checked


def instant(value: Any, name: str) -> datetime:
    """An aware datetime; text is RFC 3339."""
    return to_datetime(to_micros(value, name))


def flag(value: Any, name: str) -> bool:
    """True or False, and nothing that may pass for it."""
    if not isinstance(value, bool):
        raise InvalidField(f"{name}: {value!r} is neither True nor False")
    return value


def letter_filter(
    limit: int,
    *,
    ids: Iterable[MessageId | str] | None = None,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    **texts: str | None,
) -> LetterFilter:
    """Which dead letters are meant; `texts` are group, reason, error_contains, key and signature."""
    for name, value in texts.items():
        if value is not None:
            text(value, name)
    if isinstance(ids, str | MessageId) or not isinstance(ids, Iterable | None):
        raise InvalidField(f"ids: {ids!r} is not a list of ids", hint="pass the ids of dead letters in a list")
    chosen = None if ids is None else frozenset(map(message_id, ids))
    return LetterFilter(limit=limit, ids=chosen, since=since, until=until, **texts)  # type: ignore[arg-type]


@lru_cache(maxsize=64, typed=True)
def lease_of(max: int) -> LeaseRequest:
    """A lease that asks for nothing but a number of messages."""
    return lease_request(max, None, None, None, False)


def wait_seconds(value: Any, name: str = "wait") -> float:
    """How long a request may wait."""
    return check_seconds(value, name, limits.wait_seconds_max)


def settling(outcome: Outcome, delay: float | None = None, error: str = "") -> Settling:
    """How a delivery ends. A message about an error is cut, not refused: settling must not fail over its text."""
    if delay is not None or outcome == Outcome.SNOOZED:
        delay = check_seconds(delay, "delay")
    # Names of files may hold what is no character; cutting bytes may halve one.
    text = str(error).encode(errors="replace")[: limits.error_bytes_max].decode(errors="ignore") if error else ""
    return Settling(outcome, delay, text)


SETTLEMENTS: Final = (Outcome.ACKED, Outcome.RETRIED, Outcome.REJECTED, Outcome.RELEASED, Outcome.SNOOZED)


def wire_settling(outcome: int, delay: float | None, error: str) -> Settling:
    """How a delivery is to end, as a client asks for it by number."""
    if outcome not in SETTLEMENTS:
        names = ", ".join(f"{known.value} {known.name.lower()}" for known in SETTLEMENTS)
        raise InvalidField(f"outcome: {outcome} is not an outcome", hint=f"use one of {names}")
    return settling(Outcome(outcome), delay, error)


def read_limit(value: int, greatest: int = limits.lease_messages_max) -> int:
    """How many messages to list."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= greatest:
        raise InvalidField(f"limit: {value!r} is not a whole number from 1 to {greatest:,}")
    return value


def redrive_limit(value: int) -> int:
    """How many dead letters to send back."""
    return read_limit(value, 2**62)


def per_second(value: float | None) -> float | None:
    """A rate."""
    least, greatest = limits.per_second_min, limits.per_second_max
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= greatest
    ):
        rates = number_range(least, greatest)
        raise InvalidField(f"rate: {value!r} is not a number of messages per second from {rates}")
    return value


def offset(value: int | None) -> int | None:
    """An offset to read from."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _OFFSET_MAX):
        raise InvalidField(f"offset: {value!r} is not a whole number from 0 to 2⁶²")
    return value


def extension(value: float) -> float:
    """How long to hold a lease from now."""
    return _lease_length(value, "seconds")


def _lease_length(value: Any, name: str) -> float:
    if check_seconds(value, name, limits.lease_seconds_max) < limits.lease_seconds_min:
        raise InvalidField(f"{name}: {value!r} is less than the minimum of {number(limits.lease_seconds_min)}")
    return float(value)


T = TypeVar("T")
_TASK_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_TASK_TYPE: Final = re.compile(r"(?!\.+\Z)[A-Za-z0-9._-]{1,200}\Z")  # and not dots alone: it stands in paths
_OPERATION_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_JSON: Final = msgspec.json.Decoder()
_KINDS: Final[dict[type, str]] = {list: "a JSON array", dict: "a JSON object"}


def task_id(value: Any, field: str = "task_id") -> str:
    """The id of a task, in lower case."""
    text = value.lower() if isinstance(value, str) else ""
    if not _TASK_ID.match(text):
        raise InvalidField(
            f"{field}: {value!r} is not a UUID", hint="a UUID looks like 0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"
        )
    return text


def task_type(value: Any, field: str = "task_type") -> str:
    """The name of a kind of task."""
    if not isinstance(value, str) or not _TASK_TYPE.match(value):
        hint = "use 1 to 200 letters, digits, dots, underscores and hyphens"
        raise InvalidField(f"{field}: {value!r} is not the name of a task", hint=hint)
    return value


def json_of(value: Any, field: str, kind: type | None = None) -> bytes:
    """JSON text, of a kind when one is asked for."""
    if not isinstance(value, bytes):
        raise InvalidField(f"{field}: {value!r} is not JSON text")
    try:
        decoded = _JSON.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidField(f"{field}: not JSON: {error}") from None
    if kind is not None and type(decoded) is not kind:
        raise InvalidField(f"{field}: {_shown(value)} is not {_KINDS[kind]}")
    return value


def _shown(value: bytes) -> str:
    return repr(value[:80].decode(errors="replace"))


def submissions(tasks: Sequence[TaskSubmission]) -> list[TaskSubmission]:
    """Tasks to be stored. What only all of them together can break is found where they are stored."""
    if isinstance(tasks, str | bytes) or not isinstance(tasks, Sequence):
        raise InvalidField(f"tasks: {tasks!r} is not a list of tasks")
    if len(tasks) > limits.tasks_submitted_max:
        raise TooLarge(
            f"tasks: {len(tasks):,} tasks is over the limit of {limits.tasks_submitted_max:,}",
            hint="submit them in several calls",
        )
    return [submission(task, f"tasks[{row}].") for row, task in enumerate(tasks)]


def submission(task: TaskSubmission, where: str = "") -> TaskSubmission:
    """One task to be stored."""
    if not isinstance(task, TaskSubmission):
        raise InvalidField(f"{where.removesuffix('.') or 'task'}: {task!r} is not a task")
    own_id = task_id(task.task_id, f"{where}task_id")
    task_type(task.task_type, f"{where}task_type")
    _within(lambda: check_name(task.queue), where)
    if task.args != b"[]":
        json_of(task.args, f"{where}args", list)
    if task.kwargs != b"{}":
        json_of(task.kwargs, f"{where}kwargs", dict)
    args = task.args if task.payload is None else _with_payload(task, task.payload, where)
    parents = _parents(task, where) if task.depends_on else ()
    _one_of(task.on_parent_failure, ("cancel", "run"), f"{where}on_parent_failure")
    _one_of(task.takes, ("none", "one", "all"), f"{where}takes")
    _check_timeout(task.timeout_seconds, where)
    text(task.workflow, f"{where}workflow", limits.name_length_max)
    if task.unique_key is not None:
        text(task.unique_key, f"{where}unique_key", limits.dedup_key_bytes_max)
    if task.unique_seconds is not None:
        if task.unique_key is None:
            raise InvalidField(f"{where}unique_seconds: needs unique_key", hint="add unique_key")
        if not check_seconds(task.unique_seconds, f"{where}unique_seconds"):
            raise InvalidField(
                f"{where}unique_seconds: 0 would end at once", hint="use None for as long as the task is unfinished"
            )
    _message(task, where)
    priority = _within(lambda: check_priority(task.priority), where)
    if (own_id, args, parents, priority) == (task.task_id, task.args, task.depends_on, task.priority):
        return task
    return msgspec.structs.replace(task, task_id=own_id, args=args, depends_on=parents, priority=priority)


def _with_payload(task: TaskSubmission, payload: bytes, where: str) -> bytes:
    """The arguments of a task that brings bytes: where none of them stands for these, they are the first."""
    if not isinstance(payload, bytes):
        raise InvalidField(f"{where}payload: {payload!r} is not bytes")
    if len(payload) > limits.payload_bytes_max:
        raise TooLarge(f"{where}payload: {len(payload):,} bytes is over the limit of {limits.payload_bytes_max:,}")
    lengths = bytes_in(task.args, task.kwargs)
    if lengths and sum(lengths) != len(payload):
        raise InvalidField(f"{where}payload: {len(payload):,} bytes, but the arguments need {sum(lengths):,}")
    return task.args if lengths else with_bytes_first(task.args, payload)


def _parents(task: TaskSubmission, where: str) -> tuple[str, ...]:
    field = f"{where}depends_on"
    if isinstance(task.depends_on, str) or not isinstance(task.depends_on, Sequence):
        raise InvalidField(f"{field}: {task.depends_on!r} is not a list of task ids")
    if len(task.depends_on) > limits.task_parents_max:
        raise TooLarge(f"{field}: {len(task.depends_on):,} parents is over the limit of {limits.task_parents_max:,}")
    # A parent that is named twice is one parent.
    return tuple(dict.fromkeys(task_id(parent, field) for parent in task.depends_on))


def _message(task: TaskSubmission, where: str) -> None:
    """What a task has of a message."""
    check_seconds(task.delay_seconds, f"{where}delay_seconds")
    if task.ttl_seconds is not None and not check_seconds(task.ttl_seconds, f"{where}ttl_seconds"):
        raise InvalidField(f"{where}ttl_seconds: 0 would expire at once", hint="use None for no limit")
    _within(lambda: fields.deliver_at_us(task.deliver_at), where)
    _within(lambda: fields.check_max_attempts(task.max_attempts), where)
    if task.key is not None:
        _within(lambda: fields.encode_text(layout.KEY, task.key), where)
    if task.trace is not None:
        _within(lambda: fields.encode_text(layout.TRACE, task.trace), where)
    if task.headers is not None:
        _within(lambda: fields.encode_headers(task.headers), where)


def schedule(spec: ScheduleSpec) -> ScheduleSpec:
    """A schedule; whether its cron and its zone can be understood is found where they are used."""
    if not isinstance(spec, ScheduleSpec):
        raise InvalidField(f"schedule: {spec!r} is not a schedule")
    schedule_name(spec.name)
    for field in ("cron", "timezone"):
        text(getattr(spec, field), field, limits.name_length_max)
    _one_of(spec.missed, ("skip", "catch_up"), "missed")
    task_type(spec.task_type)
    check_name(spec.queue)
    json_of(spec.args, "args", list)
    json_of(spec.kwargs, "kwargs", dict)
    _check_timeout(spec.timeout_seconds, "")
    fields.check_max_attempts(spec.max_attempts)
    if spec.key is not None:
        fields.encode_text(layout.KEY, spec.key)
    for field in ("is_paused", "is_declared"):
        if not isinstance(getattr(spec, field), bool):
            raise InvalidField(f"{field}: {getattr(spec, field)!r} is neither true nor false")
    priority = check_priority(spec.priority)
    return spec if priority == spec.priority else msgspec.structs.replace(spec, priority=priority)


def schedule_name(value: Any) -> str:
    """What a schedule is called; the name of its task is one."""
    return task_type(value, "name")


def task_filter(filter: TaskFilter) -> TaskFilter:
    """Which tasks are meant."""
    if not isinstance(filter, TaskFilter):
        raise InvalidField(f"filter: {filter!r} is not a filter of tasks")
    read_limit(filter.limit, limits.task_page_max)
    known = tuple(TaskState)
    if isinstance(filter.states, str) or not isinstance(filter.states, Sequence):
        raise InvalidField(f"states: {filter.states!r} is not a list of {', '.join(known)}")
    for state in filter.states:
        _one_of(state, known, "states")
    states = tuple(map(TaskState, filter.states))
    for field in ("task_type", "queue", "worker", "workflow", "schedule", "argument", "error_contains", "cursor"):
        if getattr(filter, field) is not None:
            text(getattr(filter, field), field, limits.task_filter_bytes_max)
    if filter.task_ids is not None:
        if len(filter.task_ids) > limits.task_page_max:
            raise InvalidField(f"task_ids: {len(filter.task_ids):,} are over the limit of {limits.task_page_max:,}")
        for id in filter.task_ids:
            task_id(id, "task_ids")
    since, until = filter.submitted_since, filter.submitted_until
    return msgspec.structs.replace(
        filter,
        states=states,
        submitted_since=None if since is None else to_datetime(to_micros(since, "submitted_since")),
        submitted_until=None if until is None else to_datetime(to_micros(until, "submitted_until")),
    )


def operation_filter(filter: TaskFilter) -> TaskFilter:
    """Check the filter of an operation, which has no page and must not fail midway; returns it normalised."""
    checked = task_filter(filter)
    if checked.argument is not None and not 0 < len(checked.argument) <= limits.task_filter_bytes_max:
        raise InvalidField(f"argument: must have 1 to {limits.task_filter_bytes_max} characters")
    return checked


def task_action(action: str) -> OperationAction:
    """What an operation does with tasks."""
    _one_of(action, TASK_ACTIONS, "action")
    return OperationAction(action)


def operation_id(value: str) -> str:
    """The id of an operation."""
    if not isinstance(value, str) or not _OPERATION_ID.match(value):
        hint = "use 1 to 64 letters, digits, underscores and hyphens"
        raise InvalidField(f"operation_id: {str(value)[:100]!r} is not the id of an operation", hint=hint)
    return value


def succeeded(view: OperationView) -> OperationView:
    """An operation that was waited for; what ended it too soon is raised."""
    if view.state is OperationState.FAILED:
        raise InvalidField(view.error)
    return view


def backed_up(state: BackupState) -> BackupState:
    """A backup that was waited for; what ended it too soon is raised."""
    if state.status == "failed":
        raise StorageError(f"the backup failed: {state.error}", hint="the backup set is unchanged")
    return state


def pauses() -> Iterator[float]:
    """Seconds between two looks at an operation: short at first, since most are over soon."""
    seconds = 0.01
    while True:
        yield seconds
        seconds = min(2 * seconds, 1.0)


def worker(info: WorkerInfo) -> WorkerInfo:
    """What a worker tells about itself."""
    if not isinstance(info, WorkerInfo):
        raise InvalidField(f"worker: {info!r} is not the description of a worker")
    worker_id(info.worker_id)
    for field in ("host", "version"):
        text(getattr(info, field), field, 255)
    for field in ("pid", "concurrency", "running", "abandoned", "completed", "failed", "memory_bytes", "cpu_percent"):
        value = getattr(info, field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 63:
            raise InvalidField(f"{field}: {value!r} is not a number from 0")
    for field in ("queues", "task_types"):
        names = getattr(info, field)
        if isinstance(names, str) or not isinstance(names, Sequence) or len(names) > limits.worker_names_max:
            raise InvalidField(f"{field}: not a list of at most {limits.worker_names_max:,} names")
    for name in info.task_types:
        task_type(name, "task_types")
    for row, name in enumerate(info.queues):
        _within(partial(check_name, name), f"queues[{row}].")
    return info


def worker_id(value: Any) -> str:
    """The id of a worker, which is the consumer of its leases."""
    return check_name(value, "worker_id")


def _within(check: Callable[[], T], where: str) -> T:
    """What a check of a single value answers; its refusal says which one it was."""
    try:
        return check()
    except InputError as error:
        if not where:
            raise
        raise type(error)(f"{where}{error.message}", hint=error.hint) from None


def _check_timeout(value: Any, where: str) -> None:
    if value is not None and not check_seconds(value, f"{where}timeout_seconds"):
        raise InvalidField(f"{where}timeout_seconds: 0 would end every run at once", hint="use None for no limit")


def text(value: Any, field: str, bytes_max: int | None = None) -> None:
    """Text that can be stored, no longer than it may be."""
    if not isinstance(value, str):
        raise InvalidField(f"{field}: {value!r} is not text")
    try:
        length = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidField(f"{field}: {value!r} is not valid text: {error.reason}") from None
    if bytes_max is not None and length > bytes_max:
        raise TooLarge(f"{field}: {length:,} bytes is over the limit of {bytes_max:,}")


def _one_of(value: Any, known: tuple[str, ...], field: str) -> None:
    if value not in known:
        raise refusals.choice(value, known, field)
