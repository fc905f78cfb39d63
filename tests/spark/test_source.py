"""The batch source with a real Spark: the same rows by every way to them, and errors that people can read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

import penstock.spark
from penstock import Message
from penstock import operations as ops
from penstock.client.handles import Penstock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import InvalidField, PenstockError, QueueNotFound
from penstock.spark.failures import cause
from penstock.spark.schema import COLUMNS
from tests.behaviour.task_steps import Office
from tests.support.brokers import BrokerThread
from tests.support.operations import run_operation
from tests.test_docs import python_blocks

SEALED, UNSEALED = 120, 30


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("source") / "data")


@pytest.fixture(scope="module", autouse=True)
def broker(directory: str) -> Iterator[BrokerThread]:
    """A live broker whose directory has sealed messages, others, and what became of some."""
    with closing(Session(directory, background=False)) as session:
        ps = Penstock(BlockingSession(session))
        orders = ps.create_queue("orders", partitions=2)
        orders.push_many([_message(n) for n in range(SEALED)])
        ps.queue("mail").push_many([b"hello", b"\xff\xfe"])
        leased = orders.lease(40)
        leased[0].reject("broken")
        leased.ack()
        office = Office(ps)
        run_tasks(office)
        run_operation(session, ops.Seal())
        orders.push_many([_message(n) for n in range(SEALED, SEALED + UNSEALED)])
        orders.lease(5).ack()
        run_tasks(office)
        broker = BrokerThread(session)
        yield broker
        broker.stop()


def run_tasks(office: Office) -> None:
    for _ in range(5):
        office.enqueue("send", queue="jobs")
    office.lease_one(queue="jobs").finish("failed", error="ValueError: no")
    office.lease_one(queue="jobs").finish(result=1)


def _message(n: int) -> Message:
    if n % 50 == 7:
        return Message(payload=b"not json", partition=str(n % 2))
    return Message(
        payload={"n": n, "name": f"order {n}"},
        partition=str(n % 2),
        key=f"k{n % 3}",
        headers={"n": str(n)},
        priority=200 if n % 10 == 0 else 128,
        delay=3600 if n % 40 == 1 else 0,
        dedup_key=f"d{n}",
        trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        max_attempts=3,
    )


def read(spark: SparkSession, url: str, path: str = "orders", **options: str) -> DataFrame:
    return spark.read.format("penstock").options(url=url, **options).load(path)


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.drop("headers").collect())


def test_every_way_to_the_messages_gives_the_same_rows(spark, broker, directory):
    local = read(spark, directory)

    assert dict(local.dtypes) == COLUMNS["messages"]
    expected = rows(local)
    assert len(expected) == SEALED + UNSEALED
    assert rows(read(spark, broker.url)) == expected
    assert rows(read(spark, broker.url, local="false")) == expected
    assert rows(penstock.spark.table(spark, directory, "orders")) == expected


def test_columns_come_back_as_they_were_pushed(spark, directory):
    rows = read(spark, directory).where("dedup_key = 'd41'").collect()

    (row,) = rows
    assert (row.queue, row.key, row.headers, row.priority) == ("orders", "k2", {"n": "41"}, 128)
    assert bytes(row.payload) == b'{"n":41,"name":"order 41"}'
    assert (row.available_at - row.pushed_at).total_seconds() == 3600
    assert (row.max_attempts, row.content_type, row.expires_at) == (3, "application/json", None)
    assert row.trace_id.startswith("00-0af7")


def test_a_table_prunes_columns_and_pushes_filters_into_its_files(spark, directory):
    frame = penstock.spark.table(spark, directory, "orders", columns=["offset", "priority"]).where("offset >= 50")
    plan = frame._jdf.queryExecution().executedPlan().toString()

    assert frame.count() == SEALED + UNSEALED - 100
    assert "GreaterThanOrEqual(offset,50)" in plan
    assert "payload" not in plan


def test_a_table_shows_its_moment_whatever_happens_before_it_is_read(spark, tmp_path):
    with closing(Session(tmp_path / "data", background=False)) as session:
        queue = Penstock(BlockingSession(session)).create_queue("orders", retention_bytes=1)
        queue.push_many([b"a"] * 20)
        queue.lease(20).ack()
        run_operation(session, ops.Seal())
        queue.push_many([b"b"] * 20)
        frame = penstock.spark.table(spark, tmp_path / "data", "orders")
        queue.push_many([b"c"] * 20)
        run_operation(session, ops.Seal())
        run_operation(session, ops.Compact())

        payloads = [bytes(row.payload) for row in frame.orderBy("offset").collect()]
        assert payloads == [b"a"] * 20 + [b"b"] * 20
        # Messages that are no longer kept may still be in a file; a new table does not show them.
        assert penstock.spark.table(spark, tmp_path / "data", "orders").count() < 60


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


QUEUES = {"messages": "orders", "events": "orders", "tasks": "jobs"}
Way = Callable[[SparkSession, str, str], DataFrame]
WAYS: dict[str, Way] = {
    "table": lambda spark, url, table: penstock.spark.table(spark, url, QUEUES[table], table),
    "format": lambda spark, url, table: read(spark, url, QUEUES[table], table=table),
    "load with options": lambda spark, url, table: spark.read.format("penstock").load(
        url=url, queue=QUEUES[table], table=table
    ),
    "options first": lambda spark, url, table: spark.read.options(url=url, table=table).load(
        QUEUES[table], format="penstock"
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("table", "column", "condition", "filter"),
    [
        ("messages", "offset", "offset >= 50", "GreaterThanOrEqual(offset,50)"),
        ("messages", "offset", "priority > 150", "GreaterThan(priority,150)"),
        ("messages", "offset", "pushed_at < '2030-01-01'", "LessThan(pushed_at,"),
        ("events", "outcome", "settled_at > '2020-01-01'", "GreaterThan(settled_at,"),
        ("events", "outcome", "first_offset < 7", "LessThan(first_offset,7)"),
        ("tasks", "state", "at > '2020-01-01'", "GreaterThan(at,"),
    ],
)
def test_files_are_pruned_by_columns_and_conditions_of_a_query(spark, directory, way, table, column, condition, filter):
    plan = plan_of(WAYS[way](spark, directory, table).where(condition).select(column))

    (scan,) = [line for line in plan.splitlines() if "FileScan" in line]
    assert filter in scan
    schema = scan.partition("ReadSchema: ")[2]
    assert not any(name in schema for name in ("payload", "consumer", "result"))
    assert "ArrowEvalPython" not in plan  # nobody asked when the messages were pushed


@pytest.mark.parametrize("table", COLUMNS)
def test_files_and_source_give_the_same_rows(spark, broker, directory, table):
    planned = read(spark, directory, QUEUES[table], table=table)
    source = read(spark, directory, QUEUES[table], table=table, part="all")

    assert "FileScan" in plan_of(planned)
    assert "FileScan" not in plan_of(source)
    assert planned.columns == source.columns
    assert dict(planned.dtypes) == COLUMNS[table]
    assert rows(planned) == rows(source) == rows(read(spark, broker.url, QUEUES[table], table=table, local="false"))
    assert source.count() > 0


CONDITIONS = {
    "messages": ("offset < 5", "offset >= 70 and partition = '1'", "priority > 150", "pushed_at > '2100-01-01'"),
    "events": ("first_offset < 5", "outcome = 'acked'", "settled_at > '2100-01-01'", "wait_ms >= 0"),
    "tasks": ("state = 'completed'", "state <> 'completed'", "at > '2100-01-01'"),
}


@pytest.mark.parametrize("way", ["format", "source"])
@pytest.mark.parametrize("table", COLUMNS)
def test_a_frame_answers_alike_however_it_was_used_before(spark, directory, way, table):
    """In turn, mixed in one query, and joined with itself."""
    by_source: Way = lambda *_: read(spark, directory, QUEUES[table], table=table, part="all")  # noqa: E731
    frame = WAYS.get(way, by_source)(spark, directory, table)
    every = frame.collect()
    counts = {condition: frame.where(condition).count() for condition in CONDITIONS[table]}

    for condition, count in counts.items():
        fresh = by_source(spark, directory, table).where(condition).count()
        assert count == fresh == frame.where(condition).count(), condition
    few, *_ = CONDITIONS[table]
    assert frame.where(few).union(frame.where(f"not coalesce({few}, false)")).count() == len(every)
    assert frame.count() == len(every)


def test_json_payloads_are_structs_found_in_a_sample_or_given(spark, directory):
    found = read(spark, directory, payload="json")

    assert dict(found.dtypes)["payload"] == "struct<n:bigint,name:string>"
    assert found.where("payload.n between 10 and 19").count() == 10
    assert [row[0] for row in found.where("_corrupt is not null").select("_corrupt").distinct().collect()] == [
        "not json"
    ]
    given = read(spark, directory, payload="json", payloadSchema="n INT", columns="offset,payload")
    assert sorted(row.n for row in given.select("payload.n").where("n is not null").collect()) == [
        n for n in range(SEALED + UNSEALED) if n % 50 != 7
    ]
    own = spark.read.format("penstock").schema("payload STRUCT<name: STRING>, `offset` BIGINT")
    assert own.options(url=directory).load("orders").where("payload.name = 'order 20'").count() == 1


def test_other_shapes(spark, directory):
    frame = read(spark, directory, "mail", payload="string", headers="list")
    assert dict(frame.dtypes)["headers"] == "array<struct<key:string,value:string>>"
    assert sorted(row.payload for row in frame.collect()) == ["hello", "\ufffd\ufffd"]
    assert read(spark, directory, "*", columns="queue").distinct().count() == 4  # with the dead letters
    assert spark.read.format("penstock").options(url=directory).load(["orders", "mail"]).count() == 152


def test_events_tell_what_became_of_them(spark, broker, directory):
    events = read(spark, directory, table="events")

    assert dict(events.dtypes) == COLUMNS["events"]
    counted = {row.outcome: row.n for row in events.groupBy("outcome").agg(F.sum("count").alias("n")).collect()}
    group = Penstock(BlockingSession(broker.session)).queue("orders").stats().groups["default"]
    assert counted == {"rejected": group.dead, "acked": group.acked}
    assert events.where("wait_ms < 0 or processing_ms < 0 or pushed_at is null").count() == 0
    assert rows(penstock.spark.table(spark, directory, "orders", table="events")) == rows(events)


def test_sql_reads_it_too(spark, directory):
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING penstock OPTIONS (url '{directory}', path 'orders')")

    assert spark.sql("SELECT count(*) FROM v WHERE offset < 10").first()[0] == 20


def test_the_code_in_the_readme_runs(spark, directory, monkeypatch, capsys):
    monkeypatch.chdir(Path(directory).parent)
    monkeypatch.setattr(penstock.spark, "session", lambda: spark, raising=False)
    (block,) = (block for block in python_blocks("README.md") if "penstock.spark" in block)

    exec(compile(block.replace("penstock://localhost:7710", directory), "README.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.endswith(" orders\n")


@pytest.mark.parametrize("named", ["queue 'orders'", "path 'orders'", "queue 'orders', columns 'headers,offset'"])
def test_a_table_of_sql_reads_a_queue(spark, directory, named):
    spark.sql("DROP TABLE IF EXISTS sql_orders")
    spark.sql(f"CREATE TABLE sql_orders USING penstock OPTIONS (url '{directory}', {named})")

    assert spark.sql("SELECT count(*) FROM sql_orders").first()[0] == SEALED + UNSEALED
    assert spark.sql("SELECT count(*) FROM sql_orders WHERE `offset` < 5").first()[0] == 10
    spark.sql("DROP TABLE sql_orders")
    assert read(spark, directory).count() == SEALED + UNSEALED


def test_a_table_of_sql_that_names_its_columns_is_reported_what_spark_does_to_it(spark, directory):
    spark.sql(f"CREATE TABLE own (`offset` BIGINT) USING penstock OPTIONS (url '{directory}', queue 'orders')")
    with pytest.raises(AnalysisException, match="omit the columns"):
        spark.sql("SELECT * FROM own").collect()
    spark.sql("DROP TABLE own")


def test_the_queue_may_be_named_by_an_option(spark, tmp_path):
    url = str(tmp_path / "data")
    with closing(Session(url, background=False)) as session:
        Penstock(BlockingSession(session)).create_queue("orders")
    messages = spark.createDataFrame([(bytearray(b"a"),)], "payload binary")
    messages.write.format("penstock").options(url=url, queue="orders").mode("append").save()

    assert spark.read.format("penstock").options(url=url, queue="orders").load().count() == 1
    with pytest.raises(InvalidField, match="queue: path and queue differ"):
        read(spark, url, queue="others")


@pytest.mark.parametrize(
    ("path", "options", "says"),
    [
        ("ordres", {}, "there is no queue 'ordres' (did you mean 'orders'?)"),
        ("orders", {"tabel": "events"}, "tabel: there is no such option (did you mean 'table'?)"),
        ("orders", {"columns": "ofset"}, "columns: the table messages has no column 'ofset' (did you mean 'offset'?)"),
        ("mail", {"payload": "json"}, "payload: no JSON object among the sampled messages"),
    ],
)
def test_bad_input_is_one_line_that_names_it(spark, directory, path, options, says):
    with pytest.raises((AnalysisException, PenstockError)) as caught:
        read(spark, directory, path, **options).collect()

    assert says in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert says in str(cause(caught.value) or caught.value)


def test_a_table_names_it_without_spark_in_between(spark, directory):
    with pytest.raises(QueueNotFound, match="did you mean 'orders'"):
        penstock.spark.table(spark, directory, "ordres")
