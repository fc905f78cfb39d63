"""The batch reader without a Spark: what is planned, what is read, what is refused."""

from __future__ import annotations

import logging
import pickle
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock import Message
from penstock import operations as ops
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import HistoryLost, InvalidField, NotADataDirectory, QueueNotFound
from penstock.history import History, open_history
from penstock.spark import batch_reader, location
from penstock.spark.batch_reader import BatchReader, lots
from penstock.spark.options import source_options
from penstock.spark.schema import COLUMNS, HEADERS_TYPES, ddl
from tests.support.operations import run_operation

PAIR: Final = StructType([StructField("key", StringType()), StructField("value", StringType())])
TYPES: Final[dict[str, DataType]] = {
    "string": StringType(),
    "binary": BinaryType(),
    "smallint": ShortType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
    "array<struct<key:string,value:string>>": ArrayType(PAIR),
}


def struct(columns: dict[str, str | DataType]) -> StructType:
    """A schema of columns by name; types are Spark's, or the names that it gives them."""
    fields = [StructField(name, kind if isinstance(kind, DataType) else TYPES[kind]) for name, kind in columns.items()]
    return StructType(fields)


START = 1_750_000_000_000_000
START_AT = datetime.fromtimestamp(START / 1_000_000, UTC)


@pytest.fixture
def clock():
    return ManualClock(START)


@pytest.fixture
def session(tmp_path, clock):
    with closing(Session(tmp_path / "data", background=False, durability="os", clock=clock)) as session:
        yield session


@pytest.fixture
def ps(session):
    return Penstock(BlockingSession(session))


@pytest.fixture
def url(session, tmp_path):
    return str(tmp_path / "data")


@pytest.fixture
def hours(ps, session, clock):
    """Three sealed hours and one that is not, ten messages each in two partitions."""
    orders = ps.create_queue("orders", partitions=2)
    for hour in range(4):
        orders.push_many(
            [
                Message(payload={"hour": hour, "n": n}, priority=200 if n == 9 else 128, partition=partition)
                for n in range(10)
                for partition in ("0", "1")
            ]
        )
        if hour < 3:
            run_operation(session, ops.Seal())
        clock.advance(seconds=3600)
    return orders


def reader(url: str, path: str = "orders", schema: StructType | None = None, **given: str) -> BatchReader:
    options = {"url": url, "path": path, **given}
    table = given.get("table", "messages")
    found = batch_reader.reader(options, schema or struct(dict(COLUMNS[table])))
    assert isinstance(found, BatchReader)
    return found


def rows_of(found: BatchReader) -> list[dict[str, Any]]:
    """Every row, read as tasks would: pickled to and fro."""
    rows: list[dict[str, Any]] = []
    wanted = to_arrow_schema(found.schema, timezone="UTC")
    for partition in pickle.loads(pickle.dumps(found.partitions())):
        for batch in pickle.loads(pickle.dumps(found)).read(partition):
            assert batch.schema.equals(wanted)
            rows += batch.to_pylist()
    return rows


def places(found: BatchReader) -> list[tuple[str, str, int]]:
    return sorted((row["queue"], row["partition"], row["offset"]) for row in rows_of(found))


@pytest.fixture
def opened(monkeypatch):
    """The files that readers open."""
    files: set[str] = set()
    kept: list[History] = []

    def watched(*args: Any, **options: Any) -> History:
        history = open_history(*args, **options)
        history.opened = files
        kept.append(history)
        return history

    monkeypatch.setattr(batch_reader, "open_history", watched)
    monkeypatch.setattr(location, "open_history", watched)
    return files


# What is read.


def test_every_column_comes_back_as_it_was_pushed(ps, session, url):
    pushed = Message(
        payload=b"x", key="k", headers={"a": "1"}, priority=200, delay=60, ttl=3600, dedup_key="d", max_attempts=3
    )
    for is_sealed in (True, False):
        ps.queue("orders").push_many([pushed] if is_sealed else [Message(payload=b"y")])
        if is_sealed:
            run_operation(session, ops.Seal())
    first, second = rows_of(reader(url))

    hour = timedelta(hours=1)
    assert first == {
        "queue": "orders",
        "partition": "0",
        "offset": 0,
        "key": "k",
        "payload": b"x",
        "headers": [("a", "1")],
        "priority": 200,
        "pushed_at": START_AT,
        "available_at": START_AT + timedelta(seconds=60),
        "expires_at": START_AT + hour,
        "dedup_key": "d",
        "trace_id": None,
        "producer": None,
        "content_type": "application/octet-stream",
        "max_attempts": 3,
    }
    assert (second["offset"], second["payload"], second["key"], second["headers"]) == (1, b"y", None, None)


def test_events_tell_what_became_of_messages(ps, session, clock, url):
    ps.queue("orders").push_many([b"a", b"b", b"c"])
    clock.advance(seconds=2)
    leased = ps.queue("orders").lease(2)
    clock.advance(seconds=1)
    leased.ack()
    run_operation(session, ops.Seal())
    ps.queue("orders").lease(1)[0].reject("broken")

    acked, rejected = rows_of(reader(url, table="events"))
    assert (acked["first_offset"], acked["last_offset"], acked["count"], acked["outcome"]) == (0, 1, 2, "acked")
    assert (acked["wait_ms"], acked["processing_ms"], acked["pushed_at"]) == (2000.0, 1000.0, START_AT)
    assert (rejected["outcome"], rejected["error"], rejected["settled_at"]) == (
        "rejected",
        "broken",
        START_AT + timedelta(seconds=3),
    )


def test_a_queue_without_messages_has_no_rows(ps, url):
    ps.create_queue("orders")
    found = reader(url)

    assert [partition.value for partition in found.partitions()] == [None]
    assert rows_of(found) == []


def test_columns_are_chosen_by_the_schema_in_its_order(hours, url):
    schema = struct({"offset": "bigint", "queue": "string"})

    assert list(rows_of(reader(url, schema=schema))[0]) == ["offset", "queue"]


def test_headers_and_payloads_have_several_shapes(ps, url):
    ps.queue("orders").push("text", headers={"a": "1"})
    schema = struct({"headers": HEADERS_TYPES["list"], "payload": "string"})

    assert rows_of(reader(url, schema=schema)) == [{"headers": [{"key": "a", "value": "1"}], "payload": "text"}]


def test_json_payloads_are_structs_beside_the_text_of_those_that_are_not(ps, url):
    ps.queue("orders").push_many([Message(payload={"n": 1}), Message(payload=b"nonsense")])
    kind: DataType = StructType([StructField("n", LongType())])

    rows = rows_of(reader(url, schema=struct({"payload": kind, "_corrupt": "string"})))
    assert rows == [{"payload": {"n": 1}, "_corrupt": None}, {"payload": None, "_corrupt": "nonsense"}]
    only = rows_of(reader(url, payload="json", schema=struct({"_corrupt": "string"})))
    assert only == [{"_corrupt": None}, {"_corrupt": "nonsense"}]


def test_queues_are_names_lists_and_patterns(ps, url):
    for name in ("orders", "orders.eu", "orders.us", "mail"):
        ps.queue(name).push(b"x")

    assert [place[0] for place in places(reader(url, "orders.*"))] == ["orders.eu", "orders.us"]
    assert [place[0] for place in places(reader(url, "mail,orders.*,mail"))] == ["mail", "orders.eu", "orders.us"]
    assert len(places(reader(url, "*"))) == 4


def test_the_two_parts_make_the_whole(hours, url):
    sealed, tail = places(reader(url, part="sealed")), places(reader(url, part="tail"))

    assert (len(sealed), len(tail)) == (60, 20)
    assert sorted(sealed + tail) == places(reader(url))


# Ranges.


def test_offsets_say_where_a_read_begins_and_ends(hours, url):
    found = places(reader(url, startingOffsets='{"0": 35}', endingOffsets='{"orders": {"1": 2}}'))

    assert found == [("orders", "0", n) for n in range(35, 40)] + [("orders", "1", 0), ("orders", "1", 1)]
    assert places(reader(url, startingOffsets="latest")) == []
    assert places(reader(url, endingOffsets="earliest")) == []


def test_times_say_it_too_and_leave_files_closed(hours, url, opened):
    found = reader(url, startingTime="2025-06-15T16:06:40+00:00", endingTime="2025-06-15T17:06:40+00:00")

    assert places(found) == [("orders", part, n) for part in ("0", "1") for n in range(10, 20)]
    assert len(opened) == 1


def test_a_reader_takes_no_filters(hours, url):
    """Spark keeps a plan that was made with filters and uses it for other queries of the same DataFrame."""
    assert type(reader(url)).pushFilters is DataSourceReader.pushFilters


# Lots, and keeping files.


def test_small_reads_have_a_task_per_core_and_large_ones_tasks_of_a_size(hours, url, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with batch_reader.planned(source_options({"url": url, "path": "orders"})) as (_, slices):
        assert len(lots(slices, 2**27)) == 1
        large = [pickle.loads(pickle.dumps(each)) for each in slices for _ in range(25)]
    monkeypatch.setattr(batch_reader, "LOT_BYTES_MIN", 1)
    assert len(lots(large, 2**27)) == 2
    total = sum(each.bytes for each in large)
    assert 9 <= len(lots(large, total // 10)) <= 11


def test_planned_files_are_pinned(hours, url, session, tmp_path):
    reader(url).partitions()

    (pin,) = (tmp_path / "data" / "segments" / "pins").glob("spark-*.json")
    assert pin.read_text().count(".parquet") == 3


# Bad input.


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"path": "ordres"}, "there is no queue 'ordres' (did you mean 'orders'?)"),
        ({"path": "mail*"}, "no queue matches 'mail*' (known queues: orders)"),
        ({"startingOffsets": '{"7": 1}'}, "startingOffsets: there is no partition '7' (known: 0, 1)"),
        ({"endingOffsets": '{"order": {"0": 1}}'}, "endingOffsets: 'order' is not one of the queues (did you mean"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(hours, url, given, says):
    with pytest.raises((QueueNotFound, InvalidField)) as caught:
        reader(**{"url": url, **given}).partitions()

    assert says in str(caught.value)


def test_a_directory_without_data_is_refused(tmp_path):
    with pytest.raises(NotADataDirectory, match="contains no Penstock data"):
        reader(str(tmp_path / "nothing")).partitions()


@pytest.mark.parametrize(
    ("columns", "given", "says"),
    [
        ({"ofset": "bigint"}, {}, "the table messages has no column 'ofset' (did you mean 'offset'?)"),
        ({"offset": "int"}, {}, "the column 'offset' is bigint, not int (cast it after reading)"),
        ({"payload": "int"}, {}, "the column 'payload' is binary, not int"),
        ({"headers": "string"}, {}, "the column 'headers' is map<string,string>, not string"),
        ({"payload": "binary"}, {"payload": "none"}, "has no column 'payload'"),
        ({"payload": "binary"}, {"table": "events"}, "the table events has no column 'payload'"),
        ({"_corrupt": "string"}, {}, "'_corrupt' needs JSON payloads"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_by_the_column(url, columns, given, says):
    with pytest.raises(InvalidField) as caught:
        reader(url, schema=struct(columns), **given)

    assert says in str(caught.value)


def test_the_schema_follows_the_options():
    def columns(**given: str) -> str:
        return ddl(source_options({"url": "x", "path": "orders", **given}))

    assert columns(columns="offset,key,offset") == "`offset` bigint NOT NULL, `key` string"
    assert columns(payload="string", columns="payload") == "`payload` string NOT NULL"
    assert "NOT NULL" not in columns(table="events") + columns(table="tasks")
    assert "payload" not in columns(payload="none")
    assert "`headers` array<struct<key:string,value:string>>" in columns(headers="list")
    assert columns(payload="json", payloadSchema="n INT", columns="payload,_corrupt") == (
        "`payload` STRUCT<n INT>, `_corrupt` string"
    )
    with pytest.raises(InvalidField, match="columns: the table events has no column 'offset'"):
        columns(table="events", columns="offset")


def test_offsets_that_retention_removed_are_an_error_unless_they_may_be_skipped(ps, session, clock, url, caplog):
    orders = ps.create_queue("orders", retention_seconds=60)
    orders.push_many([b"old"] * 5)
    orders.lease(5).ack()
    run_operation(session, ops.Seal())
    clock.advance(seconds=3600)
    orders.push_many([b"new"] * 5)
    run_operation(session, ops.Seal())
    run_operation(session, ops.Compact())

    assert [offset for _, _, offset in places(reader(url))] == [5, 6, 7, 8, 9]
    with pytest.raises(HistoryLost, match="offsets 2 to 4 of orders/0 were removed by retention"):
        reader(url, startingOffsets='{"0": 2}').partitions()
    with caplog.at_level(logging.WARNING):
        found = places(reader(url, startingOffsets='{"0": 2}', failOnDataLoss="false"))
    assert [offset for _, _, offset in found] == [5, 6, 7, 8, 9]
    assert "offsets 2 to 4 of orders/0 were removed by retention, and are skipped" in caplog.text


def test_batches_are_what_arrow_calls_them(hours, url):
    (partition, *_) = reader(url).partitions()

    assert all(isinstance(batch, pa.RecordBatch) for batch in reader(url).read(partition))
