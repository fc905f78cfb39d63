"""Bytes as arguments and results of `@app.task`: as they are, of the kind that the function asks for."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import App, chain, current_task, group
from penstock.errors import InvalidField, TooLarge
from penstock.model_tasks import result_of_bytes

BYTES = bytes(range(256))


@pytest.fixture
def app():
    with App.in_memory() as app:
        yield app


def ran(app: App, job: Any) -> Any:
    app.run_pending()  # type: ignore[attr-defined]
    return job.result()


def test_bytes_by_place_and_by_name_and_among_other_arguments(app):
    @app.task
    def work(first: bytes, number: int = 1, *, last: bytes | None = None) -> bytes:
        return first * number + (last or b"")

    assert ran(app, work.enqueue(BYTES)) == BYTES
    assert ran(app, work.enqueue(b"ab", 2, last=b"\xff")) == b"abab\xff"
    assert ran(app, work.enqueue(last=b"\x00", first=b"")) == b"\x00"
    assert ran(app, work.enqueue(b"x", last=None)) == b"x"
    assert [ran(app, job) for job in work.enqueue_many([(b"1",), {"first": b"2", "last": b"3"}])] == [b"1", b"23"]
    assert work.enqueue(BYTES).info().args == b'[{"penstock:bytes":256}]'


def test_the_kind_that_is_asked_for_and_any_where_nothing_is(app):
    @app.task
    def typed(data: bytearray, view: memoryview) -> bytearray:
        assert (type(data), type(view)) == (bytearray, memoryview)
        return data + bytes(view)

    @app.task
    def untyped(*values, **more):
        return [value for value in (*values, *more.values()) if type(value) is bytes][0]  # noqa: RUF015

    @app.task
    def text(word: str) -> str:
        return word

    assert ran(app, typed.enqueue(bytearray(b"a"), memoryview(b"b"))) == bytearray(b"ab")
    assert type(ran(app, typed.enqueue(bytearray(b"a"), memoryview(b"b")))) is bytearray
    assert ran(app, untyped.enqueue(1, memoryview(b"abcd")[::2])) == b"ac"
    assert ran(app, untyped.enqueue(1, last=b"z")) == b"z"
    assert ran(app, text.enqueue(b"abc")) == "YWJj"  # it asks for text


def test_what_parents_returned_as_bytes_is_taken_as_bytes(app):
    @app.task
    def double(data: bytes, times: int = 2) -> bytes:
        return data * times

    @app.task
    def joined(parts: list[bytes], between: bytes = b"") -> bytes:
        return between.join(parts)

    @app.task
    def untyped(parts):
        return [type(part).__name__ for part in parts], [type(part).__name__ for part in current_task().parent_results]

    assert ran(app, chain(double.s(b"a"), double.s(times=3)).enqueue()) == b"aaaaaa"
    both = group(double.s(b"a"), double.s(b"\xff"))
    assert ran(app, chain(both, joined.s(b"-")).enqueue()) == b"aa-\xff\xff"
    assert ran(app, chain(both, untyped.s()).enqueue()) == [["bytes", "bytes"], ["bytes", "bytes"]]


def test_what_does_not_fit_is_refused_before_anything_is_stored(app):
    @app.task
    def work(data: bytes, number: int = 0) -> bytes:
        return data

    with pytest.raises(InvalidField, match="number"):
        work.enqueue(b"a", b"b")
    with pytest.raises(InvalidField, match="too many arguments"):
        work.enqueue(b"a", 1, b"b")
    with pytest.raises(TooLarge, match="10,485,760"):
        work.enqueue(bytes(11 << 20))
    assert list(app.jobs()) == []

    @app.task
    def anything(first: Any, second: Any) -> None: ...

    with pytest.raises(InvalidField, match="reserved"):
        anything.enqueue(b"a", {"penstock:bytes": 1})
    assert ran(app, anything.enqueue(1, {"penstock:bytes": 1})) is None


def test_a_result_that_an_earlier_version_stored_is_read(app):
    @app.task
    def work() -> bytes:
        return b""

    assert work.decode_result(b'"YWJj"') == b"abc"
    assert work.decode_result(result_of_bytes(b"abc")) == b"abc"


def test_arguments_that_an_earlier_version_stored_are_read(app):
    @app.task
    def work(data: bytes) -> bytes:
        return data

    assert work.bind(b'["YWJj"]') == ([b"abc"], {})
    with pytest.raises(InvalidField, match="3 bytes, its arguments need 5"):
        work.bind(b'[{"penstock:bytes":5}]', payload=b"abc")
