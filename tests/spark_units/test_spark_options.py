"""Options of the Spark source and sink; the checks before Spark is started; errors that passed through it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql.datasource import DataSource

import pyspark_penstock
from penstock import units
from penstock.clock import SystemClock
from penstock.errors import InvalidField, QueueNotFound, SparkMissing
from penstock.spark import failures, sessions
from penstock.spark.options import option_names, sink_options, source_options
from penstock.spark.sessions import require_java

BASE = {"url": "penstock://localhost:7710", "path": "orders"}


def refusal(**given: str) -> InvalidField:
    with pytest.raises(InvalidField) as caught:
        source_options({**BASE, **given})
    return caught.value


def test_names_are_taken_in_any_case_and_have_defaults():
    options = source_options({"URL": "penstock://localhost:7710", "path": "orders", "STARTINGoffsets": "Latest"})

    assert (options.queues, options.table, options.starting_offsets) == (("orders",), "messages", "latest")
    assert (options.payload, options.headers, options.part, options.fail_on_data_loss) == ("binary", "map", "all", True)


def test_several_queues_are_a_list_or_what_spark_makes_of_several_paths():
    assert source_options({**BASE, "path": "a, b,c.*"}).queues == ("a", "b", "c.*")
    assert source_options({"url": "penstock://h:1", "paths": '["a","b"]'}).queues == ("a", "b")


def test_a_directory_is_named_in_full_since_tasks_may_run_elsewhere():
    assert source_options({"url": "data", "path": "a"}).url == str(Path("data").absolute())


@pytest.mark.parametrize(
    ("given", "says", "hint"),
    [
        ({"tabel": "events"}, "tabel: there is no such option", "did you mean 'table'?"),
        ({"startingoffset": "earliest"}, "startingoffset: there is no such option", "did you mean 'startingOffsets'?"),
        ({"zzz": "1"}, "zzz: there is no such option", "known: url, path"),
        ({"table": "event"}, "table: 'event' is not one of messages, events", "did you mean 'events'?"),
        ({"payload": "text"}, "payload: 'text' is not one of", "known: binary"),
        ({"local": "maybe"}, "local: 'maybe' is neither true nor false", ""),
        ({"queue": "others"}, "queue: path and queue differ", "give the queue once"),
        ({"maxMessagesPerTrigger": "0"}, "maxMessagesPerTrigger: '0' is not a number from 1", ""),
        ({"maxPartitionBytes": "big"}, "maxPartitionBytes: 'big' is not a size", "64KiB"),
        ({"startingTime": "yesterday"}, "startingTime: 'yesterday' is not a time", "2030-01-31T12:00:00Z"),
        ({"leaseSeconds": "-1"}, "leaseSeconds: '-1' is not a duration", ""),
        ({"startingOffsets": "first"}, "startingOffsets: 'first' is not a set of offsets", "earliest"),
        ({"endingOffsets": '{"0": -1}'}, "is not a set of offsets", "by partition"),
        ({"endingOffsets": "{}"}, "is not a set of offsets", "by partition"),
        ({"columns": " , "}, "columns: it is empty", ""),
        ({"url": " "}, "url: it is empty", "penstock://"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(given, says, hint):
    error = refusal(**given)

    assert says in error.message
    assert hint in error.hint


def test_a_read_needs_a_place_and_a_queue():
    with pytest.raises(InvalidField, match=r"url: required, to locate the queues.*penstock://"):
        source_options({"path": "orders"})
    with pytest.raises(InvalidField, match=r"queue: not given.*load\('orders'\).*option\('queue'"):
        source_options({"url": "penstock://localhost:7710"})


def test_offsets_are_words_or_numbers_by_partition_or_by_queue():
    assert source_options({**BASE, "startingOffsets": '{"0": 5}'}).starting_offsets == {"0": 5}
    by_queue = source_options({**BASE, "endingOffsets": '{"orders": {"0": 5, "1": 6}}'})
    assert by_queue.ending_offsets == {"orders": {"0": 5, "1": 6}}


def test_times_are_instants_or_durations_before_now():
    options = source_options({**BASE, "startingTime": "2030-01-31T12:00:00Z", "endingTime": "-1h"})

    assert options.since == round(datetime(2030, 1, 31, 12, tzinfo=UTC).timestamp() * 1_000_000)
    assert options.until is not None
    assert abs(SystemClock().now() - 3_600_000_000 - options.until) < 60_000_000


def test_words_of_people_mean_the_same_everywhere():
    now = datetime(2030, 1, 31, 12, tzinfo=UTC)

    assert units.instant("-5m", now) == datetime(2030, 1, 31, 11, 55, tzinfo=UTC)
    assert units.instant("+1h30m", now) == datetime(2030, 1, 31, 13, 30, tzinfo=UTC)
    assert units.instant("2030-01-31", now).tzinfo is not None


def test_a_sink_takes_what_spark_adds():
    options = sink_options({**BASE, "checkpointlocation": "ck", "queryName": "q", "sinkId": "s", "resetSink": "true"})

    assert (options.queue, options.checkpoint_location, options.sink_id, options.is_reset) == (
        "orders",
        "ck",
        "s",
        True,
    )


def test_every_option_is_documented():
    pages = [
        page.read_text(encoding="utf-8") for page in (Path(__file__).parent.parent.parent / "docs").glob("spark*.md")
    ]
    documented = {name for page in pages for name in re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)}

    names = {name for known in option_names().values() for name in known} - {"paths"}
    assert names - documented == set()


# Java and PySpark.


@pytest.fixture
def java(tmp_path):
    """A Java that says what it is told to say."""

    def make(said: str) -> dict[str, str]:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / "java").write_text(f"#!/bin/sh\necho '{said}' >&2\n")
        (folder / "java").chmod(0o755)
        return {"JAVA_HOME": str(tmp_path)}

    return make


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_a_java_that_is_new_enough_will_do(java, version):
    home = java(f'openjdk version "{version}" 2025-04-15')

    assert require_java(home) == os.path.join(home["JAVA_HOME"], "bin", "java")


def test_an_old_java_is_named_with_what_to_type(java):
    with pytest.raises(SparkMissing, match=r"is Java 8 .*apt install openjdk-17-jre-headless"):
        require_java(java('java version "1.8.0_392"'))


def test_no_java_says_what_to_type(tmp_path, java):
    with pytest.raises(SparkMissing, match=r"which is not installed .*apt install openjdk-17-jre-headless"):
        require_java({"PATH": str(tmp_path)})
    with pytest.raises(SparkMissing, match=r"JAVA_HOME is .*, where there is no bin/java"):
        require_java({"JAVA_HOME": str(tmp_path / "nowhere")})
    with pytest.raises(SparkMissing, match="does not report its version"):
        require_java(java("hello"))


def test_the_package_is_imported_without_pyspark_and_says_what_to_type():
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import importlib.util, penstock.spark\n"
        "importlib.util.find_spec = lambda name: None\n"
        "try: penstock.spark.session()\n"
        "except penstock.PenstockError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert said == "PySpark is not installed (type: pip install 'penstock-mq[spark]')\n"


def test_spark_finds_the_source_by_itself():
    assert issubclass(pyspark_penstock.DefaultSource, DataSource)
    assert pyspark_penstock.DefaultSource.name() == "penstock"


def test_settings_fit_the_master():
    assert sessions.settings("local[4]")["spark.sql.shuffle.partitions"] == "8"
    assert sessions.settings("local")["spark.driver.host"] == "127.0.0.1"
    assert "arrow" in sessions.settings("local")["spark.driver.defaultJavaOptions"]
    assert not {"spark.driver.host", "spark.driver.defaultJavaOptions"} & {*sessions.settings("spark://host:7077")}
    assert all(name.startswith("spark.sql.") for name in sessions.settings("sc://host"))


# Errors.


def test_an_error_of_ours_is_found_in_what_spark_makes_of_it():
    text = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed to create: penstock.errors.QueueNotFound: there is no queue 'a' "
        "(did you mean 'b'?)\n SQLSTATE: 38000"
    )
    found = failures.cause(RuntimeError(text))

    assert isinstance(found, QueueNotFound)
    assert str(found) == "there is no queue 'a' (did you mean 'b'?)"
    assert failures.cause(RuntimeError("penstock.errors.Final: no error")) is None
    assert failures.cause(RuntimeError("something else")) is None


def test_outside_of_sparks_processes_nothing_is_hidden(monkeypatch):
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)

    @failures.shown_plainly
    def fail():
        raise InvalidField("no")

    with pytest.raises(InvalidField):
        fail()
    assert "SPARK_HIDE_TRACEBACK" not in os.environ
