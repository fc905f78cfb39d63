"""docs/cli.md and the command line say the same."""

from __future__ import annotations

import re

from tests.support.command_pages import COMMON, commands, flags, heading
from tests.test_docs import text_of


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
