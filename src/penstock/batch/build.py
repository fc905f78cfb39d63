"""From a producer's items to the bytes of a batch, column by column.

Each column is looked at as a whole: most are at their default in every row and then take no room. Only when a
column is refused are its items walked, to name the first that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock import limits
from penstock.batch import layout
from penstock.batch.columns import Binary, Bytes, Headers, Int64s, Text, bitmap, offsets_of, pad
from penstock.batch.compression import compress
from penstock.batch.layout import OFFSET, Buffer
from penstock.batch.one import check_attempts, check_content_type, encode_headers, encode_one, encode_text
from penstock.batch.payloads import payloads_of
from penstock.batch.rules import (
    DELAY_US_MAX,
    TEXT_BYTES_MAX,
    check_batch_bytes,
    check_count,
    check_lengths,
    located,
)
from penstock.errors import InputError, InvalidField
from penstock.model import Message, check_name, check_priority, check_seconds, to_micros

Partitions = list[str | None]

_SECONDS_MAX: Final = DELAY_US_MAX // 1_000_000


def encode_items(items: Sequence[Any], *, small: bool) -> tuple[bytes, Partitions | None]:
    """The batch of these items, and the partition that each one names. `small`: compress payloads if it pays."""
    check_count(len(items))
    kinds = set(map(type, items))
    if kinds == {bytes}:
        return _encode_bytes(items, small), None
    if Message not in kinds:
        contents, content_types = payloads_of(items)
        flags, columns = _fixed(layout.CONTENT_TYPE, content_types)
        return _seal(contents, flags, columns, small), None
    messages = [item if type(item) is Message else Message(payload=item) for item in items]
    return _encode_messages(messages, small), _partitions(messages)


def _encode_bytes(items: Sequence[bytes], small: bool) -> bytes:
    return encode_one(items[0]) if len(items) == 1 else _seal(items, 0, [], small)


def _seal(contents: Sequence[bytes], flags: int, columns: list[Buffer], small: bool) -> bytes:
    return seal_columns(flags, columns, _binary(contents), small=small)


def seal_columns(flags: int, columns: list[Buffer], payloads: Binary, *, small: bool = False) -> bytes:
    """The bytes of a batch, within its limits; its payload compressed when that is wanted and pays."""
    count, blob = len(payloads.offsets) - 1, payloads.blob
    if len(blob) > limits.payload_bytes_max:  # otherwise no single payload can be over it
        check_lengths(payloads.lengths(), "payload", limits.payload_bytes_max)
    columns_bytes = layout.HEADER.size + sum(map(len, columns)) + layout.offsets_bytes(count)
    check_batch_bytes(columns_bytes + layout.padded(len(blob)))
    offsets = payloads.rebased().astype(OFFSET, copy=False).tobytes()
    compressed = compress(blob) if small else None
    if compressed is None:
        return layout.seal(count, flags, columns, offsets, blob)
    return layout.seal(count, flags, columns, offsets, compressed, layout.ZSTD, len(blob))


def _encode_messages(messages: list[Message], small: bool) -> bytes:
    contents, content_types = payloads_of([message.payload for message in messages])
    parts = [
        _fixed(layout.PRIORITY, _priorities([message.priority for message in messages])),
        _fixed(layout.DELAY, _micros([message.delay for message in messages], 0.0, _delay)),
        _fixed(layout.DELIVER_AT, _micros([message.deliver_at for message in messages], None, _deliver_at)),
        _fixed(layout.TTL, _micros([message.ttl for message in messages], None, _ttl)),
        _fixed(layout.MAX_ATTEMPTS, _attempts([message.max_attempts for message in messages])),
        _fixed(layout.CONTENT_TYPE, _content_types([message.content_type for message in messages], content_types)),
        _text(layout.KEY, [message.key for message in messages]),
        _text(layout.DEDUP_KEY, [message.dedup_key for message in messages]),
        _text(layout.TRACE, [message.trace for message in messages]),
        _headers([message.headers for message in messages]),
    ]
    flags = sum(flag for flag, _ in parts)
    columns = [buffer for _, buffers in parts for buffer in buffers]
    return _seal(contents, flags, columns, small)


def each(check: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    """`check` of every value; an error names the item."""
    checked = []
    for row, value in enumerate(values):
        try:
            checked.append(check(value))
        except InputError as error:
            raise located(error, row) from None
    return checked


def _unset(values: Sequence[Any], default: Any) -> bool:
    return values.count(default) == len(values)


def _fixed(flag: int, values: NDArray[np.generic] | None) -> tuple[int, list[Buffer]]:
    if values is None:
        return 0, []
    return flag, [*pad(values.astype(layout.FIXED[flag], copy=False).tobytes())]


def _priorities(values: list[Any]) -> Bytes | None:
    if _unset(values, limits.priority_default):
        return None
    if set(map(type, values)) == {int} and min(values) >= 0 and max(values) <= limits.priority_max:
        return np.array(values, np.uint8)
    return np.array(each(check_priority, values), np.uint8)


def _micros(values: list[Any], unset: Any, to_us: Callable[[Any], int]) -> Int64s | None:
    if _unset(values, unset):
        return None
    if set(map(type, values)) <= {int, float} and max(values) <= _SECONDS_MAX:
        micros = np.rint(np.array(values, np.float64) * 1e6)
        if micros.min() >= _LEAST_US[to_us]:  # false for NaN too
            return micros.astype(np.int64)
    return np.array(each(to_us, values), np.int64)


def _delay(value: Any) -> int:
    return round(check_seconds(value, "delay") * 1_000_000)


def _ttl(value: Any) -> int:
    if value is None:
        return 0
    micros = round(check_seconds(value, "ttl") * 1_000_000)
    if micros == 0:
        raise InvalidField(f"ttl: {value!r} would expire at once", hint="use None for no limit")
    return micros


def _deliver_at(value: Any) -> int:
    if value is None:
        return 0
    micros = to_micros(value, "deliver_at")
    if micros < 0:
        raise InvalidField(f"deliver_at: {value} is before 1970")
    return micros


_LEAST_US: Final[dict[Callable[[Any], int], int]] = {_delay: 0, _ttl: 1, _deliver_at: 0}


def _attempts(values: list[Any]) -> NDArray[np.uint16] | None:
    return None if _unset(values, None) else np.array(each(check_attempts, values), np.uint16)


def _content_types(values: list[Any], found: Bytes | None) -> Bytes | None:
    if _unset(values, None):
        return found
    given = each(lambda kind: None if kind is None else check_content_type(kind), values)
    detected = [0] * len(values) if found is None else found.tolist()
    pairs = zip(given, detected, strict=True)
    kinds = np.array([kind if told is None else told for told, kind in pairs], np.uint8)
    return kinds if kinds.any() else None


def _text(flag: int, values: list[Any]) -> tuple[int, list[Buffer]]:
    if _unset(values, None):
        return 0, []
    encoded = _encode_texts(flag, values)
    present = np.fromiter((value is not None for value in values), np.bool_, len(values))
    return flag, Text(_binary(encoded), bitmap(present)).buffers()


def _encode_texts(flag: int, values: list[Any]) -> list[bytes]:
    if set(map(type, values)) <= {str, NoneType}:
        try:
            encoded = [b"" if value is None else value.encode() for value in values]
        except UnicodeEncodeError:
            pass  # the walk below finds out which item it was
        else:
            if max(map(len, encoded)) <= TEXT_BYTES_MAX[flag]:
                return encoded
    return each(lambda value: b"" if value is None else encode_text(flag, value), values)


def _binary(values: Sequence[bytes]) -> Binary:
    return Binary(offsets_of(np.fromiter(map(len, values), OFFSET, len(values))), b"".join(values))


def _headers(values: list[Mapping[str, str] | None]) -> tuple[int, list[Buffer]]:
    if not any(values):
        each(_no_headers, values)
        return 0, []
    pairs = each(lambda headers: encode_headers({} if headers is None else headers), values)
    rows = offsets_of(np.fromiter((len(names) for names, _ in pairs), OFFSET, len(pairs)))
    names = _binary([name for names, _ in pairs for name in names])
    texts = _binary([text for _, texts in pairs for text in texts])
    return layout.HEADERS, Headers(rows, names, texts).buffers()


def _no_headers(value: Any) -> None:
    if value is not None:
        encode_headers(value)


def _partitions(messages: list[Message]) -> Partitions | None:
    named = [message.partition for message in messages]
    return None if _unset(named, None) else each(partition_name, named)


def partition_name(value: Any) -> str | None:
    """The name of the partition that a producer asked for."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return str(value)
    return check_name(value, "partition")
