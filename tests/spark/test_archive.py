"""The archive pipeline: what it copies, that it proves it, and that retention waits for it."""

from __future__ import annotations

from contextlib import closing

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c

import penstock
import penstock.spark
from penstock import Message
from penstock import operations as ops
from penstock.client.handles import Penstock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import Damaged, InvalidField, QueueNotFound
from penstock.spark.pipelines.archive import PIPELINE, ArchiveOptions, read_archive
from penstock.spark.pipelines.archive_store import HOME, MANIFEST, read_manifest
from penstock.spark.pipelines.base import Run
from penstock.spark.pipelines.runner import execute
from penstock.spark.pipelines.state import write_state
from tests.support.brokers import BrokerThread
from tests.support.operations import run_operation


def archive(spark, url, out, *queues, since=None, **options):
    made = Run(spark, str(url), options=ArchiveOptions(**options), out=out, queues=queues, since=since)
    return execute(PIPELINE, made)


def messages(count, first=0):
    return [
        Message(
            payload=f"message {n}".encode(),
            key=f"key {n % 3}" if n % 2 else None,
            headers={"a": str(n), "b": ""} if n % 3 else None,
            priority=n % 5,
            expires_at=None,
        )
        for n in range(first, first + count)
    ]


@pytest.fixture
def data(tmp_path):
    """A directory with sealed messages and others."""
    with penstock.open(tmp_path / "data") as ps:
        ps.create_queue("orders", partitions=2, retention_until_archived=True)
        ps.create_queue("mail", max_length=100)
        ps.queue("orders").push_many(messages(40))
        ps.queue("mail").push_many(messages(5))
        run_operation(ps._session, ops.Seal())
        ps.queue("orders").push_many(messages(10, first=40))
    return tmp_path / "data"


def test_an_archive_is_the_log_and_retention_waits_for_it(spark, data, tmp_path):
    out = tmp_path / "out"
    with penstock.open(data) as ps:
        ps.queue("orders").lease(100).ack()

    first = archive(spark, data, out)

    assert first.figures["messages_archived"] == 55
    assert [row[:3] for row in first.tables[0].rows] == [("mail", 5, 1), ("orders", 50, 1)]
    assert not first.notes
    log = penstock.spark.table(spark, str(data), "*")
    assert sorted(map(str, read_archive(spark, out).collect())) == sorted(map(str, log.collect()))
    assert read_archive(spark, out).schema.simpleString() == log.schema.simpleString()
    with penstock.open(data) as ps:
        assert [row.lag for row in ps.queue("orders").groups()["archive"]] == [0, 0]
        run_operation(ps._session, ops.Seal())
        ps.update_queue("orders", retention_seconds=0)
        ps.compact()
        assert ps.queue("orders").read() == []
        ps.queue("orders").push(b"after")

    again = archive(spark, data, out, "orders", compact=True, verify=True)

    assert (again.figures["messages_archived"], again.figures["messages_proved"]) == (1, 1)
    assert read_archive(spark, out, ["orders"]).count() == 51
    assert archive(spark, data, out, "orders").summary == "nothing new to archive"


def test_a_difference_between_archive_and_log_names_the_message(spark, data, tmp_path):
    out = tmp_path / "out"
    archive(spark, data, out, "orders", commit=False)
    manifest = read_manifest(out)
    assert manifest is not None
    file = manifest.files[0]
    table = pq.read_table(out / file.path, partitioning=None)
    payloads = table["payload"].to_pylist()
    payloads[3] = payloads[3].upper()
    index = table.schema.get_field_index("payload")
    altered = table.set_column(index, table.schema.field(index), pa.array(payloads, pa.binary()))
    pq.write_table(altered.slice(0, len(payloads) - 1), out / file.path)
    with pytest.raises(Damaged, match=f"{file.path}.*checksum"):
        archive(spark, data, out, "orders", verify=True)

    written = (out / file.path).read_bytes()
    lying = msgspec.structs.replace(file, bytes=len(written), crc32c=crc32c(written), rows=file.rows - 1)
    write_state(out / HOME / MANIFEST, msgspec.structs.replace(manifest, files=[lying]))
    with pytest.raises(Damaged) as refused:
        archive(spark, data, out, "orders", verify=True)

    last = table.slice(len(table) - 1).to_pylist()[0]
    partition, offset = table["partition"][3].as_py(), table["offset"][3].as_py()
    assert f"orders/{partition}/{offset} is not the same" in refused.value.message
    assert f"orders/{last['partition']}/{last['offset']} is not in the archive" in refused.value.message
    assert refused.value.message.count("orders/") == 2


def test_a_live_broker_is_archived_over_the_wire(spark, tmp_path):
    with closing(Session(tmp_path / "data", durability="os")) as session:
        queue = Penstock(BlockingSession(session)).queue("orders")
        queue.push_many(messages(20))
        run_operation(session, ops.Seal())
        queue.push_many(messages(5))
        broker = BrokerThread(session)
        try:
            report = archive(spark, broker.url, tmp_path / "out", "ord*")
        finally:
            broker.stop()
        assert report.figures["messages_archived"] == 25
        assert report.notes == []
        assert [row.committed_offset for row in queue.groups()["archive"]] == [25]


@pytest.mark.parametrize(
    ("queues", "given", "error", "words"),
    [
        (["ordres"], {}, QueueNotFound, "ordres"),
        (["orders"], {"since": "2030-01-01"}, InvalidField, "since"),
    ],
)
def test_bad_input_is_named(spark, data, tmp_path, queues, given, error, words):
    with pytest.raises(error, match=words) as refused:
        archive(spark, data, tmp_path / "out", *queues, **given)
    assert refused.value.hint


def test_there_is_nothing_to_read_where_there_is_no_archive(spark, tmp_path):
    with pytest.raises(InvalidField, match="archive: no archive in"):
        read_archive(spark, tmp_path)
