"""Bytes that claim to be a batch and are not are refused, whatever is wrong with them, before Arrow sees them.

All but the first tests give the spoilt bytes a CRC that fits: a hostile producer can compute one too.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import limits
from penstock.batch import Batch, encode_one, encode_one_with, layout
from penstock.batch.check import check_columns, check_positions
from penstock.batch.layout import CRC, HEAD, HEADER
from penstock.errors import BadBatch, InputError
from penstock.model import ContentType, Message

MESSAGES = [
    Message(
        payload=b"payload %d" % row,
        priority=row,
        delay=row,
        ttl=1 + row,
        max_attempts=1 + row,
        key=f"ключ {row}" if row % 3 else None,
        dedup_key=f"d{row}",
        trace="t",
        headers={"a": "1", "é": "ü"} if row % 2 else None,
        deliver_at="2030-01-01T00:00:00Z" if row % 2 else None,  # type: ignore[arg-type]
        content_type=row % 3,  # type: ignore[arg-type]
    )
    for row in range(10)
]
MANY = bytes(Batch.build(MESSAGES).data)
ONE = bytes(Batch.build(MESSAGES[5:6]).data)
PLAIN = bytes(Batch.build([b"a", b"bc"]).data)


@pytest.fixture(autouse=True)
def _no_arrow(monkeypatch):
    """Importing Arrow, or a module that hands bytes to it, fails in these tests."""
    for module in ("pyarrow", "penstock.batch.arrow", "penstock.batch.arrow", "penstock.batch.arrow"):
        monkeypatch.setitem(sys.modules, module, None)


def resealed(data: bytes | bytearray) -> bytes:
    """The bytes with a length and a CRC that fit."""
    spoilt = bytearray(data)
    struct.pack_into("<I", spoilt, 24, len(spoilt))
    spoilt[HEAD.size : HEADER.size] = CRC.pack(layout.crc_of(bytes(spoilt)))
    return bytes(spoilt)


def changed(data: bytes, position: int, new: bytes) -> bytes:
    return resealed(data[:position] + new + data[position + len(new) :])


def place(data: bytes, flag: int) -> int:
    return Batch.parse(data, validate=True).positions()[flag]


def refused(data: bytes) -> str:
    with pytest.raises(BadBatch) as caught:
        Batch.parse(data, validate=True)
    return caught.value.message


def test_every_flipped_bit_is_refused():
    for data in (MANY, ONE, PLAIN):
        for bit in range(len(data) * 8):
            spoilt = bytearray(data)
            spoilt[bit // 8] ^= 1 << bit % 8
            with pytest.raises(BadBatch):
                Batch.parse(bytes(spoilt), validate=True)


def test_every_truncation_is_refused():
    for data in (MANY, ONE, PLAIN):
        for length in range(len(data)):
            with pytest.raises(BadBatch):
                Batch.parse(data[:length], validate=True)


def test_every_truncation_is_refused_even_with_a_length_and_checksum_that_fit():
    for data in (MANY, ONE, PLAIN):
        for length in range(HEADER.size, len(data)):
            refused(resealed(data[:length]))


def test_a_length_that_is_not_that_of_the_bytes_is_refused():
    for length in (0, len(PLAIN) - 8, len(PLAIN) + 8, 2**32 - 1):
        spoilt = bytearray(PLAIN)
        struct.pack_into("<I", spoilt, 24, length)
        spoilt[HEAD.size : HEADER.size] = CRC.pack(layout.crc_of(bytes(spoilt)))
        assert f"says {length:,} bytes, there are {len(PLAIN)}" in refused(bytes(spoilt))


def test_bytes_after_the_end_are_refused():
    refused(PLAIN + bytes(8))
    assert "columns end at" in refused(resealed(PLAIN + bytes(8)))


@pytest.mark.parametrize(
    ("position", "new", "reason"),
    [
        (0, b"XX", "begins with b'XX'"),
        (2, b"\x02", "version 2"),
        (3, b"\x07", "compression 7"),
        (4, b"\x00\x04", "columns 0x400"),
        (20, b"\x01", "reserved 1"),
        (12, b"\xff", "stored"),
        (12, b"\xff\xff\xff\xff\xff\xff\xff\xff", "columns end at"),
    ],
)
def test_a_header_that_is_not_understood_is_refused(position, new, reason):
    assert reason in refused(changed(PLAIN, position, new))


def test_nothing_and_noise_are_refused():
    noise = random.Random(7)
    for length in (0, 1, 31, 32, 40, 200):
        refused(noise.randbytes(length))
        refused(bytes(length))


@pytest.mark.parametrize("count", [0, 1, 2, 4, 5, 11, 200, 2**31, 2**32 - 1])
@pytest.mark.parametrize("data", [MANY, ONE, PLAIN], ids=["many", "one", "plain"])
def test_a_wrong_count_is_refused(data, count):
    if count != HEADER.unpack_from(data)[4]:
        refused(changed(data, 8, struct.pack("<I", count)))


def test_too_many_messages_are_refused():
    assert "1,000,001 messages" in refused(changed(PLAIN, 8, struct.pack("<I", limits.batch_messages_max + 1)))


@pytest.mark.parametrize("data", [MANY, ONE, PLAIN], ids=["many", "one", "plain"])
def test_columns_that_are_announced_and_not_there_or_there_and_not_announced_are_refused(data):
    flags = HEADER.unpack_from(data)[3]
    for bit in range(10):
        other = flags ^ (1 << bit)
        spoilt = changed(data, 4, struct.pack("<I", other))
        try:
            batch = Batch.parse(spoilt, validate=True)
        except BadBatch:
            continue
        # Columns of the same width may pass for each other; then what is read is still sound.
        assert batch.flags == other
        assert len(batch.keys()) == batch.count


@pytest.mark.parametrize(
    ("first", "second", "third", "reason"),
    [
        (0, 3, 1, "item 1: payload: offsets run backwards"),
        (1, 1, 3, "payload: offsets begin at 1"),
        (0, -5, 3, "item 0: payload: offsets run backwards"),
        (-1, 1, 3, "payload: offsets begin at -1"),
        (0, 2**31 - 1, 3, "item 1: payload: offsets run backwards"),
    ],
)
def test_payload_offsets_that_are_not_monotone_are_refused(first, second, third, reason):
    offsets = struct.pack("<iii", first, second, third)

    assert reason in refused(changed(PLAIN, HEADER.size, offsets))


@pytest.mark.parametrize("last", [2, 4, 2**31 - 1, -1])
def test_payload_offsets_that_end_elsewhere_than_the_payload_are_refused(last):
    assert "payload" in refused(changed(PLAIN, HEADER.size + 8, struct.pack("<i", last)))


@pytest.mark.parametrize("bounds", [(0, 9), (1, 2), (-1, 2), (0, 1), (0, -1), (2, 2)])
def test_offsets_of_a_single_payload_that_are_not_its_own_are_refused(bounds):
    assert "payload" in refused(changed(encode_one(b"hi"), HEADER.size, struct.pack("<ii", *bounds)))


@pytest.mark.parametrize("flag", layout.TEXTS, ids=lambda flag: layout.NAMES[flag])
@pytest.mark.parametrize("data", [MANY, ONE], ids=["many", "one"])
@pytest.mark.parametrize("value", [-1, 2**24, 2**31 - 1])
def test_text_offsets_that_are_not_sound_are_refused(flag, data, value):
    count = HEADER.unpack_from(data)[4]
    offsets = place(data, flag) + layout.bitmap_bytes(count)

    refused(changed(data, offsets, struct.pack("<i", 1)))
    for row in (0, count):
        refused(changed(data, offsets + 4 * row, struct.pack("<i", value)))


@pytest.mark.parametrize("data", [MANY, ONE], ids=["many", "one"])
@pytest.mark.parametrize("value", [-1, 2**24, 2**31 - 1])
def test_header_offsets_that_are_not_sound_are_refused(data, value):
    count = HEADER.unpack_from(data)[4]
    rows = place(data, layout.HEADERS)
    names = rows + layout.offsets_bytes(count)

    refused(changed(data, rows, struct.pack("<i", value)))
    refused(changed(data, names, struct.pack("<i", value)))
    refused(changed(data, rows + 4 * count, struct.pack("<i", value)))


@pytest.mark.parametrize("data", [MANY, ONE], ids=["many", "one"])
@pytest.mark.parametrize("bad", [b"\xff", b"\xc3\x28", b"\xed\xa0\x80"], ids=["stray", "cut", "surrogate"])
def test_text_that_is_not_utf8_is_refused(data, bad):
    count = HEADER.unpack_from(data)[4]
    blob = place(data, layout.KEY) + layout.bitmap_bytes(count) + layout.offsets_bytes(count)

    assert "key: value" in refused(changed(data, blob, bad))


def test_a_value_that_begins_inside_a_character_is_refused():
    data = bytes(Batch.build([Message(payload=b"", key="é"), Message(payload=b"", key="é")]).data)
    middle = place(data, layout.KEY) + layout.bitmap_bytes(2) + 4

    assert "value 1 begins inside a character" in refused(changed(data, middle, struct.pack("<i", 3)))


def test_header_names_that_are_not_utf8_are_refused():
    data = encode_one_with(b"", headers={"name": "value"})
    blob = place(data, layout.HEADERS) + 16

    assert "headers: value 0 is not UTF-8" in refused(changed(data, blob, b"\xff"))


@pytest.mark.parametrize("data", [MANY, ONE], ids=["many", "one"])
def test_a_value_that_is_absent_and_yet_has_bytes_is_refused(data):
    assert "marked absent, but has bytes" in refused(changed(data, place(data, layout.DEDUP_KEY), b"\0"))


@pytest.mark.parametrize("data", [MANY, ONE], ids=["many", "one"])
@pytest.mark.parametrize(
    ("flag", "value"),
    [
        (layout.DELAY, struct.pack("<q", -1)),
        (layout.DELAY, struct.pack("<q", limits.delay_seconds_max * 1_000_000 + 1)),
        (layout.DELIVER_AT, struct.pack("<q", -1)),
        (layout.DELIVER_AT, struct.pack("<q", limits.instant_us_max + 1)),
        (layout.TTL, struct.pack("<q", -1)),
        (layout.TTL, struct.pack("<q", 2**63 - 1)),
        (layout.CONTENT_TYPE, b"\x04"),
    ],
)
def test_values_outside_their_range_are_refused_by_item_and_field(data, flag, value):
    assert f"item 0: {layout.NAMES[flag]}: " in refused(changed(data, place(data, flag), value))


def batch_with_text(flag: int, length: int, count: int) -> bytes:
    """A sound batch, but for a last row of text that may be too long."""
    bits = np.packbits(np.arange(count) == count - 1, bitorder="little").tobytes()
    offsets = struct.pack(f"<{count + 1}i", *[0] * count, length)
    buffers = [bits, offsets, b"x" * length]
    padded = [buffer + bytes(-len(buffer) % 8) for buffer in buffers]
    return layout.seal(count, flag, padded, bytes(4 * count + 4), b"")


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("flag", "limit"),
    [
        (layout.KEY, limits.key_bytes_max),
        (layout.DEDUP_KEY, limits.dedup_key_bytes_max),
        (layout.TRACE, limits.trace_bytes_max),
    ],
)
def test_text_over_its_limit_is_refused_by_item_and_field(flag, limit, count):
    Batch.parse(batch_with_text(flag, limit, count), validate=True)

    message = refused(batch_with_text(flag, limit + 1, count))

    assert f"item {count - 1}: {layout.NAMES[flag]}: {limit + 1:,} bytes is over the limit" in message


@pytest.mark.parametrize("count", [1, 3])
def test_headers_over_their_limit_are_refused_by_item_and_field(count):
    def batch(length: int) -> bytes:
        rows = struct.pack(f"<{count + 1}i", *[0] * count, 1)
        text = struct.pack("<ii", 0, length) + b"x" * length
        buffers = [rows, text, struct.pack("<ii", 0, 0)]
        padded = [buffer + bytes(-len(buffer) % 8) for buffer in buffers]
        return layout.seal(count, layout.HEADERS, padded, bytes(4 * count + 4), b"")

    Batch.parse(batch(limits.headers_bytes_max), validate=True)

    assert f"item {count - 1}: headers: 65,537 bytes" in refused(batch(limits.headers_bytes_max + 1))


@pytest.mark.parametrize("count", [1, 3])
def test_a_payload_over_its_limit_is_refused_by_item_and_field(count):
    blob = bytes(limits.payload_bytes_max + 1)
    offsets = struct.pack(f"<{count + 1}i", *[0] * count, len(blob))

    assert f"item {count - 1}: payload: 10,485,761 bytes" in refused(layout.seal(count, 0, [], offsets, blob))


def test_a_batch_over_its_limit_is_refused():
    blob = bytes(limits.batch_bytes_max)

    assert "larger than" in refused(layout.seal(2, 0, [], struct.pack("<iii", 0, 2**23, 2**24), blob))


def verdict(check: Callable[[], Any]) -> bool:
    try:
        check()
    except (InputError, struct.error):
        return False
    return True


@settings(max_examples=400, deadline=None)
@given(st.binary(min_size=1, max_size=12), st.integers(0, len(ONE) - 33), st.sampled_from([ONE, encode_one(b"hello")]))
def test_a_batch_of_one_is_judged_the_same_with_arrays_and_without(new, position, data):
    spoilt = changed(data, HEADER.size + position % (len(data) - HEADER.size), new)[: len(data)]
    spoilt = resealed(spoilt)

    without = verdict(lambda: Batch.parse(spoilt, validate=True))

    if without or verdict(lambda: check_places_of(spoilt)):
        assert verdict(lambda: check_columns(Batch.parse(spoilt, validate=False))) == without


def check_places_of(data: bytes) -> None:
    check_positions(data, Batch.parse(data, validate=False).positions(), 1)


@settings(max_examples=400, deadline=None)
@given(st.binary(min_size=1, max_size=8), st.integers(0, len(MANY) - 1), st.sampled_from([MANY, ONE, PLAIN]))
def test_whatever_passes_the_check_can_be_read_in_full(new, position, data):
    spoilt = changed(data, position % len(data), new)[: len(data)]
    try:
        batch = Batch.parse(resealed(spoilt), validate=True)
    except BadBatch:
        return

    assert len(batch.payloads()) == len(batch.keys()) == len(batch.dedup_keys()) == batch.count
    for row in range(batch.count):
        assert batch.payload(row) == batch.payloads()[row]
        assert batch.key(row) == batch.keys()[row]
        assert batch.headers(row) is None or batch.flags & layout.HEADERS
        assert batch.trace(row) is None or batch.flags & layout.TRACE
        assert batch.content_type_of(row) in ContentType
