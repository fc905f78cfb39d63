"""Spark where segments are in object storage, in another directory, or in PostgreSQL."""

from __future__ import annotations

import pytest

import penstock
import penstock.spark
from penstock import operations as ops
from penstock.spark.pipelines.archive import PIPELINE, ArchiveOptions
from penstock.spark.pipelines.base import Run
from penstock.spark.pipelines.runner import execute
from penstock.spark.tables import query


def fill(where, segments=None):
    """Sealed messages, some of them settled, and others; returns the payloads."""
    with penstock.open(where, segments=segments) as ps:
        mail = ps.queue("mail")
        mail.push_many([b"%d" % n for n in range(100)])
        mail.lease(10).ack()
        ps._session.execute(ops.Seal())
        mail.push_many([b"%d" % n for n in range(100, 120)])
    return [b"%d" % n for n in range(120)]


@pytest.fixture(params=["s3", "directory", "postgres", "postgres with s3"])
def place(request, tmp_path):
    """Where the queues are, and what is pushed there."""
    if request.param.startswith("postgres"):
        url = request.getfixturevalue("postgres").new_database()
        segments = request.getfixturevalue("s3").url if "s3" in request.param else None
        return request.param, url, fill(url, segments)
    segments = request.getfixturevalue("s3").url if request.param == "s3" else str(tmp_path / "elsewhere")
    return request.param, str(tmp_path / "data"), fill(tmp_path / "data", segments)


def test_tables_sql_and_the_archive_read_segments_wherever_they_are(spark, place, tmp_path):
    name, url, payloads = place

    frame = penstock.spark.table(spark, url, "mail")
    assert sorted((bytes(row.payload) for row in frame.collect()), key=int) == payloads
    # Spark's own reader where it can, which is quicker; the source where it would need connectors.
    plan = frame._jdf.queryExecution().toString()
    assert ("FileScan parquet" in plan) == (name == "directory")

    events = penstock.spark.table(spark, url, "mail", table="events")
    assert [tuple(row) for row in events.select("count", "outcome").collect()] == [(10, "acked")]
    (row,) = query(spark, url, "select count(*) as n, max(offset) as last from mail").collect()
    assert (row.n, row.last) == (120, 119)

    run = Run(spark, url, options=ArchiveOptions(), out=tmp_path / "archive", queues=("mail",))
    assert execute(PIPELINE, run).figures["messages_archived"] == 120


def test_a_stream_reads_segments_in_object_storage(spark, s3, tmp_path):
    payloads = fill(tmp_path / "data", s3.url)

    stream = spark.readStream.format("penstock").option("url", str(tmp_path / "data")).load("mail")
    writer = stream.writeStream.format("memory").queryName("located").trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    found = spark.sql("select payload from located").collect()
    assert sorted((bytes(row.payload) for row in found), key=int) == payloads
