"""`penstock worker` runs tasks until it is stopped; `penstock workers` lists who does, and has them pause or stop."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import human, output, shapes
from penstock.cli.exits import CommandError
from penstock.cli.options import AsJson, Flags, command, expanded, seconds_option
from penstock.cli.target import Broker
from penstock.model_tasks import WorkerView

if TYPE_CHECKING:
    from penstock.operations import Operation

LOGS = "Logs"


def _option(*names: str, says: str, panel: str | None = None, **more: Any) -> Any:
    return typer.Option(*names, help=says, rich_help_panel=panel, **more)


@dataclass(frozen=True)
class WorkerFlags(Flags):
    """The options of a worker: see `penstock.worker.settings`."""

    concurrency: Annotated[int, _option("--concurrency", "-n", min=1, says="How many tasks to run at once.")] = 16
    queues: Annotated[
        str | None,
        _option(
            "--queues", "-q", metavar="NAMES", says="Queues to work on, comma-separated. [default: those of the app]"
        ),
    ] = None
    threads: Annotated[int | None, _option(min=1, says="Threads for plain functions. [default: --concurrency]")] = None
    processes: Annotated[int, _option(min=0, says="Run plain functions in this many processes instead of threads.")] = 0
    drain: Annotated[bool, _option("--drain", says="Exit when no tasks are left.")] = False
    reload: Annotated[bool, _option("--reload", says="Restart when a Python file changes; for development.")] = False
    stop_seconds: Annotated[
        float, seconds_option("--stop-seconds", about="Time to finish running tasks after SIGTERM.")
    ] = 60.0
    lease_seconds: Annotated[
        float,
        seconds_option("--lease-seconds", about="After this time without contact, other workers may run its tasks."),
    ] = 30.0
    prefetch_max: Annotated[
        int, _option(min=0, says="How many short tasks to fetch ahead; 0 fetches only what can start.")
    ] = 1_000
    abandoned_max: Annotated[
        int | None, _option(min=0, says="How many runs that cannot be interrupted to tolerate. [default: --threads]")
    ] = None
    restart_when_stuck: Annotated[
        bool, _option("--restart-when-stuck", says="Restart the worker when there are more than --abandoned-max.")
    ] = False
    worker_id: Annotated[
        str | None, _option("--id", says="The id of the worker. [default: host, pid and a random suffix]")
    ] = None

    def options(self) -> dict[str, Any]:
        """The arguments of `Worker`."""
        options = asdict(self)
        del options["reload"]
        names = (self.queues or "").split(",")
        return {**options, "queues": None if self.queues is None else [name.strip() for name in names if name.strip()]}


def worker(
    broker: Broker,
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The import path of the app, such as myapp:app.")],
    flags: WorkerFlags,
    log_format: Annotated[str, _option(metavar="WHAT", says="auto, json or console.", panel=LOGS)] = "auto",
    log_level: Annotated[
        str, _option(metavar="WHAT", says="trace, debug, info, warning or error.", panel=LOGS)
    ] = "info",
) -> None:
    """Run the tasks of an app.

    Async tasks run on an event loop, plain functions in threads or processes. Ctrl-C or SIGTERM stops it after
    finishing running tasks; a second one returns them to their queues. The broker is that of the app, unless --url,
    PENSTOCK_URL or --context do.
    """
    from penstock.telemetry import logs

    _check_words(log_format=(log_format, ("auto", "json", "console")), log_level=(log_level, tuple(logs.LEVELS)))
    logs.setup(log_format, log_level)
    if flags.reload:
        raise typer.Exit(_run_reloading())
    options = {**flags.options(), "app_logs": (log_format, log_level)}
    _run(app, broker, options)


def _run(path: str, broker: Broker, options: dict[str, Any]) -> None:
    from penstock.worker import Worker
    from penstock.worker.command import load_app, run_worker

    app = load_app(path)
    if broker.is_named or app.is_in_memory:
        app.move(broker.address, token=broker.token())
        options["app_url"] = broker.address
    run_worker(lambda: Worker(app, app_path=path, **options))


def _run_reloading() -> int:
    from penstock.worker.command import run_reloading

    words = [word for word in sys.argv[1:] if word != "--reload"]
    return run_reloading(["-m", "penstock", *words], Path.cwd())


def _check_words(**choices: tuple[str, tuple[str, ...]]) -> None:
    for name, (word, known) in choices.items():
        if word not in known:
            flag = f"--{name.replace('_', '-')}"
            raise CommandError(f"{flag}: {word!r} is not known", hint=f"use one of: {', '.join(known)}")


app = typer.Typer(help="Workers: list, quiet, resume, stop.", invoke_without_command=True)
WorkerName = Annotated[str, typer.Argument(metavar="WORKER", help="The id of the worker.")]
Owner = Annotated[
    str | None, typer.Option("--owner", help="The principal it runs as, if several have a worker with this id.")
]


def workers(broker: Broker, ctx: typer.Context, as_json: AsJson = False) -> None:
    """Workers: list, quiet, resume, stop. Without a command: list."""
    if ctx.invoked_subcommand is None:
        list_(broker, as_json)


app.callback()(expanded(workers))


@command(app, "list")
def list_(broker: Broker, as_json: AsJson = False) -> None:
    """List workers: what they run, how busy they are, and their last heartbeat."""
    from penstock import operations as ops

    with broker.opened() as ps:
        views = ps.session.execute(ops.Workers())
    headings = ("worker", "state", "queues", "running", "abandoned", "done", "failed", "cpu", "memory", "last seen")
    nothing = ("no workers", "'penstock worker module:app' starts one")
    output.write_list(views, headings, _row, as_json=as_json, nothing=nothing, shape=shapes.worker, text_columns=3)


@command(app)
def quiet(broker: Broker, worker: WorkerName, owner: Owner = None, as_json: AsJson = False) -> None:
    """Make a worker finish its running tasks and take no more."""
    from penstock import operations as ops

    _request(broker, ops.QuietWorker(worker, owner), "takes no more tasks", as_json=as_json)


@command(app)
def resume(broker: Broker, worker: WorkerName, owner: Owner = None, as_json: AsJson = False) -> None:
    """Make a quiet worker take tasks again."""
    from penstock import operations as ops

    _request(broker, ops.ResumeWorker(worker, owner), "takes tasks again", as_json=as_json)


@command(app)
def stop(
    broker: Broker,
    worker: WorkerName,
    grace: Annotated[
        float | None,
        seconds_option("--grace", about="Time for running tasks to finish. [default: the worker's --stop-seconds]"),
    ] = None,
    owner: Owner = None,
    as_json: AsJson = False,
) -> None:
    """Stop a worker after its running tasks; tasks that take too long return to their queues."""
    from penstock import operations as ops

    _request(broker, ops.StopWorker(worker, owner, grace), "stops when its running tasks are done", as_json=as_json)


def _request(broker: Broker, operation: Operation[WorkerView], what: str, *, as_json: bool) -> None:
    with broker.opened() as ps:
        view = ps.session.execute(operation)
    output.done(f"worker {view.info.worker_id} {what}", shapes.worker(view), as_json=as_json)


def _row(view: WorkerView) -> tuple[Any, ...]:
    info = view.info
    queues, running = ",".join(info.queues) or human.EMPTY, f"{info.running}/{info.concurrency}"
    counts = (info.abandoned, info.completed, info.failed)
    usage = (f"{info.cpu_percent:.0f} %", human.size(info.memory_bytes))
    return info.worker_id, view.state, queues, running, *counts, *usage, f"{human.age(view.last_heartbeat_at)} ago"
