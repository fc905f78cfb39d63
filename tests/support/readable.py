"""What no error may say, whoever reads it and by whatever way it came."""

from __future__ import annotations

import re
from typing import Any, Final

# Words of decoders, of the operating system and of regular expressions; numbers that nobody writes so.
FORBIDDEN: Final = {
    "a regular expression": r"regex|\\[dwsZA]\b|\(\?[:!=P]|\[\^?[aA]-[zZ]|\{\d+,\d*\}",
    "an errno": r"\[Errno|errno \d|\bE[A-Z]{4,}\b(?<!ERROR)",
    "a number in scientific notation": r"\b\d(?:\.\d+)?e[+-]\d",
    "a type of the decoder": r"`(?:int|str|float|object|array|bool|null)|Expected `|invalid enum value|[Ii]nvalid RFC",
    "a class of Python": r"<class |Traceback|object at 0x|ValidationError|msgspec",
    "boilerplate": r"names the field and what it takes|check the protocol's page|was not understood",
}


def check_readable(message: str, hint: str = "") -> None:
    """An error says something, and nothing that only its author understands."""
    assert message.strip()
    for what, pattern in FORBIDDEN.items():
        for text in (message, hint):
            assert not re.search(pattern, text), f"{what}: {text!r}"
    assert hint != message


def check_error(body: dict[str, Any]) -> None:
    """The same, of an error as HTTP and the command line show it."""
    check_readable(body["error"]["message"], body["error"]["hint"])
