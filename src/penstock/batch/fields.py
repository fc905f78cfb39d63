"""The fields of a message: their limits, their values as columns, and columns as the bytes of a batch.

Every refusal names the field, and the first offending item where there are several. The same limits hold for a
producer's list, a producer's table and a batch that arrives as bytes. A payload of bytes stays as it is, text becomes
UTF-8, anything else becomes JSON.

A field that nobody set gives no column. Values are checked as a whole first; only what that does not clear is walked
value by value, which either finds it in order after all or names the first item that is wrong.

The payload blob is compressed (zstd, level 1) only when it pays. A sample is tried first, so that payloads that do not
shrink cost next to nothing. What comes from outside says how long it will be, and is believed only after its zstd frame
said the same: nothing is allocated for a bomb.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain
from math import isfinite
from types import NoneType
from typing import Any, Final, NoReturn, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock import limits
from penstock.batch import layout
from penstock.batch.layout import MANY, OFFSET, Binary, Buffer, Bytes, Headers, Int64s, Text, bitmap, offsets_of, pad
from penstock.errors import BadBatch, InputError, InvalidField, TooLarge
from penstock.model import ContentType, check_name, check_priority, check_seconds, to_micros

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
    layout.CONTENT_TYPE: ContentType.TASK,  # of those that are pushed; a tombstone is marked later
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
    return micros


def check_max_attempts(value: Any) -> int:
    """A number of attempts; 0 for none."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limits.attempts_max:
        raise InvalidField(f"max_attempts: {value!r} is not a whole number from 1 to {limits.attempts_max:,}")
    return value


def check_content_type(value: Any) -> ContentType:
    """One of the content types that are pushed. A tombstone that was read is JSON: where it goes it is marked again."""
    try:
        kind = ContentType(value)
        return ContentType.JSON if kind is ContentType.TOMBSTONE else kind
    except ValueError:
        raise InvalidField(f"content_type: {value!r} is not a ContentType") from None


def encode_text(flag: int, value: Any) -> bytes:
    """A key, dedup key or trace: `flag` says which."""
    name = layout.NAMES[flag]
    if not isinstance(value, str):
        raise InvalidField(f"{name}: {value!r} is not text")
    encoded = _utf8(value, name)
    if len(encoded) > TEXT_BYTES_MAX[flag]:
        raise too_long(name, len(encoded), TEXT_BYTES_MAX[flag])
    return encoded


def encode_headers(value: Any) -> tuple[list[bytes], list[bytes]]:
    """Names and values, together within their limit."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise InvalidField(f"headers: {value!r} is not a mapping of text to text")
    for name, content in value.items():
        if not (isinstance(name, str) and isinstance(content, str)):
            raise InvalidField(f"headers: {name!r}: {content!r} is not a pair of strings")
    names = [_utf8(name, "headers") for name in value]
    contents = [_utf8(content, "headers") for content in value.values()]
    length = sum(map(len, names)) + sum(map(len, contents))
    if length > limits.headers_bytes_max:
        raise too_long("headers", length, limits.headers_bytes_max)
    return names, contents


def check_partition(value: Any) -> str | None:
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
        hint = "a payload is bytes, text, or a JSON value"
        problem = "it is not valid text" if isinstance(error, UnicodeEncodeError) else str(error)
        raise InvalidField(f"payload: this {kind} cannot be stored: {problem}", hint=hint) from None


def payloads_of(items: Sequence[Any]) -> tuple[Sequence[bytes], Bytes | None]:
    """All payloads and their content types; None when all are bytes."""
    kinds = set(map(type, items))
    if kinds == {bytes} or not items:
        return items, None
    try:
        if kinds == {str}:
            return [item.encode() for item in items], _filled(items, ContentType.TEXT)
        if kinds <= {dict, list}:
            contents = [_json(item) for item in items]
            if b"".join(contents).find(_NULL) < 0:
                return contents, _filled(items, ContentType.JSON)
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass  # the walk below finds out which item it was
    return _one_by_one(items)


def _filled(items: Sequence[Any], kind: ContentType) -> Bytes:
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


Partitions = list[str | None]
Field = tuple[int, list[Buffer]]  # the bit and the padded buffers of a column; the bit is 0 when there is none

ABSENT: Final[Field] = (0, [])

LEVEL: Final = 1
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_REPEATED: Final = 1  # a kind of block
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
    return fixed(layout.DELAY, _micros(items, delay_us))


def ttls(items: list[Any]) -> Field:
    """From seconds or None."""
    return ABSENT if _all(items, None) else fixed(layout.TTL, _micros(items, ttl_us))


def deliver_ats(items: list[Any]) -> Field:
    """From aware datetimes or RFC 3339 text."""
    if _all(items, None):
        return ABSENT
    return fixed(layout.DELIVER_AT, np.array(check_each(deliver_at_us, items), np.int64))


def max_attempts(items: list[Any]) -> Field:
    """From numbers of attempts or None."""
    if _all(items, None):
        return ABSENT
    if set(map(type, items)) == {int} and min(items) >= 1 and max(items) <= limits.attempts_max:
        return fixed(layout.MAX_ATTEMPTS, np.array(items, np.uint16))
    return fixed(layout.MAX_ATTEMPTS, np.array(check_each(check_max_attempts, items), np.uint16))


def content_types(items: list[Any], detected: Bytes | None) -> Field:
    """What the producer declared, or else what was detected."""
    if not _all(items, None):
        declared = check_each(lambda item: None if item is None else check_content_type(item), items)
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
        contents = check_each(lambda item: b"" if item is None else encode_text(flag, item), items)
        present = np.array([item is not None for item in items], np.bool_)
        column = Text(binary(contents, layout.NAMES[flag]), bitmap(present))
    return flag, column.buffers()


def headers(items: list[Any]) -> Field:
    """From mappings of text to text, or None."""
    if _all(items, None):
        return ABSENT
    column = _plain_headers(items)
    if column is None or (column.lengths() > limits.headers_bytes_max).any():
        pairs = check_each(lambda item: encode_headers({} if item is None else item), items)
        rows = offsets_of(np.array([len(names) for names, _ in pairs], OFFSET))
        names = binary([name for names, _ in pairs for name in names], "headers")
        column = Headers(rows, names, binary([content for _, contents in pairs for content in contents], "headers"))
    return (layout.HEADERS, column.buffers()) if column.rows[-1] else ABSENT


def partitions(items: list[Any]) -> Partitions | None:
    """From names or numbers; None when there is none."""
    return None if _all(items, None) else check_each(check_partition, items)


def _all(items: list[Any], default: Any) -> bool:
    return items.count(default) == len(items)


def _micros(items: list[Any], check: Callable[[Any], int]) -> Int64s:
    if set(map(type, items)) <= {int, float} and max(items) <= limits.delay_seconds_max:
        micros = np.rint(np.array(items, np.float64) * 1e6)
        if micros.min() >= (check is ttl_us):  # false for NaN too
            return micros.astype(np.int64)
    return np.array(check_each(check, items), np.int64)


def _plain_texts(items: list[Any]) -> Text | None:
    """The column of many items that are nothing but text or None; None when it takes a closer look."""
    if len(items) < MANY or not set(map(type, items)) <= {str, NoneType}:
        return None
    from penstock.batch.arrow import text_column

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


@cache
def _codec() -> Any:
    """The zstd of Arrow. It keeps no state between calls, so threads may share it."""
    import pyarrow as pa

    return pa.Codec("zstd", compression_level=LEVEL)


def compress(blob: Buffer) -> bytes | None:
    """The blob compressed, or None when it is short or would hardly shrink."""
    if len(blob) < limits.compression_threshold_bytes:
        return None
    middle = (len(blob) - SAMPLE_BYTES) // 2
    if not _saves(blob[middle : middle + SAMPLE_BYTES]):
        return None
    return _saves(blob)


def _saves(blob: Buffer) -> bytes | None:
    small: bytes = _codec().compress(blob, asbytes=True)
    return small if len(small) <= len(blob) * (1 - limits.compression_saving_min) else None


def decompress(blob: Buffer, length: int) -> bytes:
    """The blob as it was before `compress`; `BadBatch` unless it is exactly `length` bytes."""
    try:
        announced, end = zstd_frame(memoryview(blob))
        if announced != length:
            raise BadBatch(f"payload: its zstd frame holds {announced:,} bytes, the header says {length:,}")
        if end != len(blob):
            raise BadBatch("payload: the compressed data is damaged: something follows its zstd frame")
        plain: bytes = _codec().decompress(blob, length, asbytes=True)  # refuses any other length
    except (OSError, IndexError) as error:
        raise BadBatch(f"payload: the compressed data is damaged: {error}") from None
    return plain


def zstd_frame(blob: memoryview) -> tuple[int, int]:
    """The length that a zstd frame announces, and where the frame ends (RFC 8878); `BadBatch` without a length.

    magic 4 │ descriptor 1 │ window 0-1 │ dictionary 0-4 │ content size 0-8 │ blocks … │ checksum 0-4
    """
    if bytes(blob[:4]) != _ZSTD_MAGIC:
        raise BadBatch("payload: the compressed data is not a zstd frame")
    descriptor = blob[4]
    is_single = bool(descriptor & 0x20)
    at = 5 + (not is_single) + (0, 1, 2, 4)[descriptor & 3]
    size_bytes = (int(is_single), 2, 4, 8)[descriptor >> 6]
    if not size_bytes or len(blob) < at + size_bytes:
        raise BadBatch("payload: its zstd frame does not say how long it is")
    announced = int.from_bytes(blob[at : at + size_bytes], "little") + (256 if size_bytes == 2 else 0)
    return announced, _end_of_blocks(blob, at + size_bytes) + (4 if descriptor & 4 else 0)


def _end_of_blocks(blob: memoryview, at: int) -> int:
    """Where the last block of a zstd frame ends; a block of one repeated byte holds only that."""
    while True:
        if at + 3 > len(blob):
            raise BadBatch("payload: the compressed data is damaged: its zstd frame is cut")
        header = int.from_bytes(blob[at : at + 3], "little")
        is_last, kind, size = header & 1, header >> 1 & 3, header >> 3
        at += 3 + (1 if kind == _ZSTD_REPEATED else size)
        if is_last:
            return at


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
