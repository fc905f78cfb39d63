"""What goes into a batch comes out of it, and its bytes are the documented ones."""

from __future__ import annotations

import re
from collections import OrderedDict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c

from penstock.batch import Batch, encode_one, encode_one_with
from penstock.model import ContentType, Message

PAGE = Path(__file__).parent.parent.parent / "docs" / "formats" / "batch.md"

# The two worked examples of docs/formats/batch.md.
GOLDEN = bytes.fromhex(
    "50 42 01 00 41 00 00 00  02 00 00 00 09 00 00 00  09 00 00 00 00 00 00 00  68 00 00 00 da 25 c9 62"
    "c8 80 00 00 00 00 00 00  01 00 00 00 00 00 00 00  00 00 00 00 02 00 00 00  02 00 00 00 00 00 00 00"
    "6b 31 00 00 00 00 00 00  00 00 00 00 05 00 00 00  09 00 00 00 00 00 00 00  68 65 6c 6c 6f 70 69 70"
    "65 00 00 00 00 00 00 00"
)
GOLDEN_ONE = bytes.fromhex(
    "50 42 01 00 00 00 00 00  01 00 00 00 02 00 00 00  02 00 00 00 00 00 00 00  30 00 00 00 8e d5 85 2b"
    "00 00 00 00 02 00 00 00  68 69 00 00 00 00 00 00"
)
# Every column at once.
GOLDEN_FULL = bytes.fromhex(
    "50 42 01 00 ff 03 00 00  02 00 00 00 03 00 00 00  03 00 00 00 00 00 00 00  10 01 00 00 71 ab 44 db"
    "80 09 00 00 00 00 00 00  00 00 00 00 00 00 00 00  60 e3 16 00 00 00 00 00"
    "00 00 00 00 00 00 00 00  40 42 0f 00 00 00 00 00  00 00 00 00 00 00 00 00  80 84 1e 00 00 00 00 00"
    "00 00 03 00 00 00 00 00  00 02 00 00 00 00 00 00"
    "02 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  01 00 00 00 00 00 00 00  6b 00 00 00 00 00 00 00"
    "02 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  01 00 00 00 00 00 00 00  64 00 00 00 00 00 00 00"
    "02 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  01 00 00 00 00 00 00 00  74 00 00 00 00 00 00 00"
    "00 00 00 00 00 00 00 00  01 00 00 00 00 00 00 00  00 00 00 00 01 00 00 00  6e 00 00 00 00 00 00 00"
    "00 00 00 00 01 00 00 00  76 00 00 00 00 00 00 00"
    "00 00 00 00 01 00 00 00  03 00 00 00 00 00 00 00  61 c3 a9 00 00 00 00 00"
)
FULL = [
    Message(payload=b"a"),
    Message(
        payload="é",
        priority=9,
        delay=1.5,
        deliver_at=datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        ttl=2,
        max_attempts=3,
        key="k",
        dedup_key="d",
        trace="t",
        headers={"n": "v"},
    ),
]


def sound(batch: Batch) -> Batch:
    """The batch as a remote peer would receive it."""
    return Batch.parse(batch.data, validate=True)


def test_two_messages_have_the_bytes_of_the_worked_example():
    batch = Batch.build([Message(payload=b"hello", key="k1", priority=200), Message(payload=b"pipe")])

    assert bytes(batch.data) == GOLDEN


def test_one_message_has_the_bytes_of_the_worked_example():
    assert encode_one(b"hi") == GOLDEN_ONE


def test_every_column_has_its_golden_bytes():
    assert bytes(Batch.build(FULL).data) == GOLDEN_FULL


def test_the_documented_examples_are_the_golden_bytes():
    lines = re.findall(
        r"^00[0-9a-f]{2}((?: +[0-9a-f]{2}){8,16})(?: |$)", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )

    assert bytes.fromhex("".join(lines)) == GOLDEN + GOLDEN_ONE


def test_the_checksum_is_crc32c_over_all_but_itself():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(GOLDEN[:28] + GOLDEN[32:]) == int.from_bytes(GOLDEN[28:32], "little")


def test_golden_bytes_are_read_back():
    batch = Batch.parse(GOLDEN_FULL, validate=True)

    assert batch.payloads() == [b"a", "é".encode()]
    assert (batch.key(1), batch.dedup_key(1), batch.trace(1), batch.headers(1)) == ("k", "d", "t", {"n": "v"})
    assert (batch.key(0), batch.dedup_key(0), batch.trace(0), batch.headers(0)) == (None, None, None, None)
    columns = [batch.priority, batch.delay, batch.deliver_at, batch.ttl, batch.max_attempts, batch.content_type]
    assert [column.tolist() for column in columns if column is not None] == [
        [128, 9],
        [0, 1_500_000],
        [0, 1_000_000],
        [0, 2_000_000],
        [0, 3],
        [0, 2],
    ]


@pytest.mark.parametrize("count", [0, 1, 2, 63, 64, 65, 1000])
@pytest.mark.parametrize("lengths", ["alike", "varied", "empty"])
def test_payloads_come_back_in_order(count, lengths):
    length = {"alike": lambda row: 7, "varied": lambda row: row * 5 % 23, "empty": lambda row: 0}[lengths]
    items = [bytes([row % 256]) * length(row) for row in range(count)]

    batch = sound(Batch.build(items))

    assert batch.count == len(batch) == count
    assert batch.flags == 0
    assert batch.payload_bytes == sum(map(len, items))
    assert batch.payloads() == items
    assert [batch.payload(row) for row in range(count)] == items


@pytest.mark.parametrize(
    "rows", [slice(3, 9), slice(90, 200), slice(-4, None), slice(5, 5), slice(9, 2), slice(1, 99, 3)]
)
def test_payloads_of_a_slice_are_those_of_a_list(rows):
    items = [b"%d" % row for row in range(100)]

    assert Batch.build(items).payloads(rows) == items[rows]


@pytest.mark.parametrize("rows", [[5, 1, 7], [], list(range(99, 0, -1))])
@pytest.mark.parametrize("compress", [False, True])
def test_payloads_of_chosen_rows_come_in_their_order(rows, compress):
    items = [b"%d" % row * 200 for row in range(100)]

    batch = Batch.build(items, compress=compress)

    assert batch.payloads(np.array(rows, np.int64)) == [items[row] for row in rows]


def test_a_batch_that_lies_anywhere_in_a_larger_buffer_reads_the_same():
    data = bytes(Batch.build([Message(payload=b"%d" % row, key=f"k{row}", delay=row) for row in range(100)]).data)

    for shift in range(8):
        moved = Batch.parse(memoryview(bytes(shift) + data + b"tail")[shift : shift + len(data)], validate=True)
        assert moved.payloads() == [b"%d" % row for row in range(100)]
        assert moved.payload(77) == b"77"
        assert moved.key(5) == "k5"
        assert moved.to_arrow().column("key").to_pylist() == [f"k{row}" for row in range(100)]


def test_an_index_outside_the_batch_is_an_index_error():
    batch = Batch.build([b"a", b"b"])

    for row in (-1, 2):
        with pytest.raises(IndexError, match=f"row {row} of a batch of 2"):
            batch.payload(row)


def test_items_of_every_kind_carry_their_content_type():
    items = [b"raw", "text é", {"a": [1, None]}, [1, 2], 7, 2.5, True, None, bytearray(b"array"), memoryview(b"view")]

    batch = sound(Batch.build(items))

    assert batch.payloads() == [
        *(b"raw", "text é".encode(), b'{"a":[1,null]}', b"[1,2]", b"7", b"2.5", b"true", b"null", b"array", b"view")
    ]
    kinds = [batch.content_type_of(row).name for row in range(batch.count)]
    assert kinds == ["BYTES", "TEXT", *["JSON"] * 6, "BYTES", "BYTES"]


def test_bytes_alone_have_no_content_type_column():
    assert Batch.build([b"a", bytearray(b"b")]).content_type is None
    assert Batch.build([b"a"]).content_type_of(0) is ContentType.BYTES


@pytest.mark.parametrize(
    ("items", "kind"), [(["a", "b"], ContentType.TEXT), ([{"a": 1}, []], ContentType.JSON)], ids=["text", "json"]
)
def test_items_all_of_one_kind_carry_their_content_type(items, kind):
    batch = sound(Batch.build(items))

    assert [batch.content_type_of(row) for row in range(2)] == [kind, kind]


def test_a_content_type_that_is_given_is_kept():
    items = [
        Message(payload=b"{}", content_type=ContentType.JSON),
        Message(payload="plain"),
        Message(payload={"a": 1}, content_type=ContentType.BYTES),
    ]

    batch = Batch.build(items)

    assert [batch.content_type_of(row).name for row in range(3)] == ["JSON", "TEXT", "BYTES"]


def test_messages_and_plain_items_mix():
    batch = sound(Batch.build([b"a", Message(payload="b", key="k"), {"c": 1}]))

    assert batch.payloads() == [b"a", b"b", b'{"c":1}']
    assert batch.keys() == [None, "k", None]


def test_options_at_their_default_take_no_room():
    defaults = Message(payload=b"a", priority="normal", delay=0, headers={}, content_type=ContentType.BYTES)

    assert Batch.build([Message(payload=b"a")] * 3).data == Batch.build([b"a"] * 3).data
    assert Batch.build([defaults]).flags == 0
    assert Batch.build([Message(payload=b"a", priority=128, headers={})]).flags == 0


def test_priorities_may_be_named():
    batch = Batch.build([Message(payload=b"", priority=name) for name in ("critical", "low", 3)])

    assert batch.priority is not None
    assert batch.priority.tolist() == [255, 64, 3]


def test_times_may_be_text_and_fractions():
    at = datetime(2030, 1, 31, 12, tzinfo=UTC)
    written: Any = "2030-01-31T12:00:00Z"
    batch = Batch.build(
        [Message(payload=b"", deliver_at=written, ttl=0.25), Message(payload=b"", deliver_at=at, delay=1e-6)]
    )

    assert batch.deliver_at is not None
    assert batch.ttl is not None
    assert batch.delay is not None
    assert batch.deliver_at.tolist() == [int(at.timestamp()) * 1_000_000] * 2
    assert batch.ttl.tolist() == [250_000, 0]
    assert batch.delay.tolist() == [0, 1]


def test_headers_may_be_any_mapping_and_need_not_be_in_every_row():
    given = [None, {"a": "1", "é": ""}, {}, OrderedDict(b="2")]

    batch = sound(Batch.build([Message(payload=b"", headers=headers) for headers in given]))

    assert [batch.headers(row) for row in range(4)] == [None, {"a": "1", "é": ""}, None, {"b": "2"}]


@pytest.mark.parametrize("count", [3, 100])
def test_keys_are_lists_with_none_for_no_key(count):
    keys = [None if row % 3 == 0 else f"ключ-{row}" if row % 3 == 1 else "" for row in range(count)]

    batch = sound(Batch.build([Message(payload=b"", key=key, dedup_key=key) for key in keys]))

    assert batch.keys() == batch.dedup_keys() == keys
    assert [batch.key(row) for row in range(count)] == keys


def test_a_batch_without_keys_has_none_of_them():
    batch = Batch.build([b"a", b"b"])

    assert batch.keys() == batch.dedup_keys() == [None, None]
    assert batch.key_hashes() is None
    assert batch.trace(0) is None


def test_key_hashes_tell_no_key_from_an_empty_one():
    hashes = Batch.build([Message(payload=b"", key=key) for key in (None, "", "k", "k", "é")]).key_hashes()

    assert hashes is not None
    assert hashes.dtype == np.uint32
    assert hashes.tolist() == [0, 1, crc32c(b"k"), crc32c(b"k"), crc32c("é".encode())]


def test_the_partition_stays_beside_the_bytes():
    named = Batch.build(
        [Message(payload=b"a", partition=3), Message(payload=b"b"), Message(payload=b"c", partition="eu")]
    )

    assert named.partitions == ["3", None, "eu"]
    assert named.data == Batch.build([b"a", b"b", b"c"]).data
    assert named.take(np.array([2, 0])).partitions == ["eu", "3"]
    assert sound(named).partitions is None
    assert Batch.build([Message(payload=b"a")]).partitions is None


def test_a_batch_builds_from_a_generator_and_from_itself():
    batch = Batch.build(b"%d" % row for row in range(3))

    assert batch.payloads() == [b"0", b"1", b"2"]
    assert Batch.build(batch) is batch


@pytest.mark.parametrize("count", [3, 100])
def test_take_keeps_every_column_of_the_chosen_rows(count):
    messages = [
        Message(
            payload=b"p%d" % row,
            key=f"k{row}" if row % 2 else None,
            priority=row,
            delay=row + 0.5,
            headers={f"h{pair}": str(row) for pair in range(row % 4)},
            dedup_key=f"d{row}",
            max_attempts=row + 1,
        )
        for row in range(count)
    ]
    rows = np.arange(count - 1, -1, -1)

    taken = sound(Batch.build(messages).take(rows))

    assert taken.data == Batch.build([messages[row] for row in rows]).data


def test_taking_from_a_compressed_batch_leaves_nothing_compressed_and_unflagged():
    batch = Batch.build([b"abc" * 100] * 1000, compress=True)

    taken = batch.take(np.array([1, 999]))

    assert batch.compressed
    assert not taken.compressed
    assert sound(taken).payloads() == [b"abc" * 100] * 2


def test_a_batch_of_one_is_the_same_by_either_way():
    options = {"key": "k", "dedup_key": "d", "trace": "t", "headers": {"a": "1", "bb": "22"}, "max_attempts": 9}
    at = datetime(2030, 1, 1, tzinfo=UTC)
    message = Message(payload={"a": 1}, priority=0, delay=2, ttl=3, deliver_at=at, **options)  # type: ignore[arg-type]

    single = encode_one_with(
        {"a": 1},
        priority=0,
        delay_us=2_000_000,
        ttl_us=3_000_000,
        deliver_at_us=int(at.timestamp()) * 1_000_000,
        **options,  # type: ignore[arg-type]
    )

    assert single == Batch.build([message]).data
    assert (
        encode_one_with(b"a")
        == encode_one(b"a")
        == Batch.build([b"a"]).data
        == Batch.build([Message(payload=b"a")]).data
    )


def test_a_batch_describes_itself():
    assert repr(Batch.build(FULL[1:])).startswith(
        "<Batch of 1: priority, delay, deliver_at, ttl, max_attempts, content_type"
    )
    assert repr(Batch.build([b"abc"])) == "<Batch of 1: payload, 3 payload bytes>"
    assert Batch.build([b"hi"]).nbytes == 48
