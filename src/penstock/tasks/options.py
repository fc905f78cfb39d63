"""Options of a task: those of its declaration, and those of one call, which take precedence. Checked when given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypedDict, get_args
from uuid import UUID

import msgspec

from penstock import limits
from penstock.batch import fields
from penstock.errors import InvalidField, UnknownOption
from penstock.model import OPTION_RANGES, check_name, check_priority, check_seconds, to_datetime, to_micros
from penstock.model_tasks import MissedPolicy, ParentPolicy, Takes
from penstock.refusals import number_range, suggestion

QUEUE_DEFAULT: Final = "default"
BACKOFFS: Final = ("backoff_base_seconds", "backoff_multiplier", "backoff_max_seconds", "backoff_jitter")
_BACKOFF_DEFAULTS: Final = (1.0, 2.0, 60.0, 0.1)  # of a queue

KeyOf = Callable[..., Any] | str  # called with the task's arguments, or the name of one of them


class QueueDeclaration(NamedTuple):
    """A queue that an app uses, with its declared options."""

    name: str
    options: Mapping[str, Any]


class CallOptions(TypedDict, total=False):
    """Options of `task.options(…)`. Durations are in seconds."""

    queue: str
    delay: float | timedelta
    deliver_at: datetime | str | None
    priority: int | str
    key: str | None
    depends_on: Any  # a job, a workflow, or the id of a task; one or several
    on_parent_failure: ParentPolicy
    takes: Takes
    task_id: str | UUID | None
    max_attempts: int | None
    timeout: float | timedelta | None
    ttl: float | timedelta | None
    unique: bool | float | timedelta
    unique_key: str | None
    headers: Mapping[str, str] | None
    trace: str | None


class DeclaredOptions(TypedDict, total=False):
    """Options of `@app.task(…)`. Durations are in seconds."""

    name: str
    queue: str | QueueDeclaration
    priority: int | str
    max_attempts: int | None
    timeout: float | timedelta | None
    ttl: float | timedelta | None
    delay: float | timedelta
    key: KeyOf | None
    unique: bool | float | timedelta
    unique_key: KeyOf | None
    takes: Takes
    on_parent_failure: ParentPolicy
    fatal: type[BaseException] | tuple[type[BaseException], ...]
    headers: Mapping[str, str] | None
    backoff_base_seconds: float | None
    backoff_multiplier: float | None
    backoff_max_seconds: float | None
    backoff_jitter: float | None
    cron: str | None
    timezone: str
    missed: MissedPolicy


CALL_OPTIONS: Final = tuple(CallOptions.__annotations__)
DECLARED_OPTIONS: Final = tuple(DeclaredOptions.__annotations__)


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Durations are seconds. `None` leaves it to the queue, or means none."""

    queue: str = QUEUE_DEFAULT
    priority: int = limits.priority_default
    max_attempts: int | None = None
    timeout: float | None = None
    ttl: float | None = None
    delay: float = 0.0
    deliver_at: datetime | None = None
    key: str | None = None
    key_of: KeyOf | None = None  # where the key comes from when the call names none
    unique: bool = False
    unique_seconds: float | None = None
    unique_key: str | None = None
    unique_key_of: KeyOf | None = None
    takes: Takes | None = None  # None: as the workflow says
    on_parent_failure: ParentPolicy = "cancel"
    depends_on: tuple[str, ...] = ()
    task_id: str | None = None
    headers: Mapping[str, str] | None = None
    trace: str | None = None
    fatal: tuple[type[BaseException], ...] = ()  # errors that is not retryable
    backoff_base_seconds: float | None = None
    backoff_multiplier: float | None = None
    backoff_max_seconds: float | None = None
    backoff_jitter: float | None = None

    def retry_seconds(self, attempt: int, chance: float) -> float | None:
        """The wait after a failed attempt; None when the task has no backoff of its own. `chance` is from 0 to 1."""
        own = [getattr(self, name) for name in BACKOFFS]
        if all(value is None for value in own):
            return None
        base, multiplier, most, jitter = (
            default if value is None else value for value, default in zip(own, _BACKOFF_DEFAULTS, strict=True)
        )
        wait = min(base * multiplier ** min(attempt - 1, 64), most)
        return float(wait * (1 + jitter * (2 * chance - 1)))


def checked(options: Mapping[str, Any], known: tuple[str, ...], base: TaskOptions) -> TaskOptions:
    """Options over `base`, each of them checked; the refusal names the option."""
    check_known(options, known)
    values = {name: _CHECKS[name](value) if name in _CHECKS else value for name, value in options.items()}
    if "unique" in values:
        values |= unique_of(values["unique"])
    return msgspec.structs.replace(base, **values)


def check_known(options: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Whether there are such options at all."""
    for name in options:
        if name not in known:
            raise UnknownOption(f"{name!r} is not an option of a task", hint=suggestion(name, known))


def unique_of(value: Any) -> dict[str, Any]:
    """`unique=True` holds until the first one is final, `unique=60` for that number of seconds."""
    if value is None or isinstance(value, bool):
        return {"unique": bool(value), "unique_seconds": None}
    seconds = check_seconds(value, "unique")
    if not seconds:
        raise InvalidField("unique: 0 seconds would have no effect", hint="use True, or a number of seconds above 0")
    return {"unique": True, "unique_seconds": seconds}


def task_ids(value: Any, name: str = "depends_on") -> tuple[str, ...]:
    """Ids of jobs, of workflows (their last tasks), or given as text; one or several."""
    if isinstance(value, str):
        return (task_id_of(value, name),)
    if hasattr(value, "end_ids"):
        return tuple(value.end_ids)
    if hasattr(value, "id"):
        return (task_id_of(value.id, name),)
    if not isinstance(value, Sequence):
        raise InvalidField(f"{name}: {value!r} is neither a job nor the id of one, nor a list of them")
    return tuple(dict.fromkeys(id for item in value for id in task_ids(item, name)))


def task_id_of(value: Any, name: str = "task_id") -> str:
    """A UUID as text, in the one way in which it is stored."""
    try:
        return str(value if isinstance(value, UUID) else UUID(value))
    except (ValueError, TypeError, AttributeError):
        raise InvalidField(f"{name}: {value!r} is not a UUID", hint="create one with uuid.uuid4()") from None


def _timeout(value: Any) -> float | None:
    if value is None:
        return None
    seconds = check_seconds(value, "timeout")
    if not seconds:
        raise InvalidField("timeout: 0 would end every run at once", hint="use None for no limit")
    return seconds


def _ttl(value: Any) -> float | None:
    return None if value is None else fields.ttl_us(value) / 1e6


def _attempts(value: Any) -> int | None:
    return None if value is None else fields.check_max_attempts(value)


def _instant(value: Any) -> datetime | None:
    return None if value is None else to_datetime(to_micros(value, "deliver_at"))


def _text(name: str) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        if value is not None and not isinstance(value, str):
            raise InvalidField(f"{name}: {value!r} is not text")
        return value

    return check


def _key_of(name: str) -> Callable[[Any], KeyOf | None]:
    def check(value: Any) -> KeyOf | None:
        if value is not None and not isinstance(value, str) and not callable(value):
            raise InvalidField(f"{name}: {value!r} is neither the name of an argument nor a function of the arguments")
        key_of: KeyOf | None = value
        return key_of

    return check


def _word(name: str, words: Any) -> Callable[[Any], Any]:
    known = get_args(words)

    def check(value: Any) -> Any:
        if value not in known and not (value is None and name == "takes"):
            raise InvalidField(f"{name}: {value!r} is not a valid choice", hint=suggestion(str(value), known))
        return value

    return check


def _errors(value: Any) -> tuple[type[BaseException], ...]:
    kinds = value if isinstance(value, tuple | list) else (value,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise InvalidField(f"fatal: {value!r} is neither an exception class nor a tuple of them")
    return tuple(kinds)


def _headers(value: Mapping[str, str] | None) -> Mapping[str, str] | None:
    if value is not None:
        fields.encode_headers(value)
    return value


def _backoff(name: str) -> Callable[[Any], float | None]:
    least, greatest = OPTION_RANGES[name]

    def check(value: Any) -> float | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= greatest:
            raise InvalidField(f"{name}: {value!r} is outside {number_range(least, greatest)}")
        return float(value)

    return check


_CHECKS: Final[dict[str, Callable[[Any], Any]]] = {
    "queue": lambda value: check_name(value.name if isinstance(value, QueueDeclaration) else value),
    "priority": check_priority,
    "max_attempts": _attempts,
    "timeout": _timeout,
    "ttl": _ttl,
    "delay": lambda value: check_seconds(value, "delay"),
    "deliver_at": _instant,
    "key": _text("key"),
    "key_of": _key_of("key"),
    "unique_key": _text("unique_key"),
    "unique_key_of": _key_of("unique_key"),
    "takes": _word("takes", Takes),
    "on_parent_failure": _word("on_parent_failure", ParentPolicy),
    "depends_on": task_ids,
    "task_id": lambda value: None if value is None else task_id_of(value),
    "headers": _headers,
    "trace": _text("trace"),
    "fatal": _errors,
    **{name: _backoff(name) for name in BACKOFFS},
}
