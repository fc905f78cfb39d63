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
)

OK: Final = 0
USER_ERROR: Final = 1
SERVER_ERROR: Final = 2
NOT_AUTHORISED: Final = 3
NOTHING_THERE: Final = 4
INTERRUPTED: Final = 130

# The library's hints name methods; here they name commands.
HINTS: Final[dict[type[PenstockError], str]] = {
    QueueNotFound: "'penstock queues' lists them; a push or 'penstock queues create' makes one",
    QueueExists: "'penstock queues update' changes its options",
    GroupNotFound: "'penstock groups list' lists them; 'penstock groups create', or --start, makes one",
    GroupExists: "'penstock seek' moves it",
    TaskNotFound: "'penstock tasks list' lists them; final ones are kept for 7 days",
    Unavailable: "check that the broker runs ('penstock serve') and the address is right (--url, PENSTOCK_URL)",
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
        hint = "check the path; 'penstock push' and 'penstock serve' make a new directory"
        return NOTHING_THERE, "nothing_there", str(error), hint
    if isinstance(error, PenstockError):
        is_default = error.hint == error.hint_default
        return (
            exit_code(error),
            error.code,
            error.message,
            HINTS.get(type(error), error.hint) if is_default else error.hint,
        )
    usage: Any = getattr(error, "format_message", None)
    if usage is not None:
        message = usage().rstrip(".")
        return USER_ERROR, "usage", message, _meant(command, message) or f"try '{command} --help'"
    return SERVER_ERROR, "defect", f"{type(error).__name__}: {error}", "this is a defect of Penstock; please report it"


def _meant(command: str, message: str) -> str:
    """What one may have meant by words that are no command line."""
    name = re.fullmatch(r"No such command '(.+)'", message)
    if name and command in MEANT:
        return f"did you mean '{command} {MEANT[command]} {name[1]}'? '{command} --help' lists the commands"
    if re.match(r"No such option: -\d", message):
        return f"what begins with a dash and is no option comes after '--', as in '{command} … -- -1h'"
    return ""


def exit_code(error: PenstockError) -> int:
    """What a command exits with when this happens."""
    if isinstance(error, AccessError):
        return NOT_AUTHORISED
    if error.code.endswith("_not_found"):
        return NOTHING_THERE
    return USER_ERROR if isinstance(error, InputError | StateError | SparkMissing | NotADataDirectory) else SERVER_ERROR
