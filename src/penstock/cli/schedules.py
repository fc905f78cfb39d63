"""`penstock schedules`: tasks that the clock submits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.cli import human, output, shapes
from penstock.cli.exits import nothing_there
from penstock.cli.options import AsJson, Yes, command
from penstock.cli.target import Broker
from penstock.cli.tasks import TaskFlags, TaskType
from penstock.errors import ScheduleNotFound
from penstock.model_tasks import ScheduleSpec, ScheduleView

if TYPE_CHECKING:
    from penstock.client.session import Session

app = typer.Typer(help="Schedules: list, set, run, ticks, pause, resume, delete, prune.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the schedule.")]


@command(app, "list")
def list_(broker: Broker, as_json: AsJson = False) -> None:
    """List schedules and when they are due."""
    with broker.opened() as ps:
        views = _all(ps.session)
    headings = ("name", "cron", "zone", "task", "queue", "next", "last")
    nothing = ("no schedules", "'penstock schedules set' creates one; so does @app.task(cron=…)")
    output.write_list(views, headings, _row, as_json=as_json, nothing=nothing, shape=shapes.schedule)


@command(app, "set")
def set_(
    broker: Broker,
    name: Name,
    cron: Annotated[
        str, typer.Argument(metavar="CRON", help="'*/5 * * * *', '@hourly', or six fields with seconds first.")
    ],
    task_type: TaskType,
    task: TaskFlags,
    timezone: Annotated[
        str, typer.Option("--timezone", "-z", help="The time zone of the expression, such as Europe/Berlin.")
    ] = "UTC",
    catch_up: Annotated[
        bool, typer.Option("--catch-up", help="Submit ticks that were missed while no broker ran.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create or change a schedule."""
    spec = ScheduleSpec(
        name=name,
        cron=cron,
        timezone=timezone,
        missed="catch_up" if catch_up else "skip",
        task_type=task_type,
        **task.fields(),
    )
    _set(broker, spec, as_json=as_json)


@command(app)
def pause(broker: Broker, name: Name, as_json: AsJson = False) -> None:
    """Pause a schedule: submit nothing until it is resumed."""
    _set(broker, msgspec.structs.replace(_named(broker, name).spec, is_paused=True), as_json=as_json)


@command(app)
def resume(broker: Broker, name: Name, as_json: AsJson = False) -> None:
    """Resume a schedule from its next tick."""
    _set(broker, msgspec.structs.replace(_named(broker, name).spec, is_paused=False), as_json=as_json)


@command(app)
def run(broker: Broker, name: Name, as_json: AsJson = False) -> None:
    """Submit the task of a schedule now, in addition to its ticks."""
    from penstock import operations as ops

    with broker.opened() as ps:
        made = ps.session.execute(ops.RunSchedule(name))
    output.done(f"schedule {name}: task {made.task_id} is submitted", msgspec.structs.asdict(made), as_json=as_json)


@command(app)
def ticks(
    broker: Broker,
    name: Name,
    count: Annotated[int, typer.Option("--count", "-n", help="How many upcoming ticks to show.")] = 5,
    runs: Annotated[int, typer.Option("--runs", help="How many of its latest tasks to show.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show the next ticks of a schedule, in UTC and its time zone, and its latest tasks."""
    from penstock import operations as ops

    with broker.opened() as ps:
        found = ps.session.execute(ops.Ticks(name, count, runs))
    if as_json:
        output.write_json(found)
        return
    rows = [(human.moment(tick.at), tick.local, human.until(tick.at)) for tick in found.next]
    output.write(output.table(("next", f"in {found.timezone}", "in"), rows, text_columns=3))
    if found.is_paused:
        output.write("[dim]paused: these would be its next ticks[/]")
    if found.runs:
        output.write("")
        headings = ("at", "by", "task", "status", "error")
        past = [(human.moment(run.at), run.trigger, run.task_id, run.state, _error(run.error)) for run in found.runs]
        output.write(output.table(headings, past, text_columns=4, has_excerpt=True))


def _error(text: str) -> str:
    return text.rstrip().rpartition("\n")[2] or human.EMPTY


@command(app)
def delete(broker: Broker, name: Name, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete a schedule. Tasks already submitted stay."""
    from penstock import operations as ops

    output.confirm(f"Delete schedule {name}?", yes=yes)
    with broker.opened() as ps:
        ps.session.execute(ops.DeleteSchedule(name))
    output.done(f"schedule {name} is deleted", {"name": name, "status": "deleted"}, as_json=as_json)


@command(app)
def prune(
    broker: Broker,
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The import path of the app, such as myapp:app.")],
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete schedules that cron= once declared and the app no longer does."""
    from penstock.worker.command import load_app

    loaded = load_app(app)
    if broker.is_named or loaded.is_in_memory:
        loaded.move(broker.address)
    try:
        names = loaded.declarations.gone(loaded.schedules())
        if not names:
            raise nothing_there("no schedules to prune: the app still declares them all")
        output.confirm(f"Delete {', '.join(names)}?", yes=yes)
        pruned = loaded.prune_schedules()
    finally:
        loaded.close()
    output.done(f"deleted: {', '.join(pruned)}", {"deleted": pruned}, as_json=as_json)


def _set(broker: Broker, spec: ScheduleSpec, *, as_json: bool) -> None:
    from penstock import operations as ops

    with broker.opened(create=True) as ps:
        view = ps.session.execute(ops.SetSchedule(spec))
    when = "paused" if view.next_at is None else f"next at {human.moment(view.next_at)}"
    output.done(f"schedule {spec.name}: {when}", shapes.schedule(view), as_json=as_json)


def _named(broker: Broker, name: str) -> ScheduleView:
    with broker.opened() as ps:
        views = [view for view in _all(ps.session) if view.spec.name == name]
    if not views:
        raise ScheduleNotFound(f"there is no schedule {name!r}", hint="'penstock schedules list' lists them")
    return views[0]


def _all(session: Session) -> list[ScheduleView]:
    from penstock import operations as ops

    return session.execute(ops.Schedules())


def _row(view: ScheduleView) -> tuple[str, ...]:
    spec = view.spec
    due = "paused" if view.next_at is None else human.until(view.next_at)
    last = human.EMPTY if view.last_at is None else f"{human.age(view.last_at)} ago"
    return spec.name, spec.cron, spec.timezone, spec.task_type, spec.queue, due, last
