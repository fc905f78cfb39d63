"""Finding jobs again: filters, and what one page asks for."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypedDict

import msgspec

from penstock import refusals
from penstock.errors import InvalidField, UnknownOption
from penstock.model_tasks import TaskFilter, TaskState
from penstock.refusals import suggestion
from penstock.tasks.task import Configured

if TYPE_CHECKING:
    pass

PAGE: Final = 200


class JobFilter(TypedDict, total=False):
    """Which jobs are meant: all that is given must match."""

    status: str | tuple[str, ...] | list[str]
    task_type: str | Configured[..., Any]  # a name, or the task itself
    queue: str
    worker: str
    workflow: str
    schedule: str
    submitted_since: datetime
    submitted_until: datetime
    argument: str  # a value anywhere in the arguments, or path=value ("kwargs.to=a@b.c", "args.0=7")
    error_contains: str


NAMES: Final = tuple(JobFilter.__annotations__)


def filter_of(filters: JobFilter) -> TaskFilter:
    """The filter of a request; every refusal names the field."""
    for name in filters:
        if name not in NAMES:
            raise UnknownOption(f"{name!r} is not a filter of jobs", hint=suggestion(name, NAMES))
    fields: dict[str, Any] = dict(filters)
    task = fields.get("task_type")
    if isinstance(task, Configured):
        fields["task_type"] = task.task.name
    states = fields.pop("status", ())
    if not isinstance(states, Iterable):
        raise refusals.choice(states, tuple(TaskState), "status")
    fields["states"] = tuple(_state(state) for state in ((states,) if isinstance(states, str) else states))
    fields["limit"] = PAGE
    return refusals.converted(fields, TaskFilter, whole="jobs")


def _state(value: Any) -> TaskState:
    known = tuple(state.value for state in TaskState)
    if value not in known:
        raise refusals.choice(value, known, "status")
    return TaskState(value)


def check_limit(value: Any) -> int | None:
    """How many jobs to list; None for all of them."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise InvalidField(f"limit: {value!r} is neither a whole number from 1 nor None")
    return value


def page_filter(filter: TaskFilter, more: int | None) -> TaskFilter:
    """The filter of one page, of which `more` jobs are wanted at most."""
    return filter if more is None else msgspec.structs.replace(filter, limit=min(filter.limit, more))
