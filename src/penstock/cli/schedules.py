"""`penstock schedules`: tasks that the clock submits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock import operations as ops
from penstock.cli import human, output, shapes
from penstock.cli.exits import nothing_there
from penstock.cli.options import (
    Arg,
    Args,
    AsJson,
    ContextOption,
    Key,
    Kwargs,
    MaxAttempts,
    Priority,
    Queue,
    TaskType,
    Timeout,
    Url,
    Values,
    Yes,
)
from penstock.cli.target import address, opened
from penstock.errors import ScheduleNotFound
from penstock.model import check_priority
from penstock.model_tasks import ScheduleSpec, ScheduleView

if TYPE_CHECKING:
    from penstock.client.session import Session

app = typer.Typer(help="Schedules: list, set, pause, resume, delete, prune.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the schedule.")]


@app.command(name="list")
def list_(url: Url = None, context: ContextOption = None, as_json: AsJson = False) -> None:
    """All schedules, and when they are due."""
    with opened(url, context) as ps:
        found = _all(ps.session)
    if as_json:
        output.write_json([shapes.schedule(view) for view in found])
        return
    if not found:
        raise nothing_there("no schedules", "'penstock schedules set' makes one; so does @app.task(cron=…)")
    headings = ("name", "cron", "zone", "task", "queue", "next", "last")
    output.write(output.table(headings, [_row(view) for view in found], text_columns=len(headings)))


@app.command(name="set")
def set_(
    name: Name,
    cron: Annotated[
        str, typer.Argument(metavar="CRON", help="'*/5 * * * *', '@hourly', … or six fields from seconds.")
    ],
    task_type: TaskType,
    values: Values = None,
    arg: Arg = None,
    args: Args = None,
    kwargs: Kwargs = None,
    queue: Queue = "default",
    timezone: Annotated[str, typer.Option("--timezone", "-z", help="Such as Europe/Berlin.")] = "UTC",
    catch_up: Annotated[bool, typer.Option("--catch-up", help="Submit what was missed while no broker ran.")] = False,
    priority: Priority = "normal",
    key: Key = None,
    timeout: Timeout = None,
    max_attempts: MaxAttempts = None,
    url: Url = None,
    context: ContextOption = None,
    as_json: AsJson = False,
) -> None:
    """Make a schedule, or change it."""
    given_args, given_kwargs = shapes.arguments(values or [], arg or [], args, kwargs)
    spec = ScheduleSpec(
        name=name,
        cron=cron,
        timezone=timezone,
        missed="catch_up" if catch_up else "skip",
        task_type=task_type,
        queue=queue,
        args=given_args,
        kwargs=given_kwargs,
        timeout_seconds=timeout,
        max_attempts=max_attempts,
        priority=check_priority(int(priority) if priority.isdigit() else priority),
        key=key,
    )
    _set(spec, url, context, as_json=as_json)


@app.command()
def pause(name: Name, url: Url = None, context: ContextOption = None, as_json: AsJson = False) -> None:
    """Submit nothing until it is resumed."""
    _set(msgspec.structs.replace(_named(name, url, context).spec, is_paused=True), url, context, as_json=as_json)


@app.command()
def resume(name: Name, url: Url = None, context: ContextOption = None, as_json: AsJson = False) -> None:
    """Go on from the next tick."""
    _set(msgspec.structs.replace(_named(name, url, context).spec, is_paused=False), url, context, as_json=as_json)


@app.command()
def delete(
    name: Name, yes: Yes = False, url: Url = None, context: ContextOption = None, as_json: AsJson = False
) -> None:
    """Forget a schedule; tasks that it has submitted stay."""
    output.confirm(f"Delete schedule {name}?", yes=yes)
    with opened(url, context) as ps:
        ps.session.execute(ops.DeleteSchedule(name))
    output.done(f"schedule {name} is deleted", {"name": name, "status": "deleted"}, as_json=as_json)


@app.command()
def prune(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the app is, such as myapp:app.")],
    yes: Yes = False,
    url: Url = None,
    context: ContextOption = None,
    as_json: AsJson = False,
) -> None:
    """Delete schedules that cron= declared once and that the app declares no more."""
    from penstock.worker.command import load_app

    found = load_app(app)
    if url or context or found.is_in_memory:
        found.move(address(url, context))
    try:
        names = found.declarations.gone(found.schedules())
        if not names:
            raise nothing_there("no schedules that the app declares no more")
        output.confirm(f"Delete {', '.join(names)}?", yes=yes)
        pruned = found.prune_schedules()
    finally:
        found.close()
    output.done(f"deleted: {', '.join(pruned)}", {"deleted": pruned}, as_json=as_json)


def _set(spec: ScheduleSpec, url: str | None, context: str | None, *, as_json: bool) -> None:
    with opened(url, context, is_made=True) as ps:
        view = ps.session.execute(ops.SetSchedule(spec))
    when = "it is paused" if view.next_at is None else f"next at {human.moment(view.next_at)}"
    output.done(f"schedule {spec.name}: {when}", shapes.schedule(view), as_json=as_json)


def _named(name: str, url: str | None, context: str | None) -> ScheduleView:
    with opened(url, context) as ps:
        found = [view for view in _all(ps.session) if view.spec.name == name]
    if not found:
        raise ScheduleNotFound(f"there is no schedule {name!r}", hint="'penstock schedules list' lists them")
    return found[0]


def _all(session: Session) -> list[ScheduleView]:
    return session.execute(ops.Schedules())


def _row(view: ScheduleView) -> tuple[str, ...]:
    spec = view.spec
    due = "paused" if view.next_at is None else human.until(view.next_at)
    last = human.EMPTY if view.last_at is None else f"{human.age(view.last_at)} ago"
    return spec.name, spec.cron, spec.timezone, spec.task_type, spec.queue, due, last
