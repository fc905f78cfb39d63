r"""Signatures of errors: two failures with the same cause get the same text, whatever data they met.

What varies (times, ids, numbers, paths, addresses, quoted text) gives way to placeholders; what names code stays. Of a
traceback the exception counts, and the deepest frames of one's own code.

The rules are declared here once. `signature` applies them to one text; the triage pipeline of Spark applies the same
rules as expressions, so that errors do not leave the JVM. The patterns mean the same in Python and in Java: classes of
characters are spelt out, and `\s` is ASCII.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final

SIGNATURE_CHARS_MAX: Final = 300
ERROR_CHARS_MAX: Final = 16_000  # more than this of one error is not looked at
FRAMES_MAX: Final = 3
TRACEBACK: Final = "Traceback (most recent call last)"

_START: Final = "(?<![A-Za-z0-9_])"
_END: Final = "(?![A-Za-z0-9_])"
_HEX: Final = "[0-9a-fA-F]"
_ZONE: Final = r"(?:Z|[+-][0-9]{2}:?[0-9]{2})?"

# Errors whose quoted words are names in the code, not data.
ABOUT_NAMES: Final = f"{_START}(?:Key|Attribute|Name|Import|ModuleNotFound|UnboundLocal|Type)Error{_END}"
NAME: Final = r"['\"]([A-Za-z_]+(?:\.[A-Za-z_]+)*+)['\"]"
KEPT_NAME: Final = "«$1»"
# Numbers that say what went wrong.
_STATUS: Final = _START + r"((?i:HTTP(?:/[0-9.]+)?|status(?: code)?|errno|sqlstate)[ :=\[(]{1,3})([0-9]{1,5})" + _END

# A match begins only where a word does: trying it at every character of a long word takes the square of its length.
# A group that repeats is possessive (`)++`): Java follows any other by recursion, and a long text ends its stack.
# In this order: a later rule sees what the earlier ones have left. Replacements are written as Java has them.
RULES: Final = (
    (_STATUS, "$1‹$2›"),
    (_START + r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]+)?)?" + _ZONE, "<time>"),
    (_START + r"[0-9]{4}-[0-9]{2}-[0-9]{2}" + _END, "<date>"),
    (f"{_START}{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}{_END}", "<uuid>"),
    (r"(?<![A-Za-z0-9_+.-])[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>)]+", "<url>"),
    (r"(?<![A-Za-z0-9_.+-])[A-Za-z0-9_.+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)++", "<email>"),
    (r"'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`", "<text>"),
    (r"(?<![A-Za-z0-9_<.])(?:~|\.{1,2})?/[A-Za-z0-9_.+@-]+(?:/[A-Za-z0-9_.+@-]*)++", "<path>"),
    (_START + r"[A-Za-z]:\\[^\s'\":<>]+", "<path>"),
    (_START + r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?::[0-9]{1,5})?" + _END, "<address>"),
    (f"{_START}0[xX]{_HEX}+", "<hex>"),
    (f"{_START}(?=[0-9]*[a-fA-F])(?=[a-fA-F]*[0-9]){_HEX}{{8,}}{_END}", "<hex>"),
    (r"(?<![A-Za-z0-9_‹])-?[0-9]+(?:[.,][0-9]+)*+(?:[eE][+-]?[0-9]+)?", "<n>"),
    (r"(<[a-z]+>)(?:, ?<[a-z]+>)++", "$1, …"),
    ("[‹›]", ""),
    ("[«»]", "'"),
    (r"\s+", " "),
)

# Behind the last frame, and the indented lines that follow it. These hold no other frame, so no line is read twice.
RAISED: Final = r'(?s).*\n[ \t]++File "[^\n]*+\n(?:[ \t]++(?!File ")[^\n]*+\n)*+([^\s].*)'
FRAME: Final = r'File "([^"\n]+)", line [0-9]+, in ([^\n]+)'
FOREIGN: Final = r"site-packages|dist-packages|[/\\]lib[/\\]python3|^File \"<"
SHORT_FRAME: Final = r'(?s)^File "(?:[^"]*[/\\])?([^"/\\]+)", line [0-9]+, in (.+)$'
SHORT_FRAME_AS: Final = "$1:$2"


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


def _python(replacement: str) -> str:
    return re.sub(r"\$([0-9])", r"\\\1", replacement)


_ABOUT_NAMES: Final = _compiled(ABOUT_NAMES)
_NAME: Final = _compiled(NAME)
_COMPILED: Final = tuple((_compiled(pattern), _python(replacement)) for pattern, replacement in RULES)
_RAISED: Final = _compiled(RAISED)
_FRAME: Final = _compiled(FRAME)
_FOREIGN: Final = _compiled(FOREIGN)
_SHORT_FRAME: Final = _compiled(SHORT_FRAME)


@lru_cache(maxsize=1_024)
def signature(error: str) -> str:
    """What an error is about, without the data it met: `KeyError: 'currency' at orders.py:price`."""
    text = error[:ERROR_CHARS_MAX]
    about = normalised(_raised(text))[:SIGNATURE_CHARS_MAX]
    frames = " < ".join(_own_frames(text))
    return f"{about} at {frames}" if frames else about


def signature_of(error: str, reason: str) -> str:
    """The signature of a dead letter. Those without an error, of waiting too long, say, go by the reason."""
    return signature(error) or f"({reason}, no error given)"


def signature_id(text: str) -> str:
    """Eight hexadecimal digits that name a signature, the same in every run."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:8]


def normalised(text: str) -> str:
    """Text with placeholders for everything that varies."""
    if _ABOUT_NAMES.search(text):
        text = _NAME.sub(_python(KEPT_NAME), text)
    for pattern, replacement in _COMPILED:
        text = pattern.sub(replacement, text)
    return text.strip(" ")


def _raised(error: str) -> str:
    """The exception at the end of a traceback; any other text as it is."""
    found = _RAISED.match(error) if TRACEBACK in error else None
    return error if found is None else found[1]


def _own_frames(error: str) -> list[str]:
    """The deepest frames of one's own code in a traceback, `file:function`, deepest first; of a library if no other."""
    frames = [match[0] for match in _FRAME.finditer(error)]
    own = [frame for frame in frames if not _FOREIGN.search(frame)] or frames[-1:]
    short = [_SHORT_FRAME.sub(_python(SHORT_FRAME_AS), frame) for frame in own]
    return short[::-1][:FRAMES_MAX]
