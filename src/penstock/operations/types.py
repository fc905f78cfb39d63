"""Types of operations' fields, each with its validation; and codes of errors that many operations share."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from penstock import limits, refusals, validation
from penstock.errors import InvalidField, shown
from penstock.model import RESERVED_PREFIX, MessageId, check_name
from penstock.model_letters import LetterFilter, MessageFilter
from penstock.model_tasks import TaskFilter
from penstock.operations.base import Action, Check
from penstock.requests import check_session_seconds

IN_QUEUE: Final = ("queue_not_found",)
IN_PUSH: Final = ("invalid_field", "queue_full", "rate_limited", "producer_fenced", "conflict", "disk_full")


def _message_key(value: Any, field: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidField(f"{field}: {shown(value)} is not the key of a message")
    validation.text(value, field)
    return value


MessageKey = Annotated[str, Check(_message_key)]
QueueName = Annotated[str, Check(check_name)]
GroupName = Annotated[str, Check(check_name)]
MemberName = Annotated[str, Check(check_name)]
Limit = Annotated[int, Check(lambda value, field: validation.read_limit(value))]
Offset = Annotated[int, Check(lambda value, field: validation.offset(value))]
Partition = Annotated[int | str, Check(validation.partition)]
Flag = Annotated[bool, Check(validation.flag)]
Id = Annotated[MessageId, Check(lambda value, field: validation.message_id(value))]
Instant = Annotated[datetime, Check(validation.instant)]
Position = Annotated[str | int | dict[str, int], Check(validation.wire_position)]
Rate = Annotated[float, Check(lambda value, field: validation.per_second(value))]
SessionSeconds = Annotated[float, Check(lambda value, field: check_session_seconds(value))]
WaitSeconds = Annotated[float, Check(validation.wait_seconds)]
TaskId = Annotated[str, Check(validation.task_id)]
WorkerId = Annotated[str, Check(lambda value, field: validation.worker_id(value))]
OperationId = Annotated[str, Check(lambda value, field: validation.operation_id(value))]
ScheduleName = Annotated[str, Check(lambda value, field: validation.schedule_name(value))]


def _included(value: Any, field: str) -> str:
    if value not in INCLUDED:
        raise refusals.choice(value, tuple(filter(None, INCLUDED)), field)
    return str(value)


def number(most: int) -> Check:
    """A whole number from 1 on."""

    def check(value: Any, field: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise InvalidField(f"{field}: {shown(value)} is not a whole number from 1 to {most:,}")
        return value

    return Check(check)


SearchLimit = Annotated[int, number(limits.timelines_max)]
LookBack = Annotated[int, number(limits.look_back_max)]


def _profiled(value: Any, field: str) -> str:
    if value not in PROFILED:
        raise InvalidField(f"{field}: {shown(value)} cannot be profiled", hint=f"use one of {', '.join(PROFILED)}")
    return str(value)


def _profile_seconds(value: Any, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= limits.profile_seconds_max:
        raise InvalidField(f"{field}: {shown(value)} is not a number above 0, up to {limits.profile_seconds_max:g}")
    return float(value)


PROFILED: Final = ("cpu", "memory", "threads")
Profiled = Annotated[Literal["cpu", "memory", "threads"], Check(_profiled)]
ProfileSeconds = Annotated[float, Check(_profile_seconds)]


def _paused(value: Any, field: str) -> str:
    if value not in PAUSED:
        raise refusals.choice(value, PAUSED, field)
    return str(value)


def _pause_reason(value: Any, field: str) -> str:
    if not isinstance(value, str) or len(value) > limits.pause_reason_characters_max:
        raise InvalidField(f"{field}: not text of up to {limits.pause_reason_characters_max} characters")
    validation.text(value, field)
    return value


def _namespace(value: Any, field: str) -> str:
    name = check_name(value, field)
    if "." in name or name == RESERVED_PREFIX.rstrip("."):
        raise InvalidField(
            f"{field}: {name!r} is not a namespace",
            hint="the namespace is the part of a queue name before the first dot",
        )
    return name


def _prefix(value: Any, field: str) -> str:
    if not isinstance(value, str) or len(value.encode(errors="surrogatepass")) > limits.key_bytes_max:
        raise InvalidField(f"{field}: not text of up to {limits.key_bytes_max:,} bytes")
    validation.text(value, field)
    return value


Prefix = Annotated[str, Check(_prefix)]
NamespacePrefix = Annotated[str, Check(_namespace)]
PAUSED: Final = ("push", "delivery", "all")
Paused = Annotated[Literal["push", "delivery", "all"], Check(_paused)]
PauseReason = Annotated[str, Check(_pause_reason)]
INCLUDED: Final = ("", "retries", "only_retries")
Included = Annotated[Literal["", "retries", "only_retries"], Check(_included)]


def _letters(value: Any, field: str) -> LetterFilter:
    validation.redrive_limit(value.limit)
    return value  # type: ignore[no-any-return]


def _messages(filter: Any, field: str) -> MessageFilter:
    """Which messages of the past are meant."""
    if not isinstance(filter, MessageFilter):
        raise InvalidField(f"filter: {filter!r} is not a filter of messages")
    for name in ("key", "text", "trace"):
        if getattr(filter, name) is not None:
            validation.text(getattr(filter, name), name, limits.task_filter_bytes_max)
    if not isinstance(filter.headers, Mapping | None):
        raise InvalidField(f"headers: {shown(filter.headers)} is not a mapping of names to values")
    for name, value in (filter.headers or {}).items():
        validation.text(name, "headers", limits.task_filter_bytes_max)
        validation.text(value, f"headers.{name}", limits.task_filter_bytes_max)
    if filter.since is not None and filter.until is not None and filter.since >= filter.until:
        raise InvalidField("from: not before to")
    return filter


def _state(value: Any, field: str) -> str:
    if value not in STATES:
        raise refusals.choice(value, STATES, field)
    return str(value)


STATES: Final = ("ready", "delayed", "leased", "waiting", "settled", "dead", "skipped")
StateName = Annotated[Literal["ready", "delayed", "leased", "waiting", "settled", "dead", "skipped"], Check(_state)]
Letters = Annotated[LetterFilter, Check(_letters)]
Messages = Annotated[MessageFilter, Check(_messages)]
Options = Annotated[Mapping[str, Any], Check(lambda value, field: dict(value) if isinstance(value, Mapping) else value)]


def needs_of_filter(queue: str, filter: LetterFilter | TaskFilter) -> list[tuple[Action, str]]:
    """The grants for an operation on all that match: a count of those that match tells what is stored in them."""
    return [(Action.MANAGE, queue), *([(Action.READ, queue)] if filter.needs_read else [])]
