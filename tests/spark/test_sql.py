"""`penstock sql`: views over a directory, what comes out, and what is said of a wrong question."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from penstock import Message
from penstock import operations as ops
from penstock.cli import output, spark_session
from penstock.cli.spark_session import hush
from penstock.client.handles import Penstock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import InvalidField
from penstock.history.sql import meant
from penstock.spark.tables import check_reading, query
from tests.cli.conftest import Run, nobodys_settings, run  # noqa: F401 - fixtures
from tests.support.operations import run_operation


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some queues, half sealed and half not."""
    found = tmp_path_factory.mktemp("sql") / "data"
    session = Session(found, background=False)
    with Penstock(BlockingSession(session)) as ps:
        ps.queue("orders").push_many([Message(payload={"total": n}, key=f"k{n % 2}") for n in range(6)])
        ps.queue("orders").lease(4).ack()
        run_operation(session, ops.Seal())
        ps.queue("orders").push_many([Message(payload={"total": n}, headers={"a": "b"}) for n in range(6, 10)])
        ps.queue("orders.eu-1").push_many(["grüße", b"\xff\x00"])
    return found


@pytest.fixture
def ask(run: Run, spark: SparkSession, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: F811
    """Type a query at a Spark that runs already."""
    hush()
    monkeypatch.setattr(spark_session, "start", lambda *_: spark)
    monkeypatch.setattr(spark_session, "stop", lambda _: None)
    return lambda *words, **options: run("sql", *words, "--engine", "spark", "--url", directory, **options)


@pytest.fixture(params=["duckdb", "spark"])
def either(request: pytest.FixtureRequest, run: Run, directory: Path) -> Any:  # noqa: F811
    """Type a query at each engine."""
    if request.param == "spark":
        return request.getfixturevalue("ask")
    return lambda *words, **options: run("sql", *words, "--url", directory, **options)


def test_all_queues_are_one_table_sealed_or_not(either):
    found = either("select queue, count(*) as n from messages group by queue order by queue")

    assert found.code == 0, found.err
    assert [line.split() for line in found.out.splitlines()] == [
        ["queue", "n"], ["orders", "10"], ["orders.eu-1", "2"], ["2", "rows"],
    ]  # fmt: skip


def test_events_tell_what_became_of_messages(either):
    found = either("select outcome, sum(count) as n from events where queue = 'orders' group by outcome", "--json")

    assert found.json_lines == [{"outcome": "acked", "n": 4}]


@pytest.mark.parametrize("name", ["`orders.eu-1`", "orders_eu_1"])
def test_a_queue_is_a_view_by_its_name_or_with_underscores(either, name):
    found = either(f"select offset, payload, key, headers from {name} order by offset", "--format", "json")

    assert found.json_lines == [
        {"offset": 0, "payload": "grüße", "key": None, "headers": None},
        {"offset": 1, "payload_base64": "/wA=", "key": None, "headers": None},
    ]


def test_a_table_shows_nulls_bytes_and_maps_so_that_people_can_read_them(either):
    eu = either("select payload, key from orders_eu_1 order by offset").out.splitlines()
    headers = either("select headers, pushed_at from orders where offset = 9").out.splitlines()

    assert [line.split() for line in eu[1:3]] == [["grüße", "NULL"], ["ff", "00", "NULL"]]
    assert headers[1].startswith('{"a":"b"}  2')
    assert headers[1].rstrip().endswith("Z")


def test_a_table_ends_at_its_limit_and_says_so(ask):
    assert "100 rows; there are more" in ask("select id from range(101)").out
    assert ask("select offset from orders order by offset", "-n", "2", "-f", "csv").out == "offset\n0\n1\n"


def test_csv_has_nothing_for_null_and_hex_for_what_is_no_text(ask):
    found = ask("select payload, key, array(offset) as places from orders_eu_1 order by offset", "--format", "csv")

    assert list(csv.reader(io.StringIO(found.out))) == [
        ["payload", "key", "places"], ["grüße", "", "[0]"], ["0xff00", "", "[1]"],
    ]  # fmt: skip


def test_parquet_is_one_file_in_the_order_of_the_query(either, tmp_path):
    out = tmp_path / "deep" / "result.parquet"

    found = either("select offset, payload from orders order by offset desc", "--format", "parquet", "--out", out)

    assert "10 rows in" in found.out, found.err
    table = pq.read_table(out)
    assert table["offset"].to_pylist() == list(range(9, -1, -1))
    assert [each.name for each in out.parent.iterdir()] == ["result.parquet"]


def test_statements_are_read_from_standard_input(either):
    found = either("-f", "csv", stdin=b"select count(*) as n\nfrom orders;\n\nselect 1 as one\n")

    assert found.out == "n\n10\none\n1\n"


def test_a_prompt_outlives_a_wrong_question(either, monkeypatch):
    lines = iter(["selec 1;", "select 7 as", "seven;", "exit"])
    monkeypatch.setattr(output, "has_terminal", lambda: True)
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))

    found = either()

    assert "did you mean 'select'?" in found.err
    assert "seven" in found.out


@pytest.mark.parametrize(
    ("query", "messages"),
    [
        ("selec 1", ["selec: queues are read-only here", "did you mean 'select'?"]),
        ("select (1", ["Syntax error", "line 1"]),
        ("select totl from orders", ["`totl` cannot be resolved", "Did you mean"]),
        ("select * from ordrs", ["there is no view or queue 'ordrs'", "did you mean 'orders'?"]),
        ("select nosuch(offset) from orders", ["`nosuch`"]),
        ("select cast('x' as int)", ["'x'", "cannot be cast"]),
        ("", ["Syntax error, unexpected empty statement"]),
    ],
)
def test_a_wrong_query_is_answered_in_one_line(ask, query, messages):
    found = ask(query)

    assert found.code == 1, found.err
    assert [text for text in messages if text not in found.err] == [], found.err
    assert len(found.err.strip().splitlines()) <= 2
    assert [word for word in ("SQLSTATE", "org.apache", "Project", "==") if word in found.err] == []


@pytest.mark.parametrize(
    "statement",
    [
        "insert into orders select * from orders",
        " DROP view orders",
        "with a as (select 1) insert into t select * from a",
        "from orders insert into t select *",
        "insert overwrite directory '/tmp/x' using parquet select 1",
        "/* select */ create table t as select 1",
        "-- select\ncreate view v as select 1",
        "(insert into t select 1)",
        "with a as (select r'\\' x) insert into t select 'y'",
        "execute immediate 'insert into t select 1'",
        "begin select 1; end",
        "call system.run()",
        "cache table orders",
        "load data inpath 'x' into table y",
        "merge into t using s on t.a = s.a when matched then delete",
        "update t set a = 1",
        "delete from t",
        "use other",
        "select transform(payload) using 'tee /tmp/x' from orders",
        "select transform(payload) row format delimited using\n\"sh -c 'date'\" as (a) from orders",
        "from orders map key using 'cat'",
        "from orders reduce key /* as a stream */ using -- a program\n'cat'",
        "select reflect('java.lang.System', 'exit', 1)",
        "select `java_method` ('java.lang.System', 'exit', 1)",
        "select TRY_REFLECT('java.lang.System', 'exit', 1)",
        "with a as (select reflect('java.util.UUID', 'randomUUID')) select * from a",
        "create function f as 'a.B' using jar '/tmp/x.jar'",
        "add jar '/tmp/x.jar'",
        "truncate table t",
        "analyze table t compute statistics",
    ],
)
def test_statements_that_would_change_something_are_refused(statement):
    nothing: Any = None  # it is not used
    with pytest.raises(InvalidField, match="queues are read-only here"):
        query(nothing, "nowhere", statement)


@pytest.mark.parametrize(
    "statement",
    [
        "select 'insert into x' from orders",
        "select `insert` from orders -- insert",
        "select transform(array(1), x -> x + 1) from a join b using (id)",
        "select reflect, `reflect`, 'reflect(1)', \" using 'x'\" from orders /* reflect( */",
        "select map('a', 'b') from a join b using (`x`)",
        "with a as (select 1) select * from a",
        "(select 1) union (select 2)",
        "/* insert */ show views",
        "describe messages",
        "explain select 1",
        "create or replace temporary view v as select 1",
        "values (1)",
        "set spark.sql.ansi.enabled = false",
        "",
    ],
)
def test_statements_that_read_are_not(statement):
    check_reading(statement)


def test_a_statement_that_is_refused_starts_no_spark(run, directory, monkeypatch):  # noqa: F811
    monkeypatch.setattr("penstock.cli.spark_session.started", None)

    found = run("sql", "selct 1", "--engine", "spark", "--url", directory)

    assert found.code == 1
    assert "did you mean 'select'?" in found.err


def test_what_needs_a_file_says_so_before_spark_starts(run, directory):  # noqa: F811
    found = run("sql", "select 1", "--format", "parquet", "--url", directory)

    assert (found.code, "--format parquet needs a file" in found.err) == (1, True)


def test_only_views_that_a_statement_can_mean_are_made():
    queues = ["Orders", "a.b", "a_b", "events", "mail", "orders", "x-1"]

    assert meant("select * from mail, `x-1`", queues) == {"mail": "mail", "x-1": "x-1"}
    assert meant("select * from A_B", queues) == {"a_b": "a_b"}
    assert meant("select * from orders, events", queues) == {"events": None}
    assert set(meant("show views", queues)) == {"a.b", "a_b", "events", "latest", "mail", "messages", "tasks", "x-1"}


def test_errors_as_programs_read_them(either):
    found = either("select * from ordrs", "--json")

    assert found.json["error"]["code"] in {"bad_query", "invalid_field"}
    assert found.json["error"]["message"] == "there is no view or queue 'ordrs'"


def documented() -> list[str]:
    """Every query in docs/sql.md that is typed at a shell."""
    text = Path("docs/sql.md").read_text(encoding="utf-8")
    found = re.findall(r"""^penstock sql (?:"([^"]*)"|'([^']*)')""", text, re.MULTILINE)
    return [double or single for double, single in found]


def test_every_documented_query_has_the_same_result_on_both_engines(run, spark, ask, tmp_path, monkeypatch):  # noqa: F811
    where = tmp_path / "documented"
    with Penstock(BlockingSession(Session(where, background=False))) as ps:
        ps.queue("orders").push_many([Message(payload={"total": n}, key=f"customer-{n}") for n in range(9)])
        ps.queue("orders.eu").push("x")
        ps.queue("orders").lease(4).ack()

    assert len(documented()) >= 6
    for text in documented():
        words = ("sql", text, "-f", "json", "--url", where)
        by_duckdb, by_spark = run(*words), run(*words, "--engine", "spark")
        assert (by_duckdb.code, by_spark.code) == (0, 0), (text, by_duckdb.err, by_spark.err)
        assert rows(by_duckdb.out) == rows(by_spark.out), text


def rows(text: str) -> list[list[Any]]:
    """The values of each row, sorted by the names that both engines give to columns without one."""
    return sorted((list(json.loads(line).values()) for line in text.splitlines()), key=repr)
