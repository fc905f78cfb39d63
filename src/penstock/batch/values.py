"""Values of a message's fields: their limits, checked and as they are stored.

Every refusal names the field, and the first offending item where there are several. The same limits hold for a
producer's list, a producer's table and a batch that arrives as bytes. A payload of bytes stays as it is, text becomes
UTF-8, anything else becomes JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final, NoReturn, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock import limits
from penstock.batch import layout
from penstock.batch.columns import Bytes
from penstock.errors import InputError, InvalidField, TooLarge
from penstock.model import ContentType, check_name, check_seconds, to_micros

TEXT_BYTES_MAX: Final = {
    layout.KEY: limits.key_bytes_max,
    layout.DEDUP_KEY: limits.dedup_key_bytes_max,
    layout.TRACE: limits.trace_bytes_max,
}
DELAY_US_MAX: Final = limits.delay_seconds_max * 1_000_000
FIXED_MAX: Final = {
    layout.DELAY: DELAY_US_MAX,
    layout.DELIVER_AT: limits.instant_us_max,
    layout.TTL: DELAY_US_MAX,
    layout.CONTENT_TYPE: max(ContentType),
}
_SMALLER_BATCHES: Final = "push in smaller batches"

ErrorT = TypeVar("ErrorT", bound=InputError)


def located(error: ErrorT, row: int) -> ErrorT:
    """A copy of an error that names the item."""
    return type(error)(f"item {row}: {error.message}", hint=error.hint)


def too_long(field: str, length: int, limit: int) -> TooLarge:
    """The refusal of a value that is too long."""
    return TooLarge(f"{field}: {length:,} bytes is over the limit of {limit:,}")


def check_count(count: int) -> None:
    """Refuse more messages than fit into one batch."""
    if count > limits.batch_messages_max:
        message = f"batch: {count:,} messages is over the limit of {limits.batch_messages_max:,}"
        raise TooLarge(message, hint=_SMALLER_BATCHES)


def check_batch_bytes(length: int) -> None:
    """`length` is that of the whole batch before compression."""
    if length > limits.batch_bytes_max:
        raise TooLarge(
            f"batch: {length:,} bytes is over the limit of {limits.batch_bytes_max:,}", hint=_SMALLER_BATCHES
        )


def check_lengths(lengths: NDArray[np.integer[Any]], field: str, limit: int) -> None:
    """No value of a column is over its limit."""
    if len(lengths) and lengths.max() > limit:
        row = int(np.argmax(lengths > limit))
        raise located(too_long(field, int(lengths[row]), limit), row)


def check_range(values: NDArray[np.integer[Any]], field: str, greatest: int, least: int = 0) -> None:
    """All values lie between `least` and `greatest`, both included."""
    if len(values) and not (values.min() >= least and values.max() <= greatest):
        row = int(np.argmax((values < least) | (values > greatest)))
        refuse(row, f"{field}: {int(values[row])} is outside {least} to {greatest}")


def refuse(row: int, reason: str) -> NoReturn:
    """Raise the refusal of one item."""
    raise InvalidField(f"item {row}: {reason}")


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
    """A key, dedup key or trace: `flag` says which."""
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
    """The name of the partition that a message names."""
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


_json: Final = msgspec.json.Encoder().encode
_NULL: Final = b"null"


def refuse_not_finite(value: Any) -> None:
    """Refuse NaN and infinity anywhere in a value: msgspec writes them as null, and another value would come back.

    JSON without `null` need not be checked.
    """
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{value} is not valid JSON")
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple | set | frozenset):
        return
    for item in value:
        refuse_not_finite(item)


def payload_of(item: Any) -> tuple[bytes, ContentType]:
    """One payload."""
    if isinstance(item, bytes):
        return item, ContentType.BYTES
    try:
        if isinstance(item, str):
            return item.encode(), ContentType.TEXT
        if isinstance(item, bytearray | memoryview):
            return bytes(item), ContentType.BYTES
        data = _json(item)
        if data.find(_NULL) >= 0:  # half of what `in` costs
            refuse_not_finite(msgspec.to_builtins(item))
        return data, ContentType.JSON
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        kind = type(item).__name__
        hint = "a payload is bytes, text, or what JSON can hold"
        raise InvalidField(f"payload: this {kind} cannot be stored: {error}", hint=hint) from None


def payloads_of(items: Sequence[Any]) -> tuple[Sequence[bytes], Bytes | None]:
    """All payloads and their content types; None when all are bytes."""
    kinds = set(map(type, items))
    if kinds == {bytes} or not items:
        return items, None
    try:
        if kinds == {str}:
            return [item.encode() for item in items], _all(items, ContentType.TEXT)
        if kinds <= {dict, list}:
            contents = [_json(item) for item in items]
            if b"".join(contents).find(_NULL) < 0:
                return contents, _all(items, ContentType.JSON)
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass  # the walk below finds out which item it was
    return _one_by_one(items)


def _all(items: Sequence[Any], kind: ContentType) -> Bytes:
    return np.full(len(items), kind, np.uint8)


def _one_by_one(items: Sequence[Any]) -> tuple[list[bytes], Bytes | None]:
    contents: list[bytes] = []
    kinds = bytearray()
    for row, item in enumerate(items):
        try:
            content, kind = payload_of(item)
        except InvalidField as error:
            raise located(error, row) from None
        contents.append(content)
        kinds.append(kind)
    return contents, np.frombuffer(kinds, np.uint8) if any(kinds) else None
