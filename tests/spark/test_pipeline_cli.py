"""`penstock pipeline run` with Spark: pipelines of your own, in batches and as a stream, each message exactly once."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.cli import spark_session
from penstock.cli.spark_session import hush
from penstock.spark.pipelines.custom import State
from penstock.spark.pipelines.state import read_state, write_state
from tests.cli.conftest import Run, nobodys_settings, run  # noqa: F401 - fixtures
from tests.support.broker_process import QUIET, Served
from tests.test_docs import python_blocks

OTHERS = """
import penstock
from pyspark.sql.functions import udf

@penstock.pipeline(source="orders", sink="copies")
def nothing(orders):
    return None

@penstock.pipeline(source="orders", sink="copies")
def broken(orders):
    return orders.select(orders.payload, orders.nosuch)

@penstock.pipeline(source="ordrs", sink="copies")
def lost(orders):
    return orders

@penstock.pipeline(source="orders", sink="copies")
def failing(orders):
    @udf("string")
    def fail(offset):
        raise ValueError(f"no customer {offset}")

    return orders.select(fail("offset").alias("payload"))

@penstock.pipeline(source="orders", sink="copies")
def misspelt(orders):
    return ordrs

def plain(orders):
    return orders
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with the pipeline of docs/pipelines.md, some others, and some orders."""
    example = next(block for block in python_blocks("docs/pipelines.md") if "@penstock.pipeline" in block)
    (tmp_path / "orders.py").write_text(example)
    (tmp_path / "others.py").write_text(OTHERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    push(40, 140, 240)
    yield tmp_path
    for name in ("orders", "others"):
        sys.modules.pop(name, None)


@pytest.fixture
def start(run: Run, here: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: F811
    """Run a pipeline in a Spark that runs already."""
    hush()
    monkeypatch.setattr(tempfile, "tempdir", str(here))
    monkeypatch.setattr(spark_session, "start", lambda *_: spark)
    monkeypatch.setattr(spark_session, "stop", lambda _: None)
    return lambda name, *words: run(
        "pipeline", "run", name, *(words if "--url" in words else (*words, "--url", "data"))
    )


def push(*totals: int) -> None:
    with penstock.open("data") as ps:
        ps.queue("orders").push_many([{"total": total} for total in totals])


def big() -> list[float]:
    """The totals in the sink."""
    with penstock.open("data") as ps:
        return sorted(json.loads(message.payload)["total"] for message in ps.queue("orders.big").read("0", 0))


def test_a_run_takes_what_has_come_since_the_last_one(start, here):
    first = start("orders:big")
    again = start("orders:big")
    push(50, 340)
    last = start("orders:big", "--json")

    assert first.code == 0, first.err
    assert "3 messages of orders became 2 in orders.big" in first.out
    assert "nothing new in orders" in again.out
    assert last.json["figures"] == {"run": 1, "messages": 2, "pushed": 1}
    assert big() == [140, 240, 340]


def test_a_run_that_was_killed_after_its_commit_pushes_nothing_twice(start, here):
    start("orders:big")
    path = Path("pipelines/orders.big/state.json")
    state = read_state(path, State)
    assert state is not None
    write_state(path, msgspec.structs.replace(state, is_done=False))
    push(340)

    same = start("orders:big")
    rest = start("orders:big")

    assert "3 messages of orders" in same.out, same.err
    assert "1 message of orders" in rest.out, rest.err
    assert big() == [140, 240, 340]


def test_a_stream_goes_on_where_it_was(start, here):
    words = ("orders:big", "--stream", "--available-now")
    first = start(*words)
    push(50, 340)
    last = start(*words, "--json")

    assert first.code == 0, first.err
    assert "3 messages of orders to orders.big" in first.out
    assert last.json["figures"]["messages"] == 2
    assert big() == [140, 240, 340]


def test_a_broker_is_read_and_written_like_a_directory(start, here):
    with Served(here, "--data", "data", *QUIET) as served:
        url = f"penstock://localhost:{served.port()}"
        batch = start("orders:big", "--url", url)
        stream = start("orders:big", "--url", url, "--stream", "--available-now", "--out", "stream")

    assert "3 messages of orders became 2" in batch.out, batch.err
    assert "3 messages of orders to orders.big" in stream.out, stream.err
    assert big() == [140, 140, 240, 240]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("others:nothing", "others:nothing returned NoneType, not a DataFrame"),
        ("others:broken", "`nosuch` is not supported"),
        ("others:lost", "there is no queue 'ordrs'"),
        ("others:failing", "ValueError: no customer 0"),
        ("others:misspelt", "others:misspelt failed: NameError: name 'ordrs' is not defined"),
        ("others:plain", "others:plain is not a pipeline"),
        ("others:brokn", "did you mean 'broken'?"),
        ("nowhere:big", "there is no module 'nowhere'"),
    ],
)
def test_what_is_wrong_with_a_pipeline_is_reported_in_a_line(start, here, name, message):
    found = start(name)

    assert found.code in (1, 4), found.err
    assert message in found.err
    assert len(found.err.strip().splitlines()) <= 2


def test_a_failed_run_is_in_the_status(start, run, here):  # noqa: F811
    start("others:nothing")

    assert "failed: others:nothing returned NoneType" in run("pipeline", "status", "others:nothing").out
