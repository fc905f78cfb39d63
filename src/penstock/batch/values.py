"""One value of one field of a message, checked and as it is stored. The refusal names the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock import limits
from penstock.batch import layout
from penstock.batch.rules import TEXT_BYTES_MAX, too_long
from penstock.errors import InvalidField
from penstock.model import ContentType, check_name, check_seconds, to_micros


def delay_us(value: Any) -> int:
    """Seconds from the push, as µs."""
    return round(check_seconds(value, "delay") * 1_000_000)


def ttl_us(value: Any) -> int:
    """Seconds to live, as µs; 0 for none."""
    if value is None:
        return 0
    micros = round(check_seconds(value, "ttl") * 1_000_000)
    if micros == 0:
        raise InvalidField(f"ttl: {value!r} would expire at once", hint="use None for no limit")
    return micros


def deliver_at_us(value: Any) -> int:
    """An instant, as µs UTC; 0 for none."""
    if value is None:
        return 0
    micros = to_micros(value, "deliver_at")
    if micros < 0:
        raise InvalidField(f"deliver_at: {value} is before 1970")
    if micros > limits.instant_us_max:
        raise InvalidField(f"deliver_at: {value} is after the year 9999")
    return micros


def max_attempts(value: Any) -> int:
    """A number of attempts; 0 for none."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limits.attempts_max:
        raise InvalidField(f"max_attempts: {value!r} is outside 1 to {limits.attempts_max}")
    return value


def content_type(value: Any) -> ContentType:
    """One of the content types."""
    try:
        return ContentType(value)
    except ValueError:
        raise InvalidField(f"content_type: {value!r} is not a ContentType") from None


def text(flag: int, value: Any) -> bytes:
    """A key, dedup key or trace, which `flag` tells."""
    name = layout.NAMES[flag]
    if not isinstance(value, str):
        raise InvalidField(f"{name}: {value!r} is not text")
    encoded = _utf8(value, name)
    if len(encoded) > TEXT_BYTES_MAX[flag]:
        raise too_long(name, len(encoded), TEXT_BYTES_MAX[flag])
    return encoded


def headers(value: Any) -> tuple[list[bytes], list[bytes]]:
    """Names and values, together within their limit."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise InvalidField(f"headers: {value!r} is not a mapping of text to text")
    for name, content in value.items():
        if not (isinstance(name, str) and isinstance(content, str)):
            raise InvalidField(f"headers: {name!r}: {content!r} is not text to text")
    names = [_utf8(name, "headers") for name in value]
    contents = [_utf8(content, "headers") for content in value.values()]
    length = sum(map(len, names)) + sum(map(len, contents))
    if length > limits.headers_bytes_max:
        raise too_long("headers", length, limits.headers_bytes_max)
    return names, contents


def partition(value: Any) -> str | None:
    """The name of the partition that a producer asked for."""
    if value is None:
        return None
    if isinstance(value, str):
        return check_name(value, "partition")
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise InvalidField(f"partition: {value!r} is neither a number from 0 nor a name")
    return str(value)


def _utf8(value: str, name: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidField(f"{name}: {value!r} is not valid text: {error.reason}") from None
