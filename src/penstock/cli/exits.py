"""What a command exits with, and how errors are shown on a command line."""

from __future__ import annotations

import re
from typing import Any, Final

from penstock.errors import (
    AccessError,
    GroupExists,
    GroupNotFound,
    InputError,
    NotADataDirectory,
    PenstockError,
    QueueExists,
    QueueNotFound,
    SparkMissing,
    StateError,
    TaskNotFound,
    Unavailable,
    reason,
)
from penstock.refusals import likeness

OK: Final = 0
USER_ERROR: Final = 1
SERVER_ERROR: Final = 2
NOT_AUTHORISED: Final = 3
NOTHING_THERE: Final = 4
INTERRUPTED: Final = 130

# The library's hints name methods; here they name commands.
HINTS: Final[dict[type[PenstockError], str]] = {
    QueueNotFound: "'penstock queues' lists them; a push or 'penstock queues create' creates one",
    QueueExists: "'penstock queues update' changes its options",
    GroupNotFound: "'penstock groups list' lists them; 'penstock groups create', or --start, creates one",
    GroupExists: "'penstock seek' moves it",
    TaskNotFound: "'penstock tasks list' lists them; final ones are kept for 7 days",
    Unavailable: "check that the broker is running ('penstock serve') and that the address is right (--url)",
}

# Whoever names a queue where a command should be wants to see it.
MEANT: Final = {
    "penstock queues": "show",
    "penstock groups": "list",
    "penstock dlq": "list",
    "penstock pipeline": "run",
    "penstock tasks": "show",
}


class CommandError(Exception):
    """An error that only a command line has; shown like every other."""

    def __init__(self, message: str, *, hint: str, code: str = "usage", exit_code: int = USER_ERROR) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code
        self.exit_code = exit_code


def nothing_there(message: str, hint: str = "") -> CommandError:
    """What was asked for is empty: an empty lease, no dead letters, no such context."""
    return CommandError(message, hint=hint, code="nothing_there", exit_code=NOTHING_THERE)


def explained(error: Exception, command: str) -> tuple[int, str, str, str]:
    """Exit code, error code, message and hint."""
    if isinstance(error, CommandError):
        return error.exit_code, error.code, error.message, error.hint
    if isinstance(error, FileNotFoundError):
        hint = "check the path; 'penstock push' and 'penstock serve' create a new directory"
        return NOTHING_THERE, "nothing_there", reason(error), hint
    if isinstance(error, PenstockError):
        return exit_code(error), error.code, error.message, _hint(error)
    if isinstance(error, OSError):
        return SERVER_ERROR, "storage", reason(error), "check the path and its permissions"
    if hasattr(error, "format_message"):
        return USER_ERROR, "usage", *usage(error, command)
    return SERVER_ERROR, "defect", f"{type(error).__name__}: {error}", "this is a bug in Penstock; please report it"


def _hint(error: PenstockError) -> str:
    """The hint of an error, with commands in place of methods; a name that is close is kept."""
    default = error.hint_default
    if not default or not error.hint.endswith(default):
        return error.hint
    return f"{error.hint.removesuffix(default)}{HINTS.get(type(error), default)}"


# mistakes in a command line


def usage(error: Any, command: str) -> tuple[str, str]:
    """The message and the hint for words that are not a command line."""
    context, see = getattr(error, "ctx", None), f"see '{command} --help'"
    name = getattr(error, "option_name", None)
    if name is not None and "requires" not in error.format_message():
        return f"there is no option {name}", _option_hint(name, context, command)
    match = re.match(r"No such command '(.+?)'", error.format_message())
    if match:
        return f"there is no command {match[1]!r}", _command_hint(match[1], context, command)
    if type(error).__name__ == "NoArgsIsHelpError":
        return "no command is given", f"'{command} --help' lists the commands"
    flag = _parameter(error)
    if type(error).__name__ == "MissingParameter":
        return f"{flag} is missing", f"usage: {_usage_line(context) or command}; {see}"
    if flag:
        return f"{flag}: {_plain(error.message)}", see
    return _plain(error.format_message()), see


def _option_hint(name: str, context: Any, command: str) -> str:
    if re.match(r"-\d", name):
        return f"put an argument that starts with a dash after '--', as in '{command} … -- -1h'"
    parameters = getattr(getattr(context, "command", None), "params", ())
    options = [flag for parameter in parameters for flag in parameter.opts if flag.startswith("-")]
    return likeness(name, options) or f"see '{command} --help'"


def _command_hint(name: str, context: Any, command: str) -> str:
    names = list(getattr(getattr(context, "command", None), "commands", ()))
    close = likeness(name, names)
    if close:
        return close
    if command in MEANT:
        return f"did you mean '{command} {MEANT[command]} {name}'? '{command} --help' lists the commands"
    return f"'{command} --help' lists the commands"


def _parameter(error: Any) -> str:
    """The flag, or the word in the help, that an error is about."""
    parameter = getattr(error, "param", None)
    if parameter is None:
        return ""
    flags = [flag for flag in parameter.opts if flag.startswith("--")]
    return flags[0] if flags else str(parameter.metavar or parameter.name).strip("[].…")


def _usage_line(context: Any) -> str:
    """How to call the command. The parser marks twice what our names mark already: `[[TEXT]]`, `{QUEUE…}...`."""
    if context is None:
        return ""
    line = re.sub(r"\[\[(\S+?)\]\]", r"[\1]", " ".join(context.get_usage().removeprefix("Usage:").split()))
    return re.sub(r"\[\[(\S+?)\]\.{3}\]\.{3}", r"[\1…]", line).replace("…}...", "…}").replace("...}...", "…}")


def _plain(text: str) -> str:
    """What the parser says of a value, as a sentence like those of Penstock."""
    text = text.rstrip(".").partition(", unable to")[0].replace("Input should be", "it must be")
    text = text.removeprefix("Value error, ")
    return re.sub(r"^([A-Z])(?=[a-z])", lambda letter: letter[1].lower(), text)


def exit_code(error: PenstockError) -> int:
    """What a command exits with when this happens."""
    if isinstance(error, AccessError):
        return NOT_AUTHORISED
    if error.code.endswith("_not_found"):
        return NOTHING_THERE
    return USER_ERROR if isinstance(error, InputError | StateError | SparkMissing | NotADataDirectory) else SERVER_ERROR
