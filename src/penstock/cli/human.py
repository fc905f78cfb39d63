"""Words and numbers for people: durations, ages, sizes, rates; instants and positions read back from a command line."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from penstock import units
from penstock.errors import InvalidField

BARS: Final = "▁▂▃▄▅▆▇█"
EMPTY: Final = "·"


def instant(text: str, now: datetime | None = None) -> datetime:
    """An instant: RFC 3339, or a duration before (`-5m`) or after (`+1h`) now."""
    return units.instant(text, now or datetime.now(UTC))


def position(text: str) -> str | int | datetime:
    """Where to read from: earliest, latest, an offset or an instant."""
    if text in ("earliest", "latest"):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return instant(text)
    except InvalidField:
        hint = "use earliest, latest, an offset, a time like 2030-01-31T12:00:00Z, or -5m for five minutes ago"
        raise InvalidField(f"{text!r} is not a position", hint=hint) from None


def duration(value: float) -> str:
    """A duration in its two largest units at most: `850ms`, `12s`, `4m05s`, `3h12m`, `2d04h`."""
    if value < 1:
        return f"{value * 1000:.0f}ms"
    if value < 10 and value != int(value):
        return f"{value:.1f}s"
    whole = round(value)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02}h"


def age(at: datetime | None, now: datetime | None = None) -> str:
    """How long ago."""
    if at is None:
        return EMPTY
    return duration(max(0.0, ((now or datetime.now(UTC)) - at).total_seconds()))


def until(at: datetime | None, now: datetime | None = None) -> str:
    """How long until then."""
    if at is None:
        return EMPTY
    left = (at - (now or datetime.now(UTC))).total_seconds()
    return f"in {duration(left)}" if left > 0 else "now"


def moment(at: datetime | None) -> str:
    """An instant to the second, UTC."""
    return EMPTY if at is None else at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def size(count: float) -> str:
    """Bytes in the unit that fits."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"


def rate(per_second: float) -> str:
    """A rate per second."""
    if per_second >= 1_000_000:
        return f"{per_second / 1_000_000:.1f}M"
    if per_second >= 10_000:
        return f"{per_second / 1000:.0f}k"
    return f"{per_second:,.0f}" if per_second >= 10 or not per_second else f"{per_second:.1f}"


def compact(count: int) -> str:
    """A count in at most seven characters."""
    if count < 1_000_000:
        return f"{count:,}"
    return f"{count / 1e6:.1f}M" if count < 1e9 else f"{count / 1e9:.1f}G"


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values as bars, the tallest for the greatest."""
    shown = list(values)[-width:]
    top = max(shown, default=0)
    bars = "".join(" " if not value or not top else BARS[min(7, int(value / top * 7.999))] for value in shown)
    return bars.rjust(width)


def excerpt(payload: bytes, width: int) -> str:
    """A payload on one line: text as it is, with what would disturb a terminal made visible; bytes as hex."""
    try:
        text = payload[: width * 4].decode()
    except UnicodeDecodeError as error:
        # A character may have been cut in two at the end.
        if error.reason != "unexpected end of data" or len(payload) <= width * 4:
            return _cut(payload[:width].hex(" "), width)
        text = payload[: error.start].decode()
    if text.isprintable():
        return _cut(text, width)
    return _cut("".join(char if char.isprintable() else repr(char)[1:-1] for char in text), width)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
