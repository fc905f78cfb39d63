"""The commands, and what becomes of their errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

import penstock
from penstock.cli import output
from penstock.cli.demo import demo
from penstock.cli.doctor import doctor
from penstock.cli.verify import verify
from penstock.errors import InputError, NotADataDirectory, PenstockError, StateError

OK: Final = 0
USER_ERROR: Final = 1
STORAGE_ERROR: Final = 2
NOTHING_THERE: Final = 4
INTERRUPTED: Final = 130
COMMANDS: Final = ("demo", "doctor", "verify", "version")

app = typer.Typer(
    name="penstock",
    help="A durable queue for Python: message queue and replayable log in one.",
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(doctor)
app.command()(verify)


@app.callback(invoke_without_command=True)
def _show_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        output.write(context.get_help())


@app.command()
def version(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the version of Penstock."""
    if as_json:
        output.write_json({"version": penstock.__version__})
    else:
        output.write(f"penstock {penstock.__version__}")


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code. Errors are told here, and nowhere else."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(words, prog_name="penstock", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough; Python would complain about it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Exception as error:  # noqa: BLE001 - the last stop before a traceback
        code, name, message, hint = _explained(error, words)
        output.write_error(name, message, hint, as_json="--json" in words)
        return code
    return code if isinstance(code, int) else OK


def _explained(error: Exception, words: list[str]) -> tuple[int, str, str, str]:
    """Exit code, error code, message and hint."""
    if isinstance(error, FileNotFoundError):
        return NOTHING_THERE, "nothing_there", str(error), "check the path; penstock.open() makes a new directory"
    if isinstance(error, PenstockError):
        is_users = isinstance(error, InputError | StateError | NotADataDirectory)
        return (USER_ERROR if is_users else STORAGE_ERROR), error.code, error.message, error.hint
    usage: Any = getattr(error, "format_message", None)
    if usage is not None:
        command = f" {words[0]}" if words and words[0] in COMMANDS else ""
        return USER_ERROR, "usage", usage().rstrip("."), f"try 'penstock{command} --help'"
    return STORAGE_ERROR, "defect", f"{type(error).__name__}: {error}", "this is a defect of Penstock; please report it"
