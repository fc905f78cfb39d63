"""The sink in Spark: batch and streaming writes to a directory and to a broker, and what it refuses."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import col, concat, lit, when
from pyspark.sql.types import StructType

import penstock
import penstock.spark
from penstock import operations as ops
from penstock.batch import Batch
from penstock.embedded.handlers import HANDLERS
from penstock.embedded.session import Session
from penstock.errors import DirectoryInUse, InvalidField, PenstockError, SinkConflict, Unavailable
from penstock.requests import SinkCommit
from penstock.spark.failures import cause
from penstock.spark.staging import Target
from penstock.spark.writer import RowStreamWriter, Sink, StagedMessages, batch_writer, query_id, stream_writer
from tests.support.broker_restarts import hold_a_port
from tests.support.brokers import BrokerThread

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def broker(data: Path) -> Iterator[BrokerThread]:
    session = Session(data)
    served = BrokerThread(session)
    yield served
    served.stop()
    session.close()


def write(frame: DataFrame, url: Path | str, queue: str = "orders", **options: str) -> None:
    frame.write.format("penstock").options(url=str(url), **options).mode("append").save(queue)


def numbers(spark: SparkSession, count: int, tasks: int = 2) -> DataFrame:
    return spark.range(0, count, 1, tasks).select(col("id").cast("string").alias("payload"))


def stored(url: Path | str, queue: str = "orders") -> list[Any]:
    """All messages of a queue with one partition."""
    place = str(url)
    with penstock.connect(place) if "://" in place else penstock.open(place) as ps:
        return ps.queue(queue).read(limit=10_000) if queue in ps.queues() else []


def payloads(url: Path | str, queue: str = "orders") -> Counter[bytes]:
    return Counter(message.payload for message in stored(url, queue))


@contextmanager
def refused(error: type[PenstockError], match: str) -> Iterator[None]:
    with pytest.raises(Exception, match=match) as caught:
        yield
    found = caught.value if isinstance(caught.value, PenstockError) else cause(caught.value)
    assert isinstance(found, error)


def test_a_frame_with_every_column_is_written_to_a_directory_that_is_made(spark, data):
    frame = spark.sql(
        """select cast('a' as binary) payload, 'k' key, map('h', 'v') headers, cast(7 as tinyint) priority,
                  cast(0 as double) delay, cast(60 as decimal(5, 1)) ttl, 0 partition, 'd' dedup_key, 't' trace_id,
                  3 max_attempts, 'text/plain' content_type, timestamp '2000-01-01' pushed_at"""
    )

    write(frame, data)

    (message,) = stored(data)
    assert (message.payload, message.key, message.headers, message.priority) == (b"a", "k", {"h": "v"}, 7)
    assert (message.dedup_key, message.trace, message.max_attempts) == ("d", "t", 3)
    assert (message.expires_at - message.pushed_at).total_seconds() == 60
    assert not list((data / "staging").iterdir())


def test_structs_maps_and_arrays_become_json(spark, data):
    frame = spark.sql("select struct(1 as id, map('a', array(1.5D)) as m, date '2030-01-31' as day) payload")

    write(frame, data)

    assert [json.loads(message.payload) for message in stored(data)] == [
        {"id": 1, "m": {"a": [1.5]}, "day": "2030-01-31"}
    ]


def test_a_job_with_an_id_may_run_twice_and_one_without_is_its_own(spark, broker):
    for _ in range(2):
        write(numbers(spark, 100), broker.url, jobId="nightly-1")
        write(numbers(spark, 3), broker.url, "others")

    assert payloads(broker.url) == Counter(b"%d" % n for n in range(100))
    assert payloads(broker.url, "others") == Counter({b"0": 2, b"1": 2, b"2": 2})
    assert not list((Path(broker.session._disk.root) / "staging").iterdir())


def test_a_task_that_fails_leaves_nothing_behind(spark, data):
    write(numbers(spark, 1), data)
    bad = spark.range(0, 20_000, 1, 1).select(when(col("id") < 19_999, "x").alias("payload"))

    with refused(InvalidField, "payload: null"):
        write(bad, data)

    assert payloads(data) == Counter([b"0"])
    assert not list((data / "staging").iterdir())


@pytest.mark.parametrize(
    ("select", "message"),
    [
        ("select 'a' payload, 1 prioritty", "prioritty: a column of int that messages do not have.*'priority'"),
        ("select 'a' payload, 'high' priority", "priority: a column of string does not fit.*0 to 255"),
        ("select 1 payload", "payload: a column of int does not fit.*binary or string"),
        ("select 'a' payload, map('a', 1) headers", "headers: a column of map<string,int> does not fit"),
        ("select 'a' payload, true delay", "delay: a column of boolean does not fit.*seconds"),
        ("select 1 id, 'x' name", "id: a column of int that messages do not have.*to_json"),
        ("select 'k' key", "payload: there is no such column among key.*to_json"),
    ],
)
def test_a_column_that_does_not_fit_is_named_with_its_type_before_anything_is_written(spark, data, select, message):
    schema = spark.sql(select).schema

    with refused(InvalidField, message):
        batch_writer({"url": str(data), "path": "orders"}, schema, False)

    assert not data.exists()


@pytest.mark.parametrize(
    ("options", "overwrite", "message"),
    [
        ({"path": "orders"}, True, "overwrite.*purge the queue first"),
        ({}, False, "queue: not given"),
        ({"path": "or ders"}, False, "or ders"),
        ({"path": "orders", "jobID": ""}, False, "jobId: it is empty"),
        ({"path": "orders", "sinkId": "x"}, False, "sinkId: needs batchId too in a batch write"),
        ({"path": "orders", "batchId": "1"}, False, "sinkId: missing"),
        ({"path": "orders", "sinkId": "x", "batchId": "-1"}, False, "batchId: '-1' is not a number from 0"),
        ({"path": "orders", "sinkIds": "x"}, False, "sinkIds: there is no such option.*'sinkId'"),
    ],
)
def test_options_that_make_no_sense_are_refused(data, options, overwrite, message):
    with refused(PenstockError, message):
        batch_writer({"url": str(data), **options}, StructType().add("payload", "string"), overwrite)


def test_what_is_refused_reaches_the_user_without_a_traceback(spark, data):
    with refused(InvalidField, "overwrite"):
        numbers(spark, 1).write.format("penstock").option("url", str(data)).mode("overwrite").save("orders")


def test_a_directory_that_a_broker_holds_is_refused_with_what_to_do(broker, data, monkeypatch):
    monkeypatch.setattr("penstock.spark.staging.HELD_SECONDS", 0.1)

    with refused(DirectoryInUse, "use its url"):
        batch_writer({"url": str(data), "path": "orders"}, StructType().add("payload", "string"), False)


def test_a_broker_that_is_not_there_is_named_before_anything_runs(monkeypatch):
    monkeypatch.setattr("penstock.spark.staging.CONNECT_SECONDS", 0.1)
    with hold_a_port(random.Random(2)) as held:
        url = f"penstock://127.0.0.1:{held.getsockname()[1]}"
        with refused(Unavailable, f"no broker answers at {url}"):
            batch_writer({"url": url, "path": "orders"}, StructType().add("payload", "string"), False)


@pytest.mark.parametrize("to", ["directory", "broker"])
def test_a_job_that_fails_takes_the_files_of_tasks_that_reported_nothing_with_it(data, request, to):
    url = str(data) if to == "directory" else request.getfixturevalue("broker").url
    schema = StructType().add("payload", "string")
    failing, other = (batch_writer({"url": url, "path": "orders"}, schema, False) for _ in range(2))
    for writer in (failing, other):
        writer.write(iter([pa.RecordBatch.from_pydict({"payload": ["a"]})]))  # and is killed before it can tell
    before = {path.name for path in (data / "staging").iterdir()}

    failing.abort([None])

    (left,) = {path.name for path in (data / "staging").iterdir()}
    assert len(before) == 2
    other.commit([StagedMessages([left], 1)])
    assert payloads(url) == Counter([b"a"])


# streams


def stream(spark: SparkSession, lines: Path, url: Path | str, checkpoint: Path, **options: str) -> None:
    """All lines of the files that are there, to the queue `orders`."""
    frame = spark.readStream.schema("payload string").json(str(lines))
    writer = penstock.spark.stream_to(frame, str(url), "orders", checkpoint=checkpoint).options(**options)
    writer.trigger(availableNow=True).start().awaitTermination()


def add_lines(lines: Path, name: str, *payloads: str) -> None:
    lines.mkdir(exist_ok=True)
    (lines / name).write_text("".join(json.dumps({"payload": each}) + "\n" for each in payloads))


@pytest.fixture(params=["directory", "broker"])
def url(request: pytest.FixtureRequest, data: Path) -> str:
    return str(data) if request.param == "directory" else str(request.getfixturevalue("broker").url)


def test_a_stream_is_written_once_also_when_its_last_batch_is_replayed(spark, url, tmp_path):
    lines, checkpoint = tmp_path / "lines", tmp_path / "checkpoint"
    add_lines(lines, "1.json", "a", "b")
    stream(spark, lines, url, checkpoint)
    add_lines(lines, "2.json", "c")
    stream(spark, lines, url, checkpoint)
    # As after a crash between the sink's commit and Spark's own.
    for last in (checkpoint / "commits").glob("*1*"):
        last.unlink()

    stream(spark, lines, url, checkpoint)
    add_lines(lines, "3.json", "d")
    stream(spark, lines, url, checkpoint)

    assert payloads(url) == Counter([b"a", b"b", b"c", b"d"])


def test_a_named_sink_with_another_checkpoint_is_refused_unless_it_is_reset(spark, broker, tmp_path):
    lines = tmp_path / "lines"
    add_lines(lines, "1.json", "a")
    stream(spark, lines, broker.url, tmp_path / "one", sinkId="feed")

    with refused(SinkConflict, "another query has used it up to batch 0.*resetSink"):
        stream(spark, lines, broker.url, tmp_path / "two", sinkId="feed")
    assert payloads(broker.url) == Counter([b"a"])
    stream(spark, lines, broker.url, tmp_path / "two", sinkId="feed", resetSink="true")

    assert payloads(broker.url) == Counter([b"a", b"a"])


def test_an_aggregate_is_written_once_as_it_changes(spark, broker, tmp_path):
    lines, checkpoint = tmp_path / "lines", tmp_path / "checkpoint"
    add_lines(lines, "1.json", "a", "b", "a")
    counts = spark.readStream.schema("payload string").json(str(lines)).groupBy("payload").count()
    rows = counts.select(concat("payload", lit("="), "count").alias("payload"))

    def run() -> None:
        writer = penstock.spark.stream_to(rows, broker.url, "orders", checkpoint=checkpoint, mode="update")
        writer.trigger(availableNow=True).start().awaitTermination()

    run()
    for last in (checkpoint / "commits").glob("*0*"):
        last.unlink()
    run()
    add_lines(lines, "2.json", "a")
    run()

    assert payloads(broker.url) == Counter([b"a=2", b"b=1", b"a=3"])


def test_a_stream_without_a_checkpoint_that_can_be_read_needs_a_name(data, tmp_path):
    schema = StructType().add("payload", "string")
    given = {"url": str(data), "path": "orders"}
    with refused(InvalidField, "sinkId: missing.*without checkpointLocation"):
        stream_writer(given, schema, False)
    with refused(InvalidField, "jobId: a stream numbers its batches itself"):
        stream_writer({**given, "jobId": "x"}, schema, False)
    with refused(InvalidField, "sinkId: missing.*in hdfs://there"):
        stream_writer({**given, "checkpointLocation": "hdfs://there"}, schema, False)
    (tmp_path / "metadata").write_text('{"id":"query"}')

    assert query_id(f"file:{tmp_path}") == query_id(f"file://{tmp_path}") == query_id(str(tmp_path)) == "query"


@pytest.mark.parametrize("is_near", [True, False])
def test_a_broker_on_this_machine_finds_what_was_staged_in_its_directory_and_others_are_sent_it(
    broker, monkeypatch, is_near
):
    if not is_near:
        monkeypatch.setattr("penstock.spark.staging._own_directory", lambda session: None)
    sent: list[str] = []
    stage = HANDLERS[ops.Stage]

    def noted(session, operation, *caller):
        sent.append(operation.name)
        return stage(session, operation, *caller)

    monkeypatch.setitem(HANDLERS, ops.Stage, noted)
    target = Target(broker.url, "orders")

    names, rows = target.stage("s", 0, [Batch.build([b"a", b"b"]), Batch.build([b"c"])])
    target.commit(SinkCommit("orders", "s", 0, tuple(names)))

    # The first one is sent again once the queue is made.
    assert (rows, list(dict.fromkeys(sent))) == (3, [] if is_near else names)
    assert payloads(broker.url) == Counter([b"a", b"b", b"c"])


def test_where_spark_gives_rows_they_are_written_like_arrow(data):
    schema = StructType().add("payload", "string").add("key", "string")
    target = Target(str(data), "orders")
    target.prepare()
    writer = RowStreamWriter(Sink(target, ("payload", "key"), "s"), schema)

    message = writer.write(iter([Row(payload="a", key="k"), Row(payload="b", key=None)]))
    writer.commit([message, None], 0)
    writer.commit([writer.write(iter([Row(payload="a", key="k")]))], 0)
    writer.abort([writer.write(iter([Row(payload="c", key=None)])), None], 1)

    assert [(each.payload, each.key) for each in stored(data)] == [(b"a", "k"), (b"b", None)]
    assert not list((data / "staging").iterdir())
