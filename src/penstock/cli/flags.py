"""A flag for every queue option: `--lease-seconds 5m`, `--retention-bytes 10GiB`, `--max-length none`.

They are made from `QueueOptions`, so a new option has its flag the day it is born.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args

import msgspec
import typer

from penstock.cli import human
from penstock.cli.exits import CommandError
from penstock.model import QueueOptions
from penstock.units import seconds, size_bytes

PANEL = "Queue options (docs/options.md)"


def with_queue_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with a flag for each queue option; what is given arrives as the keyword `options`, parsed."""

    def run(**arguments: Any) -> None:
        given = {name: arguments.pop(name) for name in DEFAULTS}
        command(**arguments, options=parsed({name: text for name, text in given.items() if text is not None}))

    plain = inspect.signature(command, eval_str=True)
    kept = [parameter for name, parameter in plain.parameters.items() if name != "options"]
    run.__signature__ = plain.replace(parameters=[*kept, *map(_parameter, DEFAULTS)])  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


TYPES: dict[str, Any] = {field.name: field.type for field in msgspec.structs.fields(QueueOptions)}
DEFAULTS: dict[str, Any] = {field.name: field.default for field in msgspec.structs.fields(QueueOptions)}


def flag(name: str) -> str:
    """How an option is written on a command line."""
    return f"--{name.replace('_', '-')}"


def parsed(given: dict[str, str]) -> dict[str, Any]:
    """The values of options; what they may be is checked where queues are made."""
    return {name: _value(name, text) for name, text in given.items()}


def _parameter(name: str) -> inspect.Parameter:
    about = f"{_choices(name)}[default: {shown(name, DEFAULTS[name])}]"
    option = typer.Option(flag(name), metavar=_metavar(name), help=about, rich_help_panel=PANEL)
    annotation = Annotated[str | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def shown(name: str, value: Any) -> str:
    """The value of an option, for people."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if name.endswith("_seconds"):
        return human.duration(value) if value else "0s"
    return human.size(value) if name.endswith("_bytes") else str(value)


def _metavar(name: str) -> str:
    if name.endswith("_seconds"):
        return "DURATION"
    return "SIZE" if name.endswith("_bytes") else "VALUE"


def _choices(name: str) -> str:
    """The words that an option takes, if it takes nothing else."""
    kind = TYPES[name]
    if kind is bool:
        return "true, false "
    words = _words(name)
    return "" if int in get_args(kind) or not words else f"{', '.join(words)} "


def _words(name: str) -> list[str]:
    """The words in the type of an option, which may be a choice, or a choice or nothing."""
    kind = TYPES[name]
    found = (word for part in (kind, *get_args(kind)) for word in get_args(part) if isinstance(word, str))
    return list(dict.fromkeys(found))


def _value(name: str, text: str) -> Any:
    if text.lower() == "none" and "none" not in _words(name):
        return None
    if name.endswith("_seconds"):
        return seconds(text)
    if name.endswith("_bytes"):
        return size_bytes(text)
    if isinstance(DEFAULTS[name], bool):
        if text.lower() not in ("true", "false", "yes", "no"):
            raise CommandError(f"{flag(name)}: {text!r} is neither true nor false", hint="say true or false")
        return text.lower() in ("true", "yes")
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
