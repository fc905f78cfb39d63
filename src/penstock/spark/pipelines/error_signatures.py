r"""Signatures of errors: two failures with the same cause get the same text, whatever data they met.

What varies (times, ids, numbers, paths, addresses, quoted text) gives way to placeholders; what names code stays. Of a
traceback the exception counts, and the deepest frames of one's own code. Everything is a Spark expression, so that
errors never leave the JVM. Patterns spell their classes out: `\w` and `\b` mean other things to other Javas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.spark import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column

SIGNATURE_CHARS_MAX: Final = 300
ERROR_CHARS_MAX: Final = 16_000  # more than this of one error is not looked at
FRAMES_MAX: Final = 3

_START: Final = "(?<![A-Za-z0-9_])"
_END: Final = "(?![A-Za-z0-9_])"
_HEX: Final = "[0-9a-fA-F]"
_ZONE: Final = r"(?:Z|[+-][0-9]{2}:?[0-9]{2})?"

# Errors whose quoted words are names in the code, not data.
_ABOUT_NAMES: Final = f"{_START}(?:Key|Attribute|Name|Import|ModuleNotFound|UnboundLocal|Type)Error{_END}"
_NAME: Final = r"['\"]([A-Za-z_]+(?:\.[A-Za-z_]+)*)['\"]"
# Numbers that say what went wrong.
_STATUS: Final = _START + r"((?i:HTTP(?:/[0-9.]+)?|status(?: code)?|errno|sqlstate)[ :=\[(]{1,3})([0-9]{1,5})" + _END

# In this order: a later rule sees what the earlier ones have left.
_RULES: Final = (
    (_STATUS, "$1‹$2›"),
    (_START + r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]+)?)?" + _ZONE, "<time>"),
    (_START + r"[0-9]{4}-[0-9]{2}-[0-9]{2}" + _END, "<date>"),
    (f"{_START}{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}{_END}", "<uuid>"),
    (_START + r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>)]+", "<url>"),
    (r"[A-Za-z0-9_.+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+", "<email>"),
    (r"'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`", "<text>"),
    (r"(?<![A-Za-z0-9_<.])(?:~|\.{1,2})?/[A-Za-z0-9_.+@-]+(?:/[A-Za-z0-9_.+@-]*)+", "<path>"),
    (_START + r"[A-Za-z]:\\[^\s'\":<>]+", "<path>"),
    (_START + r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?::[0-9]{1,5})?" + _END, "<address>"),
    (f"{_START}0[xX]{_HEX}+", "<hex>"),
    (f"{_START}(?=[0-9]*[a-fA-F])(?=[a-fA-F]*[0-9]){_HEX}{{8,}}{_END}", "<hex>"),
    (r"(?<![A-Za-z0-9_‹])-?[0-9]+(?:[.,][0-9]+)*(?:[eE][+-]?[0-9]+)?", "<n>"),
    (r"(<[a-z]+>)(?:, ?<[a-z]+>)+", "$1, …"),
    ("[‹›]", ""),
    ("[«»]", "'"),
    (r"\s+", " "),
)

_RAISED: Final = r'(?s).*\n[ \t]+File "[^\n]*\n(?:[ \t]+[^\n]*\n)*([^\s].*)'
_FRAME: Final = r'File "([^"\n]+)", line [0-9]+, in ([^\n]+)'
_FOREIGN: Final = r"site-packages|dist-packages|[/\\]lib[/\\]python3|^File \"<"
_SHORT_FRAME: Final = r'(?s)^File "(?:[^"]*[/\\])?([^"/\\]+)", line [0-9]+, in (.+)$'


def with_value(value: Column, use: Callable[[Column], Column]) -> Column:
    """An expression that uses a value several times, which is computed once and written once into Spark's plan."""
    return f.transform(f.array(value), use)[0]


def signature(error: Column) -> Column:
    """What an error is about, without the data it met: `KeyError: 'currency' at orders.py:price`."""

    def of_text(text: Column) -> Column:
        about = f.substring(with_value(raised(text), normalised), 1, SIGNATURE_CHARS_MAX)
        at = f.array_join(own_frames(text), " < ")
        return f.concat(about, with_value(at, _at))

    return with_value(f.substring(f.coalesce(error, f.lit("")), 1, ERROR_CHARS_MAX), of_text)


def _at(frames: Column) -> Column:
    return f.when(frames != "", f.concat(f.lit(" at "), frames)).otherwise("")


def signature_id(text: Column) -> Column:
    """Eight hexadecimal digits that name a signature, the same in every run."""
    return f.substring(f.sha2(text, 256), 1, 8)


def raised(error: Column) -> Column:
    """The exception at the end of a traceback; any other text as it is."""
    is_traceback = error.contains("Traceback (most recent call last)")
    last = f.when(is_traceback, f.regexp_extract(error, _RAISED, 1))
    return f.coalesce(f.nullif(last, f.lit("")), error)


def normalised(text: Column) -> Column:
    """Text with placeholders for everything that varies."""
    kept = f.regexp_replace(text, _NAME, "«$1»")
    column = f.when(text.rlike(_ABOUT_NAMES), kept).otherwise(text)
    for pattern, replacement in _RULES:
        column = f.regexp_replace(column, pattern, replacement)
    return f.trim(column)


def own_frames(error: Column) -> Column:
    """The deepest frames of one's own code in a traceback, `file:function`, deepest first; of a library if no other."""

    def chosen(frames: Column) -> Column:
        own = f.filter(frames, lambda frame: ~frame.rlike(_FOREIGN))
        return f.when(f.exists(frames, lambda frame: ~frame.rlike(_FOREIGN)), own).otherwise(f.slice(frames, -1, 1))

    frames = f.regexp_extract_all(error, f.lit(_FRAME), f.lit(0))
    # A slice from the end of an empty list is an error.
    frames_ = with_value(frames, lambda frames: f.when(f.size(frames) > 0, chosen(frames)).otherwise(frames))
    short = f.transform(frames_, lambda frame: f.regexp_replace(frame, _SHORT_FRAME, "$1:$2"))
    return f.slice(f.reverse(short), 1, FRAMES_MAX)
