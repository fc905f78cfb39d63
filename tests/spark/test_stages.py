"""A stage on Spark gives what the stage itself has sent; the latest message of each key as a table."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import Message
from penstock.spark import table
from penstock.spark.tables import query


@pytest.fixture
def data(tmp_path):
    """Orders in two partitions, some of them late, most of them sealed."""
    rng = random.Random(4)
    with penstock.open(tmp_path) as ps:
        ps.create_queue("orders", partitions=2)
        for part in range(3):
            rows = [{"n": n, "at": 40 * part + n // 5 + rng.randint(-8, 8) + 10} for n in range(200)]
            ps.queue("orders").push_many([Message(payload=row, key=f"k{rng.randrange(6)}") for row in rows])
            if part < 2:
                ps.seal()
        yield tmp_path, ps


def sent(ps: penstock.Penstock, queue: str) -> list[tuple[str | None, Any]]:
    messages = [m for p in range(1) for m in ps.queue(queue).read(p, limit=10_000)]
    return sorted(((m.key, m.json()) for m in messages), key=str)


def computed(stage: Any, spark: SparkSession, path: Path) -> list[tuple[str | None, Any]]:
    rows = stage.to_spark(spark, str(path)).collect()
    assert {row.content_type for row in rows} <= {"application/json"}
    return sorted(((row.key, json.loads(bytes(row.payload))) for row in rows), key=str)


def test_windows_and_late_messages_are_the_same_on_spark(spark, data):
    path, ps = data
    stage = (
        ps.stream("orders")
        .filter(lambda order: order["n"] % 3)
        .tumbling(7, at=lambda order: order["at"], lateness=4)
        .aggregate({"sum": 0}, lambda total, order: {"sum": total["sum"] + order["n"]}, lambda total: total["sum"])
        .to("totals")
    )
    report = stage.run(idle_seconds=0, batch=37)

    assert report.late > 0
    assert computed(stage, spark, path) == sent(ps, "totals")
    assert len(sent(ps, "totals")) > 20


def test_aggregates_and_plain_stages_are_the_same_on_spark(spark, data):
    path, ps = data
    counts = ps.stream("orders").aggregate(0, lambda count, order: count + 1).to("counts")
    plain = ps.stream("orders").map(lambda order: [order["n"]]).key_by(lambda order: str(order[0])).to("plain")
    counts.run(idle_seconds=0)
    plain.run(idle_seconds=0)

    last = {m.key: m.json() for m in ps.queue("counts").read(limit=10_000)}
    assert computed(counts, spark, path) == sorted(last.items())
    assert computed(plain, spark, path) == sent(ps, "plain")


def test_the_table_of_latest_messages_has_one_row_for_each_key_that_is_there(spark, tmp_path):
    with penstock.open(tmp_path) as ps:
        settings = ps.create_queue("settings", compaction="latest", compaction_drops_unread=True)
        settings.push_many([Message(payload=n, key=f"k{n % 4}") for n in range(20)])
        ps.seal()
        settings.compact()
        settings.push(None, key="k1")
        settings.push(99, key="k2")

        rows = table(spark, tmp_path, "settings", table="latest", columns=["key", "payload"]).collect()
        selected = query(spark, str(tmp_path), "select key, offset from latest order by key").collect()

    assert sorted((row.key, bytes(row.payload)) for row in rows) == [("k0", b"16"), ("k2", b"99"), ("k3", b"19")]
    assert [(row.key, row.offset) for row in selected] == [("k0", 16), ("k2", 21), ("k3", 19)]
