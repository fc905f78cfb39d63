"""Schedules: tasks that the clock submits. The broker keeps them and submits each tick once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from penstock.errors import InvalidField
from penstock.model import check_name
from penstock.model_tasks import MissedPolicy, ScheduleSpec
from penstock.refusals import suggestion
from penstock.tasks.options import TaskOptions

if TYPE_CHECKING:
    from penstock.tasks.task import Configured, Task
    from penstock.tasks.workflows import Step

# What a schedule cannot give to the tasks that it makes.
_NOT_FOR_SCHEDULES = ("delay", "deliver_at", "ttl", "unique", "task_id", "depends_on", "headers", "trace")


def spec_of(
    source: Task[..., Any, Any] | Configured[..., Any] | Step[Any],
    name: str,
    cron: str,
    timezone: str = "UTC",
    missed: MissedPolicy = "skip",
    is_paused: bool = False,
) -> ScheduleSpec:
    """The schedule that runs a task, or a step (`report.s("eu")`) with its arguments."""
    for field, value in (("cron", cron), ("timezone", timezone)):
        if not isinstance(value, str) or not value.strip():
            raise InvalidField(f"{field}: {value!r} is not text")
    _check_ticks(name, cron, timezone)
    if missed not in get_args(MissedPolicy):
        raise InvalidField(
            f"missed: {missed!r} is not a valid choice", hint=suggestion(str(missed), get_args(MissedPolicy))
        )
    configured, args, kwargs = _parts(source)
    task, options = configured.task, configured.chosen
    _check(name, options)
    if task.app.signer is not None:
        hint = "submit it from a program that has the key, such as a system cron job"
        raise InvalidField(f"schedule {name!r}: the broker submits its tasks and cannot sign them", hint=hint)
    is_plain_function = not args and not kwargs
    if is_plain_function and not task.takes_nothing:
        hint = "give the parameters defaults, or schedule a step: app.schedule(name, cron, task.s(…))"
        raise InvalidField(f"schedule {name!r}: task {task.name!r} cannot be called without arguments", hint=hint)
    data, named = (b"[]", b"{}") if is_plain_function else task.calls.encode(args, kwargs)
    return ScheduleSpec(
        name=check_name(name, "schedule"),
        cron=cron,
        timezone=timezone,
        missed=missed,
        task_type=task.name,
        queue=options.queue,
        args=data,
        kwargs=named,
        timeout_seconds=options.timeout,
        max_attempts=options.max_attempts,
        priority=options.priority,
        key=options.key if is_plain_function else configured.key_for(task.calls, args, kwargs),
        is_paused=is_paused,
    )


def _parts(source: Any) -> tuple[Configured[..., Any], tuple[Any, ...], Mapping[str, Any]]:
    from penstock.tasks.task import Configured
    from penstock.tasks.workflows import Step

    if isinstance(source, Step):
        return source.configured, source.args, source.kwargs
    if isinstance(source, Configured):
        return source, (), {}
    raise InvalidField(f"task: {source!r} is neither a task nor a step", hint='pass report, or report.s("eu")')


def _check_ticks(name: str, cron: str, timezone: str) -> None:
    """What the broker would refuse when a worker starts is refused where it is written."""
    from penstock.cron import next_tick

    try:
        next_tick(cron, timezone, after=0)
    except InvalidField as error:
        raise InvalidField(f"schedule {name!r}: {error.message}", hint=error.hint) from None


def _check(name: str, options: TaskOptions) -> None:
    for field in _NOT_FOR_SCHEDULES:
        if getattr(options, field) != getattr(TaskOptions(), field):
            raise InvalidField(f"schedule {name!r}: {field} cannot be used with a schedule")
