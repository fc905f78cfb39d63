"""Signatures of errors as expressions of Spark, so that errors never leave the JVM.

The rules are those of `penstock.signatures`, which says what a signature is; a test holds both to the same results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.signatures import (
    ABOUT_NAMES,
    ERROR_CHARS_MAX,
    FOREIGN,
    FRAME,
    FRAMES_MAX,
    KEPT_NAME,
    NAME,
    RAISED,
    RULES,
    SHORT_FRAME,
    SHORT_FRAME_AS,
    SIGNATURE_CHARS_MAX,
    TRACEBACK,
)
from penstock.spark import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column


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
    is_traceback = error.contains(TRACEBACK)
    last = f.when(is_traceback, f.regexp_extract(error, RAISED, 1))
    return f.coalesce(f.nullif(last, f.lit("")), error)


def normalised(text: Column) -> Column:
    """Text with placeholders for everything that varies."""
    kept = f.regexp_replace(text, NAME, KEPT_NAME)
    column = f.when(text.rlike(ABOUT_NAMES), kept).otherwise(text)
    for pattern, replacement in RULES:
        column = f.regexp_replace(column, pattern, replacement)
    return f.trim(column)


def own_frames(error: Column) -> Column:
    """The deepest frames of one's own code in a traceback, `file:function`, deepest first; of a library if no other."""

    def chosen(frames: Column) -> Column:
        own = f.filter(frames, lambda frame: ~frame.rlike(FOREIGN))
        return f.when(f.exists(frames, lambda frame: ~frame.rlike(FOREIGN)), own).otherwise(f.slice(frames, -1, 1))

    frames = f.regexp_extract_all(error, f.lit(FRAME), f.lit(0))
    # A slice from the end of an empty list is an error.
    frames_ = with_value(frames, lambda frames: f.when(f.size(frames) > 0, chosen(frames)).otherwise(frames))
    short = f.transform(frames_, lambda frame: f.regexp_replace(frame, SHORT_FRAME, SHORT_FRAME_AS))
    return f.slice(f.reverse(short), 1, FRAMES_MAX)
