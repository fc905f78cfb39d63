"""Batches as Arrow and back, tables pushed by producers, and no copies of payloads on the way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from penstock import limits
from penstock.batch import Batch, layout
from penstock.errors import InvalidField, InvalidName, TooLarge
from penstock.model import ContentType, Message

AT = datetime(2030, 1, 31, 12, 30, 0, 250, tzinfo=UTC)
MESSAGES = [
    Message(payload=b"plain"),
    Message(
        payload={"a": 1},
        priority=9,
        delay=1.5,
        deliver_at=AT,
        ttl=60,
        max_attempts=3,
        key="ключ",
        dedup_key="d",
        trace="t",
        headers={"n": "v", "é": ""},
    ),
    Message(payload="text", key="", headers={"x": "y"}),
]
SCHEMA = pa.schema(
    [
        ("priority", pa.int16()),
        ("delay", pa.duration("us")),
        ("deliver_at", pa.timestamp("us", "UTC")),
        ("ttl", pa.duration("us")),
        ("max_attempts", pa.int32()),
        ("content_type", pa.string()),
        ("key", pa.string()),
        ("dedup_key", pa.string()),
        ("trace_id", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("payload", pa.binary()),
    ]
)


def sound(batch: Batch) -> Batch:
    return Batch.parse(batch.data, validate=True)


def test_every_column_has_its_documented_type_and_values():
    table = Batch.build(MESSAGES).to_arrow()

    table.validate(full=True)
    assert table.schema == SCHEMA
    assert table.to_pydict() == {
        "priority": [128, 9, 128],
        "delay": [timedelta(0), timedelta(seconds=1.5), timedelta(0)],
        "deliver_at": [None, AT, None],
        "ttl": [None, timedelta(seconds=60), None],
        "max_attempts": [None, 3, None],
        "content_type": ["application/octet-stream", "application/json", "text/plain"],
        "key": [None, "ключ", ""],
        "dedup_key": [None, "d", None],
        "trace_id": [None, "t", None],
        "headers": [[], [("n", "v"), ("é", "")], [("x", "y")]],
        "payload": [b"plain", b'{"a":1}', b"text"],
    }


def test_absent_columns_are_left_out():
    assert Batch.build([b"a", b"b"]).to_arrow().schema.names == ["payload"]


def test_payloads_reach_arrow_without_a_copy():
    batch = Batch.build([b"a" * 100] * 100)

    array = batch.to_arrow().column("payload")

    start = np.frombuffer(batch.data, np.uint8).ctypes.data
    assert start <= array.buffers()[2].address < start + batch.nbytes
    assert start <= array.buffers()[1].address < start + batch.nbytes


def test_payloads_leave_arrow_without_a_copy():
    array = pa.array([b"a" * 100] * 100)

    column = Batch.from_arrow(pa.record_batch({"payload": array})).payload_column()

    assert np.frombuffer(column.buffer, np.uint8).ctypes.data == array.buffers()[2].address
    assert column.offsets.ctypes.data == array.buffers()[1].address


def test_a_batch_comes_back_from_arrow_with_the_same_bytes():
    batch = Batch.build(MESSAGES)

    back = Batch.from_arrow(batch.to_arrow())

    assert back.flags == batch.flags
    assert back.payload_bytes == batch.payload_bytes
    assert back.data == batch.data
    assert Batch.from_arrow(pa.table(batch.to_arrow())).data == batch.data


def test_a_batch_over_arrow_answers_like_one_over_bytes():
    batch = Batch.build(MESSAGES * 40)

    back = Batch.from_arrow(batch.to_arrow())

    assert back.payloads() == batch.payloads()
    assert back.keys() == batch.keys()
    assert back.to_arrow() == batch.to_arrow()
    for row in range(6):
        assert back.payload(row) == batch.payload(row)
        assert back.headers(row) == batch.headers(row)
        assert back.key(row) == batch.key(row)
        assert back.content_type_of(row) == batch.content_type_of(row)
    for ours, theirs in (
        (back.priority, batch.priority),
        (back.delay, batch.delay),
        (back.key_hashes(), batch.key_hashes()),
    ):
        assert ours is not None
        assert theirs is not None
        assert ours.dtype == theirs.dtype
        assert ours.tolist() == theirs.tolist()
    assert back.take(np.array([1, 5])).data == batch.take(np.array([1, 5])).data


@pytest.mark.parametrize(("first", "count"), [(0, 2), (1, 2), (2, 1), (1, 0)])
def test_a_slice_of_arrow_is_a_batch_of_those_rows(first, count):
    whole = Batch.build(MESSAGES).to_arrow()

    part = Batch.from_arrow(whole.slice(first, count))

    rows = np.arange(first, first + count)
    assert part.payloads() == Batch.build(MESSAGES).payloads(rows)
    assert sound(part).payloads() == part.payloads()
    assert [part.headers(row) for row in range(count)] == [MESSAGES[row].headers for row in rows]
    assert [part.key(row) for row in range(count)] == [MESSAGES[row].key for row in rows]


def test_a_chunked_table_is_joined():
    one = pa.table(Batch.build(MESSAGES).to_arrow())

    assert Batch.from_arrow(pa.concat_tables([one, one])).data == Batch.build(MESSAGES * 2).data


def test_a_table_without_rows_is_an_empty_batch():
    for table in (pa.table({"payload": pa.array([], pa.binary())}), SCHEMA.empty_table()):
        assert Batch.from_arrow(table).count == 0
        assert sound(Batch.build(table)).payloads() == []


def test_a_row_group_read_back_keeps_what_belongs_to_the_message_and_ignores_the_rest():
    table = pa.table(
        {
            "queue": ["q", "q"],
            "partition": ["a", "b"],
            "offset": pa.array([5, 6]),
            "pushed_at": pa.array([AT, AT]),
            "key": pa.array([None, None], pa.string()),
            "priority": pa.array([1, None], pa.int16()),
            "payload": [b"x", b"y"],
        }
    )

    batch = Batch.from_arrow(table)

    assert batch.flags == layout.PRIORITY  # a column of nulls is no column
    assert batch.priority is not None
    assert batch.priority.tolist() == [1, 128]
    assert batch.partitions is None


def test_a_table_is_pushed_like_the_messages_in_it():
    batch = Batch.build(MESSAGES)

    for table in (batch.to_arrow(), pa.table(batch.to_arrow())):
        assert Batch.build(table).data == batch.data


def test_a_table_may_use_the_types_that_others_write():
    table = pa.table(
        {
            "payload": pa.array([b"a", b"b"], pa.large_binary()),
            "key": pa.array(["k", None], pa.large_string()).dictionary_encode(),
            "priority": pa.array([0, 255], pa.int64()),
            "delay": [0.5, None],
            "ttl": pa.array([60, None], pa.int32()),
            "deliver_at": pa.array([AT, None], pa.timestamp("ns", "Europe/Paris")),
            "max_attempts": pa.array([7, None], pa.uint8()),
            "trace": ["t", None],
            "partition": pa.array([3, None], pa.int8()),
            "offset": [1, 2],
        }
    )
    same = [
        Message(payload=b"a", key="k", priority=0, delay=0.5, ttl=60, deliver_at=AT, max_attempts=7, trace="t"),
        Message(payload=b"b", priority=255),
    ]

    batch = Batch.build(table)

    assert batch.data == Batch.build(same).data
    assert batch.partitions == ["3", None]


def test_a_column_of_text_makes_text_messages_unless_it_says_otherwise():
    reported = pa.table({"payload": ["{}"], "content_type": ["application/json"]})

    assert Batch.build(pa.table({"payload": ["a", "b"]})).data == Batch.build(["a", "b"]).data
    assert Batch.build(reported).content_type_of(0) is ContentType.JSON


def test_a_bare_column_is_pushed_as_payloads():
    assert Batch.build(pa.array([b"a", b"b"])).payloads() == [b"a", b"b"]
    assert Batch.build(pa.chunked_array([[b"a"], [b"b"]])).payloads() == [b"a", b"b"]


def test_a_table_is_compressed_when_asked_for():
    batch = Batch.build(pa.table({"payload": [b"a" * 100] * 1000}), compress=True)

    assert batch.compressed
    assert sound(batch).payloads() == [b"a" * 100] * 1000


def test_nulls_with_bytes_behind_them_leave_none_behind():
    values, offsets = pa.py_buffer(b"abc"), pa.py_buffer(np.array([0, 1, 2, 3], np.int32))
    keys = pa.Array.from_buffers(pa.string(), 3, [pa.py_buffer(b"\x05"), offsets, values])

    batch = sound(Batch.build(pa.table({"payload": [b""] * 3, "key": keys})))

    assert batch.keys() == ["a", None, "c"]


def test_null_headers_with_pairs_behind_them_leave_none_behind():
    kind = pa.map_(pa.string(), pa.string())
    full = pa.array([[("a", "1")], [("b", "2")], [("c", "3")]], kind)
    holed = pa.Array.from_buffers(kind, 3, [pa.py_buffer(b"\x05"), full.buffers()[1]], children=[pa_entries(full)])

    batch = sound(Batch.build(pa.table({"payload": [b""] * 3, "headers": holed})))

    assert [batch.headers(row) for row in range(3)] == [{"a": "1"}, None, {"c": "3"}]


def pa_entries(array: pa.MapArray) -> pa.Array:
    fields = [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())]
    return pa.StructArray.from_arrays([array.keys, array.items], fields=fields)


BIG = "x" * (limits.key_bytes_max + 1)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"priorty": [1, 2]}, r"^priorty: not a column of a message .did you mean 'priority'"),
        ({"payload": [b"", None]}, "^item 1: payload: null"),
        ({"payload": [1, 2]}, "^payload: a column of int64 does not fit"),
        ({"priority": [0, 256]}, "^item 1: priority: 256 is outside 0 to 255"),
        ({"priority": [0, -1]}, "^item 1: priority: -1 is outside"),
        ({"priority": ["high", "low"]}, "^priority: a column of string does not fit"),
        ({"priority": [1.5, 2]}, "^priority: a column of double does not fit"),
        ({"delay": [0, -1]}, "^item 1: delay: -1.0 is not a number of seconds"),
        ({"delay": [0.0, float("nan")]}, "^item 1: delay: nan is not"),
        ({"delay": [timedelta(0), timedelta(-1)]}, "^item 1: delay: -86400000000 is outside"),
        ({"ttl": [1e300, 1]}, "^item 0: ttl: 1e"),
        ({"ttl": ["a", "b"]}, "^ttl: a column of string does not fit"),
        ({"deliver_at": [AT.replace(tzinfo=None)] * 2}, "^deliver_at: timestamp.us. is not a time with a zone"),
        ({"deliver_at": [1, 2]}, "^deliver_at: int64 is not a time with a zone"),
        ({"deliver_at": [AT, datetime(1960, 1, 1, tzinfo=UTC)]}, "^item 1: deliver_at: -"),
        ({"max_attempts": [1, 65_536]}, "^item 1: max_attempts: 65536 is outside"),
        ({"content_type": ["text/plain", "text/html"]}, "^item 1: content_type: 'text/html' is not one of"),
        ({"priority": [True, False]}, "^priority: a column of bool does not fit"),
        ({"delay": [True, False]}, "^delay: a column of bool does not fit"),
        ({"ttl": [1, 0]}, "^item 1: ttl: 0 is outside 1 to"),
        ({"max_attempts": [1, 0]}, "^item 1: max_attempts: 0 is outside 1 to"),
        ({"key": [1, 2]}, "^key: a column of int64 does not fit"),
        ({"key": [b"a", b"b"]}, "^key: a column of binary does not fit"),
        ({"content_type": [1, 2]}, "^content_type: a column of int64 does not fit"),
        ({"headers": ["a", "b"]}, "^headers: a column of string does not fit"),
    ],
)
def test_a_column_that_does_not_fit_is_refused_by_item_and_field(columns, reason):
    with pytest.raises(InvalidField, match=reason):
        Batch.build(pa.table({"payload": [b"", b""], **columns}))


@pytest.mark.parametrize(
    ("field", "column"),
    [
        ("key", ["", BIG]),
        ("dedup_key", ["", BIG]),
        ("trace", ["", BIG]),
        ("headers", pa.array([[], [("a", BIG)]], pa.map_(pa.string(), pa.string()))),
        ("payload", [b"", bytes(limits.payload_bytes_max + 1)]),
    ],
)
def test_a_value_over_its_limit_is_refused_by_item_and_field(field, column):
    with pytest.raises(TooLarge, match=f"^item 1: {field}: "):
        Batch.build(pa.table({"payload": [b"", b""], field: column}))


def test_a_null_header_value_is_refused_by_item():
    headers = pa.array([[("a", "b")], None, [("a", "1"), ("b", None)]], pa.map_(pa.string(), pa.string()))

    with pytest.raises(InvalidField, match=r"^item 2: headers: a value is null"):
        Batch.build(pa.table({"payload": [b""] * 3, "headers": headers}))


def test_a_partition_that_could_not_be_stored_is_refused_by_item():
    with pytest.raises(InvalidName, match=r"^item 1: partition: 'a/b'"):
        Batch.build(pa.table({"payload": [b"", b""], "partition": ["a", "a/b"]}))


def test_a_table_needs_payloads_and_has_each_column_once():
    with pytest.raises(InvalidField, match=r"^payload: the table has no such column"):
        Batch.build(pa.table({"key": ["a"]}))
    with pytest.raises(InvalidField, match=r"^trace: the table has this column twice"):
        Batch.build(pa.table({"trace": ["a"], "trace_id": ["a"], "payload": [b""]}))


def test_a_table_that_is_not_utf8_where_it_says_so_is_refused():
    keys = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")]
    )

    with pytest.raises(InvalidField, match=r"^key: "):
        Batch.build(pa.table({"payload": [b""], "key": keys}))


def test_a_table_that_unfolds_to_more_than_a_batch_is_refused_before_it_does():
    payloads = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), pa.array([bytes(100_000)]))

    with pytest.raises(TooLarge, match=r"^batch: 10,000,"):
        Batch.build(pa.table({"payload": payloads}))


def test_a_table_of_too_many_rows_is_refused():
    with pytest.raises(TooLarge, match=r"^batch: 1,000,001 messages"):
        Batch.build(pa.table({"payload": pa.repeat(pa.scalar(b""), limits.batch_messages_max + 1)}))
