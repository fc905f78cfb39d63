"""What docs/cli.md must say about each command: its words and every flag, as the command line itself has them."""

from __future__ import annotations

from typing import Any

from typer.main import get_command

from penstock.cli.app import app
from penstock.cli.options import DEFAULTS, flag

# Explained once for all commands.
COMMON = {"--url", "--context", "--json", "--help"}
QUEUE_OPTIONS = set(map(flag, DEFAULTS))


def commands() -> dict[str, Any]:
    """Every command that does something, by its words."""
    found: dict[str, Any] = {}
    waiting: list[tuple[str, Any]] = [("penstock", get_command(app))]
    while waiting:
        words, command = waiting.pop(0)
        inner = getattr(command, "commands", {})
        if not inner:
            found[words] = command
        waiting += [(f"{words} {name}", each) for name, each in inner.items()]
    return found


def heading(words: str, command: Any) -> str:
    """The command and what must stand behind it."""
    arguments = [argument(each) for each in command.params if not each.opts[0].startswith("-")]
    return " ".join([words, *arguments])


def argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return name if parameter.required or name.startswith("[") else f"[{name}]"


def flags(command: Any) -> list[str]:
    """A row for each flag that is this command's own."""
    shared = COMMON | QUEUE_OPTIONS if {each.opts[0] for each in command.params} >= QUEUE_OPTIONS else COMMON
    return [row(each) for each in command.params if each.opts[0].startswith("-") and each.opts[0] not in shared]


def row(parameter: Any) -> str:
    names = sorted(parameter.opts, key=len, reverse=True) + list(parameter.secondary_opts)
    value = f" {parameter.metavar}" if parameter.metavar else "" if is_switch(parameter) else " VALUE"
    shown = ", ".join(f"`{name}{value if not index else ''}`" for index, name in enumerate(names))
    about = " ".join((parameter.help or "").split())
    return f"| {shown.replace('|', '/')} | {about.replace('|', '/')} |"


def is_switch(parameter: Any) -> bool:
    return bool(getattr(parameter, "is_flag", False))
