"""Durations, sizes and instants as people type them, and counts as they read them. No clock is read here."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Final

from penstock.errors import InvalidField

UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
UNIT_BYTES: Final = {
    "": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
}

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(ms|s|m|h|d|w)")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


def seconds(text: str) -> float:
    """A duration: seconds as a number, or `500ms`, `30s`, `5m`, `1h30m`, `7d`."""
    try:
        value = float(text)
    except ValueError:
        parts = _DURATION.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            hint = "use seconds, or 500ms, 30s, 5m, 1h30m, 7d"
            raise InvalidField(f"{text!r} is not a duration", hint=hint) from None
        return sum(float(number) * UNIT_SECONDS[unit] for number, unit in parts)
    if not 0 <= value < float("inf"):
        raise InvalidField(f"{text!r} is not a duration", hint="a duration cannot be negative")
    return value


def size_bytes(text: str) -> int:
    """A size: bytes as a number, or `64KiB`, `10MiB`, `1.5GiB`, `10GB`."""
    match = _SIZE.fullmatch(text.lower())
    if match is None or match[2] not in UNIT_BYTES:
        raise InvalidField(f"{text!r} is not a size", hint="use bytes, or 64KiB, 10MiB, 1.5GiB, 10GB")
    return round(float(match[1]) * UNIT_BYTES[match[2]])


def instant(text: str, now: datetime) -> datetime:
    """An instant: RFC 3339, or a duration before (`-5m`) or after (`+1h`) now."""
    if text[:1] in ("-", "+"):
        offset = timedelta(seconds=seconds(text[1:]))
        return now + (offset if text[0] == "+" else -offset)
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        hint = "use a time like 2030-01-31T12:00:00Z, or -5m for five minutes ago"
        raise InvalidField(f"{text!r} is not a time", hint=hint) from None
    # People mean their own zone when they name none.
    return value if value.tzinfo is not None else value.astimezone()


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun: `1 file`, `2,000 files`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
