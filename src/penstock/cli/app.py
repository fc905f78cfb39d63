"""The commands, and how their errors are shown."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer
from typer.main import get_command

import penstock
from penstock.cli import (
    access,
    audit,
    backup,
    connections,
    dlq,
    encryption,
    groups,
    operations,
    output,
    pipeline,
    queues,
    schedules,
    segments,
    store,
    target,
    tasks,
    tls,
    workflows,
)
from penstock.cli.bench import bench
from penstock.cli.browse import cancel, delayed, latest, peek, search, tail
from penstock.cli.bulk import replay
from penstock.cli.connections import cluster
from penstock.cli.dashboard import dashboard, header_file
from penstock.cli.demo import demo
from penstock.cli.exits import INTERRUPTED, OK, explained
from penstock.cli.lease import ack, extend, lease, nack, reject, release
from penstock.cli.metrics import health, history, metrics
from penstock.cli.options import ContextOption, Url, command, completion
from penstock.cli.pauses import pause, pauses, resume
from penstock.cli.pipeline_runs import runs
from penstock.cli.push import push
from penstock.cli.queues import stats
from penstock.cli.serve import serve
from penstock.cli.sql import sql
from penstock.cli.storage import doctor, verify
from penstock.cli.tasks import enqueue
from penstock.cli.top import top
from penstock.cli.trace import trace
from penstock.cli.upkeep import profile, seal, sync
from penstock.cli.why import account, keys, why
from penstock.cli.worker import app as workers
from penstock.cli.worker import worker

app = typer.Typer(
    name="penstock",
    help="A durable queue for Python: message queue, task queue and replayable log in one.",
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add(panel: str, *commands: Callable[..., None]) -> None:
    for function in commands:
        command(app, rich_help_panel=panel)(function)


_add("Broker", serve)
app.add_typer(tls.app, name="tls", rich_help_panel="Broker")
_add("Messages", push, lease, tail, peek, search, latest)
_add("Single messages", ack, nack, reject, release, extend, delayed, cancel, why, trace)
command(queues.app)(keys)
command(queues.app)(account)
app.add_typer(queues.app, name="queues", rich_help_panel="Queues and groups")
app.add_typer(groups.app, name="groups", rich_help_panel="Queues and groups")
_add("Queues and groups", groups.seek, queues.compact, replay, pause, resume, pauses)
app.add_typer(dlq.app, name="dlq", rich_help_panel="Queues and groups")
_add("Tasks", enqueue, worker)
app.add_typer(workers, name="workers", rich_help_panel="Tasks")
app.add_typer(tasks.app, name="tasks", rich_help_panel="Tasks")
app.add_typer(workflows.app, name="workflows", rich_help_panel="Tasks")
app.add_typer(schedules.app, name="schedules", rich_help_panel="Tasks")
app.add_typer(operations.app, name="operations", rich_help_panel="Tasks")
_add("Monitoring", health, top, stats, metrics, history, bench, cluster)
app.add_typer(connections.app, name="connections", rich_help_panel="Monitoring")
_add("History and analytics", sql)
command(pipeline.app)(runs)
app.add_typer(pipeline.app, name="pipeline", rich_help_panel="History and analytics")
_add("Storage", seal, sync, profile, doctor, verify)
app.add_typer(backup.app, name="backup", rich_help_panel="Storage")
_add("Storage", backup.restore)
app.add_typer(store.app, name="store", rich_help_panel="Storage")
app.add_typer(store.nodes, name="node", rich_help_panel="Storage")
app.add_typer(segments.app, name="segments", rich_help_panel="Storage")
app.add_typer(encryption.app, name="encryption", rich_help_panel="Access")
_add("Access", access.whoami, dashboard)
command(access.keys, "file")(header_file)
app.add_typer(access.keys, name="key", rich_help_panel="Access")
app.add_typer(access.users, name="user", rich_help_panel="Access")
app.add_typer(access.roles, name="role", rich_help_panel="Access")
app.add_typer(access.namespaces, name="namespace", rich_help_panel="Access")
app.add_typer(audit.app, name="audit", rich_help_panel="Access")
app.add_typer(target.app, name="context", rich_help_panel="Tools")
_add("Tools", completion, demo)


def _print_version(is_given: bool) -> None:
    if is_given:
        output.write(f"penstock {penstock.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _show_help(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    _url: Url = None,
    _context: ContextOption = None,
) -> None:
    if context.invoked_subcommand is None:
        output.write(context.get_help())


@app.command(rich_help_panel="Tools")
def version(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the version of Penstock."""
    if as_json:
        output.write_json({"version": penstock.__version__})
    else:
        output.write(f"penstock {penstock.__version__}")


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code. Errors are shown here, and nowhere else."""
    words = broker_last(sys.argv[1:] if arguments is None else arguments)
    _show_retries()
    try:
        code = app(words, prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        return _unread()
    except SystemExit as left:
        # The parser makes an exit of its own out of a broken pipe.
        if isinstance(left.__context__, BrokenPipeError):
            return _unread()
        raise
    except Exception as error:  # noqa: BLE001 - the last stop before a traceback
        code, name, message, hint = explained(error, command_of(words))
        output.write_error(name, message, hint, as_json="--json" in words)
        return code
    return code if isinstance(code, int) else OK


def _unread() -> int:
    """Whoever read our output has seen enough; Python would complain about it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return OK


BROKER_FLAGS: Final = ("-u", "--url", "-c", "--context")


def broker_last(words: Sequence[str]) -> list[str]:
    """The words of a command line with `--url` and `--context` after the command, wherever they were before it."""
    known: Any = get_command(app)
    path: list[str] = []
    flags: list[str] = []
    rest = list(words)
    while rest:
        if rest[0] in BROKER_FLAGS and len(rest) > 1:
            flags += [rest.pop(0), rest.pop(0)]
        elif rest[0].startswith(("--url=", "--context=")):
            flags.append(rest.pop(0))
        elif rest[0] in getattr(known, "commands", {}):
            known = known.commands[rest[0]]
            path.append(rest.pop(0))
        else:
            break
    return [*path, *flags, *rest]


def _show_retries() -> None:
    """A client that finds no broker says so at once, and how long it goes on trying."""
    client = logging.getLogger("penstock.client")
    if not any(isinstance(handler, RetryNotes) for handler in client.handlers):
        client.addHandler(RetryNotes(logging.WARNING))


class RetryNotes(logging.Handler):
    """Writes what a client reports, for people, to the present standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        output.write_note(record.getMessage())


def command_of(words: Sequence[str]) -> str:
    """The command that these words begin with: where to look for help."""
    known: Any = get_command(app)
    path = ["penstock"]
    for word in words:
        known = getattr(known, "commands", {}).get(word)
        if known is None:
            break
        path.append(word)
    return " ".join(path)
