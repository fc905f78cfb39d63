"""From the values of one field to its column, and from columns to the bytes of a batch.

A field that nobody set gives no column. Values are checked as a whole first; only what that does not clear is walked
value by value, which either finds it in order after all or names the first item that is wrong.

The payload blob is compressed (zstd, level 1) only when it pays. A sample is tried first, so that payloads that do not
shrink cost next to nothing. What comes from outside says how long it will be, and is believed only after its zstd frame
said the same: nothing is allocated for a bomb.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import chain
from types import NoneType
from typing import Any, Final, TypeVar

import numpy as np
import zstandard
from numpy.typing import NDArray

from penstock import limits
from penstock.batch import layout, values
from penstock.batch.columns import MANY, Binary, Bytes, Headers, Int64s, Text, bitmap, offsets_of, pad
from penstock.batch.layout import OFFSET, Buffer
from penstock.batch.values import TEXT_BYTES_MAX, check_batch_bytes, check_lengths, located
from penstock.errors import BadBatch, InputError
from penstock.model import check_priority

Partitions = list[str | None]
Field = tuple[int, list[Buffer]]  # the bit and the padded buffers of a column; the bit is 0 when there is none

ABSENT: Final[Field] = (0, [])

LEVEL: Final = 1
SAMPLE_BYTES: Final = 8 * limits.KIB

Result = TypeVar("Result")


def check_each(check: Callable[[Any], Result], items: Sequence[Any]) -> list[Result]:
    """`check` of every item; an error names the item."""
    checked = []
    for row, item in enumerate(items):
        try:
            checked.append(check(item))
        except InputError as error:
            raise located(error, row) from None
    return checked


def binary(contents: Sequence[bytes], field: str, limit: int = limits.batch_bytes_max) -> Binary:
    """A column of these values, each of them within `limit`."""
    lengths = np.fromiter(map(len, contents), np.int64, len(contents))
    total = int(lengths.sum())
    if total > limit:  # otherwise none of them can be over it; and int32 offsets could not count what no batch may hold
        check_lengths(lengths, field, limit)
        check_batch_bytes(total)
    return Binary(offsets_of(lengths), b"".join(contents))


def fixed(flag: int, numbers: NDArray[Any] | None) -> Field:
    """A column of fixed width."""
    return ABSENT if numbers is None else (flag, [*pad(numbers.astype(layout.FIXED[flag], copy=False).tobytes())])


def priorities(items: list[Any]) -> Field:
    """From numbers or names."""
    if _all(items, limits.priority_default):
        return ABSENT
    if set(map(type, items)) == {int} and min(items) >= 0 and max(items) <= limits.priority_max:
        return fixed(layout.PRIORITY, np.array(items, np.uint8))
    numbers = check_each(check_priority, items)
    return ABSENT if _all(numbers, limits.priority_default) else fixed(layout.PRIORITY, np.array(numbers, np.uint8))


def delays(items: list[Any]) -> Field:
    """From seconds."""
    if _all(items, 0.0):
        return ABSENT
    return fixed(layout.DELAY, _micros(items, values.delay_us))


def ttls(items: list[Any]) -> Field:
    """From seconds or None."""
    return ABSENT if _all(items, None) else fixed(layout.TTL, _micros(items, values.ttl_us))


def deliver_ats(items: list[Any]) -> Field:
    """From aware datetimes or RFC 3339 text."""
    if _all(items, None):
        return ABSENT
    return fixed(layout.DELIVER_AT, np.array(check_each(values.deliver_at_us, items), np.int64))


def max_attempts(items: list[Any]) -> Field:
    """From numbers of attempts or None."""
    if _all(items, None):
        return ABSENT
    if set(map(type, items)) == {int} and min(items) >= 1 and max(items) <= limits.attempts_max:
        return fixed(layout.MAX_ATTEMPTS, np.array(items, np.uint16))
    return fixed(layout.MAX_ATTEMPTS, np.array(check_each(values.max_attempts, items), np.uint16))


def content_types(items: list[Any], detected: Bytes | None) -> Field:
    """What the producer declared, or else what was detected."""
    if not _all(items, None):
        declared = check_each(lambda item: None if item is None else values.content_type(item), items)
        kinds = [0] * len(items) if detected is None else detected.tolist()
        detected = np.array(
            [kind if chosen is None else chosen for chosen, kind in zip(declared, kinds, strict=True)], np.uint8
        )
    return fixed(layout.CONTENT_TYPE, detected) if detected is not None and detected.any() else ABSENT


def texts(flag: int, items: list[Any]) -> Field:
    """From text or None."""
    if _all(items, None):
        return ABSENT
    column = _plain_texts(items)
    if column is None or (column.values.lengths() > TEXT_BYTES_MAX[flag]).any():
        contents = check_each(lambda item: b"" if item is None else values.text(flag, item), items)
        present = np.array([item is not None for item in items], np.bool_)
        column = Text(binary(contents, layout.NAMES[flag]), bitmap(present))
    return flag, column.buffers()


def headers(items: list[Any]) -> Field:
    """From mappings of text to text, or None."""
    if _all(items, None):
        return ABSENT
    column = _plain_headers(items)
    if column is None or (column.lengths() > limits.headers_bytes_max).any():
        pairs = check_each(lambda item: values.headers({} if item is None else item), items)
        rows = offsets_of(np.array([len(names) for names, _ in pairs], OFFSET))
        names = binary([name for names, _ in pairs for name in names], "headers")
        column = Headers(rows, names, binary([content for _, contents in pairs for content in contents], "headers"))
    return (layout.HEADERS, column.buffers()) if column.rows[-1] else ABSENT


def partitions(items: list[Any]) -> Partitions | None:
    """From names or numbers; None when there is none."""
    return None if _all(items, None) else check_each(values.partition, items)


def _all(items: list[Any], default: Any) -> bool:
    return items.count(default) == len(items)


def _micros(items: list[Any], check: Callable[[Any], int]) -> Int64s:
    if set(map(type, items)) <= {int, float} and max(items) <= limits.delay_seconds_max:
        micros = np.rint(np.array(items, np.float64) * 1e6)
        if micros.min() >= (check is values.ttl_us):  # false for NaN too
            return micros.astype(np.int64)
    return np.array(check_each(check, items), np.int64)


def _plain_texts(items: list[Any]) -> Text | None:
    """The column of many items that are nothing but text or None; None when it takes a closer look."""
    if len(items) < MANY or not set(map(type, items)) <= {str, NoneType}:
        return None
    from penstock.batch.views import text_column

    return text_column(items)


def _plain_headers(items: list[Any]) -> Headers | None:
    """The column of many items that are nothing but dicts of text or None; None when it takes a closer look."""
    if len(items) < MANY or not set(map(type, items)) <= {dict, NoneType}:
        return None
    mappings = [item for item in items if item]
    names = _plain_texts(list(chain.from_iterable(mappings)))
    contents = _plain_texts([content for item in mappings for content in item.values()])
    if names is None or contents is None or names.validity is not None or contents.validity is not None:
        return None
    rows = offsets_of(np.array([len(item) if item else 0 for item in items], OFFSET))
    return Headers(rows, names.values, contents.values)


# the payload blob


class _Contexts(threading.local):
    # A zstd context must not be used by two threads at once, and costs more to make than a small blob to compress.
    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=LEVEL)
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=limits.batch_bytes_max)


_contexts: Final = _Contexts()


def compress(blob: Buffer) -> bytes | None:
    """The blob compressed, or None when it is short or would hardly shrink."""
    if len(blob) < limits.compression_threshold_bytes:
        return None
    middle = (len(blob) - SAMPLE_BYTES) // 2
    if not _saves(blob[middle : middle + SAMPLE_BYTES]):
        return None
    return _saves(blob)


def _saves(blob: Buffer) -> bytes | None:
    small = _contexts.compressor.compress(blob)
    return small if len(small) <= len(blob) * (1 - limits.compression_saving_min) else None


def decompress(blob: Buffer, length: int) -> bytes:
    """The blob as it was before `compress`; `BadBatch` unless it is exactly `length` bytes."""
    try:
        announced = zstandard.get_frame_parameters(blob).content_size
        if announced != length:
            raise BadBatch(f"payload: its zstd frame holds {announced:,} bytes, the header says {length:,}")
        return _contexts.decompressor.decompress(blob, allow_extra_data=False)  # refuses any other length
    except zstandard.ZstdError as error:
        raise BadBatch(f"payload: the compressed blob is not sound: {error}") from None


# the bytes of a batch


def seal_columns(flags: int, columns: list[Buffer], payloads: Binary, *, small: bool = False) -> bytes:
    """The bytes of a batch, within its limits; its payload compressed when that is wanted and pays."""
    count, blob = len(payloads.offsets) - 1, payloads.blob
    if len(blob) > limits.payload_bytes_max:  # otherwise no single payload can be over it
        check_lengths(payloads.lengths(), "payload", limits.payload_bytes_max)
    columns_bytes = layout.HEADER_BYTES + sum(map(len, columns)) + layout.offsets_bytes(count)
    check_batch_bytes(columns_bytes + layout.padded(len(blob)))
    offsets = payloads.rebased().astype(OFFSET, copy=False).tobytes()
    compressed = compress(blob) if small else None
    if compressed is None:
        return layout.seal(count, flags, columns, offsets, blob)
    return layout.seal(count, flags, columns, offsets, compressed, layout.ZSTD, len(blob))


def seal_fields(columns: Sequence[Field], contents: Sequence[bytes], *, small: bool = False) -> bytes:
    """The bytes of a batch from its columns and its payloads."""
    flags = sum(flag for flag, _ in columns)
    buffers = [buffer for _, column in columns for buffer in column]
    return seal_columns(flags, buffers, binary(contents, "payload", limits.payload_bytes_max), small=small)
