"""JSON payloads: what fits becomes a struct, what does not is kept as text, and neighbours never matter."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import InvalidField
from penstock.spark.json_payload import Parser, inferred, texts
from penstock.spark.json_payload import declared as as_given

KIND = pa.struct(
    [
        pa.field("id", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("price", pa.float64()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("day", pa.date32()),
        pa.field("inner", pa.struct([pa.field("ok", pa.bool_())])),
    ]
)
GOOD = b'{"id": 1, "name": "a"}'


def parsed(*payloads: bytes, kind: pa.StructType = KIND) -> list[tuple[Any, Any]]:
    """Each row: its fields that are not null, or None; and the text kept."""
    structs, kept = Parser(kind).parse(pa.array(payloads, pa.binary()))
    assert structs.type == kind
    rows = [row if row is None else {k: v for k, v in row.items() if v is not None} for row in structs.to_pylist()]
    return list(zip(rows, kept.to_pylist(), strict=True))


def test_payloads_that_fit_are_structs():
    rows = parsed(b'{"id": 1, "price": 2, "tags": ["a"], "inner": {"ok": true}, "other": [1, {}]}', b'{"name": "b"}')

    assert rows == [({"id": 1, "price": 2.0, "tags": ["a"], "inner": {"ok": True}}, None), ({"name": "b"}, None)]


def test_times_and_dates_are_read_from_text():
    ((row, kept),) = parsed(b'{"at": "2030-01-31T12:00:00.5+02:00", "day": "2030-01-31"}')

    assert (row["at"].isoformat(), row["day"].isoformat()) == ("2030-01-31T10:00:00.500000+00:00", "2030-01-31")
    assert kept is None


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"   ",
        b"hello",
        b"42",
        b"null",
        b'"text"',
        b"[1]",
        b'{"id": 1',
        b'{"id": 1}}',
        b'{"id": 1}{"id": 2}',
        b'{"id": 1}}\n{"p":{"id": 2}',
        b'{"id": 1}\n',
        b'{"name": "a\nb"}',
        b'{"name": "\xff"}',
        b'{"id": 1.5}',
        b'{"id": "1"}',
        b'{"id": 99999999999999999999}',
        b'{"tags": "a"}',
        b'{"inner": 1}',
        b'{"at": "soon"}',
        b'{"day": "soon"}',
        b'{"id": true}',
    ],
)
def test_a_payload_that_does_not_fit_is_kept_as_text_and_its_neighbours_are_not_touched(bad):
    expected = None if bad != b'{"id": 1}\n' else {"id": 1}
    good = ({"id": 1, "name": "a"}, None)
    text = bad.decode("utf-8", "replace") if expected is None else None

    assert parsed(bad) == [(expected, text)]
    assert parsed(GOOD, bad, GOOD) == [good, (expected, text), good]


def test_what_one_payload_lacks_is_not_made_up_by_another():
    rows = parsed(b"", b'{"id": 1}{"id": 2}', b'{"id":', b'{"inner": {}}}')

    assert [row for row, _ in rows] == [None] * 4


def test_two_objects_in_one_payload_do_not_make_up_for_one_that_ends_in_the_next():
    rows = parsed(b'{"id": 1}{"id": 2}', b'{"other":', b'{"id": 3}}')

    assert [row for row, _ in rows] == [None] * 3


def test_a_field_of_text_takes_anything():
    rows = parsed(b'{"name": 5}', b'{"name": {"a": [1]}, "id": 2}', b'{"tags": [1, "b", null]}')

    assert [row for row, _ in rows] == [{"name": "5"}, {"name": '{"a":[1]}', "id": 2}, {"tags": ["1", "b", None]}]


def test_numbers_keep_every_digit_beside_a_row_that_does_not_fit():
    kind = pa.struct([pa.field("d", pa.decimal128(38, 2)), pa.field("i", pa.int8()), pa.field("f", pa.float32())])
    rows = parsed(b'{"d": 12345678901234567890.12, "i": 127, "f": 1.5}', b'{"i": 128}', b'{"f": "1"}', kind=kind)

    assert rows[0] == ({"d": Decimal("12345678901234567890.12"), "i": 127, "f": 1.5}, None)
    assert [row for row, _ in rows[1:]] == [None, None]


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.sampled_from(["id", "name", "ok"]), each, max_size=3),
    max_leaves=6,
)
payloads = st.one_of(
    st.binary(max_size=12),
    st.dictionaries(st.sampled_from(["id", "name", "price", "tags", "inner"]), values, max_size=4).map(
        msgspec.json.encode
    ),
    st.just(GOOD),
    st.sampled_from([b'{"id": 1}{"id": 2}', b'{"other":', b'{"id": 3}}', b'{"id":2},"q":2', b"[1]", b"}", b","]),
)


@given(st.lists(payloads, max_size=12))
def test_the_outcome_of_a_row_does_not_depend_on_its_neighbours(rows):
    together = parsed(*rows)

    assert together == [parsed(row)[0] for row in rows]
    assert all((row is None) == (kept is not None) for row, kept in together)


def fits(value: Any, kind: pa.DataType) -> bool:
    """Whether a value of `json.loads` may be a field of this type; text takes anything."""
    if value is None or pa.types.is_string(kind):
        return True
    if pa.types.is_struct(kind):
        return isinstance(value, dict) and all(fits(value.get(field.name), field.type) for field in kind)
    if pa.types.is_list(kind):
        return isinstance(value, list) and all(fits(item, kind.value_type) for item in value)
    if pa.types.is_integer(kind):
        return type(value) is int and -(2**63) <= value < 2**63
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    return isinstance(value, int | float) and not isinstance(value, bool)


PLAIN = pa.struct([field for field in KIND if field.name not in ("at", "day")])
# Pieces of JSON in any order: most of it is none, and some of it would be if its neighbours were joined to it.
PIECES = (
    '{"id":2}', '{"id":', "1", "2}", "}", "{", "]", "[", ",", ":", '"q"', '"name"', '"a', '"', '"id":3', '{"p":', "{}",
    '"inner":{"ok":true}', '"tags":["x"]', " ", "\n", "\r\n", "null", "true", "\\", "//", "\t", "1.5", "x",
)  # fmt: skip
pieces = st.lists(st.sampled_from(PIECES), max_size=7).map(lambda parts: "".join(parts).encode())


def loaded(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except ValueError:
        return None


@given(st.lists(st.one_of(pieces, payloads), min_size=1, max_size=12))
@example([b'{"id":2},"q":2', GOOD])
@example([b'{"id":2}}{"p":{"id":3}'])
@example([b'{"id":2}],"q":[2'])
@example([b'{"id":1}{"id":2}', b"  "])
@example([b'{"id":1', b',"name":"a"}'])
@example([b'{"inner":{}', b"}"])
@example([b'{"name":"}', b'{"}'])
def test_each_payload_is_judged_as_json_loads_does_it_alone(rows):
    for payload, (struct, kept) in zip(rows, parsed(*rows, kind=PLAIN), strict=True):
        value = loaded(payload)
        is_good = isinstance(value, dict) and fits(value, PLAIN)

        assert (struct is not None) == is_good, payload
        assert (kept is None) == is_good
        if is_good:
            assert struct.get("id") == value.get("id")


def test_without_fields_there_is_still_the_question_whether_a_payload_is_an_object():
    assert parsed(GOOD, b"{}", b"[1]", b'{"a":1},"b":2', b"", kind=pa.struct([])) == [
        ({}, None),
        ({}, None),
        (None, "[1]"),
        (None, '{"a":1},"b":2'),
        (None, ""),
    ]


def test_types_that_json_has_not_are_refused_by_the_name_of_the_field():
    kind = pa.struct([pa.field("a", pa.struct([pa.field("b", pa.map_(pa.string(), pa.string()))]))])

    with pytest.raises(InvalidField, match=r"payload\.a\.b: JSON is not read as map<.*STRING"):
        Parser(kind)


def test_text_that_is_not_utf_8_is_marked():
    assert texts(pa.array([b"a\xffb", None, b"c"], pa.binary())).to_pylist() == ["a\ufffdb", None, "c"]


# Types of payloads.


def test_a_schema_is_given_as_fields_or_whole():
    assert as_given("id BIGINT, name STRING") == "STRUCT<id BIGINT, name STRING>"
    assert as_given("struct<id: bigint>") == "struct<id: bigint>"


def test_a_schema_is_found_in_samples():
    samples = [
        {"id": 1, "price": 1, "tags": [], "mixed": 1, "inner": {"a": 1}, "never": None, "empty": {}},
        {"id": 2, "price": 1.5, "tags": ["x"], "mixed": "1", "inner": {"b": True}, "odd name": [{"x": 1}]},
    ]
    found = inferred([b"nonsense", b"[1]", *map(msgspec.json.encode, samples)])

    assert found == (
        "STRUCT<`id`: BIGINT, `price`: DOUBLE, `tags`: ARRAY<STRING>, `mixed`: STRING, "
        "`inner`: STRUCT<`a`: BIGINT, `b`: BOOLEAN>, `never`: STRING, `empty`: STRING, "
        "`odd name`: ARRAY<STRUCT<`x`: BIGINT>>>"
    )


def test_samples_without_json_ask_for_a_schema():
    with pytest.raises(InvalidField, match="no JSON object among"):
        inferred([b"a", b"1"])


@pytest.mark.parametrize(
    "text",
    [
        "id BIGINT",
        "id: bigint, `a b`: decimal(10, 2) NOT NULL, items ARRAY<STRUCT<sku: STRING, tags: ARRAY<STRING>>>, at DATE",
        "STRUCT<id: BIGINT, c STRUCT<country: STRING>>",
        "m MAP<STRING, INT> COMMENT 'a, b', n INT",
    ],
)
def test_a_schema_that_is_one_is_taken(text):
    assert as_given(text).upper().startswith("STRUCT<")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id BIGINTT", r"payloadSchema: 'BIGINTT' is not a type \(did you mean 'BIGINT'\?\)"),
        ("a ARRAY<STRNG>", r"'STRNG' is not a type \(did you mean 'STRING'\?\)"),
        ("id", "is not a schema"),
        ("", "is not a schema"),
        ("id BIGINT,", "is not a schema"),
        ("a ARRAY<STRING", "is not a schema"),
        ("a INT>", "is not a schema"),
        ("{'id': 'int'}", "is not a schema"),
    ],
)
def test_a_schema_that_is_none_is_refused_by_its_option(text, message):
    with pytest.raises(InvalidField, match=message):
        as_given(text)
