"""docs/cli.md and the command line say the same."""

from __future__ import annotations

import re
from typing import Any

from typer.main import get_command

from penstock.cli.app import app
from penstock.cli.options import DEFAULTS, flag
from tests.test_docs import text_of

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


def sections() -> dict[str, str]:
    """The page by commands."""
    parts = re.split(r"^### `(.+)`$", text_of("docs/cli.md"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_command_has_its_section_and_nothing_else_has():
    assert sorted(sections()) == sorted(heading(words, command) for words, command in commands().items())


def test_every_flag_is_in_the_section_of_its_command():
    found = sections()
    missing = {}
    for words, command in commands().items():
        section = found.get(heading(words, command), "").split("\n## ")[0]
        rows = [line for line in section.splitlines() if line.startswith("| `-")]
        if rows != flags(command):
            missing[words] = flags(command)
    assert missing == {}


def test_what_is_common_is_explained_once():
    page = text_of("docs/cli.md")
    assert [flag for flag in COMMON - {"--help"} if f"`{flag}`" not in page] == []
