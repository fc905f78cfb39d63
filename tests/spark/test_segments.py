"""Sealed segments are an open table: Spark reads them with its own Parquet reader, no connector in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import Message
from penstock import operations as ops
from penstock.client.handles import Penstock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from tests.support.operations import run_operation

MESSAGE_TYPES = {
    "queue": "string",
    "incarnation": "bigint",
    "partition": "string",
    "partition_id": "int",
    "offset": "bigint",
    "pushed_at": "timestamp",
    "available_at": "timestamp",
    "expires_at": "timestamp",
    "key": "string",
    "priority": "smallint",
    "headers": "map<string,string>",
    "payload": "binary",
    "content_type": "string",
    "dedup_key": "string",
    "trace_id": "string",
    "max_attempts": "int",
    "producer": "bigint",
}


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with sealed messages and the lifecycle of some of them."""
    directory = tmp_path_factory.mktemp("data")
    session = Session(directory, background=False)
    with Penstock(BlockingSession(session)) as ps:
        orders = ps.queue("orders")
        orders.push_many([Message(payload={"total": n}, key=f"k{n % 3}", headers={"n": str(n)}) for n in range(100)])
        orders.push(b"urgent", priority="high", delay=60, ttl=3600, dedup_key="once", trace="t-1", max_attempts=2)
        leased = orders.lease(40)
        leased[0].reject("broken")
        leased.ack()
        run_operation(session, ops.Seal())
    return directory / "segments"


def test_spark_reads_messages_with_the_documented_columns(spark: Any, segments: Path) -> None:
    table = spark.read.parquet(str(segments / "messages"))

    assert dict(table.dtypes) == MESSAGE_TYPES
    orders = table.where("queue = 'orders'")
    assert orders.count() == 101
    first, *_, last = orders.orderBy("offset").collect()
    assert (first.key, first.headers, bytes(first.payload)) == ("k0", {"n": "0"}, b'{"total":0}')
    assert (last.priority, last.dedup_key, last.trace_id, last.max_attempts) == (192, "once", "t-1", 2)
    assert (last.available_at - last.pushed_at).total_seconds() == 60
    assert (last.expires_at - last.pushed_at).total_seconds() == 3600


def test_spark_reads_how_deliveries_ended(spark: Any, segments: Path) -> None:
    events = spark.read.parquet(str(segments / "events")).where("queue = 'orders'")

    ended = {row.outcome: row["sum(count)"] for row in events.groupBy("outcome").sum("count").collect()}
    assert ended == {"acked": 39, "rejected": 1}
    rejected = events.where("outcome = 'rejected'").collect()[0]
    assert (rejected.error, rejected.attempt, rejected.first_offset) == ("broken", 1, 0)
