"""SQL by DuckDB over the history: what it reads, and everything that it must not be able to do."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime

import pytest

import penstock
from penstock.errors import BadQuery, InputError
from penstock.history import open_history
from penstock.history.sql import SqlEngine


@pytest.fixture
def directory(tmp_path):
    with penstock.open(tmp_path / "data", durability="os") as ps:
        ps.queue("orders").push_many([penstock.Message(payload={"n": n}, key=f"k{n % 3}") for n in range(3000)])
        ps.queue("secret.plans").push("attack at dawn")
        ps.queue("orders").lease(max=100).ack()
    return tmp_path / "data"


@pytest.fixture
def engine(directory):
    with closing(open_history(directory)) as history:
        yield SqlEngine(history)


def values(engine, text, **options):
    return [tuple(row.values()) for row in engine.query(text, **options).to_pylist()]


def test_columns_and_rows_are_read_as_the_query_needs_them(engine):
    assert values(engine, "select key, count(*) from orders where offset < 9 group by key order by key") == [
        ("k0", 3),
        ("k1", 3),
        ("k2", 3),
    ]
    assert values(engine, "select count(*) from messages") == [(3001,)]
    assert values(engine, "select sum(count) from events where outcome = 'acked'") == [(100,)]
    both = "select count(*) from orders a join orders b on a.offset = b.offset where a.key = 'k1'"
    assert values(engine, both) == [(1000,)]
    assert values(engine, "select count(*) from messages", until=datetime(2020, 1, 1, tzinfo=UTC)) == [(0,)]
    assert len(values(engine, "select * from orders", rows_max=7)) == 7


def test_a_caller_sees_the_queues_that_it_may_read_and_no_others(directory):
    with closing(open_history(directory)) as history:
        engine = SqlEngine(history, allows=lambda queue: queue == "orders")
        assert values(engine, "select distinct queue from messages") == [("orders",)]
        with pytest.raises(BadQuery, match="there is no view or queue"):
            engine.query('select * from "secret.plans"')


@pytest.mark.parametrize(
    "statement",
    [
        "select * from read_text('/etc/passwd')",
        "select * from read_csv_auto('/etc/passwd')",
        "select * from read_parquet('s3://bucket/x')",
        "select * from glob('/*')",
        "select * from '/etc/passwd'",
        "select content from read_blob('/etc/hostname')",
        "from sniff_csv('/etc/passwd')",
        "copy orders to '/tmp/stolen.csv'",
        "copy (select 1) to '/tmp/stolen.parquet'",
        "attach '/tmp/other.db' as other",
        "attach ':memory:' as more",
        "install httpfs",
        "load httpfs",
        "export database '/tmp/stolen'",
        "import database '/tmp/stolen'",
        "set enable_external_access = true",
        "reset lock_configuration",
        "pragma enable_profiling",
        "call dbgen(sf = 1)",
        "create table stolen as select * from orders",
        "create macro x() as 1",
        "drop view orders",
        "insert into orders values (1)",
        "delete from orders",
        "update orders set key = 'x'",
        "select getenv('HOME')",
        "checkpoint",
        "select 1; select 2",
        "begin",
        "prepare p as select 1",
        "use memory",
        "",
    ],
)
def test_a_statement_reads_queues_and_can_do_nothing_else(engine, statement):
    with pytest.raises(InputError):
        engine.query(statement)


def test_names_of_variables_in_this_program_mean_nothing_to_a_query(engine):
    stolen = engine.query("select 1 as one")
    assert stolen.num_rows == 1
    with pytest.raises(BadQuery, match="no view or queue 'stolen'"):
        engine.query("select * from stolen")


def test_a_query_takes_no_more_memory_than_it_may(engine):
    with pytest.raises(BadQuery, match="failed to allocate"):
        engine.query("select list(a.payload || b.payload || c.key) from orders a, orders b, orders c")
