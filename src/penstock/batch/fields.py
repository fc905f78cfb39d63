"""One column from the values of one field.

A field that nobody set gives no column. The rest is looked at as a whole; only what a quick look does not clear is
walked value by value, which either finds it in order after all or names the first item that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from types import NoneType
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock import limits
from penstock.batch import layout, values
from penstock.batch.columns import Binary, Bytes, Headers, Int64s, Text, bitmap, offsets_of, pad
from penstock.batch.layout import OFFSET, Buffer
from penstock.batch.rules import TEXT_BYTES_MAX, located
from penstock.errors import InputError
from penstock.model import check_priority

Partitions = list[str | None]
Field = tuple[int, list[Buffer]]  # the bit and the padded buffers of a column; the bit is 0 when there is none

ABSENT: Final[Field] = (0, [])

Result = TypeVar("Result")


def each(check: Callable[[Any], Result], items: Sequence[Any]) -> list[Result]:
    """`check` of every item; an error names the item."""
    checked = []
    for row, item in enumerate(items):
        try:
            checked.append(check(item))
        except InputError as error:
            raise located(error, row) from None
    return checked


def binary(contents: Sequence[bytes]) -> Binary:
    """A column of these values."""
    return Binary(offsets_of(np.fromiter(map(len, contents), OFFSET, len(contents))), b"".join(contents))


def fixed(flag: int, numbers: NDArray[Any] | None) -> Field:
    """A column of fixed width."""
    return ABSENT if numbers is None else (flag, [*pad(numbers.astype(layout.FIXED[flag], copy=False).tobytes())])


def priorities(items: list[Any]) -> Field:
    """From numbers or names."""
    if _all(items, limits.priority_default):
        return ABSENT
    if set(map(type, items)) == {int} and min(items) >= 0 and max(items) <= limits.priority_max:
        return fixed(layout.PRIORITY, np.array(items, np.uint8))
    return fixed(layout.PRIORITY, np.array(each(check_priority, items), np.uint8))


def delays(items: list[Any]) -> Field:
    """From seconds."""
    if _all(items, 0.0):
        return ABSENT
    return fixed(layout.DELAY, _micros(items, 0, values.delay_us))


def ttls(items: list[Any]) -> Field:
    """From seconds."""
    return ABSENT if _all(items, None) else fixed(layout.TTL, _micros(items, 1, values.ttl_us))


def deliver_ats(items: list[Any]) -> Field:
    """From aware datetimes or RFC 3339 text."""
    if _all(items, None):
        return ABSENT
    return fixed(layout.DELIVER_AT, np.array(each(values.deliver_at_us, items), np.int64))


def max_attempts(items: list[Any]) -> Field:
    """From numbers of attempts."""
    if _all(items, None):
        return ABSENT
    return fixed(layout.MAX_ATTEMPTS, np.array(each(values.max_attempts, items), np.uint16))


def content_types(items: list[Any], found: Bytes | None) -> Field:
    """What the producer said, or else what was found."""
    if not _all(items, None):
        told = each(lambda item: None if item is None else values.content_type(item), items)
        kinds = [0] * len(items) if found is None else found.tolist()
        found = np.array([kind if given is None else given for given, kind in zip(told, kinds, strict=True)], np.uint8)
    return fixed(layout.CONTENT_TYPE, found) if found is not None and found.any() else ABSENT


def texts(flag: int, items: list[Any]) -> Field:
    """From text or None."""
    if _all(items, None):
        return ABSENT
    contents = _plain_texts(items, TEXT_BYTES_MAX[flag])
    if contents is None:
        contents = each(lambda item: b"" if item is None else values.text(flag, item), items)
    present = np.fromiter((item is not None for item in items), np.bool_, len(items))
    return flag, Text(binary(contents), bitmap(present)).buffers()


def headers(items: list[Any]) -> Field:
    """From mappings of text to text, or None."""
    if _all(items, None):
        return ABSENT
    column = _plain_headers(items)
    if column is None:
        pairs = each(lambda item: values.headers({} if item is None else item), items)
        names, contents = zip(*pairs, strict=True)
        column = _headers_column(list(map(len, names)), chain.from_iterable(names), chain.from_iterable(contents))
    return (layout.HEADERS, column.buffers()) if column.rows[-1] else ABSENT


def partitions(items: list[Any]) -> Partitions | None:
    """From names or numbers; None when nobody asked."""
    return None if _all(items, None) else each(values.partition, items)


def _all(items: list[Any], default: Any) -> bool:
    return items.count(default) == len(items)


def _micros(items: list[Any], least_us: int, check: Callable[[Any], int]) -> Int64s:
    if set(map(type, items)) <= {int, float} and max(items) <= limits.delay_seconds_max:
        micros = np.rint(np.array(items, np.float64) * 1e6)
        if micros.min() >= least_us:  # false for NaN too
            return micros.astype(np.int64)
    return np.array(each(check, items), np.int64)


def _plain_texts(items: list[Any], limit: int) -> list[bytes] | None:
    if not set(map(type, items)) <= {str, NoneType}:
        return None
    try:
        contents = [b"" if item is None else item.encode() for item in items]
    except UnicodeEncodeError:
        return None
    return contents if max(map(len, contents)) <= limit else None


def _plain_headers(items: list[Any]) -> Headers | None:
    if not set(map(type, items)) <= {dict, NoneType}:
        return None
    given = [item for item in items if item]
    names: list[Any] = list(chain.from_iterable(given))
    contents: list[Any] = [content for item in given for content in item.values()]
    if not {*map(type, names), *map(type, contents)} <= {str}:
        return None
    try:
        counts = [len(item) if item else 0 for item in items]
        column = _headers_column(counts, map(str.encode, names), map(str.encode, contents))
    except UnicodeEncodeError:
        return None
    return column if (column.lengths() <= limits.headers_bytes_max).all() else None


def _headers_column(counts: list[int], names: Any, contents: Any) -> Headers:
    rows = offsets_of(np.array(counts, OFFSET))
    return Headers(rows, binary(list(names)), binary(list(contents)))
