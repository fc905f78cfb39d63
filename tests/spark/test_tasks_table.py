"""Tasks as a table of Spark, and as a view of SQL."""

from __future__ import annotations

import pytest

import penstock
import penstock.spark
from penstock import operations as ops
from penstock.spark.tables import query
from tests.behaviour.task_steps import Office
from tests.support.operations import run_operation


@pytest.fixture
def data(tmp_path):
    """One task whose life is in two segments and the journal, and one that has just begun."""
    with penstock.open(tmp_path / "data", durability="os") as ps:
        office = Office(ps)
        office.enqueue("mail.send", args=b'["a@b.c"]', max_attempts=3)
        run_operation(office.session, ops.Seal())
        office.lease_one(worker="w1").finish("failed", error="boom", delay_seconds=0)
        run_operation(office.session, ops.Seal())
        office.lease_one(worker="w2").finish(result={"sent": 1})
        office.enqueue("report.make", queue="reports")
    return str(tmp_path / "data")


def test_every_change_is_a_row_wherever_it_lies(spark, data):
    penstock.spark.register(spark)
    read = spark.read.format("penstock").option("url", data).option("table", "tasks")

    rows = read.load("mail").orderBy("at", "attempt").collect()

    assert [(row.task_type, row.state, row.attempt, row.worker) for row in rows] == [
        ("mail.send", "pending", None, None),
        ("mail.send", "failed", 1, "w1"),
        ("mail.send", "completed", 2, "w2"),
    ]
    assert rows[0].args == '["a@b.c"]'
    assert rows[1].error == "boom"
    assert rows[2].result == '{"sent":1}'

    found = query(spark, data, "select task_type, state from tasks where state <> 'failed' order by 1, 2")
    assert [tuple(row) for row in found.collect()] == [
        ("mail.send", "completed"),
        ("mail.send", "pending"),
        ("report.make", "pending"),
    ]
